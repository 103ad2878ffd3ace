/* Is the value at a rank that of the sorted values, whatever is guessed of it before? */
#undef NDEBUG
#include <assert.h>
#include <stdlib.h>

#include "core/internal.h"

#define COUNT_MAX 3000

static uint64_t state = 1;

static uint32_t
below(uint32_t limit)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((state >> 33) % limit);
}

static int
falling(const void *a, const void *b)
{
	return *(const uint16_t *)b - *(const uint16_t *)a;
}

/* At least 1; 1 where fewer than `rank` are above zero; above all values for a rank of 0. */
static uint32_t
cut_of(const uint16_t *sorted, uint32_t count, uint32_t rank)
{
	if (rank == 0)
		return OFS_SCORE_HIGHEST + 1;
	return rank > count || sorted[rank - 1] == 0 ? 1 : sorted[rank - 1];
}

static void
check(const uint16_t *values, const uint16_t *sorted, uint32_t count, uint32_t rank)
{
	uint32_t cut = cut_of(sorted, count, rank);
	const uint32_t guesses[] = {0, 1, cut / 2, cut - cut / 32, cut, cut + 1, 65535, 65536};
	uint64_t row[COUNT_MAX / 64 + 1];

	assert(ofs_rank_cut(values, count, rank) == cut);
	for (uint32_t i = 0; i < sizeof(guesses) / sizeof(guesses[0]); i++)
		assert(ofs_rank_cut_near(values, count, rank, guesses[i]) == cut);
	ofs_rank_above(row, COUNT_MAX / 64 + 1, values, count, cut);
	for (uint32_t i = 0; i < (COUNT_MAX / 64 + 1) * 64; i++)
		assert((row[i / 64] >> (i % 64) & 1) == (i < count && values[i] >= cut));
}

int
main(void)
{
	static const uint32_t counts[] = {1, 2, 63, 64, 65, 1000, 1024, 1025, 2048, COUNT_MAX};
	static const uint32_t limits[] = {2, 300, 65536};

	for (uint32_t round = 0; round < 90; round++) {
		uint32_t count = counts[round % 10], limit = limits[round / 10 % 3];
		uint16_t values[COUNT_MAX], sorted[COUNT_MAX];

		for (uint32_t i = 0; i < count; i++)
			values[i] = sorted[i] = (uint16_t)(below(2) ? below(limit) : 65535 - below(limit));
		qsort(sorted, count, sizeof(*sorted), falling);
		for (uint32_t rank = 0; rank < 4; rank++)
			check(values, sorted, count, rank);
		check(values, sorted, count, 1 + below(count));
		check(values, sorted, count, count);
		check(values, sorted, count, count + 1);
		for (uint32_t i = 0; i + 64 <= count; i += 64)
			for (uint32_t bit = 0; bit < 64; bit++)
				assert((ofs_rank_nonzero(values + i) >> bit & 1) == (values[i + bit] != 0));
	}
	return 0;
}
