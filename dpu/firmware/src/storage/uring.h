/*
 * uring.h: one storage over io_uring, and its table of fixed buffers.
 *
 * Model: uring.c owns the ring and what is in flight, uring_memory.c the kernel's buffer table. All
 * run on the ring's thread.
 */
#ifndef OFS_STORAGE_URING_H
#define OFS_STORAGE_URING_H

#include "internal.h"

#include <liburing.h>

enum { URING_PIECES_MAX = 256 };

#define URING_PIECE_SIZE_BYTES (1ull << 30) /* the kernel's limit for one registered buffer */

struct uring_slot {
	struct ofs_io io;
	uint32_t moved_bytes;
	uint32_t retries;
};

/* A registered range; piece i of it is fixed buffer piece_first + i. */
struct uring_region {
	uintptr_t base;
	uint64_t size_bytes;
	uint32_t piece_first;
};

struct uring {
	struct ofs_storage base;
	struct io_uring ring;
	int ring_open;
	int enabled;
	int closing;
	int sparse; /* the kernel's buffer table can be changed: 5.19 */
	int fd;
	int event_fd;
	uint32_t harvested; /* completions since event_fd was last cleared */
	uint32_t idle_polls;
	struct uring_slot *slots;
	uint32_t *free_slots;
	uint32_t free_count;
	struct uring_region regions[URING_PIECES_MAX]; /* each has at least one piece */
	uint32_t region_count;
	uint8_t piece_used[URING_PIECES_MAX];
	uint32_t unregistered; /* ranges that could not be registered */
};

/* Index of the fixed buffer that contains the whole range, or -1. */
int ofs_uring_piece(const struct uring *uring, const uint8_t *buffer, uint32_t size_bytes);
int ofs_uring_register_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes);
/* A fixed buffer stays bound to its pages, not to its address: a range that is registered again, or
 * whose mapping was replaced, must not use the old pages. */
int ofs_uring_unregister_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes);

#endif
