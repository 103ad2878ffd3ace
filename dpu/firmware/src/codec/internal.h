/*
 * internal.h: what encoder and decoder share. Private to src/codec.
 *
 * A value is rotated left by one bit, so that its sign is the lowest: then the upper bits are its
 * exponent and the others its *rest*, mantissa and sign. Exponents are coded, rests are not; only
 * bits of the rest that are the same in all values of a piece are left out.
 */
#ifndef OFS_CODEC_INTERNAL_H
#define OFS_CODEC_INTERNAL_H

#include "codec.h"

#define OFS_CODEC_MAGIC 0x434bu /* "KC" */

enum {
	OFS_CODE_BITS_MAX = 8,      /* no code is longer than the exponent itself */
	OFS_SYMBOL_MAX = 256,       /* exponents of a bfloat16 */
	OFS_PIECE_HEADER_BYTES = 12 /* of a coded piece, before its exponents */
};

/* The first bytes of a coded payload; then the size of each piece, u16; then the pieces. */
struct ofs_coded_header {
	uint16_t magic;
	uint8_t version;
	uint8_t dtype;
	uint32_t length;
};

struct ofs_codec_shape {
	uint32_t value_bytes;
	uint32_t rest_bits;
	uint32_t symbol_count; /* number of possible exponents */
};

/* How a piece is coded. Symbols are exponents. */
struct ofs_piece_code {
	uint32_t
		counts[OFS_CODE_BITS_MAX + 1]; /* symbols by the length of their code; 0: the only one */
	uint32_t symbol_count;
	uint16_t fixed;                  /* the bits of the rest that are the same in all values */
	uint16_t vary;                   /* the bits that differ */
	uint8_t symbols[OFS_SYMBOL_MAX]; /* by length of code, then by value */
};

/* A piece that shrank, and where its values are written. */
struct ofs_coded_piece {
	const uint8_t *coded;
	uint32_t size_bytes;
	uint8_t *out;
	uint32_t length;
};

/* lengths.c: lengths of an optimal code of at most OFS_CODE_BITS_MAX bits. Sorts `symbols` as
 * above. */
void ofs_piece_lengths(struct ofs_piece_code *code, const uint32_t *weights);

/* encode.c: returns the size of the coded bytes; 0 if it does not shrink, or exceeds
 * size_max_bytes. */
uint32_t ofs_piece_encode(const struct ofs_codec_shape *shape, const uint8_t *bytes,
	uint32_t length, uint8_t *out, uint32_t size_max_bytes);

/* decode.c: at most OFS_DECODE_WIDTH pieces. 0 or -EBADMSG. */
enum { OFS_DECODE_WIDTH = 4 };
int ofs_pieces_decode(const struct ofs_codec_shape *shape, const struct ofs_coded_piece *pieces,
	uint32_t count);

_Static_assert(sizeof(struct ofs_coded_header) == 8, "part of the format");

#endif
