/*
 * store.h: the blocks on NVMe.
 *
 * Model: a log of segments on one storage (a file or block device). A segment belongs to one
 * tenant and one layer, so that the blocks of a layer that were written one after another are one
 * sequential read. A record is one block exactly as it stands in a slot: payload, then a trailer
 * in its last LBA with key, length, checksum, sequence and expiry. Records are written whole in
 * one I/O; a put is done when its write and its segment's header are (durable when asked). The
 * index (store key, layer) -> record is in memory and is rebuilt at open by reading trailers.
 * After a kill at any moment, open finds every acknowledged record; a record that is torn,
 * corrupt, foreign or of another length is a miss and a counter, never data.
 *
 * A store key names its bytes: two puts of one key carry the same payload. What is deleted, expired
 * or failed is wiped on the device, in every copy (src/store/wipe.c); a delete whose wipes have
 * ended is one for every later open.
 *
 * One thread owns a store: the same that polls its storage. Calls that start I/O queue it and
 * return 0, or -EAGAIN when busy (poll, then try again), -ENOSPC when the store is full, -ENOENT
 * when there is no such block, -EINVAL for a tenant, layer, length or address out of range. No
 * allocation after open. The format on the device: docs/reference/store-format.md.
 */
#ifndef OFS_STORE_H
#define OFS_STORE_H

#include "dma.h"
#include "region.h"
#include "storage.h"

/* cdef: order 6 */
/* cdef: begin */
/* What open does where there is no store, all is zero; NEW refuses one that is there. */
enum ofs_store_make { OFS_STORE_MAKE_NEVER = 0, OFS_STORE_MAKE = 1, OFS_STORE_MAKE_NEW = 2 };

