/* The scores of a step that a host sends, as the policy limits them; see scores.h. */
#include "scores.h"
#include "rank.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

/* The scores kept of a layer: those above the cut, and the first of those at it. */
struct kept {
	uint32_t cut;   /* all scores above it are kept */
	uint32_t level; /* and this many of those at it */
	uint32_t total;
	bool low;  /* some of the kept scores have an upper byte of 0 */
	bool none; /* some scores are 0, or are not kept */
};

static struct kept
best_of(const uint16_t *scores, uint32_t count, uint32_t rank)
{
	struct kept kept = {.cut = rank < count ? ofs_rank_cut(scores, count, rank) : 1};
	uint32_t above = 0, level = 0;

	for (uint32_t i = 0; i < count; i++) {
		above += scores[i] > kept.cut;
		level += scores[i] == kept.cut;
	}
	assert(above <= rank); /* the cut is chosen so */
	kept.level = level < rank - above ? level : rank - above;
	kept.total = above + kept.level;
	kept.low = kept.cut < 256 && kept.level > 0;
	for (uint32_t i = 0; i < count && above > 0; i++)
		kept.low |= scores[i] > kept.cut && scores[i] < 256;
	kept.none = kept.total < count;
	return kept;
}

static bool
is_kept(struct kept *kept, uint16_t score)
{
	if (score != kept->cut)
		return score > kept->cut;
	if (kept->level == 0)
		return false;
	kept->level--;
	return true;
}

/* Ordinals, then scores. */
static void
put_best(struct kept kept, const uint16_t *scores, uint32_t count, bool bytes, uint8_t *to)
{
	uint32_t wide = ofs_scores_ordinal_bytes(count), at = 0;
	uint8_t *values = to + (size_t)kept.total * wide;

	for (uint32_t i = 0; i < count; i++) {
		uint8_t high = (uint8_t)(scores[i] >> 8);

		if (!is_kept(&kept, scores[i]))
			continue;
		memcpy(to + (size_t)at * wide, &i, wide); /* little-endian: the lower bytes come first */
		if (bytes)
			values[at] = high;
		else
			memcpy(values + 2 * (size_t)at, &scores[i], 2);
		at++;
	}
	assert(at == kept.total); /* the values follow this many ordinals */
}

void
ofs_scores_pack(const struct ofs_score_limits *limits, const uint16_t *scores, uint32_t count,
	struct ofs_sqe *sqe, uint8_t *to)
{
	uint32_t rank =
		limits->scores_max > 0 && limits->scores_max < count ? limits->scores_max : count;
	bool due = limits->every_steps < 2 || sqe->step % limits->every_steps == 0;
	bool bytes = limits->score_bits == 8;
	uint64_t best_bytes = rank * ((bytes ? 1ull : 2ull) + ofs_scores_ordinal_bytes(count));
	struct kept kept;

	sqe->score_count = due ? count : 0;
	if (sqe->score_count == 0)
		return;
	if (best_bytes < count * (bytes ? 1ull : 2ull)) {
		kept = best_of(scores, count, rank);
		if (kept.total == rank) {
			sqe->flags |= OFS_SCORES_PACKED | (bytes ? OFS_SCORES_BYTES | OFS_SCORES_RAISED : 0);
			sqe->ordinal = rank;
			put_best(kept, scores, count, bytes, to);
			return;
		}
	} else if (bytes) {
		kept = best_of(scores, count, rank);
		/* In one layer a byte of 0 can mean only one thing: a low score, or none. */
		if (!kept.low || !kept.none) {
			sqe->flags |= OFS_SCORES_PACKED | OFS_SCORES_BYTES;
			sqe->flags |= kept.low ? OFS_SCORES_RAISED : 0;
			for (uint32_t i = 0; i < count; i++)
				to[i] = is_kept(&kept, scores[i]) ? (uint8_t)(scores[i] >> 8) : 0;
			return;
		}
	}
	memcpy(to, scores, count * sizeof(*scores));
}
