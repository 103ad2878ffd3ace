/*
 * store.h: the blocks on NVMe.
 *
 * Model: a log of segments on one storage (a file or block device). A segment belongs to one
 * tenant and one layer, so that blocks of a layer that were written in sequence can be read in
 * sequence. A record is one block exactly as it is in a slot: payload, then a trailer in its last
 * LBA with key, length, checksum, sequence and expiry. Records are written whole in one I/O; a put
 * completes when its write and its segment's header have (durable when asked). The index (store
 * key, layer) -> record is in memory and is rebuilt at open by reading trailers. After a kill at
 * any moment, open finds every acknowledged record; a record that is torn, corrupt, foreign or of
 * another length is a miss and a counter, never data.
 *
 * A store key determines its bytes: two puts of one key carry the same payload. Deleted, expired
 * and failed blocks are wiped on the device, in every copy (src/store/wipe.c); a delete whose wipes
 * have completed survives every later open.
 *
 * One thread owns a store: the one that polls its storage. Calls that start I/O queue it and
 * return 0, or -EAGAIN when busy (poll, then retry), -ENOSPC when the store is full, -ENOENT
 * when there is no such block, -EINVAL for a tenant, layer, length or address out of range. No
 * allocation after open. The format on the device: docs/reference/store-format.md.
 */
#ifndef OFS_STORE_H
#define OFS_STORE_H

#include "dma.h"
#include "region.h"
#include "storage.h"
#include "value_tag.h"

/* cdef: order 6 */
/* cdef: begin */
/* What open does if there is no store (all zero); NEW refuses an existing one. */
enum ofs_store_make { OFS_STORE_MAKE_NEVER = 0, OFS_STORE_MAKE = 1, OFS_STORE_MAKE_NEW = 2 };

struct ofs_store_config {
	uint32_t payload_size_bytes; /* largest block; a multiple of the LBA */
	uint32_t layer_count;
	uint32_t tenant_max;
	uint32_t segment_size_bytes;
	uint32_t io_max;           /* puts and gets in flight */
	uint32_t durable;          /* 1: a put completes only when it is on the medium */
	uint64_t ttl_s;            /* blocks expire this long after their write; 0 never */
	uint32_t reserve_segments; /* kept free for the cleaner; at least 1 */
	uint32_t room_percent;     /* of all places, kept empty besides: ofs_store_lacks; 0 to 50 */
	uint32_t format;           /* enum ofs_store_make */
	uint32_t codec;            /* enum ofs_codec_dtype: coding of payloads that shrink */
	uint32_t erase;            /* 1: a delete overwrites the record, not only its trailer */
	uint32_t granule_count;    /* parts of a block that a get may name; below 2: none */
	struct ofs_key uuid;       /* not 0: open only this store, create none */
	struct ofs_dma_config memory;
};

struct ofs_store_stats {
	uint64_t blocks;
	uint64_t puts;
	uint64_t gets;
	uint64_t deletes;
	uint64_t expired;
	uint64_t bytes_live; /* space that live records take, trailers included */
	uint64_t segments_free;
	uint64_t segments_total;
	uint64_t segments_reclaimed;
	uint64_t segments_discarded; /* of these, given back to the device before they were free */
	uint64_t blocks_lacking;     /* to delete until the store has its room */
	uint64_t blocks_moved;       /* by the cleaner */
	uint64_t checks_failed;      /* reads whose trailer or checksum did not match */
	uint64_t recovered;          /* blocks found at open */
	uint64_t recovery_torn;      /* records refused at open */
	uint64_t io_errors;
	uint64_t wiped;            /* records that were overwritten because they were deleted */
	uint64_t puts_coded;       /* puts that were written coded */
	uint64_t put_bytes_spared; /* bytes that coding saved */
	uint64_t gets_in_part;
	uint64_t refuses_writes; /* 1 while the drive does: nothing can become free */
};

struct ofs_store_entry {
	struct ofs_key store_key;
	uint32_t layer;
	uint32_t tenant;
	uint64_t sequence;
	uint64_t expire_s;
};

