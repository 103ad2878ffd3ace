/*
 * histogram.h: durations, in a fixed number of counters.
 *
 * Model: a log-linear histogram of nanoseconds, as HdrHistogram has them: each power of two is cut
 * into 8 buckets of equal width. Values below 16 have a bucket each; above, a bucket is at most an
 * eighth as wide as its smallest value. A quantile is the largest value of the bucket that contains
 * the true one, and never more than the largest value seen: it is at least the true one, and at
 * most an eighth above it. A value of 2^40 (18 minutes) or more counts in the last bucket and in
 * `overflow`; a quantile in the last bucket is the largest value seen. All zero is an empty
 * histogram. It belongs to one thread; nothing can fail and nothing is allocated.
 */
#ifndef OFS_HISTOGRAM_H
#define OFS_HISTOGRAM_H

#include "ofs_base.h"

/* cdef: order 1 */
/* cdef: begin */
#define OFS_HISTOGRAM_BUCKETS 304

struct ofs_histogram {
	uint64_t count;
	uint64_t sum;
	uint64_t max;
	uint64_t overflow; /* of the values counted, those that are too large for any bucket */
	uint64_t buckets[OFS_HISTOGRAM_BUCKETS];
};

/* The largest value that the bucket counts; for the last, without overflow. */
uint64_t ofs_histogram_bucket_max(uint32_t bucket);
/* `permille` 500 is the median, 1000 the largest. 0 for an empty histogram. */
uint64_t ofs_histogram_quantile(const struct ofs_histogram *histogram, uint32_t permille);
/* cdef: end */

#define OFS_HISTOGRAM_SUB_BITS 3 /* a power of two is cut into 8 */
#define OFS_HISTOGRAM_SUBS (1u << OFS_HISTOGRAM_SUB_BITS)
#define OFS_HISTOGRAM_VALUE_BITS 40

/* The bucket that counts the value. */
static inline uint32_t
ofs_histogram_bucket(uint64_t value)
{
	uint32_t shift;

	if (value < OFS_HISTOGRAM_SUBS)
		return (uint32_t)value;
	if (value >> OFS_HISTOGRAM_VALUE_BITS != 0)
		return OFS_HISTOGRAM_BUCKETS - 1;
	shift = 63 - (uint32_t)__builtin_clzll(value) - OFS_HISTOGRAM_SUB_BITS;
	/* The leading bit of the shifted value adds the one that the power counts. */
	return shift * OFS_HISTOGRAM_SUBS + (uint32_t)(value >> shift);
}

static inline void
ofs_histogram_add(struct ofs_histogram *histogram, uint64_t value)
{
	histogram->count++;
	histogram->sum += value;
	histogram->max = value > histogram->max ? value : histogram->max;
	histogram->overflow += value >> OFS_HISTOGRAM_VALUE_BITS != 0;
	histogram->buckets[ofs_histogram_bucket(value)]++;
}

#endif
