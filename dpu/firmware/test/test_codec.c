/* Does the codec stay in bounds, and return its input? Random payloads and random damage, in
 * memory of exactly the needed size. */
#include "codec.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3000, LENGTH_MAX = 5 * OFS_CODEC_PIECE_BYTES };

static uint64_t state = 7;

static uint64_t
draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* Bytes of few values or many, with few exponents or all. */
static void
fill(uint8_t *bytes, uint32_t length)
{
	uint64_t mask = draw() & draw();
	uint64_t fixed = draw();

	if (draw() % 4 == 0)
		mask = UINT64_MAX;
	for (uint32_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)((draw() & mask) >> i % 2 * 8 | (fixed & ~mask) >> i % 2 * 8);
}

/* float16 of which each exponent is half as often as the one before, and the rarest follow each
 * other: three of their codes and rests are 57 bits, the most that are written at once. */
static void
fill_skewed(uint8_t *bytes, uint32_t length)
{
	for (uint32_t i = 0, rare = 0; i + 2 <= length; i += 2) {
		uint32_t exponent = (uint32_t)__builtin_ctzll(draw() | 1u << 8);
		uint32_t value;

		if (draw() % 200 == 0)
			rare = 3;
		if (rare > 0) {
			exponent = 8;
			rare--;
		}
		value = exponent << 10 | (uint32_t)(draw() & 0x83ff);
		bytes[i] = (uint8_t)value;
		bytes[i + 1] = (uint8_t)(value >> 8);
	}
}

static void
damage(const uint8_t *coded, uint32_t size, uint32_t length)
{
	uint8_t *out = malloc(length + 1);

	for (int i = 0; i < 8; i++) {
		uint32_t cut = i % 2 == 0 ? size : (uint32_t)(draw() % size);
		uint8_t *copy = malloc(cut + 1);
		int64_t rc;

		assert(copy != NULL && out != NULL);
		memcpy(copy, coded, cut);
		for (uint64_t flips = draw() % 4; cut > 0 && flips > 0; flips--)
			copy[draw() % (i < 4 && cut > 64 ? 64 : cut)] = (uint8_t)draw();
		copy = realloc(copy, cut > 0 ? cut : 1);
		assert(copy != NULL);
		rc = ofs_codec_decode(copy, cut, out, length);
		assert(rc == -EBADMSG || rc == -ENOSPC || (rc >= 0 && rc <= length));
		free(copy);
	}
	free(out);
}

static void
round_trip(void)
{
	uint32_t length = (uint32_t)(draw() % 3 == 0 ? draw() % 64 : draw() % LENGTH_MAX);
	uint32_t dtype = 1 + (uint32_t)(draw() % 4);
	uint64_t size_max = ofs_codec_size_max(length);
	uint8_t *bytes = calloc(1, length + 1);
	uint8_t *coded = malloc(size_max);
	uint8_t *back = malloc(length + 1);
	int64_t size;

	assert(bytes != NULL && coded != NULL && back != NULL);
	if (dtype == OFS_CODEC_FLOAT16 && draw() % 2 == 0)
		fill_skewed(bytes, length);
	else
		fill(bytes, length);
	size = ofs_codec_encode(dtype, bytes, length, coded, size_max);
	assert(size > 0 && (uint64_t)size <= size_max);
	assert(ofs_codec_encode(dtype, bytes, length, coded, (uint64_t)size - 1) == -ENOSPC);
	assert(ofs_codec_encode(dtype, bytes, length, coded, (uint64_t)size) == size);
	assert(ofs_codec_decode(coded, (uint64_t)size, back, length) == length);
	assert(memcmp(bytes, back, length) == 0);
	if (length > 0)
		assert(ofs_codec_decode(coded, (uint64_t)size, back, length - 1) == -ENOSPC);
	damage(coded, (uint32_t)size, length);
	free(bytes);
	free(coded);
	free(back);
}

int
main(void)
{
	uint8_t out[64];

	assert(ofs_codec_encode(OFS_CODEC_OFF, "ab", 2, out, sizeof(out)) == -EINVAL);
	assert(ofs_codec_encode(OFS_CODEC_FP8_E5M2 + 1, "ab", 2, out, sizeof(out)) == -EINVAL);
	for (int i = 0; i < ROUNDS; i++)
		round_trip();
	printf("codec: %d payloads\n", ROUNDS);
	return 0;
}
