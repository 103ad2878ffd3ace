/*
 * internal.h: the parts of a store. Private to src/store.
 *
 * Model: three tables, all allocated at open. *Segments*: FREE -> OPEN (appended to) -> SEALED ->
 * DYING (its "free" mark is being written, then its bytes are discarded) -> FREE; records deleted
 * in a segment that stays in use are wiped (wipe.c). *Records*: one entry per place on the device,
 * found by place number (segment * records_per_segment + place in it) and, through the index, by
 * key. *Ops*: one per I/O; [0, io_max) belong to callers, then come those for headers, for wipes,
 * and for the cleaner. I/O in flight keeps its segment from being reused: `writing` counts puts
 * that have not ended, `pins` counts reads, wipes and moves.
 */
#ifndef OFS_STORE_INTERNAL_H
#define OFS_STORE_INTERNAL_H

#include "store.h"
#include "store_format.h"

#define OFS_STORE_OPENINGS_MAX 0x7fffffffu /* half of the range of a sequence */
#define OFS_STORE_SEQUENCE_MAX ((uint64_t)OFS_STORE_OPENINGS_MAX << 32)

enum {
	OFS_HEADER_OPS = 8,         /* headers and marks in flight */
	OFS_WIPE_OPS = 8,           /* deleted records being overwritten */
	OFS_CLEAN_OPS = 8,          /* moves in flight */
	OFS_SEGMENT_ERRORS_MAX = 3, /* failed writes before a segment is sealed */
	OFS_EXPIRE_SCAN_MAX = 4096, /* records one tick looks at */
	/* One renewal in this many, evenly over a TTL, is written: the expiry on the device is later
	 * than requested by this part of a TTL. */
	OFS_RENEWALS_UNWRITTEN = 8,
	OFS_DRAIN_BATCH = 64,
	OFS_READ_TRIES = 3,   /* at open */
	OFS_DISCARDS_MAX = 2, /* in flight: headers keep the remaining ops */
	/* Lifetimes of writes: data overwritten in place, then those of the tenants, since what a
	 * tenant does frees the segments of its records. */
	OFS_LIFETIME_PLACE = 0,
	OFS_LIFETIME_TENANT = 1
};

/* Which of the trailer's reserved words the log uses for its own fields. */
enum { OFS_TRAILER_STORE = 0, OFS_TRAILER_SEGMENT = 1, OFS_TRAILER_PLACE = 2 };

enum ofs_segment_state {
	OFS_SEGMENT_FREE,
	OFS_SEGMENT_OPEN,
	OFS_SEGMENT_SEALED,
	OFS_SEGMENT_DYING,
	OFS_SEGMENT_RETIRED /* its header cannot be read: neither used nor overwritten in this run */
};

/* Why a segment in use is in a list. */
enum ofs_listed {
	OFS_LISTED_NO,
	OFS_LISTED_WIPE, /* some of its records are to be wiped */
	OFS_LISTED_AGAIN /* and that failed: retried later */
};

/* What the device still has of a record that is no longer a block. */
enum ofs_wipe {
	OFS_WIPE_NO,
	OFS_WIPE_WANTED, /* the next open must not find it */
	OFS_WIPE_FLYING,
	OFS_WIPE_DONE
};

enum ofs_written { OFS_WRITTEN_NO, OFS_WRITTEN_PENDING, OFS_WRITTEN_YES, OFS_WRITTEN_FAILED };

enum ofs_record_state {
	OFS_RECORD_FREE,
	OFS_RECORD_WRITING,
	OFS_RECORD_LIVE,
	OFS_RECORD_CONDEMNED, /* live, but failed its check in the cleaner: dropped by the next tick */
	OFS_RECORD_DEAD
};

struct ofs_store_segment {
	uint64_t sequence;
	uint32_t tenant;
	uint32_t layer;
	uint32_t next; /* place of the next record */
	uint32_t live; /* LIVE and CONDEMNED records */
	uint32_t writing;
	uint32_t pins;
	uint32_t errors;
	uint32_t waiters; /* puts that are written and wait for the header */
	uint32_t link;    /* in the one list that contains it */
	uint32_t wipe_cursor;
	uint8_t state;
	uint8_t header; /* enum ofs_written */
	uint8_t listed; /* enum ofs_listed */
	uint8_t marked; /* DYING: its mark is on the device */
	uint8_t stuck;  /* has a block that cannot be read: no longer a victim */
};

