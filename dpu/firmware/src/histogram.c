/* Log-linear histograms; see histogram.h. */
#include "histogram.h"

#include <assert.h>

#define SUBS OFS_HISTOGRAM_SUBS

_Static_assert(OFS_HISTOGRAM_BUCKETS
		== (OFS_HISTOGRAM_VALUE_BITS - OFS_HISTOGRAM_SUB_BITS + 1) * OFS_HISTOGRAM_SUBS,
	"one for each step");

uint64_t
ofs_histogram_bucket_max(uint32_t bucket)
{
	uint32_t shift = bucket / SUBS - 1;

	assert(bucket < OFS_HISTOGRAM_BUCKETS);
	if (bucket < SUBS)
		return bucket;
	return ((uint64_t)(SUBS + bucket % SUBS + 1) << shift) - 1;
}

uint64_t
ofs_histogram_quantile(const struct ofs_histogram *histogram, uint32_t permille)
{
	uint64_t count = histogram->count;
	/* ceil(count * permille / 1000), without overflow of the product */
	uint64_t rank = count / 1000 * permille + (count % 1000 * permille + 999) / 1000;
	uint64_t seen = 0;
	uint32_t bucket = 0;

	if (count == 0)
		return 0;
	rank = rank == 0 ? 1 : rank;
	while (bucket < OFS_HISTOGRAM_BUCKETS && (seen += histogram->buckets[bucket]) < rank)
		bucket++;
	/* The last bucket includes overflowed values: only the largest of them is known. */
	if (bucket >= OFS_HISTOGRAM_BUCKETS - 1 || ofs_histogram_bucket_max(bucket) > histogram->max)
		return histogram->max;
	return ofs_histogram_bucket_max(bucket);
}
