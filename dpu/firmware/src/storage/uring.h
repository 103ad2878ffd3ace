/*
 * uring.h: one storage over io_uring, and its table of fixed buffers.
 *
 * Model: uring.c owns the ring and what is in flight, uring_entry.c fills entries of the ring,
 * uring_memory.c owns the kernel's buffer table, uring_writes.c writes through the page cache. All
 * run on the ring's thread. An I/O is a slot; what the kernel is given is an *entry*: a slot, or a
 * group of slots that one write has.
 */
#ifndef OFS_STORAGE_URING_H
#define OFS_STORAGE_URING_H

#include "internal.h"

#include <liburing.h>

enum {
	URING_PIECES_MAX = 256,
	URING_GROUPS = 2, /* writes through the page cache that the kernel is given at once */
	URING_GROUP_MAX = 16,
};

#define URING_NONE UINT32_MAX

#define URING_PIECE_SIZE_BYTES (1ull << 30) /* the kernel's limit for one registered buffer */

struct uring_slot {
	struct ofs_io io;
	uint32_t moved_bytes;
	uint32_t retries;
	uint32_t next; /* in its list */
	int count;     /* in `ended`: what the kernel said */
};

struct uring_list {
	uint32_t first;
	uint32_t last;
};

/* Slots that one write has, and their memory. */
struct uring_group {
	uint32_t count; /* 0: free */
	uint32_t slots[URING_GROUP_MAX];
	struct iovec iovecs[URING_GROUP_MAX];
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
	uint32_t entry_count; /* in the ring and with the kernel */
	struct uring_slot *slots;
	uint32_t *free_slots;
	uint32_t free_count;
	struct uring_list ended; /* by the kernel */
	struct uring_list held;  /* writes that wait for others */
	struct uring_group groups[URING_GROUPS];
	struct uring_group *free_groups[URING_GROUPS];
	uint32_t groups_free;
	struct uring_region regions[URING_PIECES_MAX]; /* each has at least one piece */
	uint32_t region_count;
	uint8_t piece_used[URING_PIECES_MAX];
	uint32_t unregistered; /* ranges that could not be registered */
};

/* uring_entry.c: a new entry; one that has a slot's I/O; and the flags and stream of a write. */
struct io_uring_sqe *ofs_uring_entry(struct uring *uring);
void ofs_uring_prepare(struct uring *uring, uint32_t slot_index);
void ofs_uring_mark_write(const struct uring *uring, struct io_uring_sqe *sqe,
	const struct ofs_io *io);

/* uring_writes.c: takes a slot from a list. URING_NONE: it is empty. */
uint32_t ofs_uring_pop(struct uring *uring, struct uring_list *list);
void ofs_uring_open_writes(struct uring *uring);
/* Whether an I/O waits for others and is joined to them. */
int ofs_uring_joins(const struct uring *uring, const struct ofs_io *io);
/* A write that does, or is to be repeated. */
void ofs_uring_write(struct uring *uring, uint32_t slot_index);
/* Begins what may be begun. */
void ofs_uring_write_more(struct uring *uring);
/* The kernel said `count` of an entry: its slots stand in `ended`. */
void ofs_uring_ended(struct uring *uring, uint32_t entry, int count);

/* Index of the fixed buffer that contains the whole range, or -1. */
int ofs_uring_piece(const struct uring *uring, const uint8_t *buffer, uint32_t size_bytes);
int ofs_uring_register_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes);
/* A fixed buffer stays bound to its pages, not to its address: a range that is registered again, or
 * whose mapping was replaced, must not use the old pages. */
int ofs_uring_unregister_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes);

#endif
