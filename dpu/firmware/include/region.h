/*
 * region.h: the memory map. One layout for shared memory, RDMA and the ASIC model.
 *
 * Model: every tenant has its own *region*: header, directory, slots. It is a separate mapping, so
 * that no host can read another tenant's slots. Hosts map it read-only and read slots one-sidedly.
 * Every attached host has its own *port*: memory with a submission ring, a completion ring, one
 * payload area per submission entry and a put window, written by both sides; port.h and fabric.h
 * are its two ends. The DPU owns everything; its reactor thread is the only writer of regions and
 * the only caller of the functions below.
 *
 * A slot holds one record: payload, then at `trailer_offset` (the last LBA of the slot) a trailer.
 * The record is written to NVMe unchanged, so a read from NVMe lands in its slot without a copy.
 *
 * Publishing: RETRACT clears the directory entry, then the trailer's generation, before the slot is
 * written again; PUBLISH writes the trailer's key and generation (release), then the entry under
 * its sequence (odd while it changes).
 *
 * Reading a hit: the entry (even sequence), then, in a second read, payload and trailer. The copy
 * is valid when the trailer's key and generation equal the entry's and the checksum of the copied
 * payload equals the trailer's. This does not depend on the order in which that read saw its bytes:
 *
 *   the checksum ties the payload to the trailer's first half: a payload that is torn, or of
 *   another age than the trailer, does not match it (2^-64);
 *   the seal ties the trailer's halves together: without it a key read before the slot was
 *   rewritten could be paired with a payload and a checksum read after;
 *   key and generation identify the block and the use of the slot that the entry named.
 *
 * Anything else is a miss, never data. A torn entry names a slot whose trailer does not match.
 *
 * The check does not depend on when the entry was read. A host may cache the entry and read only
 * the record: the cached key and generation are compared with the trailer, and a record that
 * matches is the block's. A slot that was emptied since has generation 0; one that was rewritten
 * has another generation. Even after 2^32 generations, when numbers repeat, the key must match. So
 * a stale entry costs one wasted read, after which the host reads the directory.
 *
 * A directory bucket has 8 entries, a key has two candidate buckets, and there are at least twice
 * as many entries as slots: at this load fewer than one publish in a million finds no free entry.
 *
 * The DPU trusts nothing that a host writes: it copies a command, then checks every number in the
 * copy.
 */
#ifndef OFS_REGION_H
#define OFS_REGION_H

#include "dma.h"

#define OFS_REGION_MAGIC 0x314e474552534f46ull /* "FOSREGN1" */
#define OFS_PORT_MAGIC 0x3154524f5053464full   /* "OFSPORT1" */
#define OFS_TRAILER_MAGIC 0x5253464fu          /* "OFSR" */
#define OFS_MEMORY_MAP_VERSION 6               /* of region and port; both headers carry it */
#define OFS_BUCKET_ENTRIES 8

/* cdef: order 4 */
/* cdef: begin */
/* At the start of a slot's last LBA; NVMe has the same bytes. */
struct ofs_trailer {
	uint32_t magic;
	uint32_t crc;    /* low 32 bits of XXH3 over `length` to `reserved` */
	uint32_t length; /* payload bytes */
	uint16_t layer;
	uint16_t tenant;
	uint64_t checksum;        /* XXH3-64 of payload[0, length) */
	uint64_t sequence;        /* of the store's log; later wins */
	struct ofs_key store_key; /* chunk key in the store */
	uint64_t expire_s;        /* Unix time; 0 never */
	uint64_t reserved[3];
	/* In memory only, not under crc: */
	struct ofs_key key;  /* directory identity: block key */
	uint32_t generation; /* 0: the slot has nothing that may be read */
	uint32_t cause;
	uint64_t seal;     /* ofs_trailer_seal: ties these to the first half */
	uint32_t granules; /* those present, bit i the i-th; 0: the whole block. Not sealed: an absent
	                    * granule does not match its checksum */
	uint32_t pad[3];
};