struct ofs_store_record {
	struct ofs_key key;
	uint64_t sequence;
	uint64_t expire_s;
	uint64_t written_s;   /* its expiry on the device: the same or later, 0 never */
	uint64_t checksum;    /* of its payload */
	uint32_t op;          /* WRITING: the put that writes it */
	uint32_t coded_bytes; /* of its payload on the device; 0: it is not coded */
	uint32_t copy_next;   /* ring of all copies of this block that an open could find */
	uint32_t copy_before;
	uint8_t state;
	uint8_t wipe;      /* enum ofs_wipe */
	uint8_t wipe_turn; /* WANTED, FLYING: the turn that counts it */
	uint8_t verified;  /* its payload was checked in this run, or written in it */
	uint8_t doubted;   /* recovery: read the payload too */
	uint8_t untabled;  /* known to have no checksums of granules */
};

enum ofs_store_op_kind {
	OFS_STORE_IDLE,
	OFS_STORE_PUT,
	OFS_STORE_JOINED,
	OFS_STORE_GET,
	OFS_STORE_HEADER,
	OFS_STORE_MARK,
	OFS_STORE_DISCARD,
	OFS_STORE_WIPE,
	OFS_STORE_MOVE_READ,
	OFS_STORE_MOVE_READY,
	OFS_STORE_MOVE_WRITE,
	OFS_STORE_FORWARD /* or a sync */
};

struct ofs_store_op {
	uint64_t user;
	uint8_t *buffer; /* the record, not coded */
	uint8_t *coded;  /* the record for the device; the cleaner uses its buffer */
	uint32_t record;
	uint32_t old; /* the record this one replaces when it is done; OFS_NONE */
	uint32_t segment;
	uint32_t next;   /* free list, ready list, header's waiters or joined puts */
	uint32_t joined; /* puts of the same key that end with this one */
	uint32_t length;
	int32_t rc;
	uint8_t kind;
	uint8_t dropped; /* deleted while it was being written */
	/* A get of a part: part.c. */
	uint8_t fill;
	uint8_t failed;
	uint8_t stalled;
	uint32_t granules; /* 0: the whole record */
	uint32_t granule_bytes;
	uint32_t next_from; /* in the record: what is still to be sent */
	uint32_t stretches; /* I/Os of it in flight */
	uint64_t expected_bytes;
	uint64_t got_bytes;
};

struct ofs_store_list {
	uint32_t first;
	uint32_t last;
	uint32_t count;
};

/* What remains to be wiped of one tenant. */
struct ofs_store_wipes {
	struct ofs_store_list segments; /* OFS_LISTED_WIPE */
	uint64_t turn;                  /* from 1: records wanted now count under it */
	uint32_t wanted[2];             /* records, by the last bit of their turn */
};

enum ofs_clean_state {
	OFS_CLEAN_IDLE = 1, /* no victim, and nothing in flight */
	OFS_CLEAN_EMPTYING, /* moves begin, place by place */
	OFS_CLEAN_ENDING,   /* no more begin, and the last ones are in flight */
	OFS_CLEAN_STATES
};

/* Only the cleaner writes it; see clean.c. */
struct ofs_store_clean {
	uint32_t state;    /* enum ofs_clean_state */
	uint32_t victim;   /* OFS_NONE: the state is IDLE */
	uint32_t cursor;   /* EMPTYING: next place to look at */
	uint32_t placed;   /* moves that have their new place: they need no more room */
	uint32_t flying;   /* moves; each pins the victim */
	uint64_t hopeless; /* `changes` when nothing could be gained for hopeless_lane */
	uint32_t hopeless_lane;
};

/* A lane is one layer of one tenant: tenant * layer_count + layer. */
/* What recovery found behind the trailer of a record. */
struct ofs_store_found {
	uint32_t record;
	uint32_t name_bytes; /* 0: no name */
	uint64_t generation;
	uint64_t length;
	struct ofs_key key;
	struct ofs_key name;
};

