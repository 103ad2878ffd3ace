/*
 * verbs.h: the RDMA side of the fabric seam, in a separate extension (side.h).
 *
 * Model: a process has one adapter, opened by ofs_verbs_open as configured. Host and DPU each have
 * one reliable queue pair for a port, with one completion queue. A tenant's region is registered
 * for remote reads under a protection domain of the tenant, and a port for remote writes under the
 * same domain: a host's key opens nothing of another tenant, and the adapter refuses it there. Two
 * blobs over the control connection carry the addresses: the DPU's in an attach, and the host's
 * answer.
 *
 * Traffic: the host READs buckets and records, WRITEs puts and the payload of a command, and WRITEs
 * the command itself with an immediate value, the new tail of the submission ring. The DPU WRITEs
 * results, and a completion with an immediate value, the new tail and head. An immediate value
 * becomes a completion in the receiver's queue, so everything written before it has arrived, and a
 * sleeper wakes.
 */
#ifndef OFS_VERBS_H
#define OFS_VERBS_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
#define OFS_VERBS_NAME_SIZE_BYTES 64

enum { OFS_VERBS_GID_AUTO = -1 };

/*
 * All zero except gid_index OFS_VERBS_GID_AUTO: the adapter that is open; else the first device,
 * its first port, an automatic GID.
 */
struct ofs_verbs_config {
	char device[OFS_VERBS_NAME_SIZE_BYTES]; /* "": the first with an active port */
	uint32_t port;                          /* 0: the first that is active */
	int32_t gid_index;                      /* OFS_VERBS_GID_AUTO: RoCE v2, IPv4 before IPv6 */
	uint32_t mtu_bytes;                     /* 256 to 4096; 0: what the port's link supports */
	uint32_t reserved;
};

/* The adapter that was opened. */
struct ofs_verbs_adapter {
	char device[OFS_VERBS_NAME_SIZE_BYTES];
	uint32_t port;
	uint32_t gid_index;
	uint32_t mtu_bytes;
	uint32_t reserved;
	uint8_t gid[16];
};

uint32_t ofs_verbs_version(void);
/*
 * `services`: ofs_services_get of the firmware. A second call with the same choice does nothing;
 * with another: -EBUSY while a link is open. -ENODEV no such device, -ENETDOWN its port is down,
 * -EINVAL no such GID or MTU, -EPROTO services of another version, -errno; `error` names cause and
 * fix.
 */
int ofs_verbs_open(const struct ofs_verbs_config *config, const void *services, char *error,
	size_t error_size_bytes);
/*
 * Device, port and GID from which the DPU of an attach is reached, by the kernel's routes. `blob`:
 * the blob of the attach. -ENOSYS, -ENODEV without rdma_cm; -ENOENT the DPU's GID is no IP address;
 * -EPROTO, -EINVAL no such blob; -errno no route from any adapter.
 */
int ofs_verbs_route(const void *blob, uint32_t size_bytes, struct ofs_verbs_config *config);
/* The adapter that ofs_verbs_open opened; -ENODEV before. */
int ofs_verbs_adapter_get(struct ofs_verbs_adapter *adapter);
/* The `struct ofs_fabric_side *` for ofs_fabric_add. */
const void *ofs_verbs_side(void);
/* cdef: end */

#endif
