/* checksum.h: ofs_checksum and ofs_checksum_copy per vector width; same results, other speeds. */
#ifndef OFS_CHECKSUM_H
#define OFS_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t ofs_checksum_avx2(const void *data, size_t size);
uint64_t ofs_checksum_avx512(const void *data, size_t size);
uint64_t ofs_checksum_copy_avx2(void *target, const void *source, size_t size);
uint64_t ofs_checksum_copy_avx512(void *target, const void *source, size_t size);

/* Keeps the compiler from loading a vector again, which costs time and may give other bytes: what
 * is hashed is what was stored. */
#define LOADED_ONCE(vector) __asm__("" : "+x"(vector))

#endif