struct ofs_store {
	struct ofs_storage *storage;
	struct ofs_store_config config;
	struct ofs_superblock super;
	int lock_fd;
	uint32_t record_size_bytes;
	uint32_t records_per_segment;
	uint32_t segment_count;
	uint32_t record_count;
	uint32_t lane_count;
	uint64_t sequence;
	uint64_t now_s; /* the configuration as last passed in */
	struct ofs_store_segment *segments;
	struct ofs_store_record *records;
	uint32_t *index;
	uint32_t index_mask;
	uint32_t *lane_open; /* open segment of each lane */
	uint32_t *lane_gap;  /* victim choice: empty places in the lane */
	struct ofs_store_op *ops;
	uint32_t op_count;
	uint32_t op_free;
	uint32_t header_free;
	uint32_t wipe_free;
	uint32_t clean_free;
	uint32_t ops_used;
	uint32_t flying; /* I/Os that the storage accepted and has not completed */
	uint8_t running; /* completions belong to an op */
	uint8_t closing; /* nothing new is started */
	struct ofs_store_list ready;
	struct ofs_store_list stalled; /* gets of a part that the device had no room for */
	struct ofs_store_list free;
	struct ofs_store_list dying;
	struct ofs_store_list marked; /* their mark is on the medium; to be discarded */
	uint32_t discarding;
	struct ofs_store_wipes *wipes;  /* [super.tenant_max] */
	uint64_t *tenant_blocks;        /* [super.tenant_max]: live blocks, and those being rewritten */
	uint32_t wipe_listed;           /* segments in the lists of all tenants */
	uint32_t wipe_tenant;           /* the tenant whose turn it was last */
	struct ofs_store_list again;    /* OFS_LISTED_AGAIN */
	struct ofs_store_list unmarked; /* dying, and the mark failed */
	uint64_t again_s;               /* when failed writes were last retried */
	uint32_t refused;               /* marks and wipes that failed since a write succeeded */
	struct ofs_store_clean clean;
	uint64_t changes;    /* places given up, segments sealed or freed */
	uint32_t open_count; /* segments */
	uint64_t taken;      /* places being written, left in open segments, or of retired ones */
	uint32_t expire_cursor;
	uint8_t *scratch; /* of recovery, then of the headers and the cleaner */
	uint64_t scratch_size_bytes;
	struct ofs_dma memory; /* the allocation that contains scratch */
	uint8_t registered;
	uint8_t codes; /* records may be coded */
	uint8_t coded_registered;
	struct ofs_dma coded;           /* a record for each caller's op */
	struct ofs_store_found *values; /* [value_max] found by recovery, until they are taken */
	uint32_t value_count;
	uint32_t value_max;
	uint8_t *plain; /* one payload: before it is moved into place, and when it is only checked */
	struct ofs_store_stats stats;
};

/* values.c: -ENOMEM. */
int ofs_store_note_value(struct ofs_store *store, uint32_t record, const struct ofs_value_tag *tag);
/* The pieces of each key of which there is more than one store. */
void ofs_store_doubt_values(struct ofs_store *store);

