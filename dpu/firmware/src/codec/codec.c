/* The coded payload: a header, the sizes of the pieces, the pieces. */
#include "codec/internal.h"

#include <string.h>

static const struct ofs_codec_shape shapes[] = {
	[OFS_CODEC_BFLOAT16] = {.value_bytes = 2, .rest_bits = 8, .symbol_count = 256},
	[OFS_CODEC_FLOAT16] = {.value_bytes = 2, .rest_bits = 11, .symbol_count = 32},
	[OFS_CODEC_FP8_E4M3] = {.value_bytes = 1, .rest_bits = 4, .symbol_count = 16},
	[OFS_CODEC_FP8_E5M2] = {.value_bytes = 1, .rest_bits = 3, .symbol_count = 32},
};

static const struct ofs_codec_shape *
shape_of(uint32_t dtype)
{
	if (dtype == OFS_CODEC_OFF || dtype >= sizeof(shapes) / sizeof(shapes[0]))
		return NULL;
	return &shapes[dtype];
}

static uint64_t
sizes_end(uint32_t length)
{
	uint64_t pieces = ((uint64_t)length + OFS_CODEC_PIECE_BYTES - 1) / OFS_CODEC_PIECE_BYTES;

	return sizeof(struct ofs_coded_header) + sizeof(uint16_t) * pieces;
}

static uint32_t
piece_length(uint32_t length, uint32_t at)
{
	return length - at < OFS_CODEC_PIECE_BYTES ? length - at : OFS_CODEC_PIECE_BYTES;
}

uint64_t
ofs_codec_size_max(uint32_t length)
{
	return sizes_end(length) + length;
}

int64_t
ofs_codec_encode(uint32_t dtype, const void *bytes, uint32_t length, void *out,
	uint64_t size_max_bytes)
{
	const struct ofs_codec_shape *shape = shape_of(dtype);
	struct ofs_coded_header header = {OFS_CODEC_MAGIC, OFS_CODEC_VERSION, (uint8_t)dtype, length};
	uint8_t *sizes = (uint8_t *)out + sizeof(header);
	uint64_t at = sizes_end(length);

	if (shape == NULL)
		return -EINVAL;
	if (at > size_max_bytes)
		return -ENOSPC;
	memcpy(out, &header, sizeof(header));
	for (uint32_t from = 0; from < length; from += OFS_CODEC_PIECE_BYTES) {
		const uint8_t *piece = (const uint8_t *)bytes + from;
		uint32_t raw = piece_length(length, from);
		uint64_t room = size_max_bytes - at;
		uint8_t *to = (uint8_t *)out + at;
		uint16_t size_bytes =
			(uint16_t)ofs_piece_encode(shape, piece, raw, to, room < raw ? (uint32_t)room : raw);

		if (size_bytes == 0) {
			if (raw > room)
				return -ENOSPC;
			memcpy(to, piece, raw);
			size_bytes = (uint16_t)raw;
		}
		memcpy(sizes, &size_bytes, sizeof(size_bytes));
		sizes += sizeof(size_bytes);
		at += size_bytes;
		if (length - from <= OFS_CODEC_PIECE_BYTES)
			break; /* `from` would wrap around */
	}
	return (int64_t)at;
}

/* The shape and length of the coded payload, if its sizes fill it exactly; or -EBADMSG. */
static int
check(const uint8_t *coded, uint64_t size_bytes, const struct ofs_codec_shape **shape,
	uint32_t *length)
{
	struct ofs_coded_header header;
	uint64_t at;

	if (size_bytes < sizeof(header))
		return -EBADMSG;
	memcpy(&header, coded, sizeof(header));
	*shape = shape_of(header.dtype);
	*length = header.length;
	at = sizes_end(header.length);
	if (header.magic != OFS_CODEC_MAGIC || header.version != OFS_CODEC_VERSION || *shape == NULL
		|| at > size_bytes) {
		return -EBADMSG;
	}
	for (uint64_t from = 0; from < header.length; from += OFS_CODEC_PIECE_BYTES) {
		uint16_t piece_bytes;

		memcpy(&piece_bytes,
			coded + sizeof(header) + from / OFS_CODEC_PIECE_BYTES * sizeof(piece_bytes),
			sizeof(piece_bytes));
		if (piece_bytes > piece_length(header.length, (uint32_t)from))
			return -EBADMSG;
		at += piece_bytes;
	}
	return at == size_bytes ? 0 : -EBADMSG;
}

int64_t
ofs_codec_decode(const void *coded, uint64_t size_bytes, void *out, uint32_t length_max)
{
	const uint8_t *sizes = (const uint8_t *)coded + sizeof(struct ofs_coded_header);
	struct ofs_coded_piece pieces[OFS_DECODE_WIDTH];
	const struct ofs_codec_shape *shape;
	const uint8_t *from;
	uint32_t length;
	uint32_t count = 0;

	if (check(coded, size_bytes, &shape, &length) != 0)
		return -EBADMSG;
	if (length > length_max)
		return -ENOSPC;
	from = (const uint8_t *)coded + sizes_end(length);
	for (uint64_t at = 0; at < length; at += OFS_CODEC_PIECE_BYTES) {
		uint32_t raw = piece_length(length, (uint32_t)at);
		uint16_t piece_bytes;

		memcpy(&piece_bytes, sizes, sizeof(piece_bytes));
		sizes += sizeof(piece_bytes);
		if (piece_bytes == raw)
			memcpy((uint8_t *)out + at, from, raw);
		else
			pieces[count++] = (struct ofs_coded_piece){from, piece_bytes, (uint8_t *)out + at, raw};
		from += piece_bytes;
		if (count == OFS_DECODE_WIDTH || (count > 0 && at + raw == length)) {
			if (ofs_pieces_decode(shape, pieces, count) != 0)
				return -EBADMSG;
			count = 0;
		}
	}
	return length;
}
