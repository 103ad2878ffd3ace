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
#include "checksum_copy.h"

uint64_t
ofs_checksum_avx512(const void *data, size_t size)
{
	return XXH3_64bits(data, size);
}

uint64_t
ofs_checksum_copy_avx512(void *target, const void *source, size_t size)
{
	return checksum_copy(target, source, size);
}
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
