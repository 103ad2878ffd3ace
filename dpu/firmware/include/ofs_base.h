/*
 * ofs_base.h: the words every part of the firmware shares.
 *
 * Model: plain types, limits and enumerations; nothing here owns memory or can fail. A *chunk* is
 * the KV of the same tokens over all layers and is named by a 128-bit prefix hash; a *block* is one
 * layer of a chunk. Calls return 0 or -errno; the outcome of I/O stands only in its completion.
 */
#ifndef OFS_BASE_H
#define OFS_BASE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

/* cdef: order 0 */
/* cdef: begin */
#define OFS_ABI_VERSION 3
#define OFS_NONE 0xffffffff

/* A 128-bit name. Chunk keys: SipHash-2-4-128 of (parent key, content) under a tenant's secret. */
struct ofs_key {
	uint64_t lo;
	uint64_t hi;
};

/* Why a block stands in the staging arena. */
enum ofs_cause {
	OFS_CAUSE_NONE = 0,
	OFS_CAUSE_DEMAND = 1,    /* a demand brought it */
	OFS_CAUSE_WRITE = 2,     /* the host wrote it and it was kept */
	OFS_CAUSE_WINDOW = 3,    /* sliding-window prefetch */
	OFS_CAUSE_PATTERN = 4,   /* attention-pattern prefetch: ema */
	OFS_CAUSE_LOOKAHEAD = 5, /* shared index sets, draft tokens */
	OFS_CAUSE_SHARED = 6,    /* predicted from another session on the same prefix */
	OFS_CAUSE_BASELINE = 7,  /* previous step, previous layer, next-N */
	OFS_CAUSE_COUNT = 8
};

/* A guess made by the host: that a layer of the session will demand an ordinal. */
struct ofs_guess {
	uint16_t after_layer; /* when to pass it: for the caller, not for the core */
	uint16_t layer;
	uint32_t ordinal;
	uint16_t steps;       /* from the step the session is in: 0 this one, 1 the next */
	uint16_t probability; /* of that demand; 65535 is 1 */
	uint8_t cause;        /* a prefetching enum ofs_cause: how the ledger names it */
	uint8_t reserved[3];
};

/* The end of one demand: the first five are on-time hits, the last four are misses. */
enum ofs_end {
	OFS_END_WINDOW = 0,
	OFS_END_PATTERN = 1,
	OFS_END_LOOKAHEAD = 2,
	OFS_END_SHARED = 3,
	OFS_END_RETAINED = 4,
	OFS_END_LATE = 5,
	OFS_END_COLD = 6,     /* this session never had the block staged before */
	OFS_END_CAPACITY = 7, /* a demand-only LRU of the same size would have missed too */
	OFS_END_POLICY = 8,   /* that LRU would have hit: our own choice lost it */
	OFS_END_COUNT = 9
};

/* The end of one prefetched block. */
enum ofs_fate {
	OFS_FATE_USED = 0,      /* arrived and was demanded on time */
	OFS_FATE_LATE = 1,      /* demanded while in flight */
	OFS_FATE_UNUSED = 2,    /* evicted (or left at the close) without a demand */
	OFS_FATE_DROPPED = 3,   /* queued and never issued: deadline passed or superseded */
	OFS_FATE_CANCELLED = 4, /* issued, and its read failed or its session closed */
	OFS_FATE_COUNT = 5
};

/*
 * Where the time of a block goes. The reactor times the first seven, the host's driver the next
 * three, and the reactor of a modelled device what the model holds, each of them.
 * Timed is one command, one read and one write in OFS_STAGE_STRIDE, a prime, so that no batch size
 * hides a position in its batch: to read the clock for each would cost a short fetch a fifth.
 */
#define OFS_STAGE_STRIDE 31
enum ofs_stage {
	OFS_STAGE_RING_WAIT = 0,      /* a STEP or PUT written by the host -> taken by the reactor */
	OFS_STAGE_DECIDE = 1,         /* a STEP taken -> the core has decided */
	OFS_STAGE_READ_QUEUE = 2,     /* a read decided -> the storage has it */
	OFS_STAGE_READ_SERVICE = 3,   /* -> the reactor sees its end */
	OFS_STAGE_PUBLISH = 4,        /* -> it is in the directory, and its demand answered */
	OFS_STAGE_WRITE_QUEUE = 5,    /* a put or flush accepted -> the storage has it */
	OFS_STAGE_WRITE_SERVICE = 6,  /* -> the reactor sees its end */
	OFS_STAGE_ANSWER = 7,         /* a completion written -> the host takes it in */
	OFS_STAGE_COPY = 8,           /* a block out of its slot; hashed on the way, on one machine */
	OFS_STAGE_CHECK = 9,          /* the trailer, and over a network the checksum of the copy */
	OFS_STAGE_MODEL_COMMAND = 10, /* a STEP taken -> the modelled device has it */
	OFS_STAGE_MODEL_HIT = 11,     /* blocks staged -> the modelled device handed them over */
	OFS_STAGE_COUNT = 12
};

uint32_t ofs_version(void);
/* SipHash-2-4 with 128-bit output (Aumasson, Bernstein 2012) of `size` bytes under `secret`. */
void ofs_siphash(const struct ofs_key *secret, const void *data, size_t size, struct ofs_key *out);
/*
 * The key, in the tenant, of the value that a volume has under a key of 1 to 16 bytes: SipHash of
 * its length and bytes under the volume's 16 bytes. Two collide with p = 2^-128.
 */
void ofs_value_key(const uint8_t *volume, const uint8_t *key, uint32_t length, struct ofs_key *out);
/* XXH3-64 of `size` bytes: the checksum of every block, in memory and on NVMe. */
uint64_t ofs_checksum(const void *data, size_t size);
/* Key of one block: its chunk's key with the layer folded in. Two collide with p = 2^-127. */
void ofs_block_key(const struct ofs_key *chunk, uint32_t layer, struct ofs_key *out);
/* The key of chunk `number` of several that are named by the first one's key. */
void ofs_fold_key(const struct ofs_key *first, uint32_t number, struct ofs_key *out);
/* cdef: end */

/* Copies, and returns the checksum of the copy; faster than the two in a row. */
uint64_t ofs_checksum_copy(void *target, const void *source, size_t size);

/* The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection whose values look random. */
static inline uint64_t
ofs_mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* SplitMix64 itself: the next number of a state. */
static inline uint64_t
ofs_draw(uint64_t *state)
{
	return ofs_mix(*state += 0x9e3779b97f4a7c15ull);
}

static inline int
ofs_key_equal(const struct ofs_key *a, const struct ofs_key *b)
{
	return a->lo == b->lo && a->hi == b->hi;
}

#endif