struct ofs_store_config {
	uint32_t payload_size_bytes; /* largest block; a multiple of the LBA */
	uint32_t layer_count;
	uint32_t tenant_max;
	uint32_t segment_size_bytes;
	uint32_t io_max;           /* puts and gets in flight */
	uint32_t durable;          /* 1: a put ends only when it is on the medium */
	uint64_t ttl_s;            /* blocks expire so long after their write; 0 never */
	uint32_t reserve_segments; /* kept free for the cleaner; at least 1 */
	uint32_t format;           /* enum ofs_store_make */
	uint32_t codec;            /* enum ofs_codec_dtype: how payloads that shrink are written */
	uint32_t erase;            /* 1: what is deleted is overwritten, not its trailer alone */
	uint32_t granule_count;    /* parts of a block that a get may name; below 2: none */
	struct ofs_key uuid;       /* not 0: this store and no other, and none is made */
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
	uint64_t blocks_moved;       /* by the cleaner */
	uint64_t checks_failed;      /* reads whose trailer or checksum did not match */
	uint64_t recovered;          /* blocks found at open */
	uint64_t recovery_torn;      /* records refused at open */
	uint64_t io_errors;
	uint64_t wiped;            /* records that were overwritten because they were deleted */
	uint64_t puts_coded;       /* puts that were written coded */
	uint64_t put_bytes_spared; /* that they did not write */
	uint64_t gets_in_part;
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
	/* 0, -EIO, -ENOSPC (the disk below is full), -EBADMSG (failed its check: the block is gone from
	 * the index), -ENOENT (deleted while it was read). Never -ETIMEDOUT: deadlines are the
	 * caller's. */
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
 * belongs to the store until the completion. A key that is already stored and unexpired ends well
 * at once, and its expiry is renewed: where what stands on the device does not last so long, it is
 * written again first. One that is being written ends with that write. A block that recovery took
 * on its trailer's word alone is written again. -EEXIST: other bytes are stored under this key.
 */
int ofs_store_put(struct ofs_store *store, uint32_t tenant, const struct ofs_key *store_key,
	uint32_t layer, void *record, uint64_t user, uint64_t now_s);
/*
 * Read the record into `record` (a slot) and check it; its generation and cause are zero after.
 * -ENOENT at once when absent or expired, -EAGAIN while its first write is in flight.
 */
int ofs_store_get(struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer,
	void *record, uint64_t user, uint64_t now_s);
/* Neighbouring records in the log: the physical order number, for sorting reads; UINT64_MAX
 * absent. */
uint64_t ofs_store_position(const struct ofs_store *store, const struct ofs_key *store_key,
	uint32_t layer);
/*
 * From now on nobody reads it, and it is as if it had never been: -ENOENT for whoever reads it now,
 * unless the read ends well. For the next open it is gone when ofs_store_wiped says so.
 */
int ofs_store_delete(struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer);
/*
 * Whether the next open finds nothing of what the tenant has lost until the ticket was taken; a
 * ticket of 0 is taken now. -EAGAIN: not yet. Where a drive refuses the writes, that stays so.
 */
int ofs_store_wiped(struct ofs_store *store, uint32_t tenant, uint64_t *ticket);
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
/* Recounts everything that is counted as it goes; 0, or the number of what does not agree. */
int ofs_store_verify(const struct ofs_store *store);
/* cdef: end */

/*
 * A get of `granules`, bit i the i-th: these go to their places in `record`, and unless it is a
 * `fill`, the last logical block as well. A fill goes to a record that has its last logical block,
 * and is not written otherwise. What is absent of a record without checksums of its granules comes
 * too. All granules are a get of the whole, but for a fill. As ofs_store_get; -EINVAL: no such
 * granules; -ESTALE: a fill of a record that has other bytes by now than those in `record`.
 */
struct ofs_store_part {
	uint32_t granules; /* 0: the whole */
	int fill;
};
int ofs_store_get_part(struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer,
	void *record, const struct ofs_store_part *part, uint64_t user, uint64_t now_s);

/* Copies of the tenant's lost blocks that the next open could find. */
uint64_t ofs_store_wiping(const struct ofs_store *store, uint32_t tenant);

/* Segments of the tenant in which nothing lives, and that are not yet marked so. */
uint32_t ofs_store_marking(const struct ofs_store *store, uint32_t tenant);

/* Blocks of the tenant that are stored, or being written for the first time. */
uint64_t ofs_store_blocks_of(const struct ofs_store *store, uint32_t tenant);

/* Whether one more put or get would find an op and a place in the storage's queue. */
int ofs_store_has_room(const struct ofs_store *store);

/* Whether other bytes than those of this checksum are stored, or being written, under the key. */
int ofs_store_conflicts(const struct ofs_store *store, const struct ofs_key *store_key,
	uint32_t layer, uint64_t checksum, uint64_t now_s);

/*
 * For who moves the blocks of one store to another. `put_until` is put, and the block expires as
 * told; `renew` gives a block that stands here, or is being written, another expiry (-ENOENT).
 */
int ofs_store_put_until(struct ofs_store *store, uint32_t tenant, const struct ofs_key *store_key,
	uint32_t layer, void *record, uint64_t user, uint64_t expire_s, uint64_t now_s);
int ofs_store_renew(struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer,
	uint64_t expire_s);
/* Whatever had ended before is on the medium when this ends. */
int ofs_store_sync(struct ofs_store *store, uint64_t user);
/*
 * The record that says where the blocks of `store` are now: so many bytes, filled in, and written
 * (registered memory; of zeros it takes a record back). -EINVAL where logical blocks are so large
 * that there is no room for it.
 */
uint32_t ofs_store_forward_size_bytes(const struct ofs_store *store);
void ofs_store_forward_fill(const struct ofs_store *store, const struct ofs_store *next,
	const struct ofs_storage_config *where, uint64_t now_s, void *lbas);
int ofs_store_forward_write(struct ofs_store *store, void *lbas, uint64_t user);
/* Segments that another store needs for what is alive here; `lanes` [ofs_store_lane_count]. */
uint64_t ofs_store_segments_needed(const struct ofs_store *store, uint32_t *lanes);
uint32_t ofs_store_lane_count(const struct ofs_store *store);
/* It begins nothing of its own any more; what flies ends. */
void ofs_store_rest(struct ofs_store *store);

#endif
