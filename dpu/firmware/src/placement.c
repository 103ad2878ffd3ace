/* When each member of a pod would take each shard; see placement.h. */
#include "placement.h"

#include <assert.h>

#define FRACTION_BITS 32
#define WEIGHT_BITS 20
#define STEP 0x9e3779b97f4a7c15ull /* of SplitMix64 */

/*
 * -log2((h + 1) / 2^64) in units of 2^-32, from the 32 leading bits of what is not zero: by
 * squaring, one bit each time (Knuth, TAOCP 1.2.2).
 */
static uint64_t
minus_log2(uint64_t h)
{
	uint64_t left = h | 1;
	uint64_t whole = (uint64_t)__builtin_clzll(left);
	uint64_t mantissa = left << whole >> 32; /* in [2^31, 2^32) */
	uint64_t fraction = 0;

	for (int bit = 0; bit < FRACTION_BITS; bit++) {
		uint64_t over;

		mantissa = mantissa * mantissa >> 31;
		over = mantissa >> 32;
		fraction = fraction << 1 | over;
		mantissa >>= over;
	}
	return ((whole + 1) << FRACTION_BITS) - fraction;
}

void
ofs_placement_times(const struct ofs_key *shards, uint32_t shard_count, const uint64_t *names,
	const uint64_t *weights, uint32_t member_count, uint64_t *times)
{
	for (uint32_t s = 0; s < shard_count; s++) {
		for (uint32_t m = 0; m < member_count; m++) {
			uint64_t drawn = ofs_mix((shards[s].lo ^ names[m]) + STEP) ^ shards[s].hi;

			assert(weights[m] > 0);
			*times++ = (minus_log2(ofs_mix(drawn + STEP)) << WEIGHT_BITS) / weights[m];
		}
	}
}
