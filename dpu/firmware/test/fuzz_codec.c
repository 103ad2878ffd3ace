/*
 * Can any bytes make the codec read or write outside its buffers?
 *
 * Input: [how u8][bytes]. The bytes are decoded as they are; they are also coded as values of a
 * dtype and must decode to the same, or after an edit to an error or to bytes of the same length.
 */
#include "codec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { RAW_MAX = 3 * OFS_CODEC_PIECE_BYTES };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Exactly as large as it has to be, so that a byte too far is seen. */
static void
decode_any(const uint8_t *coded, size_t size, uint32_t length_max)
{
	uint8_t *in = malloc(size + 1);
	uint8_t *out = malloc(length_max + 1);
	int64_t length;

	assert(in != NULL && out != NULL);
	memcpy(in + 1, coded, size); /* at an odd address */
	length = ofs_codec_decode(in + 1, size, out, length_max);
	assert(length == -EBADMSG || length == -ENOSPC || (length >= 0 && length <= length_max));
	free(in);
	free(out);
}

static void
there_and_back(uint32_t dtype, const uint8_t *data, uint32_t length, uint32_t edit)
{
	uint64_t size_max = ofs_codec_size_max(length);
	uint8_t *coded = malloc(size_max);
	uint8_t *small = NULL;
	uint8_t *out = malloc(length + 1);
	int64_t size;

	assert(coded != NULL && out != NULL);
	size = ofs_codec_encode(dtype, data, length, coded, size_max);
	assert(size >= 8 && (uint64_t)size <= size_max);
	assert(ofs_codec_decode(coded, (uint64_t)size, out, length) == length);
	assert(memcmp(out, data, length) == 0);
	/* Room for exactly that, and for one byte less. */
	small = malloc((size_t)size);
	assert(small != NULL && ofs_codec_encode(dtype, data, length, small, (uint64_t)size) == size);
	assert(memcmp(small, coded, (size_t)size) == 0);
	assert(ofs_codec_encode(dtype, data, length, small, (uint64_t)size - 1) == -ENOSPC);
	coded[edit % (uint64_t)size] ^= (uint8_t)(1 + edit % 255);
	decode_any(coded, (size_t)size, length);
	decode_any(coded, (size_t)(edit % (uint64_t)size), length);
	free(small);
	free(coded);
	free(out);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint32_t edit = 0;

	if (size < 5 || size > RAW_MAX)
		return 0;
	memcpy(&edit, data, sizeof(edit));
	decode_any(data + 1, size - 1, RAW_MAX);
	there_and_back(1 + data[0] % 4, data + 5, (uint32_t)(size - 5), edit);
	return 0;
}
