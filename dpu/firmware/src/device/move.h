/*
 * move.h: the running device moves its blocks to another storage.
 *
 * Model: a move opens a second store, on the target. Passes copy blocks that are in the device's
 * store and not in the target's, while hosts are served; puts and flushes still go to the device's
 * store, so that until the switch the old store is complete without the new one. When a pass finds
 * few blocks, writes are held back briefly: the last passes find none, the target is synced, and a
 * forward record on the old device says where the blocks are now. Then the two stores are swapped
 * within one turn of the reactor, writes resume, and the old store is closed when its I/O has
 * completed. A failure before the record ends the move, and the device continues unchanged.
 *
 * All of it runs on the reactor's thread, which blocks only to open the target; a hung device is
 * abandoned after the deadline of an I/O, and its memory is kept until its I/O completes.
 */
#ifndef OFS_DEVICE_MOVE_H
#define OFS_DEVICE_MOVE_H

#include "device.h"

#include <stdbool.h>

enum {
	OFS_MOVE_COPIES = 8,     /* blocks being copied */
	OFS_MOVE_SCAN = 32,      /* entries of the index that one look reads */
	OFS_MOVE_LOOKS = 16,     /* in one turn */
	OFS_MOVE_FEW = 64,       /* a pass that found no more than this is followed by the last */
	OFS_MOVE_PASSES_MAX = 8, /* limit under a load that never pauses */
	OFS_MOVE_TRIES = 3,
	OFS_MOVE_USER_SYNC = 0x100, /* user words distinct from those of the copies */
	OFS_MOVE_USER_RECORD = 0x101,
	OFS_MOVE_USER_ERASE = 0x102
};

enum ofs_move_step {
	OFS_STEP_NONE,
	OFS_STEP_COPY,
	OFS_STEP_LAST, /* writes are held back from here... */
	OFS_STEP_SYNC,
	OFS_STEP_RECORD,
	OFS_STEP_ERASE, /* ...to here: a record that failed may still have reached the device */
	OFS_STEP_CLOSE  /* the store that is not the device's (any more) ends its I/O */
};

enum ofs_copy_state {
	OFS_COPY_FREE,
	OFS_COPY_TO_READ,
	OFS_COPY_READING,
	OFS_COPY_TO_WRITE,
	OFS_COPY_WRITING,
	OFS_COPY_TO_CHECK,
	OFS_COPY_CHECKING
};

struct ofs_copy {
	uint32_t state;
	uint32_t tries;
	struct ofs_store_entry entry;
	uint64_t checksum; /* as read from the old store */
	uint64_t deadline_ns;
	uint8_t *record;
};

struct ofs_move {
	uint32_t step;
	uint32_t tries;
	bool sent; /* the I/O of this step is in flight */
	bool pass_done;
	bool pass_quiet;             /* no write was in flight when it began */
	struct ofs_storage *storage; /* the target's; after the switch the old one */
	struct ofs_store *store;
	struct ofs_storage_config config; /* the target's */
	struct ofs_dma memory;            /* the copies' records, then the record of the switch */
	struct ofs_copy copies[OFS_MOVE_COPIES];
	uint64_t cursor;
	uint64_t pass_found;
	uint64_t pass_moved; /* by the old store's cleaner, when the pass began */
	uint64_t held_at_ns; /* writes are held back from here on */
	uint64_t until_ns;   /* and no longer than this */
	struct ofs_move_status status;
};

/* move_state.c */
/* Ends the move: it is closed once its I/O in flight has ended. */
void ofs_move_fail(struct ofs_device *device, int rc, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* No copy is in flight. */
bool ofs_move_copies_idle(const struct ofs_move *move);
/* It has no I/O in flight, and is not finished. */
bool ofs_move_copy_waits(const struct ofs_copy *copy);
/* Drops the copies that have no I/O in flight. */
void ofs_move_copies_drop(struct ofs_move *move);
/* Writes wait: it is being decided which store they go to. */
bool ofs_device_move_holds(const struct ofs_device *device);
/* The block was deleted. */
void ofs_device_move_forget(struct ofs_device *device, const struct ofs_key *store_key,
	uint32_t layer);
/* The longest time until the reactor must look again; UINT64_MAX: no move. */
uint64_t ofs_device_move_due_ns(const struct ofs_device *device, uint64_t now_ns);

/* move_copies.c */
/* Begins and continues copies; true if anything was done. */
bool ofs_move_copies_step(struct ofs_device *device);
void ofs_move_copy_done(struct ofs_device *device, uint32_t index, int rc);

/* move_open.c */
/* Closes the store that is not the device's, once nothing of it is in flight. */
void ofs_move_close_other(struct ofs_device *device);
void ofs_move_free_memory(struct ofs_device *device);
/* The device closes: the other store first, waiting a bounded time for its I/O. */
void ofs_device_move_close(struct ofs_device *device);

/* move.c */
/* An I/O of the move has ended, in either store. */
void ofs_device_move_done(struct ofs_device *device, uint32_t user, int rc);
/* One turn of a move; does nothing without one. `served`: its store has just completed I/O. */
bool ofs_device_move_turn(struct ofs_device *device, bool served);

#endif