struct ofs_region_header {
	uint64_t magic;
	uint32_t version;
	uint32_t tenant;
	uint64_t size_bytes;
	uint64_t boot_id; /* differs at every start of the daemon */
	uint32_t slot_count;
	uint32_t slot_stride_bytes;
	uint32_t payload_size_bytes;
	uint32_t trailer_offset;
	uint32_t bucket_count; /* power of two */
	uint32_t bucket_entries;
	uint64_t directory_offset;
	uint64_t slots_offset;
	uint32_t granule_count; /* parts of a block that a slot may hold; below 2: none */
	uint32_t layer_count;   /* of a chunk */
	uint64_t checksum;      /* of the fields above */
};

/* Two entries share a cache line; a bucket is four lines: one one-sided read. */
struct ofs_directory_entry {
	uint32_t sequence; /* odd: being changed; 0 and slot OFS_NONE: empty */
	uint32_t slot;
	struct ofs_key key;
	uint32_t generation;
	uint32_t cause;
};

/* Further flags of a STEP; OFS_SCORES_* come from hosts that know the policy's limits. */
#define OFS_SCORES_PACKED 0x2
#define OFS_SCORES_BYTES 0x4   /* the upper half of each score */
#define OFS_SCORES_RAISED 0x8  /* a byte of 0 is a low score, not an absent one */
#define OFS_STEP_GRANULES 0x10 /* which granules of each demand: u32[demand_count], 0: all */

enum ofs_op {
	OFS_OP_NOP = 0,
	OFS_OP_STEP = 1,
	OFS_OP_PUT = 2,
	OFS_OP_RELEASE = 3,
	OFS_OP_HINT = 4,  /* guesses for later layers: ofs_core_hint */
	OFS_OP_VALUES = 5 /* values by key: what `flags` says, of each that the payload names */
};

/*
 * What a VALUES command does with each value it names, and in `told` says of it. STORE and RETRIEVE
 * open a session of as many chunks as the value needs: piece i of a payload's bytes, the last one
 * shorter, is the block of layer i % layer_count and ordinal i / layer_count. Pieces are written by
 * PUT and read by STEP or one-sidedly, as any block. END ends the session; COMMIT does too, and
 * makes what was stored the key's value, in one step.
 */
enum ofs_value_verb {
	OFS_VALUE_EXIST = 1,    /* told: its length */
	OFS_VALUE_RETRIEVE = 2, /* told: its length, session and chunk; it stays until END */
	OFS_VALUE_STORE = 3,    /* of `length` bytes; told: session and chunk */
	OFS_VALUE_COMMIT = 4,   /* `session` of a STORE, all of whose pieces are acknowledged */
	OFS_VALUE_END = 5,      /* `session`; of a STORE: drops what it wrote */
	OFS_VALUE_DELETE = 6,   /* `length`: 0, or the one told with -EAGAIN, if any */
	OFS_VALUE_LIST = 7 /* keys of a volume, from where the first ask says: see ofs_value_told */
};

/* Of a STORE; both are looked at again at its COMMIT. */
#define OFS_VALUE_KEEP 0x1 /* -EEXIST if the key has a value */
#define OFS_VALUE_OVER 0x2 /* -ENOENT if it has none */
/* Its COMMIT is -EAGAIN until every piece is on the drive, also where the daemon writes back. */
#define OFS_VALUE_DURABLE 0x4

#define OFS_VALUE_NAME_BYTES_MAX 16

struct ofs_value_ask {
	struct ofs_key key;
	uint64_t length;
	uint32_t session;
	uint16_t flags;
	uint16_t name_bytes; /* STORE: of the volume's key, which `key` is the hash of; 0: unknown */
	struct ofs_key name; /* STORE: the volume's key. LIST: the volume */
};

/* -ENOENT absent, -ENOSPC no room, -EBUSY no session is free, -EMSGSIZE too long, -EPERM not a
 * session of that verb, ... */
