/*
 * region.h: the memory map. One layout for shared memory, RDMA and the ASIC model.
 *
 * Model: every tenant has a *region* of its own (a mapping of its own, so that no host can read
 * another tenant's slots): header, directory, slots. Hosts map it read-only and read slots
 * one-sidedly. Every attached host has a *port*: memory of its own with a submission ring, a
 * completion ring, one payload area per submission entry and a put window, written by both sides;
 * port.h and fabric.h are its two ends. The DPU owns everything; its reactor thread is the only
 * writer of regions and the only one that calls the functions below.
 *
 * A slot holds one record: payload, then at `trailer_offset` (the last LBA of the slot) a trailer.
 * The record goes to NVMe as it stands, so a read from NVMe lands in its slot without a copy.
 *
 * Publishing: RETRACT clears the directory entry, then the trailer's generation, before the slot is
 * written again; PUBLISH writes the trailer's key and generation (release), then the entry under
 * its sequence (odd while it changes).
 *
 * Reading a hit: the entry (even sequence), then, in a second read, payload and trailer. The copy
 * is right when the trailer's key and generation equal the entry's and the checksum of the copied
 * payload equals the trailer's. Nothing is said about the order in which that read saw its bytes:
 *
 *   the checksum ties the payload to the trailer's first half: bytes of two ages, or of another age
 *   than the trailer's, do not have it (2^-64);
 *   the seal ties the trailer's halves together: without it a key seen before the slot was written
 *   again could vouch for payload and checksum seen after;
 *   key and generation say whose bytes these are, and of which life of the slot: those that the
 *   entry named, which was read before.
 *
 * Anything else is a miss, never data. A torn entry names a slot whose trailer does not agree.
 *
 * Nothing above asks when the entry was read. A host may remember it and read the record alone:
 * what it remembers is no more than the key and generation that the trailer is held against, and a
 * record that agrees with them is the block's. A slot that was emptied since has generation 0, one
 * that was written again has another; even after 2^32 lives, when numbers come again, it would have
 * to hold the same key. So an entry that is too old costs a read in vain, and the directory is
 * asked.
 *
 * A directory bucket holds 8 entries, a key may stand in two buckets, and there are at least
 * twice as many entries as slots: at this load a key finds no room less than once in a million
 * publishes.
 *
 * Nothing a host writes is believed: the DPU copies a command, then checks every number in the
 * copy.
 */
#ifndef OFS_REGION_H
#define OFS_REGION_H

#include "dma.h"

#define OFS_REGION_MAGIC 0x314e474552534f46ull /* "FOSREGN1" */
#define OFS_PORT_MAGIC 0x3154524f5053464full   /* "OFSPORT1" */
#define OFS_TRAILER_MAGIC 0x5253464fu          /* "OFSR" */
#define OFS_MEMORY_MAP_VERSION 5               /* of region and port; both headers carry it */
#define OFS_CACHE_LINE 64
#define OFS_BUCKET_ENTRIES 8

/* cdef: order 4 */
/* cdef: begin */
/* The last LBA of a slot begins with it; the same bytes stand on NVMe. */
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
	uint32_t generation; /* 0: the slot holds nothing that may be read */
	uint32_t cause;
	uint64_t seal;     /* ofs_trailer_seal: ties these to the first half */
	uint32_t granules; /* which are there, bit i the i-th; 0: the whole block. Not sealed: what is
	                    * not there does not have its checksum */
	uint32_t pad[3];
};

struct ofs_region_header {
	uint64_t magic;
	uint32_t version;
	uint32_t tenant;
	uint64_t size_bytes;
	uint64_t epoch; /* differs at every start of the daemon */
	uint32_t slot_count;
	uint32_t slot_stride_bytes;
	uint32_t payload_size_bytes;
	uint32_t trailer_offset;
	uint32_t bucket_count; /* power of two */
	uint32_t bucket_entries;
	uint64_t directory_offset;
	uint64_t slots_offset;
	uint32_t granule_count; /* parts of a block that a slot may hold; below 2: none */
	uint32_t reserved;
	uint64_t checksum; /* of the fields above */
};

/* Two entries share a cache line; a bucket is four lines: one one-sided read. */
struct ofs_directory_entry {
	uint32_t sequence; /* odd: being changed; 0 and slot OFS_NONE: empty */
	uint32_t slot;
	struct ofs_key key;
	uint32_t generation;
	uint32_t cause;
};

/* Beside OFS_STEP_RETRY in the flags of a STEP, from hosts that were told the policy's limits. */
#define OFS_SCORES_PACKED 0x2
#define OFS_SCORES_BYTES 0x4   /* of each score the upper half */
#define OFS_SCORES_RAISED 0x8  /* a byte of 0 is a low score, and not none */
#define OFS_STEP_GRANULES 0x10 /* which granules of each demand: u32[demand_count], 0: all */

enum ofs_op {
	OFS_OP_NOP = 0,
	OFS_OP_STEP = 1,
	OFS_OP_PUT = 2,
	OFS_OP_RELEASE = 3,
	OFS_OP_HINT = 4 /* guesses for layers to come: ofs_core_hint */
};

/*
 * 64 bytes. The payload area of a STEP: ordinals u32[demand_count], seen u8[demand_count] (padded
 * to 8), granules u32[demand_count] (padded to 8) where the flag says so, scores
 * u16[score_count] or packed as scores.h says; and, at a fixed offset behind the longest of these,
 * ofs_result [demand_count], which the DPU writes. See ofs_payload_*_offset. That of a HINT:
 * ofs_guess [demand_count].
 */