/* geometry.c: sizes, limits and the error text for what exceeds them */
int ofs_store_plan(struct ofs_store *store, char *error, size_t error_size_bytes);
int ofs_store_refuse(char *error, size_t size_bytes, int rc, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* format.c: the format on the device */
void ofs_superblock_seal(struct ofs_superblock *super);
int ofs_superblock_valid(const struct ofs_superblock *super);
void ofs_segment_header_fill(const struct ofs_store *store, uint32_t segment, uint32_t state,
	void *lba);
int ofs_segment_header_valid(const struct ofs_store *store, uint32_t segment, const void *lba);
uint64_t ofs_store_segment_offset(const struct ofs_store *store, uint32_t segment);
uint64_t ofs_store_record_offset(const struct ofs_store *store, uint32_t record);
struct ofs_trailer *ofs_store_trailer(const struct ofs_store *store, const void *record);
void ofs_trailer_fill(const struct ofs_store *store, struct ofs_trailer *trailer, uint32_t record,
	uint32_t coded_bytes);
/* 0: the payload is not coded. */
uint32_t ofs_trailer_coded_bytes(const struct ofs_trailer *trailer);
/* Magic, crc, length and this store; nothing about which record. */
int ofs_trailer_sound(const struct ofs_store *store, const struct ofs_trailer *trailer);
/* Valid, and written for this place since its segment was last opened. */
int ofs_trailer_belongs(const struct ofs_store *store, const struct ofs_trailer *trailer,
	uint32_t record);

/* What overwrites it: valid, of the same use of the segment, with the segment's own sequence, which
 * no record has. */
void ofs_trailer_fill_wiped(const struct ofs_store *store, struct ofs_trailer *trailer,
	uint32_t record);
int ofs_trailer_wiped(const struct ofs_store *store, const struct ofs_trailer *trailer,
	uint32_t record);

/* coded.c: records whose payload is coded */
int ofs_coded_open(struct ofs_store *store);
void ofs_coded_close(struct ofs_store *store);
/* The bytes of its place that must be read or written for the record. */
int ofs_record_submit(struct ofs_store *store, const struct ofs_store_op *op, int io,
	uint32_t record);
uint32_t ofs_record_io_bytes(const struct ofs_store *store, uint32_t record);
/* Codes the payload in op->buffer if that saves space, and fills the trailers. */
void ofs_record_prepare(struct ofs_store *store, const struct ofs_store_op *op, uint32_t record);
void ofs_record_count_spared(struct ofs_store *store, uint32_t record);
/* Is of this place, matches the index and its checksum; a coded payload is decoded to `plain`. */
int ofs_record_intact(const struct ofs_store *store, const uint8_t *bytes, uint32_t record,
	uint8_t *plain);
/* The same for a get's record; op->buffer then has it as if it had never been coded. */
int ofs_record_take(struct ofs_store *store, const struct ofs_store_op *op);

/* part.c: reads of a part of a record */
/* Sends the reads for `granules`. As ofs_op_submit; -ESTALE: the bytes have changed. */
int ofs_part_submit(struct ofs_store *store, struct ofs_store_op *op, uint32_t granules, int fill);
/* Sends reads that the device had no room for. Returns a get that nothing will end, or NULL. */
struct ofs_store_op *ofs_part_resume(struct ofs_store *store);
/* One I/O of a get has ended; 0: it was the last. */
int ofs_part_goes_on(struct ofs_store_op *op, int64_t result);
/* 1: what was read is right; -EAGAIN: only the whole can be checked, and must be read. */
int ofs_part_take(struct ofs_store *store, struct ofs_store_op *op);
int ofs_part_read_whole(struct ofs_store *store, struct ofs_store_op *op);
/* The record was read whole and is right: computes its checksums of granules if it has none. */
void ofs_part_complete(struct ofs_store *store, const struct ofs_store_op *op);

/* superblock.c: find, make or refuse the store on the device. load writes nothing. */
int ofs_store_load(struct ofs_store *store, uint64_t now_s, int *fresh, char *error,
	size_t error_size_bytes);
/* Begins a new opening on the device; nothing else may be written before it. */
int ofs_superblock_begin(struct ofs_store *store, char *error, size_t error_size_bytes);

/* index.c */
uint32_t ofs_store_index_find(const struct ofs_store *store, const struct ofs_key *key,
	uint32_t layer);
void ofs_store_index_insert(struct ofs_store *store, uint32_t record);
void ofs_store_index_remove(struct ofs_store *store, uint32_t record);
/* `next` has the key and layer of `record` and takes its place. */
void ofs_store_index_replace(struct ofs_store *store, uint32_t record, uint32_t next);
void ofs_store_index_clear(struct ofs_store *store);

/* segment.c: lanes, room, and the return to the free list */
uint32_t ofs_lane_of(const struct ofs_store *store, uint32_t segment);
/* The place of this lane's next record, in *record; opens a segment if needed. */
int ofs_lane_room(struct ofs_store *store, uint32_t tenant, uint32_t layer, int cleaner,
	uint32_t *record);
/* Takes the place. */
void ofs_lane_take(struct ofs_store *store, uint32_t record);
/* The write of one of its places has ended. */
void ofs_lane_written(struct ofs_store *store, uint32_t segment);
/* `taken`, counted anew. */
uint64_t ofs_store_taken(const struct ofs_store *store);
void ofs_segment_seal(struct ofs_store *store, uint32_t segment);
/* Frees the segment if nothing in it is alive or in flight. */
void ofs_segment_settle(struct ofs_store *store, uint32_t segment);
void ofs_segment_header_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result);
void ofs_segment_mark_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result);
void ofs_segment_discard_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result);
/* Sends marks and discards that wait for an op or for the device. */
void ofs_segment_mark_step(struct ofs_store *store);

/* wipe.c: makes sure the next open does not find deleted blocks */
void ofs_wipe_step(struct ofs_store *store);
void ofs_wipe_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result);
/* Retries failed wipes and marks, once a second has passed. */
void ofs_wipe_again(struct ofs_store *store);

/* record.c: the states of one record, and lists of segments */
void ofs_list_put(struct ofs_store *store, struct ofs_store_list *list, uint32_t segment);
uint32_t ofs_list_take(struct ofs_store *store, struct ofs_store_list *list);
void ofs_record_enliven(struct ofs_store *store, uint32_t record);
/* Both are copies of one block; `record` was in no ring until now. */
void ofs_copies_join(struct ofs_store *store, uint32_t record, uint32_t other);
/* The block is gone, with every copy; the caller updates the index. */
void ofs_copies_wipe(struct ofs_store *store, uint32_t record);
/* The place is empty. */
void ofs_record_reset(struct ofs_store *store, uint32_t record);
/* Some of its dead records must be wiped, or it has no live ones. */
void ofs_wipe_list(struct ofs_store *store, uint32_t segment);
/* Wipes all that was written in the segment before it is marked; 0: done. */
int ofs_wipe_rest(struct ofs_store *store, uint32_t segment);
/* Its mark is on the device: an open no longer finds anything in it. */
void ofs_wipe_marked(struct ofs_store *store, uint32_t segment);
/* It is wiped. */
void ofs_wipe_ended(struct ofs_store *store, uint32_t record);
/* Removes it from the live count; the caller updates the index. */
void ofs_record_mark_dead(struct ofs_store *store, uint32_t record);
int ofs_record_expired(const struct ofs_store *store, uint32_t record, uint64_t now_s);
void ofs_store_entry_fill(const struct ofs_store *store, uint32_t record,
	struct ofs_store_entry *entry);

