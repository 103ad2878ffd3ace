/*
 * internal.h: what the storage back ends share. Private to src/storage.
 *
 * Model: stateless helpers; they run on the thread of the storage passed to them.
 */
#ifndef OFS_STORAGE_INTERNAL_H
#define OFS_STORAGE_INTERNAL_H

#include "storage.h"

enum { OFS_STORAGE_QUEUE_DEPTH_MAX = 4096, OFS_STORAGE_LBA_MAX_BYTES = 65536 };

/* 0, -EAGAIN when the queue is full (counted), -EINVAL for an I/O outside the contract. */
int ofs_storage_check(struct ofs_storage *storage, const struct ofs_io *io);
/* Counts the completion of one accepted I/O and removes it from in_flight. */
void ofs_storage_count(struct ofs_storage *storage, uint16_t op, int64_t result);
/* Appends one sentence to the storage's warning, as far as there is room. */
void ofs_storage_warn(struct ofs_storage *storage, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Fills size, lba, depth and clock of a back end without a file from its configuration. */
void ofs_storage_init(struct ofs_storage *storage, const struct ofs_storage_ops *ops,
	const struct ofs_storage_config *config, struct ofs_clock *clock);

/* Opens (creates, grows) config->path and fills size, lba and direct of `storage`. Returns the
 * file descriptor or -errno. */
int ofs_storage_file_open(struct ofs_storage *storage, const struct ofs_storage_config *config);

/* Placement handles that writes to the file behind `fd` may name: streams 1 to that many of the
 * kernel, the first of them handle 0. 0 of a file, a partition, a drive without, before Linux 6.16,
 * and through the page cache. */
uint32_t ofs_storage_file_handles(const struct ofs_storage *storage, int fd);

/* Anonymous memory for a back end without a file: zeros, allocated by page when touched. */
int ofs_storage_memory_open(uint8_t **out, uint64_t size_bytes);
void ofs_storage_memory_close(uint8_t *memory, uint64_t size_bytes);

/* The placement handle of a write, of `count`: data overwritten in place, which have lifetime 0,
 * never share a reclaim unit with data freed by segment, whose lifetimes take turns. */
static inline uint32_t
ofs_storage_handle(uint32_t lifetime, uint32_t count)
{
	return count < 2 || lifetime == 0 ? 0 : 1 + (lifetime - 1) % (count - 1);
}

extern const struct ofs_storage_ops ofs_storage_ops_posix;
extern const struct ofs_storage_ops ofs_storage_ops_uring;
extern const struct ofs_storage_ops ofs_storage_ops_emulated;
extern const struct ofs_storage_ops ofs_storage_ops_sim;
extern const struct ofs_storage_ops ofs_storage_ops_skeleton;

#endif
