/*
 * Decodes up to OFS_DECODE_WIDTH pieces together: each value waits for the length of the code
 * before it, and the waits of different pieces overlap.
 *
 * The input is untrusted. The header of a piece is checked; its bits are copied and followed by as
 * many zeros as the codes of a whole piece could consume, so that the loop needs no check; and a
 * piece is valid only if its values end in its last byte.
 */
#include "codec/internal.h"

#include <string.h>

/* A value takes at most 8 + 8, 8 + 11, 8 + 4 or 8 + 3 bits; the most is 4096 values of 12. */
enum { BITS_BYTES_MAX = OFS_CODEC_PIECE_BYTES * 12 / 8, LOAD_BYTES = 8 };

struct ofs_piece_decoder {
	uint64_t at; /* next bit */
	uint32_t length;
	uint32_t kept_bits; /* of each rest */
	uint32_t bits_bytes;
	uint16_t fixed;
	uint16_t vary;
	uint8_t *out;
	uint16_t table[1 << OFS_CODE_BITS_MAX]; /* by the next 8 bits: symbol << 8 | length of code */
	uint8_t bits[BITS_BYTES_MAX + LOAD_BYTES];
};

/* 0 if the lengths are those of a complete code: every 8 bits begin with exactly one code word. */
static int
fill_table(const struct ofs_codec_shape *shape, const uint8_t *counts, const uint8_t *symbols,
	uint32_t symbol_count, uint16_t *table)
{
	uint32_t used = 0;
	uint32_t symbol = 0;

	for (uint32_t i = 0; i < symbol_count; i++)
		if (symbols[i] >= shape->symbol_count)
			return -EBADMSG;
	for (uint32_t length = 1; length <= OFS_CODE_BITS_MAX; length++) {
		uint32_t span = 1u << (OFS_CODE_BITS_MAX - length);

		for (uint32_t i = 0; i < counts[length - 1]; i++, symbol++) {
			if (used + span > 1u << OFS_CODE_BITS_MAX)
				return -EBADMSG;
			for (uint32_t end = used + span; used < end; used++)
				table[used] = (uint16_t)(symbols[symbol] << 8 | length);
		}
	}
	if (symbol == 0) /* one exponent: its code has no bits */
		for (; used < 1u << OFS_CODE_BITS_MAX; used++)
			table[used] = (uint16_t)(symbols[0] << 8);
	return used == 1u << OFS_CODE_BITS_MAX ? 0 : -EBADMSG;
}

static int
begin_piece(struct ofs_piece_decoder *decoder, const struct ofs_codec_shape *shape,
	const struct ofs_coded_piece *piece)
{
	uint32_t symbol_count = 0;
	uint32_t head_bytes;

	if (piece->size_bytes < OFS_PIECE_HEADER_BYTES || piece->length % shape->value_bytes != 0)
		return -EBADMSG;
	for (uint32_t i = 0; i < OFS_CODE_BITS_MAX; i++)
		symbol_count += piece->coded[i];
	symbol_count = symbol_count == 0 ? 1 : symbol_count;
	head_bytes = OFS_PIECE_HEADER_BYTES + symbol_count;
	memcpy(&decoder->fixed, piece->coded + OFS_CODE_BITS_MAX, sizeof(decoder->fixed));
	memcpy(&decoder->vary, piece->coded + OFS_CODE_BITS_MAX + 2, sizeof(decoder->vary));
	if (symbol_count > shape->symbol_count || head_bytes > piece->size_bytes
		|| (decoder->fixed & decoder->vary) != 0
		|| (decoder->fixed | decoder->vary) >> shape->rest_bits != 0) {
		return -EBADMSG;
	}
	decoder->at = 0;
	decoder->length = piece->length;
	decoder->kept_bits = (uint32_t)__builtin_popcount(decoder->vary);
	decoder->bits_bytes = piece->size_bytes - head_bytes;
	decoder->out = piece->out;
	memcpy(decoder->bits, piece->coded + head_bytes, decoder->bits_bytes);
	memset(decoder->bits + decoder->bits_bytes, 0, sizeof(decoder->bits) - decoder->bits_bytes);
	return fill_table(shape, piece->coded, piece->coded + OFS_PIECE_HEADER_BYTES, symbol_count,
		decoder->table);
}

/* The next bits from `at` on, the first of them the highest: 57 are valid. */
static inline uint64_t
look_ahead(const struct ofs_piece_decoder *decoder, uint64_t at)
{
	uint64_t eight;

	memcpy(&eight, decoder->bits + (at >> 3), sizeof(eight));
	return __builtin_bswap64(eight) << (at & 7);
}

