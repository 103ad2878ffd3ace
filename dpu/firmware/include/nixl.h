/*
 * nixl.h: NIXL (NVIDIA's transfer library, over UCX) as a fabric.
 *
 * Model: NIXL is not linked. `ofs_nixl_load` opens its C interface by path, once in a process, and
 * from then on `nixl` is one of the sides of port.h and fabric.h. Each end is an *agent*: the DPU
 * has one for each tenant, in which that tenant's region and the put windows of its ports are
 * registered; each host has one. A host READs directory and records out of the region and WRITEs
 * puts into its window, one-sidedly; commands and answers are NIXL's notifications. The blob of an
 * attach carries the DPU's metadata, and the host's first notification carries the host's, so that
 * one blob in one direction is enough here too.
 *
 * NIXL may allocate at any time: "nothing after open" applies only to our code.
 *
 * Trust: UCX checks the keys of remote memory where hardware does (RDMA). Over TCP and shared
 * memory its software does not: anything that can connect can read and write what the agent's
 * process can. A host of this fabric must therefore be trusted like the daemon; see
 * docs/how-to/links-and-drives.md.
 */
#ifndef OFS_NIXL_H
#define OFS_NIXL_H

#include "ofs_base.h"

/* cdef: order 10 */
/* cdef: begin */
/*
 * Any thread. `path` is that of libnixl_capi.so. 0, even if it is loaded already; -ENOENT it cannot
 * be loaded, -ENOTSUP it lacks a needed function: `error` names cause and fix.
 */
int ofs_nixl_load(const char *path, char *error, size_t error_size_bytes);
/*
 * Opens the agent for the next tenant's region, which takes about a second: call it before an
 * attach, from a thread that may wait, or the reactor waits. 0 there is one; -EIO NIXL refuses.
 */
int ofs_nixl_prepare(void);

/* A bare loop of NIXL, for `offstage bench fabric`: two agents that know nothing of Offstage. */
struct ofs_nixl_loop;
/* Opens one end, with `size_bytes` of its own memory. A `target` makes progress without calls. */
int ofs_nixl_loop_open(struct ofs_nixl_loop **out, uint64_t size_bytes, int target);
/*
 * Opens one end over `size_bytes` at `address` in the memory of GPU `device`, which the caller
 * owns. -ENODEV: this machine's UCX reaches no such memory.
 */
int ofs_nixl_loop_open_device(struct ofs_nixl_loop **out, uint64_t address, uint64_t size_bytes,
	uint32_t device);
/* What the other end needs; -ENOSPC more than `room_bytes`. */
int ofs_nixl_loop_export(struct ofs_nixl_loop *loop, uint8_t *blob, uint32_t room_bytes,
	uint32_t *size_bytes);
/*
 * From this end: `batch` reads (or writes) of `size_bytes` each together, by prepared requests,
 * `round_count` times; ns [round_count] gets the time of each round. -EINVAL sizes, -EPIPE,
 * -ETIMEDOUT.
 */
int ofs_nixl_loop_run(struct ofs_nixl_loop *loop, const uint8_t *blob, uint32_t blob_size_bytes,
	int write, uint32_t size_bytes, uint32_t batch, uint32_t round_count, uint64_t *ns);
void ofs_nixl_loop_close(struct ofs_nixl_loop *loop);
/* cdef: end */

#endif
