/*
 * checksum_pass.h: XXH3-64, alone or with a copy in the same pass; included once per width, after
 * xxhash.h and a `take_stripes` of that width.
 *
 * Model: a pure function. XXH3 of more than 240 bytes is eight sums over stripes of 64 bytes, mixed
 * after every block of 16, and the last 64 bytes once more (xxhash.h, XXH3_hashLong). take_stripes
 * copies stripes and adds them to the sums, so that each byte is loaded once. What is hashed is
 * what was stored, whatever the source becomes meanwhile.
 *
 * A block of an arena comes from memory, and the operations that wait for its bytes fill the queue
 * from which a processor looks ahead; what it prefetches by itself ends with a page. So the pass
 * asks for the KiB that is 4 KiB ahead, into the second cache: docs/reference/fabrics.md.
 */
#ifndef OFS_CHECKSUM_PASS_H
#define OFS_CHECKSUM_PASS_H

#include <string.h>

#define SHORT_SIZE_BYTES_MAX 240 /* XXH3 hashes these in other ways */
#define BLOCK_STRIPES ((XXH_SECRET_DEFAULT_SIZE - XXH_STRIPE_LEN) / XXH_SECRET_CONSUME_RATE)
#define BLOCK_SIZE_BYTES (BLOCK_STRIPES * XXH_STRIPE_LEN)
#define AHEAD_SIZE_BYTES (4 * BLOCK_SIZE_BYTES)

/* Begins to load the KiB at `source` into the second cache. */
static inline void
begin_block(const char *source)
{
	for (size_t at = 0; at < BLOCK_SIZE_BYTES; at += XXH_STRIPE_LEN)
		__builtin_prefetch(source + at, 0, 2);
}

static inline char *
behind(char *target, size_t size)
{
	return target == NULL ? NULL : target + size;
}

/* XXH3-64 of `source`, and a copy of it at `target` unless that is NULL. */
static inline uint64_t
checksum_pass(char *target, const char *source, size_t size)
{
	XXH_ALIGN(XXH_ACC_ALIGN) xxh_u64 sums[XXH_STRIPE_LEN / sizeof(xxh_u64)] = XXH3_INIT_ACC;
	const xxh_u8 *secret = XXH3_kSecret;
	const xxh_u8 *last_secret = secret + XXH_SECRET_DEFAULT_SIZE - XXH_STRIPE_LEN;
	const char *hashed = target == NULL ? source : target;
	size_t done = 0, stripes;

	if (size <= SHORT_SIZE_BYTES_MAX) {
		if (target != NULL)
			memcpy(target, source, size);
		return XXH3_64bits(hashed, size);
	}
	for (size_t at = 0; at < AHEAD_SIZE_BYTES && size - at > BLOCK_SIZE_BYTES;
		 at += BLOCK_SIZE_BYTES)
		begin_block(source + at);
	while (size - done > BLOCK_SIZE_BYTES) {
		if (size - done >= AHEAD_SIZE_BYTES + BLOCK_SIZE_BYTES)
			begin_block(source + done + AHEAD_SIZE_BYTES);
		take_stripes(sums, behind(target, done), source + done, BLOCK_STRIPES, secret);
		XXH3_scrambleAcc(sums, last_secret);
		done += BLOCK_SIZE_BYTES;
	}
	stripes = (size - done - 1) / XXH_STRIPE_LEN;
	take_stripes(sums, behind(target, done), source + done, stripes, secret);
	done += stripes * XXH_STRIPE_LEN;
	if (target != NULL)
		memcpy(target + done, source + done, size - done);
	XXH3_accumulate_512(sums, hashed + size - XXH_STRIPE_LEN,
		last_secret - XXH_SECRET_LASTACC_START);
	return XXH3_mergeAccs(sums, secret + XXH_SECRET_MERGEACCS_START, (xxh_u64)size * XXH_PRIME64_1);
}

#endif