static inline void
put_value(uint8_t *out, uint32_t index, uint32_t value_bytes, uint32_t value)
{
	uint16_t two = (uint16_t)(value >> 1 | value << 15);

	if (value_bytes == 1)
		out[index] = (uint8_t)(value >> 1 | value << 7);
	else
		memcpy(out + 2 * (size_t)index, &two, sizeof(two));
}

/* `width` whole pieces in which every bit of the rest varies, as in most KV. Two values per
 * load. */
static inline __attribute__((always_inline)) void
decode_together(struct ofs_piece_decoder *decoders, uint32_t width, uint32_t value_bytes,
	uint32_t rest_bits)
{
	uint64_t at[OFS_DECODE_WIDTH] = {0};

	for (uint32_t i = 0; i < OFS_CODEC_PIECE_BYTES / value_bytes; i += 2) {
#pragma GCC unroll 4
		for (uint32_t piece = 0; piece < width; piece++) {
			const struct ofs_piece_decoder *decoder = &decoders[piece];
			uint64_t window = look_ahead(decoder, at[piece]);
			uint32_t first = decoder->table[window >> 56];
			uint64_t rest = window << (first & 15);
			uint32_t second = decoder->table[rest << rest_bits >> 56];
			uint64_t last = rest << rest_bits << (second & 15);

			put_value(decoder->out, i, value_bytes,
				first >> 8 << rest_bits | (uint32_t)(rest >> (64 - rest_bits)));
			put_value(decoder->out, i + 1, value_bytes,
				second >> 8 << rest_bits | (uint32_t)(last >> (64 - rest_bits)));
			at[piece] += (first & 15) + (second & 15) + 2 * rest_bits;
		}
	}
	for (uint32_t piece = 0; piece < width; piece++)
		decoders[piece].at = at[piece];
}

/* Each shape with its own constants. */
static inline __attribute__((always_inline)) void
decode_whole(struct ofs_piece_decoder *decoders, uint32_t width,
	const struct ofs_codec_shape *shape)
{
	if (shape->value_bytes == 2 && shape->rest_bits == 8)
		decode_together(decoders, width, 2, 8);
	else if (shape->value_bytes == 2)
		decode_together(decoders, width, 2, 11);
	else if (shape->rest_bits == 4)
		decode_together(decoders, width, 1, 4);
	else
		decode_together(decoders, width, 1, 3);
}

/* The lowest bits of `value`, moved to where `mask` has them. */
static inline uint32_t
scatter(uint32_t value, uint32_t mask)
{
	uint32_t out = 0;

	for (; mask != 0; mask &= mask - 1, value >>= 1)
		out |= (value & 1) << __builtin_ctz(mask);
	return out;
}

static void
decode_alone(struct ofs_piece_decoder *decoder, const struct ofs_codec_shape *shape)
{
	for (uint32_t i = 0; i < decoder->length / shape->value_bytes; i++) {
		uint64_t window = look_ahead(decoder, decoder->at);
		uint32_t found = decoder->table[window >> 56];
		uint32_t kept = (uint32_t)((window << (found & 15) >> 32) >> (32 - decoder->kept_bits));

		put_value(decoder->out, i, shape->value_bytes,
			found >> 8 << shape->rest_bits | decoder->fixed | scatter(kept, decoder->vary));
		decoder->at += (found & 15) + decoder->kept_bits;
	}
}

static int
is_whole(const struct ofs_piece_decoder *decoder, const struct ofs_codec_shape *shape)
{
	return decoder->kept_bits == shape->rest_bits && decoder->length == OFS_CODEC_PIECE_BYTES;
}

int
ofs_pieces_decode(const struct ofs_codec_shape *shape, const struct ofs_coded_piece *pieces,
	uint32_t count)
{
	struct ofs_piece_decoder decoders[OFS_DECODE_WIDTH];
	uint32_t whole = 0;

	for (uint32_t i = 0; i < count; i++) {
		if (begin_piece(&decoders[i], shape, &pieces[i]) != 0)
			return -EBADMSG;
		whole += (uint32_t)is_whole(&decoders[i], shape);
	}
	if (whole == OFS_DECODE_WIDTH)
		decode_whole(decoders, OFS_DECODE_WIDTH, shape);
	for (uint32_t i = 0; whole < OFS_DECODE_WIDTH && i < count; i++)
		if (is_whole(&decoders[i], shape))
			decode_whole(&decoders[i], 1, shape);
		else
			decode_alone(&decoders[i], shape);
	for (uint32_t i = 0; i < count; i++)
		if ((decoders[i].at + 7) / 8 != decoders[i].bits_bytes)
			return -EBADMSG;
	return 0;
}
