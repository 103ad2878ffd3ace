/*
 * Codes one piece: a first pass counts exponents and finds the bits that are the same in all
 * values, which gives the size before a bit is written; a second pass writes.
 */
#include "codec/internal.h"

#include <string.h>

enum {
	HISTOGRAMS = 4, /* equal exponents in a row do not wait for each other's count */
	WRITE_BYTES = 8
};

struct ofs_code_word {
	uint16_t bits;
	uint16_t length;
};

/* The value at `index`, its sign rotated to the lowest bit. */
static inline uint32_t
rotated(const uint8_t *bytes, uint32_t index, uint32_t value_bytes)
{
	uint16_t value;

	if (value_bytes == 1)
		return (uint8_t)(bytes[index] << 1 | bytes[index] >> 7);
	memcpy(&value, bytes + 2 * (size_t)index, sizeof(value));
	return (uint16_t)(value << 1 | value >> 15);
}

static inline void
survey_values(const uint8_t *bytes, uint32_t count, uint32_t value_bytes, uint32_t rest_bits,
	uint32_t *weights, struct ofs_piece_code *code)
{
	uint32_t counts[HISTOGRAMS][OFS_SYMBOL_MAX] = {{0}};
	uint32_t rest_mask = (1u << rest_bits) - 1;
	uint32_t any = 0;
	uint32_t all = UINT32_MAX;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t value = rotated(bytes, i, value_bytes);

		counts[i % HISTOGRAMS][value >> rest_bits]++;
		any |= value;
		all &= value;
	}
	for (uint32_t i = 0; i < OFS_SYMBOL_MAX; i++)
		weights[i] = counts[0][i] + counts[1][i] + counts[2][i] + counts[3][i];
	code->vary = (uint16_t)((any ^ all) & rest_mask);
	code->fixed = (uint16_t)(all & rest_mask & ~(uint32_t)code->vary);
}

/* Constant sizes make the loop above a tight one. */
static void
survey(const struct ofs_codec_shape *shape, const uint8_t *bytes, uint32_t count, uint32_t *weights,
	struct ofs_piece_code *code)
{
	if (shape->value_bytes == 1)
		survey_values(bytes, count, 1, shape->rest_bits, weights, code);
	else
		survey_values(bytes, count, 2, shape->rest_bits, weights, code);
}

/* Canonical: codes of one length are consecutive, and larger than the prefixes of shorter ones. */
static uint32_t
fill_words(const struct ofs_piece_code *code, const uint32_t *weights, struct ofs_code_word *words)
{
	uint32_t next = 0;
	uint32_t symbol = 0;
	uint32_t bits = 0;

	for (uint32_t length = 0; length <= OFS_CODE_BITS_MAX; length++) {
		next <<= 1;
		for (uint32_t i = 0; i < code->counts[length]; i++, symbol++) {
			words[code->symbols[symbol]] =
				(struct ofs_code_word){(uint16_t)next++, (uint16_t)length};
			bits += length * weights[code->symbols[symbol]];
		}
	}
	return bits;
}

/* The bits of `value` that are set in `mask`, packed together. */
static inline uint32_t
gather(uint32_t value, uint32_t mask)
{
	uint32_t out = 0;

	for (uint32_t to = 0; mask != 0; mask &= mask - 1, to++)
		out |= (value >> __builtin_ctz(mask) & 1) << to;
	return out;
}

/*
 * The bits not yet written. 8 bytes are stored each time, and those that are not full yet are
 * stored again: no branch depends on a length.
 */
struct ofs_bit_writer {
	uint64_t held; /* the next bits, the first of them the highest */
	uint32_t held_bits;
	uint8_t *out;
};

static inline void
write_bits(struct ofs_bit_writer *writer, uint64_t bits, uint32_t count)
{
	uint64_t eight;
	uint32_t whole_bytes;

	writer->held |= bits << (64 - writer->held_bits - count);
	eight = __builtin_bswap64(writer->held);
	memcpy(writer->out, &eight, sizeof(eight));
	writer->held_bits += count;
	whole_bytes = writer->held_bits / 8;
	writer->out += whole_bytes;
	writer->held = writer->held << 4 * whole_bytes << 4 * whole_bytes; /* all 64 bits may be out */
	writer->held_bits %= 8;
}

