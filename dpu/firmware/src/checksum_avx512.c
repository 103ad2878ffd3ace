/* checksum_avx512.c: XXH3-64 compiled for AVX512 only; checksum.c decides whether it may run. */
typedef int ofs_checksum_avx512_unit; /* ISO C requires a declaration on other architectures */

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx512f")
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
#endif
