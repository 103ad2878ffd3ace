/*
 * codec.h: KV without loss in fewer bytes: a prefix code for exponents, the rest of each value as
 * it is.
 *
 * Model: a payload of values of one dtype is cut into pieces of OFS_CODEC_PIECE_BYTES, each coded
 * by itself, so that pieces can be decoded in any order and by any number of decoders at once. A
 * piece that does not shrink stays as it is, so a payload grows by no more than ofs_codec_size_max
 * says. The coded form carries its dtype and length but no checksum: its owner keeps one. Decode
 * accepts any bytes: it returns an error or as many bytes as the header says.
 *
 * Pure functions on the caller's memory, integers only, nothing allocated, any thread. The format:
 * docs/reference/codec.md; asic_model/codec/reference.py is written from the same page.
 */
#ifndef OFS_CODEC_H
#define OFS_CODEC_H

#include "ofs_base.h"

/* cdef: order 2 */
/* cdef: begin */
enum ofs_codec_dtype {
	OFS_CODEC_OFF = 0,
	OFS_CODEC_BFLOAT16 = 1,
	OFS_CODEC_FLOAT16 = 2,
	OFS_CODEC_FP8_E4M3 = 3,
	OFS_CODEC_FP8_E5M2 = 4
};

#define OFS_CODEC_VERSION 1
#define OFS_CODEC_PIECE_BYTES 4096

/* The most that `length` bytes become. */
uint64_t ofs_codec_size_max(uint32_t length);
/*
 * Codes `length` bytes of values of `dtype`. Returns the bytes written to `out`, which does not
 * overlap `bytes`; -ENOSPC where they would be more than `size_max_bytes`, -EINVAL for a dtype that
 * is none.
 */
int64_t ofs_codec_encode(uint32_t dtype, const void *bytes, uint32_t length, void *out,
	uint64_t size_max_bytes);
/*
 * The reverse, of exactly `size_bytes` coded bytes. Returns the bytes written to `out`; -EBADMSG
 * for what no encoder wrote, -ENOSPC where there would be more than `length_max` of them. After
 * an error `out` holds anything.
 */
int64_t ofs_codec_decode(const void *coded, uint64_t size_bytes, void *out, uint32_t length_max);
/* cdef: end */

#endif
