/*
 * checksum.c: XXH3-64 at the width of this processor's vectors.
 *
 * Model: two pure functions, one of which also copies. XXH3 gives the same 64 bits at every vector
 * width, but the distribution's shared library is built for the oldest processor (SSE2) and takes
 * several times as long on a processor with wide vectors. So the algorithm is compiled from
 * libxxhash's header once per width, and the widest that the processor has is chosen before main
 * runs. `offstage bench fabric` shows what the check adds to a hit.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "checksum.h"
#include "ofs_base.h"

/* Hashes the copy, in the nearest cache. */
static inline void
take_stripes(xxh_u64 *sums, char *target, const char *source, size_t count, const xxh_u8 *secret)
{
	memcpy(target, source, count * XXH_STRIPE_LEN);
	for (size_t i = 0; i < count; i++)
		XXH3_accumulate_512(sums, target + i * XXH_STRIPE_LEN,
			secret + i * XXH_SECRET_CONSUME_RATE);
}

#include "checksum_pass.h"

static uint64_t
checksum_portable(const void *data, size_t size)
{
	return XXH3_64bits(data, size);
}

static uint64_t
checksum_copy_portable(void *target, const void *source, size_t size)
{
	return checksum_pass(target, source, size);
}

static uint64_t (*checksum_best)(const void *data, size_t size) = checksum_portable;
static uint64_t (
	*checksum_copy_best)(void *target, const void *source, size_t size) = checksum_copy_portable;

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((constructor)) static void
checksum_choose(void)
{
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx512f")) {
		checksum_best = ofs_checksum_avx512;
		checksum_copy_best = ofs_checksum_copy_avx512;
	} else if (__builtin_cpu_supports("avx2")) {
		checksum_best = ofs_checksum_avx2;
		checksum_copy_best = ofs_checksum_copy_avx2;
	}
}
#endif

uint64_t
ofs_checksum(const void *data, size_t size)
{
	return checksum_best(data, size);
}

uint64_t
ofs_checksum_copy(void *target, const void *source, size_t size)
{
	return checksum_copy_best(target, source, size);
}
