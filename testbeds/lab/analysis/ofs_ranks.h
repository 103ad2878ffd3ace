/*
 * ofs_ranks.h: the best blocks of a layer by their 16-bit scores, and what is predicted of them.
 *
 * Model: pure functions over the caller's arrays, each row by itself; nothing is kept between two
 * calls. Of equal scores the lower ordinal is better. A *key* is a score and an ordinal in one
 * number, higher is better, 0 is no block. Every sum is of whole numbers and exact, so that results
 * are the same on every machine. Nothing can fail: the caller has checked the sizes, and that an
 * ordinal, where it counts, is below `blocks`.
 */
#ifndef OFS_RANKS_H
#define OFS_RANKS_H

#include <stdint.h>

/* cdef: order 2 */
/* cdef: begin */
/* marks [rows][blocks]: 1 for the `best` highest of each row of values, never for a 0. */
void ofs_ranks_best(const uint16_t *values, uint32_t rows, uint32_t blocks, uint32_t best,
	uint8_t *marks);
/*
 * Of each row of scores, `stride` apart, the `best` highest from ordinal `begin` up to `end`, zeros
 * among them: ascending into chosen, whose rows are `chosen_stride` apart. best <= end - begin.
 */
void ofs_ranks_top(const uint16_t *scores, uint32_t rows, uint32_t stride, uint32_t begin,
	uint32_t end, uint32_t best, uint32_t *chosen, uint32_t chosen_stride);
/* limits [rows][buffer_count]: the least key among the `buffers[i]` best of the row, never 0. */
void ofs_ranks_limits(const uint16_t *ranks, uint32_t rows, uint32_t blocks,
	const uint32_t *buffers, uint32_t buffer_count, uint64_t *limits);

/* A step's demands, held against what was foreseen of it. */
struct ofs_ranks_asked {
	uint32_t layers, width, blocks, buffer_count;
	uint32_t known; /* blocks that were written when it was foreseen */
	uint32_t reserved;
	const uint32_t *selected; /* [layers][width] */
	const uint8_t *demanded;  /* the same shape, as the next two: 0 or 1 */
	const uint8_t *nontrivial;
	const uint8_t *written; /* by decode: from `known` on a hit, whatever its rank */
};

/* Hits and non-trivial hits, [layers][buffer_count]. */
void ofs_ranks_hits(const struct ofs_ranks_asked *asked, const uint16_t *ranks,
	const uint64_t *limits, uint16_t *hits, uint16_t *nontrivial_hits);

/*
 * What a regression on scores needs. A block's four features are `middle` where it is written (its
 * score is not 0), its score, a fast and a slow average of it.
 */
struct ofs_ranks_features {
	uint32_t layers, blocks;
	uint32_t middle;
	uint32_t reserved;
	const uint16_t *scores; /* [layers][blocks], as the averages */
	uint16_t *fast, *slow;
};

/* products [layers][4][4] of the features with each other, outcomes [layers][4] with `next`. */
void ofs_ranks_sums(const struct ofs_ranks_features *features, const uint16_t *next,
	double *products, double *outcomes);
/* The averages take in the scores: by a share of 2^-shift; a block's first score as it is. */
void ofs_ranks_move(const struct ofs_ranks_features *features, uint32_t fast_shift,
	uint32_t slow_shift);
/*
 * ranks [layers][blocks]: the features weighed by weights [layers][4], multiples of 2^-12, rounded
 * to even and held within 1 to 65,535; 0 where a block is not written.
 */
void ofs_ranks_ahead(const struct ofs_ranks_features *features, const double *weights,
	uint16_t *ranks);
/* cdef: end */

#endif
