/*
 * ofs_bound.h: what any policy could hit at best, for demands that are known in advance.
 *
 * Model: pure functions over arrays of the caller; they own nothing after they return, and the same
 * input gives the same result everywhere. A *row* is a set of blocks that are needed together: one
 * layer of one step of one session. Rows are served one after another out of one buffer of `slots`
 * blocks that starts empty; a read takes no time. What can fail: input that breaks what stands at
 * its field (-EINVAL), and memory at the start (-ENOMEM).
 */
#ifndef OFS_BOUND_H
#define OFS_BOUND_H

#include "ofs_base.h"

/* cdef: order 9 */
/* cdef: begin */
#define OFS_BOUND_NONTRIVIAL 1 /* mark: counted in nontrivial_hits too */
#define OFS_BOUND_WRITTEN 2    /* mark: decode writes the block; no read at its first demand */
#define OFS_BOUND_CREDIT_ONE 0x100000 /* credit of one block */

struct ofs_bound_demands {
	uint32_t row_count;
	uint32_t block_count;
	const uint64_t *offsets; /* [row_count + 1] into demands, rising by at most 65535 */
	const uint32_t *demands; /* blocks below block_count, none twice in one row */
	const uint8_t *marks;    /* of each demand; WRITTEN on all of a block, or on none */
	const uint32_t *order;   /* [row_count] the rows in order of time; NULL: as they stand */
	uint32_t *next;          /* of each demand: when its block is demanded again, as an index of
	                             that order; row_count: never. ofs_bound_next writes it */
};

/* Bandwidth of prefetch. Credit is counted in 1 / OFS_BOUND_CREDIT_ONE of a block. */
struct ofs_bound_cap {
	const uint64_t *credits; /* [row_count] earned while the row is served; NULL: unlimited */
	uint64_t lead;           /* earned before the first row */
	uint64_t burst;          /* what is not spent is kept up to this */
};

struct ofs_bound_result {
	uint16_t *hits;            /* out [row_count] demands that need no read at their row */
	uint16_t *nontrivial_hits; /* out [row_count] */
	uint64_t reads;            /* out */
	uint64_t prefetched;       /* out: of the reads, those before their row */
};

/* Check the demands and write `next`: before every other call. */
int ofs_bound_next(struct ofs_bound_demands *demands);
/* An endless buffer: only the first demand of a block is a miss. */
int ofs_bound_compulsory(const struct ofs_bound_demands *demands, struct ofs_bound_result *result);
/*
 * Read on demand; the victim is the block that is needed last (Belady, IBM Systems Journal 5(2),
 * 1966). All blocks of a row are held while it is served, so no row may exceed the buffer. With
 * `bypass` what was demanded need not be kept: a block that is needed later than all others goes at
 * once, and rows may have any size.
 */
int ofs_bound_belady(const struct ofs_bound_demands *demands, uint32_t slots, int bypass,
	struct ofs_bound_result *result);
/* Belady that also prefetches what is needed soonest, within the cap. */
int ofs_bound_clairvoyant(const struct ofs_bound_demands *demands, uint32_t slots,
	const struct ofs_bound_cap *cap, struct ofs_bound_result *result);
/* cdef: end */

#endif