struct ofs_sqe {
	uint64_t user;
	uint16_t op;
	uint16_t flags; /* OFS_STEP_RETRY, OFS_SCORES_* */
	uint16_t layer;
	uint16_t payload_index; /* which payload area */
	uint32_t session;
	uint32_t step;
	uint32_t selected_count;
	uint32_t demand_count; /* HINT: guesses */
	uint32_t score_count;
	uint32_t ordinal;  /* PUT; STEP: how many best scores came of score_count, 0: all */
	uint32_t put_slot; /* PUT */
	uint32_t length;   /* PUT: payload bytes */
	uint64_t checksum; /* PUT: XXH3-64 of the payload as the host knows it */
	uint64_t sent_ns;  /* CLOCK_MONOTONIC when it was written, of a command that is timed; else 0 */
};

/*
 * A STEP has one completion or several: those before the last say -EINPROGRESS and which results
 * have been added so far, so that a host reads a block while the next is still on its way. They are
 * left out where the ring has no room for them; the last one never is, and covers all.
 */
struct ofs_cqe {
	uint64_t user;
	int32_t rc;
	uint16_t op;
	uint16_t payload_index;
	uint32_t count; /* results written by now */
	uint32_t first; /* those before it came with an earlier completion */
	/* DPU clock: of a timed command when it completed, of any other when that turn began. */
	uint64_t now_ns;
};

/* One per demand of a STEP, in the order in which they landed. */
struct ofs_result {
	uint32_t slot;
	uint32_t generation;
	/* 0 in its slot; -EAGAIN ask again; -ENOENT unknown, -EBADMSG failed its check, -EIO, ... */
	int32_t rc;
	uint16_t demand; /* which of the STEP */
	uint16_t end;    /* enum ofs_end */
};

struct ofs_port_header {
	uint64_t magic;
	uint32_t version;
	uint32_t tenant;
	uint64_t size_bytes;
	uint64_t epoch;
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

/* The words both sides poll, a cache line each, at fixed offsets behind the port header. */
struct ofs_port_words {
	_Alignas(64) uint32_t submission_tail; /* host writes */
	_Alignas(64) uint32_t submission_head; /* DPU writes */
	_Alignas(64) uint32_t completion_tail; /* DPU writes */
	_Alignas(64) uint32_t completion_head; /* host writes */
	_Alignas(64) uint32_t dpu_sleeping;    /* DPU: ring me after a submission */
	_Alignas(64) uint32_t host_sleeping;   /* host: ring me after a completion */
	_Alignas(64) uint32_t closed;          /* DPU: this port is gone, attach again */
};
#define OFS_PORT_WORDS_OFFSET 256

_Static_assert(sizeof(struct ofs_trailer) == 128, "the trailer is part of the memory map");
_Static_assert(sizeof(struct ofs_directory_entry) == 32, "two entries a line");
_Static_assert(sizeof(struct ofs_sqe) == 64, "one line");
_Static_assert(sizeof(struct ofs_cqe) == 32, "two a line");
_Static_assert(sizeof(struct ofs_result) == 16, "part of the memory map");
_Static_assert(sizeof(struct ofs_guess) == 16, "and as many of them fit where results do");
_Static_assert(sizeof(struct ofs_port_header) <= OFS_PORT_WORDS_OFFSET, "words stand behind it");

/* Limits of what either side accepts in a header, so that no size below overflows. */
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

/* Of a STEP: where its scores begin, behind the granules of its demands where it has any. */
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

/* Bytes of one of the ordinals that packed scores come with. */
static inline uint32_t
ofs_scores_ordinal_bytes(uint32_t score_count)
{
	return score_count <= 1u << 16 ? 2 : 4;
}

/* Of the scores of a STEP, as they are on their way. */
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

/* What of its payload area a command fills: what a fabric has to carry beside it. */
static inline uint64_t
ofs_payload_used_bytes(const struct ofs_sqe *sqe)
{
	switch (sqe->op) {
	case OFS_OP_STEP:
		return ofs_step_scores_offset(sqe) + ofs_scores_size_bytes(sqe);
	case OFS_OP_HINT:
		return sqe->demand_count * (uint64_t)sizeof(struct ofs_guess);
	default:
		return 0;
	}
}

/* Of a published trailer: two halves of different ages do not have it (2^-64). */
static inline uint64_t
ofs_trailer_seal(const struct ofs_trailer *trailer)
{
	uint64_t words[5] = {trailer->checksum, trailer->key.lo, trailer->key.hi,
		(uint64_t)trailer->length << 32 | trailer->generation, trailer->cause};

	return ofs_checksum(words, sizeof(words));
}

/* The two buckets in which a key may stand; bucket_count is a power of two and at least 2. */
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
	uint64_t epoch;
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
/* NULL out of range. */
void *ofs_region_slot(const struct ofs_region *region, uint32_t slot);
struct ofs_trailer *ofs_region_trailer(const struct ofs_region *region, uint32_t slot);
void *ofs_region_base(const struct ofs_region *region, uint64_t *size_bytes);
/*
 * Payload, length and checksum stand in the slot already. A key that is published already moves.
 * -ENOSPC: both buckets are full; the block can then only be fetched by a STEP, for which the
 * trailer is written all the same.
 */
int ofs_region_publish(struct ofs_region *region, const struct ofs_key *block_key, uint32_t slot,
	uint32_t generation, uint32_t cause, uint32_t granules);
/* More granules stand in a slot that is published, as it was before. */
void ofs_region_extend(struct ofs_region *region, uint32_t slot, uint32_t granules);
void ofs_region_retract(struct ofs_region *region, const struct ofs_key *block_key, uint32_t slot);

#endif
