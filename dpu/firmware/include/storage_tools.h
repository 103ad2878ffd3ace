/*
 * storage_tools.h: helpers of tests and benches for a storage: batches, and a read loop in C.
 *
 * Model: these functions do not own the storage; every call runs on its polling thread. A call that
 * moves several I/Os stops at the first refusal.
 */
#ifndef OFS_STORAGE_TOOLS_H
#define OFS_STORAGE_TOOLS_H

#include "storage.h"

/* cdef: begin */
/* Properties after open: size, logical block and whether O_DIRECT is on. */
uint64_t ofs_storage_size_bytes(const struct ofs_storage *storage);
uint32_t ofs_storage_lba_size_bytes(const struct ofs_storage *storage);
uint32_t ofs_storage_queue_depth_max(const struct ofs_storage *storage);
uint32_t ofs_storage_direct(const struct ofs_storage *storage);
void ofs_storage_stats_read(const struct ofs_storage *storage, struct ofs_storage_stats *out);

/* Submits in order; returns how many were taken, or the -errno of the first if none was. */
int ofs_storage_submit_batch(struct ofs_storage *storage, const struct ofs_io *ios, int count);
int ofs_storage_poll_batch(struct ofs_storage *storage, struct ofs_io_done *done, int max);
/* Polls, sleeping in between, until something completed or timeout_ns of wall time passed. */
int ofs_storage_poll_wait(struct ofs_storage *storage, struct ofs_io_done *done, int max,
	uint64_t timeout_ns);

/*
 * `count` reads of `block_size` bytes at seeded random multiples of it, `queue_depth` in flight.
 * Every second read has `other_size` bytes, a smaller size, if that is not 0. Polls; after
 * `spin_ns` without a completion it sleeps on wait_fd, as a reactor does (UINT64_MAX: it only
 * spins). `buffer` holds queue_depth * block_size bytes. latency_ns (may be NULL) gets `count`
 * times, from submit to poll. Returns the elapsed ns of the OS clock, or -errno: -EINVAL for a bad
 * shape, -ETIMEDOUT when nothing completed for ten seconds (its I/Os are still in flight then), or
 * the first failed read's.
 */
int64_t ofs_storage_bench_read(struct ofs_storage *storage, void *buffer, uint32_t block_size,
	uint32_t other_size, uint32_t queue_depth, uint32_t count, uint64_t seed, uint64_t spin_ns,
	uint64_t *latency_ns);
/* cdef: end */

#endif
