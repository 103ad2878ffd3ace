/* Is a quantile of the histogram that of the sorted values, within the bound of histogram.h? */
#include "histogram.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define VALUES_MAX 3000

static int
compare(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a;
	uint64_t right = *(const uint64_t *)b;

	return (left > right) - (left < right);
}

/* Sorted values against buckets: never below the true quantile, and above by an eighth at most. */
static void
check_quantiles(const struct ofs_histogram *histogram, uint64_t *values, uint32_t count)
{
	static const uint32_t permilles[] = {0, 1, 250, 500, 900, 990, 999, 1000};

	qsort(values, count, sizeof(values[0]), compare);
	for (uint32_t i = 0; i < sizeof(permilles) / sizeof(permilles[0]); i++) {
		uint64_t rank = ((uint64_t)count * permilles[i] + 999) / 1000;
		uint64_t sought = values[rank == 0 ? 0 : rank - 1];
		uint64_t got = ofs_histogram_quantile(histogram, permilles[i]);

		assert(got >= sought && got <= values[count - 1]);
		assert(got <= sought + sought / 8 || sought >> 40 != 0
			|| ofs_histogram_bucket(sought) == OFS_HISTOGRAM_BUCKETS - 1);
	}
}

/* Buckets of every power of two, drawn evenly within it: as many small values as large ones. */
static void
test_against_sorted_values(uint64_t seed)
{
	static uint64_t values[VALUES_MAX];
	struct ofs_histogram whole = {0};
	uint32_t count = 1 + (uint32_t)(ofs_draw(&seed) % VALUES_MAX);
	uint32_t bits_max = 1 + (uint32_t)(ofs_draw(&seed) % 44);
	uint64_t sum = 0, overflow = 0, max = 0;

	for (uint32_t i = 0; i < count; i++) {
		values[i] = ofs_draw(&seed) >> (63 - ofs_draw(&seed) % bits_max);
		sum += values[i];
		overflow += values[i] >= 1ull << 40;
		max = values[i] > max ? values[i] : max;
		ofs_histogram_add(&whole, values[i]);
	}
	assert(whole.count == count && whole.sum == sum && whole.max == max);
	assert(whole.overflow == overflow);
	check_quantiles(&whole, values, count);
}

/* The buckets lie one after another without a gap, and each is narrow enough. */
static void
test_buckets(void)
{
	uint64_t low = 0;

	for (uint32_t bucket = 0; bucket < OFS_HISTOGRAM_BUCKETS; bucket++) {
		uint64_t high = ofs_histogram_bucket_max(bucket);

		assert(ofs_histogram_bucket(low) == bucket && ofs_histogram_bucket(high) == bucket);
		assert(high - low <= low / 8);
		low = high + 1;
	}
	assert(low == 1ull << 40);
	assert(ofs_histogram_bucket(low) == OFS_HISTOGRAM_BUCKETS - 1);
	assert(ofs_histogram_bucket(UINT64_MAX) == OFS_HISTOGRAM_BUCKETS - 1);
}

int
main(void)
{
	struct ofs_histogram empty = {0};

	assert(ofs_histogram_quantile(&empty, 500) == 0 && ofs_histogram_quantile(&empty, 1000) == 0);
	test_buckets();
	for (uint64_t seed = 1; seed <= 200; seed++)
		test_against_sorted_values(seed);
	puts("histogram ok");
	return 0;
}