struct ofs_store_done {
	uint64_t user;
	/* 0, -EIO, -ENOSPC (the disk below is full), -EBADMSG (failed its check; removed from the
	 * index), -ENOENT (deleted while it was read). Never -ETIMEDOUT: deadlines are the caller's. */
	int32_t rc;
	uint32_t length; /* get: payload bytes */
};
struct ofs_store;

/*
 * Refuses with a text: another magic, version, payload, LBA, size, segment size or layer count than
 * the store on the device has (-EINVAL), a store that another daemon holds (-EBUSY, flock on the
 * path), one whose blocks moved elsewhere (-EINVAL), a device too small (-ENOSPC), one that does
 * not answer (-ETIMEDOUT) or fails (-EIO).
 * lock_path NULL or "": nothing is locked.
 */
int ofs_store_open(struct ofs_store **out, struct ofs_storage *storage, const char *lock_path,
	const struct ofs_store_config *config, uint64_t now_s, char *error, size_t error_size_bytes);
/* Waits for I/O in flight (bounded), seals nothing: recovery needs no clean close. */
void ofs_store_close(struct ofs_store *store);
/* Walk the index after open (or any time): *cursor starts at 0; entries copied, 0 at the end. */
int ofs_store_scan(struct ofs_store *store, uint64_t *cursor, struct ofs_store_entry *entries,
	int max);
/*
 * Write the record at `record` (payload already there; registered memory, LBA-aligned; the
 * trailer's length and checksum set, its other logged fields are filled in here). The memory
 * belongs to the store until the completion. A put of a key that is stored and unexpired succeeds
 * without a write and renews its expiry; if the expiry on the device is too early, the record is
 * rewritten first. A put of a key that is being written completes with that write. A block that
 * recovery accepted by its trailer alone is rewritten. -EEXIST: other bytes are stored under this
 * key. -EIO: there is no room, and the drive refuses the writes that would make some.
 */
int ofs_store_put(struct ofs_store *store, uint32_t tenant, const struct ofs_key *store_key,
	uint32_t layer, void *record, uint64_t user, uint64_t now_s);
/*
 * Read the record into `record` (a slot) and check it; its generation and cause are zero after.
 * Returns -ENOENT when absent or expired, -EAGAIN while its first write is in flight.
 */
int ofs_store_get(struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer,
	void *record, uint64_t user, uint64_t now_s);
/* The record's position in the log, for sorting reads; UINT64_MAX: absent. */
uint64_t ofs_store_position(const struct ofs_store *store, const struct ofs_key *store_key,
	uint32_t layer);
/*
 * Deletes the block from the index. Later gets return -ENOENT; a read in flight succeeds or ends
 * with -ENOENT. The next open does not find it once ofs_store_wiped returns 0.
 */
int ofs_store_delete(struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer);
/*
 * 0: the next open finds none of the tenant's blocks that were lost before the ticket was taken; a
 * ticket of 0 is taken now. -EAGAIN: not yet, and for as long as the drive refuses the wipes.
 */
int ofs_store_wiped(struct ofs_store *store, uint32_t tenant, uint64_t *ticket);
/*
 * Blocks to delete, so that `room_percent` of the places are empty besides the reserve and what
 * open segments have left, and a segment of each open one more, so that those of the oldest blocks
 * become free at once; 0: they are, or the room is less than a segment for each layer of each
 * tenant, by which the cleaner would move more than without.
 */
uint64_t ofs_store_lacks(const struct ofs_store *store);
int ofs_store_poll(struct ofs_store *store, struct ofs_store_done *done, int max);
/*
 * Expire, clean, reclaim: bounded work per call. Expired or dropped blocks are reported in
 * `entries`; returns their number.
 */
int ofs_store_tick(struct ofs_store *store, uint64_t now_s, struct ofs_store_entry *entries,
	int max);
/* Puts and gets not yet handed out by poll, and the cleaner's own I/O. */
uint32_t ofs_store_in_flight(const struct ofs_store *store);
void ofs_store_stats_get(const struct ofs_store *store, struct ofs_store_stats *stats);
/* Payload and trailer's LBA: what a put writes and a get reads. */
uint32_t ofs_store_record_size_bytes(const struct ofs_store *store);
/* Recomputes all running counts; 0, or the number of counts that differ. */
int ofs_store_verify(const struct ofs_store *store);
/* cdef: end */

