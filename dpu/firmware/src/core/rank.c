/*
 * rank.c: the value at a rank of an array of 16-bit values, and which values reach it.
 *
 * Model: pure functions; the rank is found by two histograms of a byte each.
 */
#include "internal.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define NEAR_MAX 1024 /* values that may remain above a guessed cut */

/* The bucket in which the count from the top reaches `rank`; *above counts the buckets over it. */
static uint32_t
bucket_at(const uint32_t *histogram, uint32_t rank, uint32_t *above)
{
	uint32_t bucket = OFS_BUCKETS - 1, sum = 0;

	while (bucket > 0 && sum + histogram[bucket] < rank)
		sum += histogram[bucket--];
	*above = sum;
	return bucket;
}

#ifdef __SSE2__

/* Sixteen lanes, each all ones or all zeros, as bits. */
static inline uint64_t
bits_of_lanes(__m128i first, __m128i second)
{
	return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(first, second));
}

static inline __m128i
lanes_between(const uint16_t *from, __m128i low, __m128i span)
{
	__m128i above = _mm_sub_epi16(_mm_loadu_si128((const __m128i *)from), low);

	return _mm_cmpeq_epi16(_mm_subs_epu16(above, span), _mm_setzero_si128());
}

/* Bit i of 64: low <= from[i] <= low + span. */
static inline uint64_t
word_between(const uint16_t *from, uint16_t low, uint16_t span)
{
	__m128i lows = _mm_set1_epi16((short)low), spans = _mm_set1_epi16((short)span);
	uint64_t bits = 0;

	for (uint32_t i = 0; i < 64; i += 16)
		bits |= bits_of_lanes(lanes_between(from + i, lows, spans),
					lanes_between(from + i + 8, lows, spans))
			<< i;
	return bits;
}

#else

/* Compares into bytes first, which compilers vectorize; a product gathers eight in its top byte. */
static inline uint64_t
word_between(const uint16_t *from, uint16_t low, uint16_t span)
{
	uint8_t bytes[64];
	uint64_t bits = 0;

	for (uint32_t i = 0; i < 64; i++)
		bytes[i] = (uint16_t)(from[i] - low) <= span;
	for (uint32_t i = 0; i < 8; i++) {
		uint64_t eight = 0;

		for (uint32_t byte = 0; byte < 8; byte++)
			eight |= (uint64_t)bytes[8 * i + byte] << (8 * byte);
		bits |= (eight * 0x0102040810204080ull >> 56) << (8 * i);
	}
	return bits;
}

#endif

/* Bit i: low <= from[i] <= high, of at most 64. */
static inline uint64_t
bits_between(const uint16_t *from, uint32_t size, uint16_t low, uint16_t high)
{
	uint16_t span = (uint16_t)(high - low);
	uint64_t bits = 0;

	if (size == 64)
		return word_between(from, low, span);
	for (uint32_t i = 0; i < size; i++)
		bits |= (uint64_t)((uint16_t)(from[i] - low) <= span) << i;
	return bits;
}

uint64_t
ofs_rank_nonzero(const uint16_t *values)
{
	return word_between(values, 1, OFS_SCORE_HIGHEST - 1);
}

/* Population count: not every machine has the instruction. */
uint32_t
ofs_bits_of(uint64_t word)
{
	word = word - ((word >> 1) & 0x5555555555555555ull);
	word = (word & 0x3333333333333333ull) + ((word >> 2) & 0x3333333333333333ull);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0full;
	return (uint32_t)(word * 0x0101010101010101ull >> 56);
}

void
ofs_rank_above(uint64_t *row, uint32_t words, const uint16_t *values, uint32_t count, uint32_t cut)
{
	uint32_t word = 0;

	for (; word * 64 < count && cut <= OFS_SCORE_HIGHEST; word++)
		row[word] = bits_between(values + word * 64,
			count - word * 64 < 64 ? count - word * 64 : 64, (uint16_t)cut, OFS_SCORE_HIGHEST);
	for (; word < words; word++)
		row[word] = 0;
}

/*
 * Counts the values by upper byte. Four per load and two tables: neighbours are often alike, and
 * one table would wait for its own writes.
 */
static void
count_high(const uint16_t *values, uint32_t count, uint32_t *high)
{
	uint32_t odd[OFS_BUCKETS] = {0}, i = 0;

	for (; i + 4 <= count; i += 4) {
		uint64_t four;

		memcpy(&four, values + i, sizeof(four));
		high[four >> 8 & 255]++;
		odd[four >> 24 & 255]++;
		high[four >> 40 & 255]++;
		odd[four >> 56]++;
	}
	for (; i < count; i++)
		high[values[i] >> 8]++;
	for (uint32_t bucket = 0; bucket < OFS_BUCKETS; bucket++)
		high[bucket] += odd[bucket];
}

/* Counts the values in bucket `top` by lower byte. */
static void
count_low(const uint16_t *values, uint32_t count, uint32_t top, uint32_t *low)
{
	for (uint32_t begin = 0; begin < count; begin += 64) {
		uint64_t bits = bits_between(values + begin, count - begin < 64 ? count - begin : 64,
			(uint16_t)(top << 8), (uint16_t)(top << 8 | 255));

		for (; bits; bits &= bits - 1)
			low[values[begin + (uint32_t)__builtin_ctzll(bits)] & 255]++;
	}
}

uint32_t
ofs_rank_cut(const uint16_t *values, uint32_t count, uint32_t rank)
{
	uint32_t high[OFS_BUCKETS] = {0}, low[OFS_BUCKETS] = {0};
	uint32_t above, top, cut;

	if (rank == 0)
		return OFS_SCORE_HIGHEST + 1;
	if (rank > count)
		return 1;
	count_high(values, count, high);
	top = bucket_at(high, rank, &above);
	count_low(values, count, top, low);
	cut = top << 8 | bucket_at(low, rank - above, &above);
	return cut ? cut : 1;
}

/* Only values at or above the guess are read twice; too high a guess costs one pass. */
uint32_t
ofs_rank_cut_near(const uint16_t *values, uint32_t count, uint32_t rank, uint32_t guess)
{
	uint16_t best[NEAR_MAX];
	uint32_t found = 0;

	if (rank == 0 || guess == 0 || guess > OFS_SCORE_HIGHEST)
		return ofs_rank_cut(values, count, rank);
	for (uint32_t begin = 0; begin < count; begin += 64) {
		uint32_t size = count - begin < 64 ? count - begin : 64;
		uint64_t bits = bits_between(values + begin, size, (uint16_t)guess, OFS_SCORE_HIGHEST);

		if (found + 64 > NEAR_MAX)
			return ofs_rank_cut(values, count, rank);
		for (; bits; bits &= bits - 1)
			best[found++] = values[begin + (uint32_t)__builtin_ctzll(bits)];
	}
	return found < rank ? ofs_rank_cut(values, count, rank) : ofs_rank_cut(best, found, rank);
}