struct ofs_value_told {
	int32_t rc;
	uint32_t session;
	uint64_t length;
	/* Of its first chunk, in the directory: fold in a chunk's number with ofs_fold_key, and the layer
	 * with ofs_block_key. */
	struct ofs_key chunk;
};
/*
 * A LIST of n asks returns up to n - 1 keys, in an order that storing and deleting others does not
 * change: from `key` on where the first ask's `length` is 0, from the first one on where it is 1.
 * Each key is a told: rc 0, `session` its bytes, `chunk` the key, `length` of its value. Behind
 * them stands one more: -ENOENT, there are no others; or -EAGAIN, and its `length` and `chunk` are
 * the `length` and `key` of the ask that goes on. Values that were stored without a name are left
 * out.
 */

/*
 * 64 bytes. Payload area of a STEP: ordinals u32[demand_count], seen u8[demand_count] (padded to
 * 8), with OFS_STEP_GRANULES granules u32[demand_count] (padded to 8), scores u16[score_count] or
 * packed (scores.h); then, at a fixed offset after the longest of these, ofs_result
 * [demand_count], written by the DPU. See ofs_payload_*_offset. Payload area of a HINT: ofs_guess
 * [demand_count]. Of VALUES: ofs_value_ask [demand_count], and where the results are,
 * ofs_value_told [demand_count].
 */
struct ofs_sqe {
	uint64_t user;
	uint16_t op;
	uint16_t flags; /* OFS_STEP_RETRY, OFS_SCORES_*; VALUES: enum ofs_value_verb */
	uint16_t layer;
	uint16_t payload_index; /* which payload area */
	uint32_t session;
	uint32_t step;
	uint32_t selected_count;
	uint32_t demand_count; /* HINT: guesses; VALUES: values */
	uint32_t score_count;
	uint32_t ordinal;  /* PUT; STEP: best scores sent of score_count, 0: all */
	uint32_t put_slot; /* PUT */
	uint32_t length;   /* PUT: payload bytes */
	uint64_t checksum; /* PUT: XXH3-64 of the payload, computed by the host */
	uint64_t sent_ns;  /* of a timed command: CLOCK_MONOTONIC when it was written; else 0 */
};

/*
 * A STEP has one or more completions. All but the last carry -EINPROGRESS and the results written
 * so far, so that a host reads a block while the next is still in flight. They are dropped when the
 * ring is full; the last is never dropped and covers all results.
 */
struct ofs_cqe {
	uint64_t user;
	int32_t rc;
	uint16_t op;
	uint16_t payload_index;
	uint32_t count; /* results written by now */
	uint32_t first; /* results before it came with an earlier completion */
	/* DPU clock: when a timed command completed; for any other, when the reactor's turn began. */
	uint64_t now_ns;
};

/* One per demand of a STEP, in the order in which they landed. */
struct ofs_result {
	uint32_t slot;
	uint32_t generation;
	/* 0 in its slot; -EAGAIN retry; -ENOENT unknown, -EBADMSG failed its check, -EIO, ... */
	int32_t rc;
	uint16_t demand; /* its index in the STEP */
	uint16_t end;    /* enum ofs_end */
};

struct ofs_port_header {
	uint64_t magic;
	uint32_t version;
	uint32_t tenant;
	uint64_t size_bytes;
	uint64_t boot_id;
	uint32_t entry_count; /* power of two: submission entries; completions have twice as many */
	uint32_t payload_size_bytes;
	uint32_t put_slot_count;
	uint32_t put_stride_bytes;
	uint64_t submissions_offset;
	uint64_t completions_offset;
	uint64_t payloads_offset;
	uint64_t puts_offset;
	uint32_t demand_max;
	uint32_t score_max;
	uint64_t checksum; /* of the fields above */
};
/* cdef: end */

