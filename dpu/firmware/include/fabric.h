/*
 * fabric.h: seam 3, how a host reaches a region and its port.
 *
 * Model: one fabric handle is one host's way to one tenant's region (read one-sidedly) and to one port of
 * its own (commands and completions). One thread owns it. `read` posts a one-sided read, and `flush`
 * returns when all posted reads are in place: shared memory does the copy in `read`; RDMA posts work
 * requests and polls in `flush`. Nothing blocks but `flush` and `wait`, both bounded by a timeout.
 *
 * Sides: shm (mappings), sim (in-process, seeded delays and torn reads), later verbs and nixl. The ZMQ fabric,
 * for where nothing better exists, is a proxy in Python that runs this driver next to the daemon. One contract suite over all.
 */
#ifndef OFS_FABRIC_H
#define OFS_FABRIC_H

#include "region.h"

struct ofs_fabric;

struct ofs_fabric_ops {
	const char *name;
	void (*close)(struct ofs_fabric *fabric);
	int (*read)(struct ofs_fabric *fabric, uint64_t region_offset, void *target,
		uint32_t size_bytes);
	int (*flush)(struct ofs_fabric *fabric, uint64_t timeout_ns);
	/* Copy into the put window of the port. */
	int (*write_put)(struct ofs_fabric *fabric, uint32_t put_slot, const void *source,
		uint32_t size_bytes);
	/* Where the caller may build the payload of the next submission with this index. */
	void *(*payload)(struct ofs_fabric *fabric, uint32_t payload_index);
	/* 0 queued; -EAGAIN full; -EPIPE the port is closed. */
	int (*submit)(struct ofs_fabric *fabric, const struct ofs_sqe *sqe);
	int (*poll)(struct ofs_fabric *fabric, struct ofs_cqe *cqes, int max);
	/* Results of a completed STEP, valid until its payload area is used again. */
	const struct ofs_result *(*results)(struct ofs_fabric *fabric, const struct ofs_cqe *cqe);
	/* Spin shortly, then sleep until a completion or the timeout. 0, -ETIMEDOUT, -EPIPE. */
	int (*wait)(struct ofs_fabric *fabric, uint64_t timeout_ns);
};

/* First member of every side's own structure. */
struct ofs_fabric {
	const struct ofs_fabric_ops *ops;
	struct ofs_region_header region;   /* checked copies */
	struct ofs_port_header port;
};

/* Checks magic, version, checksum and that every offset lies inside the mapping; `error` names what and the mend. */
int ofs_fabric_shm_open(struct ofs_fabric **out, int region_fd, int port_fd, int dpu_wake_fd,
	int host_wake_fd, char *error, size_t error_size_bytes);

#endif