/* 1: the drive ended several marks or wipes with an error, and has taken no write since; they are
 * tried again each second. Deleting blocks makes no room until it does. */
int ofs_store_refuses(const struct ofs_store *store);

/*
 * A get of `granules`, bit i the i-th, into their places in `record`; unless it is a `fill`, also
 * the last logical block. A fill adds to a record that already has its last logical block, and
 * leaves that unchanged. Of a record without granule checksums everything absent is read. All
 * granules without `fill` are a get of the whole block. As ofs_store_get; -EINVAL: no such
 * granules; -ESTALE: a fill when the stored bytes are no longer those of `record`.
 */
struct ofs_store_part {
	uint32_t granules; /* 0: the whole */
	int fill;
};
int ofs_store_get_part(struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer,
	void *record, const struct ofs_store_part *part, uint64_t user, uint64_t now_s);

/* A value of which recovery found a piece, by its tag (value_tag.h): as often as it found one. */
struct ofs_store_value {
	struct ofs_key key;
	struct ofs_key store_key; /* of its chunk */
	struct ofs_key name;
	uint32_t name_bytes; /* 0: no name */
	uint64_t length;
	uint64_t generation;
};
/*
 * Moves out of the store at most `max` values of a tenant that this open recovered; 0: there are no
 * more. Whether all pieces of one are there is for the caller to see.
 */
int ofs_store_take_values(struct ofs_store *store, uint32_t tenant, struct ofs_store_value *values,
	int max);

/* Copies of the tenant's lost blocks that the next open could find. */
uint64_t ofs_store_wiping(const struct ofs_store *store, uint32_t tenant);

/* Segments of the tenant without live records that are not yet marked free. */
uint32_t ofs_store_marking(const struct ofs_store *store, uint32_t tenant);

/* Blocks of the tenant that are stored, or being written for the first time. */
uint64_t ofs_store_blocks_of(const struct ofs_store *store, uint32_t tenant);
/* As many blocks as fit if the store has no others: of one tenant, evenly over the layers. */
uint64_t ofs_store_blocks_max(const struct ofs_store *store);

/* Whether there is an op and a storage queue entry for one more put or get. */
int ofs_store_has_room(const struct ofs_store *store);

/* Whether other bytes than those of this checksum are stored, or being written, under the key. */
int ofs_store_conflicts(const struct ofs_store *store, const struct ofs_key *store_key,
	uint32_t layer, uint64_t checksum, uint64_t now_s);

/*
 * For moving blocks from one store to another. `put_until` is a put with a given expiry; `renew`
 * sets the expiry of a block that is stored or being written (-ENOENT).
 */
int ofs_store_put_until(struct ofs_store *store, uint32_t tenant, const struct ofs_key *store_key,
	uint32_t layer, void *record, uint64_t user, uint64_t expire_s, uint64_t now_s);
int ofs_store_renew(struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer,
	uint64_t expire_s);
/* When this completes, every write that had completed before it is on the medium. */
int ofs_store_sync(struct ofs_store *store, uint64_t user);
/*
 * The forward record, which says where the blocks of `store` are now: its size, filling it, and
 * writing it (registered memory; all zeros erases the record). -EINVAL: logical blocks are too
 * large to leave room for it.
 */
uint32_t ofs_store_forward_size_bytes(const struct ofs_store *store);
void ofs_store_forward_fill(const struct ofs_store *store, const struct ofs_store *next,
	const struct ofs_storage_config *where, uint64_t now_s, void *lbas);
int ofs_store_forward_write(struct ofs_store *store, void *lbas, uint64_t user);
/* Segments that another store needs for the live records; `lanes` [ofs_store_lane_count]. */
uint64_t ofs_store_segments_needed(const struct ofs_store *store, uint32_t *lanes);
uint32_t ofs_store_lane_count(const struct ofs_store *store);
/* The store starts no more I/O of its own; I/O in flight completes. */
void ofs_store_rest(struct ofs_store *store);

#endif