/* The words both sides poll, a cache line each, at fixed offsets after the port header. */
struct ofs_port_words {
	_Alignas(64) uint32_t submission_tail; /* host writes */
	_Alignas(64) uint32_t submission_head; /* DPU writes */
	_Alignas(64) uint32_t completion_tail; /* DPU writes */
	_Alignas(64) uint32_t completion_head; /* host writes */
	_Alignas(64) uint32_t dpu_sleeping;    /* DPU: ring after a submission */
	_Alignas(64) uint32_t host_sleeping;   /* host: ring after a completion */
	_Alignas(64) uint32_t closed;          /* DPU: this port is closed, attach again */
};
#define OFS_PORT_WORDS_OFFSET 256

_Static_assert(sizeof(struct ofs_trailer) == 128, "the trailer is part of the memory map");
_Static_assert(sizeof(struct ofs_directory_entry) == 32, "two entries a line");
_Static_assert(sizeof(struct ofs_sqe) == 64, "one line");
_Static_assert(sizeof(struct ofs_cqe) == 32, "two a line");
_Static_assert(sizeof(struct ofs_result) == 16, "part of the memory map");
_Static_assert(sizeof(struct ofs_value_ask) == 48, "part of the memory map");
_Static_assert(sizeof(struct ofs_value_told) == 2 * sizeof(struct ofs_result),
	"answers stand where results do");
_Static_assert(sizeof(struct ofs_guess) == 16, "and as many of them fit where results do");
_Static_assert(sizeof(struct ofs_port_header) <= OFS_PORT_WORDS_OFFSET, "words stand behind it");

/* Header values above these are refused, so that no size below overflows. */
#define OFS_REGION_SLOTS_MAX (1u << 28)
#define OFS_PAYLOAD_SIZE_BYTES_MAX (1u << 28)
#define OFS_PORT_ENTRIES_MAX 4096u
#define OFS_PORT_DEMANDS_MAX 65536u
#define OFS_PORT_SCORES_MAX (1u << 22)
#define OFS_PORT_PUT_SLOTS_MAX 4096u

static inline uint32_t
ofs_payload_seen_offset(uint32_t demand_count)
{
	return demand_count * 4;
}

static inline uint32_t
ofs_payload_scores_offset(uint32_t demand_count)
{
	return (demand_count * 5 + 7) & ~7u;
}

static inline uint32_t
ofs_granule_masks_bytes(uint32_t demand_count)
{
	return (demand_count * 4 + 7) & ~7u;
}

/* Offset of a STEP's scores: after the granules of its demands, if any. */
static inline uint32_t
ofs_step_scores_offset(const struct ofs_sqe *sqe)
{
	return ofs_payload_scores_offset(sqe->demand_count)
		+ (sqe->flags & OFS_STEP_GRANULES ? ofs_granule_masks_bytes(sqe->demand_count) : 0);
}

static inline uint32_t
ofs_payload_results_offset(uint32_t demand_max, uint32_t score_max)
{
	return (ofs_payload_scores_offset(demand_max) + ofs_granule_masks_bytes(demand_max)
			   + score_max * 2 + 63)
		& ~63u;
}

static inline uint32_t
ofs_payload_area_size_bytes(uint32_t demand_max, uint32_t score_max)
{
	return (ofs_payload_results_offset(demand_max, score_max)
			   + demand_max * (uint32_t)sizeof(struct ofs_result) + 63)
		& ~63u;
}

/* Values that one command may name: their asks and their answers fit into the payload area. */
static inline uint32_t
ofs_values_max(uint32_t demand_max, uint32_t score_max)
{
	uint32_t asks =
		ofs_payload_results_offset(demand_max, score_max) / (uint32_t)sizeof(struct ofs_value_ask);

	return asks < demand_max / 2 ? asks : demand_max / 2;
}

/* Bytes of one ordinal among packed scores. */
static inline uint32_t
ofs_scores_ordinal_bytes(uint32_t score_count)
{
	return score_count <= 1u << 16 ? 2 : 4;
}