/* `group` values from `index` on, packed together: at most 57 bits. */
static inline __attribute__((always_inline)) void
write_group(struct ofs_bit_writer *writer, const uint8_t *bytes, uint32_t index, uint32_t group,
	uint32_t value_bytes, uint32_t rest_bits, uint32_t vary, uint32_t kept_bits,
	const struct ofs_code_word *words)
{
	uint32_t rest_mask = (1u << rest_bits) - 1;
	uint64_t bits = 0;
	uint32_t count = 0;

	for (uint32_t i = index; i < index + group; i++) {
		uint32_t value = rotated(bytes, i, value_bytes);
		struct ofs_code_word word = words[value >> rest_bits];
		uint32_t rest = vary == rest_mask ? value & rest_mask : gather(value, vary);

		bits = bits << (word.length + kept_bits) | (uint64_t)word.bits << kept_bits | rest;
		count += word.length + kept_bits;
	}
	write_bits(writer, bits, count);
}

static inline __attribute__((always_inline)) void
write_all(uint8_t *out, const uint8_t *bytes, uint32_t count, uint32_t value_bytes,
	uint32_t rest_bits, uint32_t vary, const struct ofs_code_word *words)
{
	struct ofs_bit_writer writer = {.out = out};
	uint32_t kept_bits = (uint32_t)__builtin_popcount(vary);
	uint32_t group = value_bytes == 1 ? 4 : 3;
	uint32_t i = 0;

	for (; i + group <= count; i += group)
		write_group(&writer, bytes, i, group, value_bytes, rest_bits, vary, kept_bits, words);
	for (; i < count; i++)
		write_group(&writer, bytes, i, 1, value_bytes, rest_bits, vary, kept_bits, words);
}

/* Each shape with its own constants, and with those of a rest that varies in all its bits. */
static inline __attribute__((always_inline)) void
write_shape(uint8_t *out, const uint8_t *bytes, uint32_t count, uint32_t value_bytes,
	uint32_t rest_bits, uint32_t vary, const struct ofs_code_word *words)
{
	uint32_t rest_mask = (1u << rest_bits) - 1;

	if (vary == rest_mask)
		write_all(out, bytes, count, value_bytes, rest_bits, rest_mask, words);
	else
		write_all(out, bytes, count, value_bytes, rest_bits, vary, words);
}

static void
write_values(const struct ofs_codec_shape *shape, uint8_t *out, const uint8_t *bytes,
	uint32_t count, uint32_t vary, const struct ofs_code_word *words)
{
	if (shape->value_bytes == 2 && shape->rest_bits == 8)
		write_shape(out, bytes, count, 2, 8, vary, words);
	else if (shape->value_bytes == 2)
		write_shape(out, bytes, count, 2, 11, vary, words);
	else if (shape->rest_bits == 4)
		write_shape(out, bytes, count, 1, 4, vary, words);
	else
		write_shape(out, bytes, count, 1, 3, vary, words);
}

static uint8_t *
write_header(const struct ofs_piece_code *code, uint8_t *out)
{
	for (uint32_t length = 1; length <= OFS_CODE_BITS_MAX; length++)
		*out++ = (uint8_t)code->counts[length];
	memcpy(out, &code->fixed, sizeof(code->fixed));
	memcpy(out + 2, &code->vary, sizeof(code->vary));
	memcpy(out + 4, code->symbols, code->symbol_count);
	return out + 4 + code->symbol_count;
}

uint32_t
ofs_piece_encode(const struct ofs_codec_shape *shape, const uint8_t *bytes, uint32_t length,
	uint8_t *out, uint32_t size_max_bytes)
{
	struct ofs_code_word words[OFS_SYMBOL_MAX];
	uint32_t weights[OFS_SYMBOL_MAX];
	uint8_t values[OFS_CODEC_PIECE_BYTES + WRITE_BYTES];
	struct ofs_piece_code code;
	uint32_t count = length / shape->value_bytes;
	uint32_t bits;
	uint32_t size_bytes;

	if (length % shape->value_bytes != 0)
		return 0;
	survey(shape, bytes, count, weights, &code);
	ofs_piece_lengths(&code, weights);
	if (code.counts[OFS_CODE_BITS_MAX] > UINT8_MAX)
		return 0;
	bits = fill_words(&code, weights, words) + count * (uint32_t)__builtin_popcount(code.vary);
	size_bytes = OFS_PIECE_HEADER_BYTES + code.symbol_count + (bits + 7) / 8;
	if (size_bytes >= length || size_bytes > size_max_bytes)
		return 0;
	out = write_header(&code, out);
	if (bits == 0)
		return size_bytes; /* one value, over and over */
	write_values(shape, values, bytes, count, code.vary, words);
	memcpy(out, values, (bits + 7) / 8);
	return size_bytes;
}
