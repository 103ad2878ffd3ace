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
#include "checksum_copy.h"

uint64_t
ofs_checksum_avx2(const void *data, size_t size)
{
	return XXH3_64bits(data, size);
}

uint64_t
ofs_checksum_copy_avx2(void *target, const void *source, size_t size)
{
	return checksum_copy(target, source, size);
}
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