/* Bytes of a STEP's scores as sent. */
static inline uint64_t
ofs_scores_size_bytes(const struct ofs_sqe *sqe)
{
	uint64_t score_bytes = sqe->flags & OFS_SCORES_BYTES ? 1 : 2;

	if ((sqe->flags & OFS_SCORES_PACKED) == 0)
		return sqe->score_count * 2ull;
	if (sqe->ordinal == 0)
		return sqe->score_count * score_bytes;
	return sqe->ordinal * (score_bytes + ofs_scores_ordinal_bytes(sqe->score_count));
}

/* Bytes of its payload area that a command fills and a fabric must carry with it. */
static inline uint64_t
ofs_payload_used_bytes(const struct ofs_sqe *sqe)
{
	switch (sqe->op) {
	case OFS_OP_STEP:
		return ofs_step_scores_offset(sqe) + ofs_scores_size_bytes(sqe);
	case OFS_OP_HINT:
		return sqe->demand_count * (uint64_t)sizeof(struct ofs_guess);
	case OFS_OP_VALUES:
		return sqe->demand_count * (uint64_t)sizeof(struct ofs_value_ask);
	default:
		return 0;
	}
}

/* Seal of a published trailer: two halves of different ages do not match it (2^-64). */
static inline uint64_t
ofs_trailer_seal(const struct ofs_trailer *trailer)
{
	uint64_t words[5] = {trailer->checksum, trailer->key.lo, trailer->key.hi,
		(uint64_t)trailer->length << 32 | trailer->generation, trailer->cause};

	return ofs_checksum(words, sizeof(words));
}

/* A key's two candidate buckets; bucket_count is a power of two and at least 2. */
static inline uint32_t
ofs_bucket_first(const struct ofs_key *key, uint32_t bucket_count)
{
	return (uint32_t)((key->lo * 0x9e3779b97f4a7c15ull) >> 32) & (bucket_count - 1);
}

static inline uint32_t
ofs_bucket_second(const struct ofs_key *key, uint32_t bucket_count)
{
	uint32_t second = (uint32_t)((key->hi * 0xc2b2ae3d27d4eb4full) >> 32) & (bucket_count - 1);

	return second == ofs_bucket_first(key, bucket_count) ? second ^ 1 : second;
}

/* ---- DPU side: the region of one tenant ---- */
struct ofs_region;
struct ofs_region_config {
	uint32_t tenant;
	uint32_t slot_count;
	uint32_t payload_size_bytes; /* multiple of lba_size_bytes */
	uint32_t lba_size_bytes;     /* power of two, at least 128 */
	uint32_t granule_count;      /* below 2: slots hold whole blocks; else lba at least 512 */
	uint32_t layer_count;        /* told to hosts */
	uint64_t boot_id;
	struct ofs_dma_config memory;
};
/*
 * A memfd, pre-faulted, sealed against resize and against every writable mapping but this one.
 * -EINVAL a size out of range, -ENOMEM, -EMFILE.
 */
int ofs_region_open(struct ofs_region **out, const struct ofs_region_config *config);
void ofs_region_close(struct ofs_region *region);
/* A read-only descriptor for hosts; the caller closes it. */
int ofs_region_share_fd(const struct ofs_region *region);
/* NULL if out of range. */
void *ofs_region_slot(const struct ofs_region *region, uint32_t slot);
struct ofs_trailer *ofs_region_trailer(const struct ofs_region *region, uint32_t slot);
void *ofs_region_base(const struct ofs_region *region, uint64_t *size_bytes);
/*
 * The slot must already have payload, length and checksum. A key that is already published moves to
 * this slot. -ENOSPC: both buckets are full; the trailer is written all the same, and the block can
 * only be fetched by a STEP.
 */
int ofs_region_publish(struct ofs_region *region, const struct ofs_key *block_key, uint32_t slot,
	uint32_t generation, uint32_t cause, uint32_t granules);
/* Adds granules to a published slot; everything else stays. */
void ofs_region_extend(struct ofs_region *region, uint32_t slot, uint32_t granules);
void ofs_region_retract(struct ofs_region *region, const struct ofs_key *block_key, uint32_t slot);

#endif
