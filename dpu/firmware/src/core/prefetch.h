/*
 * prefetch.h: the interface of the core's prefetchers, and what they share.
 *
 * Model: the same functions in the same order in every prefetch_*.c. `observe` runs with a step
 * before its misses are given slots, `propose` after. Nothing here can fail: a proposal that finds
 * no room is dropped by queue.c.
 */
#ifndef OFS_CORE_PREFETCH_H
#define OFS_CORE_PREFETCH_H

#include "internal.h"
#include "rank.h"

#pragma GCC visibility push(hidden)

struct ofs_prefetch_ops {
	uint32_t bits; /* policy bits that enable its proposals; it observes in any case */
	void (*observe)(struct ofs_core *core, const struct ofs_step *step); /* NULL: learns nothing */
	/* step NULL: the session begins to generate. */
	void (*propose)(struct ofs_core *core, uint32_t session, uint32_t layer,
		const struct ofs_step *step);
};
/* What a chance-based prefetcher would stage: ordinals [0, count) by the chance of their value. */
struct ofs_guesses {
	const uint16_t *values; /* by ordinal; 0: none */
	const uint16_t *chance; /* by class of an average; NULL: the values are chances */
	uint32_t count;
	uint32_t cause;
};
extern const struct ofs_prefetch_ops ofs_prefetch_window, ofs_prefetch_ema, ofs_prefetch_shared,
	ofs_prefetch_baseline;
void ofs_prefetch_observe(struct ofs_core *core, const struct ofs_step *step);
void ofs_prefetch_step(struct ofs_core *core, const struct ofs_step *step);
void ofs_prefetch_begin(struct ofs_core *core, uint32_t session);
void ofs_prefetch_best(struct ofs_core *core, uint32_t session, uint32_t layer,
	const struct ofs_guesses *guesses);
uint32_t ofs_bits_of(uint64_t word);
/* rank.c: the result of rank.h's, faster if the cut is not far above the guess. */
uint32_t ofs_rank_cut_near(const uint16_t *values, uint32_t count, uint32_t rank, uint32_t guess);
/* Bit i of 64: values[i] is not 0. */
uint64_t ofs_rank_nonzero(const uint16_t *values);
/* Bit i of `row`: values[i] >= cut. Bits from `count` to `words` * 64 are 0. */
void ofs_rank_above(uint64_t *row, uint32_t words, const uint16_t *values, uint32_t count,
	uint32_t cut);

#pragma GCC visibility pop

#endif