/* ops.c: the pool, the ready list, submission */
struct ofs_store_op *ofs_op_take(struct ofs_store *store, uint32_t *list);
void ofs_op_give(struct ofs_store *store, struct ofs_store_op *op);
void ofs_op_append(struct ofs_store *store, struct ofs_store_list *list, struct ofs_store_op *op);
void ofs_op_ready(struct ofs_store *store, struct ofs_store_op *op, int32_t rc);
uint32_t ofs_op_index(const struct ofs_store *store, const struct ofs_store_op *op);
int ofs_op_submit(struct ofs_store *store, const struct ofs_store_op *op, int io, uint64_t offset,
	void *memory, uint32_t size_bytes, uint32_t lifetime);
int32_t ofs_store_rc(int64_t result, uint32_t size_bytes);

/* put.c, get.c: completions */
/* Finds room, fills the trailer in op->buffer and sends it; it replaces `old`, or OFS_NONE. */
int ofs_put_send(struct ofs_store *store, struct ofs_store_op *op, uint32_t tenant, uint32_t layer,
	const struct ofs_key *key, uint64_t expire_s);
/* Expired, corrupt or deleted: removes it from the index and gives up its place. */
void ofs_record_drop(struct ofs_store *store, uint32_t record);
void ofs_put_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result);
/* Written, and its segment's header is written or has failed. */
void ofs_put_settle(struct ofs_store *store, struct ofs_store_op *op);
void ofs_get_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result);

/* clean.c */
void ofs_clean_open(struct ofs_store *store);
void ofs_clean_step(struct ofs_store *store);
void ofs_clean_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result);
void ofs_clean_written(struct ofs_store *store, struct ofs_store_op *op);
/* The segment is being freed, for whatever reason: it is no longer a victim. */
void ofs_clean_freed(struct ofs_store *store, uint32_t segment);
/* A lane has no room: -EAGAIN if the cleaner can make some; -EIO: the drive refuses writes; else
 * -ENOSPC. */
int ofs_clean_starve(struct ofs_store *store, uint32_t lane);
/* Records of the victim that still need a place in this lane. */
uint32_t ofs_clean_needs(const struct ofs_store *store, uint32_t lane);

/* victim.c */
uint32_t ofs_clean_victim(struct ofs_store *store, uint32_t lane, int *soon);

/* forward.c */
void ofs_forward_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result);
/* At open: 1 if the blocks of this store have moved elsewhere, 0, or -errno. */
int ofs_store_forwarded(struct ofs_store *store, struct ofs_store_forward *forward);

/* recover.c, batch.c: only at open, with nothing else in flight */
int ofs_store_recover(struct ofs_store *store, uint64_t now_s);

struct ofs_batch {
	uint32_t size_bytes; /* of each read */
	uint32_t depth;
	void *context;
	/* The next item and its location; 0 at the end. */
	int (*next)(struct ofs_store *store, void *context, uint32_t *item, uint64_t *offset);
	/* Not 0: read it again, if there are tries left. bytes NULL: it could not be read. */
	int (*seen)(struct ofs_store *store, void *context, uint32_t item, const uint8_t *bytes,
		int last);
};
int ofs_batch_read(struct ofs_store *store, const struct ofs_batch *batch);
/* One blocking I/O. 0 or -errno. */
int ofs_store_io(struct ofs_store *store, int io, uint64_t offset, void *buffer,
	uint32_t size_bytes);
/* Lets time pass until something may have completed; -ETIMEDOUT after too long without. */
struct ofs_patience {
	uint64_t since_ns;
	uint32_t idle;
};
int ofs_store_wait(struct ofs_store *store, struct ofs_patience *patience);

/* os.c: the system calls that open needs */
int ofs_store_lock(const char *path, int *fd, char *error, size_t error_size_bytes);
void ofs_store_unlock(int fd);
void ofs_store_uuid(struct ofs_key *uuid);

#endif
