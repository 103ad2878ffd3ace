/*
 * checksum_copy.h: a copy and its XXH3-64 in one pass; included once per width, after xxhash.h and
 * a `take_stripes` of that width.
 *
 * Model: a pure function. XXH3 of more than 240 bytes is eight sums over stripes of 64 bytes, mixed
 * after every block of 16, and the last 64 bytes once more (xxhash.h, XXH3_hashLong). take_stripes
 * copies stripes and adds them to the sums, so that each byte is loaded once and the hash computes
 * while the memory loads the next. Where it took its input from the copy, block by block, a hit of
 * 64 KiB on a server of 2023 took half as long again as memcpy: `offstage bench fabric`.
 * What is hashed is what was stored, whatever the source becomes meanwhile.
 */
#ifndef OFS_CHECKSUM_COPY_H
#define OFS_CHECKSUM_COPY_H

#include <string.h>

#define SHORT_SIZE_BYTES_MAX 240 /* XXH3 hashes these in other ways */
#define PAGE_SIZE_BYTES 4096
#define BLOCK_STRIPES ((XXH_SECRET_DEFAULT_SIZE - XXH_STRIPE_LEN) / XXH_SECRET_CONSUME_RATE)
#define BLOCK_SIZE_BYTES (BLOCK_STRIPES * XXH_STRIPE_LEN)

/* A processor's own prefetch ends with a page: the next one is begun while this one is copied. */
static inline void
begin_next_page(const char *source, size_t size)
{
	size_t in_page = (uintptr_t)source % PAGE_SIZE_BYTES;

	if (in_page < BLOCK_SIZE_BYTES && size > PAGE_SIZE_BYTES - in_page)
		__builtin_prefetch(source + PAGE_SIZE_BYTES - in_page);
}

static inline uint64_t
checksum_copy(char *target, const char *source, size_t size)
{
	XXH_ALIGN(XXH_ACC_ALIGN) xxh_u64 sums[XXH_STRIPE_LEN / sizeof(xxh_u64)] = XXH3_INIT_ACC;
	const xxh_u8 *secret = XXH3_kSecret;
	const xxh_u8 *last_secret = secret + XXH_SECRET_DEFAULT_SIZE - XXH_STRIPE_LEN;
	size_t done = 0, stripes;

	if (size <= SHORT_SIZE_BYTES_MAX) {
		memcpy(target, source, size);
		return XXH3_64bits(target, size);
	}
	while (size - done > BLOCK_SIZE_BYTES) {
		begin_next_page(source + done, size - done);
		take_stripes(sums, target + done, source + done, BLOCK_STRIPES, secret);
		XXH3_scrambleAcc(sums, last_secret);
		done += BLOCK_SIZE_BYTES;
	}
	stripes = (size - done - 1) / XXH_STRIPE_LEN;
	take_stripes(sums, target + done, source + done, stripes, secret);
	done += stripes * XXH_STRIPE_LEN;
	memcpy(target + done, source + done, size - done);
	XXH3_accumulate_512(sums, target + size - XXH_STRIPE_LEN,
		last_secret - XXH_SECRET_LASTACC_START);
	return XXH3_mergeAccs(sums, secret + XXH_SECRET_MERGEACCS_START, (xxh_u64)size * XXH_PRIME64_1);
}

#endif
