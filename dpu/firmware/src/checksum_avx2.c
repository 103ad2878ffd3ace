/* checksum_avx2.c: XXH3-64 compiled for AVX2 only; checksum.c decides whether it may run. */
typedef int ofs_checksum_avx2_unit; /* ISO C requires a declaration on other architectures */

#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__ /* ignores GCC's pragma, and its own must not reach the system's headers */
#include <immintrin.h>
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
#include <xxhash.h>

#include "checksum.h"

/* The half of a stripe at `from`, stored at `to` unless that is NULL, and added to `sum`. */
static inline __m256i
take_half(__m256i sum, char *to, const char *from, const xxh_u8 *secret)
{
	__m256i half = _mm256_loadu_si256((const __m256i *)from);
	__m256i key = _mm256_loadu_si256((const __m256i *)secret);
	__m256i keyed, product, swapped;

	LOADED_ONCE(half);
	if (to != NULL)
		_mm256_storeu_si256((__m256i *)to, half);
	keyed = _mm256_xor_si256(half, key);
	product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
	swapped = _mm256_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2));
	return _mm256_add_epi64(product, _mm256_add_epi64(sum, swapped));
}

/* As XXH3_accumulate_512_avx2, and stores the stripes. */
static inline void
take_stripes(xxh_u64 *sums, char *target, const char *source, size_t count, const xxh_u8 *secret)
{
	const size_t half = XXH_STRIPE_LEN / 2;
	__m256i low = _mm256_load_si256((const __m256i *)sums);
	__m256i high = _mm256_load_si256((const __m256i *)sums + 1);

	for (size_t i = 0; i < count; i++) {
		char *to = target == NULL ? NULL : target + i * XXH_STRIPE_LEN;

		low = take_half(low, to, source, secret);
		high = take_half(high, to == NULL ? NULL : to + half, source + half, secret + half);
		source += XXH_STRIPE_LEN;
		secret += XXH_SECRET_CONSUME_RATE;
	}
	_mm256_store_si256((__m256i *)sums, low);
	_mm256_store_si256((__m256i *)sums + 1, high);
}

#include "checksum_pass.h"

uint64_t
ofs_checksum_avx2(const void *data, size_t size)
{
	return checksum_pass(NULL, data, size);
}

uint64_t
ofs_checksum_copy_avx2(void *target, const void *source, size_t size)
{
	return checksum_pass(target, source, size);
}
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
