/* rank.c: the value at a rank of an array of 16-bit values, by two histograms of a byte each. */
#include "internal.h"

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

uint32_t
ofs_rank_cut(const uint16_t *values, uint32_t count, uint32_t rank)
{
	uint32_t high[OFS_BUCKETS] = { 0 }, low[OFS_BUCKETS] = { 0 };
	uint32_t above, top, cut, odd[OFS_BUCKETS] = { 0 };

	if (rank == 0)
		return OFS_SCORE_HIGHEST + 1;
	if (rank > count)
		return 1;
	/* Two tables: neighbours are often alike, and one table would wait for its own writes. */
	for (uint32_t i = 0; i + 1 < count; i += 2) {
		high[values[i] >> 8]++;
		odd[values[i + 1] >> 8]++;
	}
	if (count & 1)
		high[values[count - 1] >> 8]++;
	for (uint32_t bucket = 0; bucket < OFS_BUCKETS; bucket++)
		high[bucket] += odd[bucket];
	top = bucket_at(high, rank, &above);
	for (uint32_t i = 0; i < count; i++) {
		if (values[i] >> 8 == top)
			low[values[i] & 255]++;
	}
	cut = top << 8 | bucket_at(low, rank - above, &above);
	return cut ? cut : 1;
}
