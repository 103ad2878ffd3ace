/*
 * nixl.h: NIXL (NVIDIA's transfer library, over UCX) as a fabric of its own.
 *
 * Model: NIXL is not linked. `ofs_nixl_load` opens its C interface by path, once in a process, and
 * from then on `nixl` is one of the sides of port.h and fabric.h. Each end is an *agent*: the DPU's
 * is one for each tenant, in which that tenant's region and the put windows of its ports are
 * registered; a host's is its own. A host READs directory and records out of the region and WRITEs
 * puts into its window, one-sidedly; commands and answers are NIXL's notifications. The blob of an
 * attach carries the DPU's metadata, the host's own comes back in its first notification, so that
 * one blob, one way, is enough here too.
 *
 * What NIXL allocates it allocates when it likes: "nothing after open" holds for our side alone.
 *
 * Trust: UCX checks the keys of remote memory where hardware does (RDMA). Over TCP and shared
 * memory its software does not: who can connect can read and write what the agent's process can. A
 * host of this fabric is therefore trusted as the daemon is; see docs/how-to/links-and-drives.md.
 */
#ifndef OFS_NIXL_H
#define OFS_NIXL_H

#include "ofs_base.h"

/* cdef: order 10 */
/* cdef: begin */
/*
 * Any thread. `path` is that of libnixl_capi.so. 0, also when it is loaded already; -ENOENT it
 * cannot be loaded, -ENOTSUP it lacks a needed function: `error` names cause and fix.
 */
int ofs_nixl_load(const char *path, char *error, size_t error_size_bytes);
/*
 * Opens the agent that the next tenant's region takes, which costs about a second: call it before
 * an attach, from a thread that may wait, or the reactor waits. 0 there is one; -EIO NIXL refuses.
 */
int ofs_nixl_prepare(void);

/* A bare loop of NIXL, for `offstage bench fabric`: two agents that know nothing of Offstage. */
struct ofs_nixl_loop;
/* One end, with `size_bytes` of its own memory. A `target` makes progress without calls. */
int ofs_nixl_loop_open(struct ofs_nixl_loop **out, uint64_t size_bytes, int target);
/*
 * One end over `size_bytes` at `address` in the memory of GPU `device`, the caller's. -ENODEV: this
 * machine's UCX reaches no such memory.
 */
int ofs_nixl_loop_open_device(struct ofs_nixl_loop **out, uint64_t address, uint64_t size_bytes,
	uint32_t device);
/* What the other end needs; -ENOSPC more than `room_bytes`. */
int ofs_nixl_loop_export(struct ofs_nixl_loop *loop, uint8_t *blob, uint32_t room_bytes,
	uint32_t *size_bytes);
/*
 * At the other end: `batch` reads (or writes) of `size_bytes` each together, over requests that are
 * prepared, `round_count` times, each round timed: ns [round_count]. -EINVAL sizes, -EPIPE,
 * -ETIMEDOUT.
 */
int ofs_nixl_loop_run(struct ofs_nixl_loop *loop, const uint8_t *blob, uint32_t blob_size_bytes,
	int write, uint32_t size_bytes, uint32_t batch, uint32_t round_count, uint64_t *ns);
void ofs_nixl_loop_close(struct ofs_nixl_loop *loop);
/* cdef: end */

#endif
