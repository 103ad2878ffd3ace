/*
 * spdk_queue.h: the data path of an SPDK storage. Not seen outside src/storage.
 *
 * Model: spdk_parts.h says what slots and pieces are. A slot with bytes that no piece carries yet
 * stands in the list of those that wait, in the order they came; `ofs_spdk_pump` makes pieces of it
 * as long as there is room. Callbacks of SPDK, which also come from inside a submit and from inside
 * the freeing of a queue pair, only take notes: a slot that is over goes to the ring of those that
 * poll hands out. All of it is the polling thread's.
 */
#ifndef OFS_STORAGE_SPDK_QUEUE_H
#define OFS_STORAGE_SPDK_QUEUE_H

#include "spdk_parts.h"

enum { SPDK_LOOK_NS = 20000000 }; /* between two looks while there is something to see */

struct ofs_spdk_slot {
	struct ofs_io io;
	uint64_t began_ns;
	uint32_t carried_bytes; /* by pieces, ended or not; of a sync: drives */
	uint32_t out;           /* pieces in flight */
	int32_t next;           /* in the list of those that wait */
	int32_t rc;             /* the first error */
	uint8_t used;
	uint8_t waits; /* in the list */
	uint8_t lost;  /* a piece came back undone: the slot begins anew */
};

struct ofs_spdk_piece {
	struct ofs_spdk *spdk;
	uint32_t slot;
	uint32_t drive;
	int32_t chunk;
	int32_t next; /* in the free list */
	uint32_t at;  /* in the slot's bytes */
	uint32_t size_bytes;
	uint8_t used;
};

struct ofs_spdk_region {
	uintptr_t base;
	uint64_t size_bytes;
};

struct ofs_spdk {
	struct ofs_storage base;
	struct ofs_spdk_link *link;
	uint64_t timeout_ns;
	uint64_t tick_ns;     /* the next look at deadlines, admin queues and drives that are back */
	uint32_t piece_bytes; /* largest */
	uint32_t piece_count;
	int cutting; /* pieces that come back now were not done */
	struct ofs_spdk_slot *slots;
	int32_t *free_slots;
	uint32_t free_count;
	int32_t wait_first;
	int32_t wait_last;
	uint32_t *ready; /* a ring of slots */
	uint32_t ready_head;
	uint32_t ready_count;
	struct ofs_spdk_piece *pieces;
	int32_t free_piece;
	uint8_t *chunks; /* bounce buffers, where a drive may need them */
	uint64_t chunk_used[SPDK_CHUNKS / 64];
	uint8_t chunk_owner[SPDK_CHUNKS];
	struct ofs_spdk_region regions[SPDK_REGIONS_MAX];
	uint32_t region_count;
};

/* Slot `index` has bytes to carry, or begins anew. */
void ofs_spdk_wait(struct ofs_spdk *spdk, uint32_t index);
/* Makes pieces of what waits. */
void ofs_spdk_pump(struct ofs_spdk *spdk);
/* Takes what the drives have completed. */
void ofs_spdk_reap(struct ofs_spdk *spdk);
/* A piece came back: `undone` where it is to be carried once more. */
void ofs_spdk_piece_end(struct ofs_spdk_piece *piece, int rc, int undone);
/* The bounce buffers of a drive that has nothing in flight. */
void ofs_spdk_chunks_give(struct ofs_spdk *spdk, uint32_t drive);

/* spdk_away.c. */

/* Deadlines, keep-alive, drives that went and came; bounded work, now and then. */
void ofs_spdk_tick(struct ofs_spdk *spdk, uint64_t now_ns);
/* At close: takes every piece back from every drive, and leaves the drives to the link. */
void ofs_spdk_cut_all(struct ofs_spdk *spdk);

#endif
