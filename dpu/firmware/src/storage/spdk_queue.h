/*
 * spdk_queue.h: the data path of an SPDK storage. Private to src/storage.
 *
 * Model: spdk_parts.h defines slots and pieces. A slot with bytes that no piece carries yet is in
 * the waiting list, in order of arrival; `ofs_spdk_pump` makes pieces of it while there is room.
 * SPDK also calls back from inside a submit and from inside the freeing of a queue pair, so
 * callbacks only record the result: a finished slot goes into the ring that poll returns from. The
 * polling thread owns all of it.
 */
#ifndef OFS_STORAGE_SPDK_QUEUE_H
#define OFS_STORAGE_SPDK_QUEUE_H

#include "spdk_parts.h"

enum { SPDK_LOOK_NS = 20000000 }; /* interval of the checks while there is something to check */

struct ofs_spdk_slot {
	struct ofs_io io;
	uint64_t began_ns;
	uint32_t carried_bytes; /* by pieces, ended or not; of a sync: drives */
	uint32_t out;           /* pieces in flight */
	int32_t next;           /* in the waiting list */
	int32_t rc;             /* the first error */
	uint8_t used;
	uint8_t waits; /* in the waiting list */
	uint8_t lost;  /* a piece came back undone: the slot starts over */
};

struct ofs_spdk_piece {
	struct ofs_spdk *spdk;
	uint32_t slot;
	uint32_t drive;
	int32_t chunk;
	int32_t next; /* in the free list */
	uint32_t at;  /* offset in the slot's bytes */
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
	uint64_t tick_ns;     /* next check of deadlines, admin queues, drives that are back */
	uint32_t piece_bytes; /* largest */
	uint32_t piece_count;
	int cutting; /* pieces that come back now count as undone */
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
	uint8_t *chunks; /* bounce buffers, if a drive may need them */
	uint64_t chunk_used[SPDK_CHUNKS / 64];
	uint8_t chunk_owner[SPDK_CHUNKS];
	struct ofs_spdk_region regions[SPDK_REGIONS_MAX];
	uint32_t region_count;
};

/* Slot `index` has bytes to send, or starts over. */
void ofs_spdk_wait(struct ofs_spdk *spdk, uint32_t index);
/* Makes pieces of the waiting slots. */
void ofs_spdk_pump(struct ofs_spdk *spdk);
/* Collects the drives' completions. */
void ofs_spdk_reap(struct ofs_spdk *spdk);
/* A piece came back: `undone` if it must be sent again. */
void ofs_spdk_piece_end(struct ofs_spdk_piece *piece, int rc, int undone);
/* Frees the bounce buffers of a drive that has nothing in flight. */
void ofs_spdk_chunks_give(struct ofs_spdk *spdk, uint32_t drive);

/* spdk_away.c. */

/* Checks deadlines, keep-alive, and drives lost or back; bounded work, at intervals. */
void ofs_spdk_tick(struct ofs_spdk *spdk, uint64_t now_ns);
/* At close: cancels every piece on every drive, and leaves the drives to the link. */
void ofs_spdk_cut_all(struct ofs_spdk *spdk);

#endif
