/* The scores of a STEP as received, expanded to one for each block; see scores.h. */
#include "scores.h"

#include <string.h>

uint64_t
ofs_scores_bytes(const struct ofs_sqe *sqe)
{
	return ofs_scores_size_bytes(sqe);
}

int
ofs_scores_check(const struct ofs_sqe *sqe)
{
	if ((sqe->flags & OFS_SCORES_PACKED) == 0)
		return 0;
	if (sqe->ordinal > sqe->score_count || ofs_scores_size_bytes(sqe) > 2ull * sqe->score_count)
		return -EINVAL;
	return 0;
}

static uint16_t
score_at(const struct ofs_sqe *sqe, const uint8_t *values, uint32_t index)
{
	uint16_t score;

	if (sqe->flags & OFS_SCORES_BYTES) {
		score = (uint16_t)(values[index] << 8 | 0xff);
		return values[index] == 0 && (sqe->flags & OFS_SCORES_RAISED) == 0 ? 0 : score;
	}
	memcpy(&score, values + 2 * (size_t)index, sizeof(score));
	return score;
}

int
ofs_scores_unpack(const struct ofs_sqe *sqe, const uint8_t *from, uint16_t *scores)
{
	uint32_t count = sqe->score_count, wide = ofs_scores_ordinal_bytes(count);
	const uint8_t *values = from + (size_t)sqe->ordinal * wide;

	if ((sqe->flags & OFS_SCORES_PACKED) == 0) {
		memcpy(scores, from, count * sizeof(*scores));
		return 0;
	}
	if (sqe->ordinal == 0) {
		for (uint32_t i = 0; i < count; i++)
			scores[i] = score_at(sqe, from, i);
		return 0;
	}
	memset(scores, 0, count * sizeof(*scores));
	for (uint32_t i = 0; i < sqe->ordinal; i++) {
		uint32_t ordinal = 0;

		memcpy(&ordinal, from + (size_t)i * wide, wide);
		if (ordinal >= count)
			return -EINVAL;
		scores[ordinal] = score_at(sqe, values, i);
	}
	return 0;
}
