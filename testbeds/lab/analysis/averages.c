/*
 * averages.c: a regression on a block's score, a fast and a slow average of it.
 *
 * Model: scores and averages are whole numbers of 16 bits, so that a product has 32 and their sum
 * over any row fits in 64, and in a double as long as a row has at most 2^21 blocks. Loops are over
 * plain arrays without branches: compilers turn them into vector code.
 */
#include "ofs_ranks.h"

#define HIGHEST 65535

static uint64_t
product(const uint16_t *a, const uint16_t *b, uint32_t count)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < count; i++)
		sum += (uint32_t)a[i] * b[i];
	return sum;
}

/* Of the values where `of` is written. */
static uint64_t
sum_written(const uint16_t *of, const uint16_t *values, uint32_t count)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < count; i++)
		sum += of[i] ? values[i] : 0u;
	return sum;
}

static uint64_t
written(const uint16_t *of, uint32_t count)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < count; i++)
		sum += of[i] != 0;
	return sum;
}

void
ofs_ranks_sums(const struct ofs_ranks_features *features, const uint16_t *next, double *products,
	double *outcomes)
{
	uint32_t count = features->blocks;
	uint64_t middle = features->middle;

	for (uint32_t layer = 0; layer < features->layers; layer++, products += 16, outcomes += 4) {
		uint64_t at = (uint64_t)layer * count;
		const uint16_t *now = features->scores + at;
		const uint16_t *parts[4] = {now, now, features->fast + at, features->slow + at};

		products[0] = (double)(middle * middle * written(now, count));
		outcomes[0] = (double)(middle * sum_written(now, next + at, count));
		for (uint32_t i = 1; i < 4; i++) {
			products[i] = products[4 * i] = (double)(middle * sum_written(now, parts[i], count));
			outcomes[i] = (double)product(parts[i], next + at, count);
			for (uint32_t j = 1; j <= i; j++)
				products[4 * i + j] = products[4 * j + i] =
					(double)product(parts[i], parts[j], count);
		}
	}
}

/* average + (score - average) / 2^shift, rounded to even. */
static void
average_move(uint16_t *averages, const uint16_t *scores, uint64_t count, uint32_t shift)
{
	uint32_t half = (1u << shift) / 2;

	for (uint64_t i = 0; i < count; i++) {
		uint32_t old = averages[i];
		uint32_t sum = (old << shift) - old + scores[i];

		sum = (sum + half - 1 + (sum >> shift & 1)) >> shift;
		averages[i] = (uint16_t)(old ? sum : scores[i]);
	}
}

void
ofs_ranks_move(const struct ofs_ranks_features *features, uint32_t fast_shift, uint32_t slow_shift)
{
	uint64_t count = (uint64_t)features->layers * features->blocks;

	average_move(features->fast, features->scores, count, fast_shift);
	average_move(features->slow, features->scores, count, slow_shift);
}

void
ofs_ranks_ahead(const struct ofs_ranks_features *features, const double *weights, uint16_t *ranks)
{
	const double whole = 6755399441055744.0; /* 1.5 * 2^52: adding it leaves no fraction */

	for (uint32_t layer = 0; layer < features->layers; layer++, weights += 4) {
		uint64_t at = (uint64_t)layer * features->blocks;
		const uint16_t *now = features->scores + at;
		const uint16_t *fast = features->fast + at, *slow = features->slow + at;
		double middle = weights[0] * features->middle;

		for (uint32_t i = 0; i < features->blocks; i++) {
			double rank =
				middle + weights[1] * now[i] + weights[2] * fast[i] + weights[3] * slow[i];

			rank = rank > 1 ? rank : 1;
			rank = rank < HIGHEST ? rank : HIGHEST;
			rank = rank + whole - whole;
			ranks[at + i] = (uint16_t)(now[i] ? (int)rank : 0);
		}
	}
}
