/* checksum_avx512.c: XXH3-64 compiled for AVX512 only; checksum.c decides whether it may run. */
typedef int ofs_checksum_avx512_unit; /* ISO C requires a declaration on other architectures */

#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__ /* ignores GCC's pragma, and its own must not reach the system's headers */
#include <immintrin.h>
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC target("avx512f")
#endif
#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX512
#include <xxhash.h>

#include "checksum.h"

/* As XXH3_accumulate_512_avx512, and stores the stripes. */
static inline void
take_stripes(xxh_u64 *sums, char *target, const char *source, size_t count, const xxh_u8 *secret)
{
	__m512i sum = _mm512_load_si512(sums);

	for (size_t i = 0; i < count; i++) {
		__m512i stripe = _mm512_loadu_si512(source + i * XXH_STRIPE_LEN);
		__m512i key = _mm512_loadu_si512(secret + i * XXH_SECRET_CONSUME_RATE);
		__m512i keyed, product, swapped;

		LOADED_ONCE(stripe);
		if (target != NULL)
			_mm512_storeu_si512(target + i * XXH_STRIPE_LEN, stripe);
		keyed = _mm512_xor_si512(stripe, key);
		product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
		swapped = _mm512_shuffle_epi32(stripe, (_MM_PERM_ENUM)_MM_SHUFFLE(1, 0, 3, 2));
		sum = _mm512_add_epi64(product, _mm512_add_epi64(sum, swapped));
	}
	_mm512_store_si512(sums, sum);
}

#include "checksum_pass.h"

uint64_t
ofs_checksum_avx512(const void *data, size_t size)
{
	return checksum_pass(NULL, data, size);
}

uint64_t
ofs_checksum_copy_avx512(void *target, const void *source, size_t size)
{
	return checksum_pass(target, source, size);
}
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
