/* Do SipHash-2-4-128 and XXH3 give the bytes of their reference implementations? */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "checksum.h"
#include "ofs_base.h"

/* Rows of vectors.h of the reference implementation: key 00..0f, input 00 01 02 ... */
static const struct {
	unsigned size;
	unsigned char out[16];
} vectors[] = {
	{0,
		{0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02,
			0x93}},
	{1,
		{0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc,
			0x45}},
	{2,
		{0x81, 0x77, 0x22, 0x8d, 0xa4, 0xa4, 0x5d, 0xc7, 0xfc, 0xa3, 0x8b, 0xde, 0xf6, 0x0a, 0xff,
			0xe4}},
	{8,
		{0x3b, 0x62, 0xa9, 0xba, 0x62, 0x58, 0xf5, 0x61, 0x0f, 0x83, 0xe2, 0x64, 0xf3, 0x14, 0x97,
			0xb4}},
};

static void
test_siphash(void)
{
	unsigned char input[64], bytes[16];
	struct ofs_key secret, out;

	for (unsigned i = 0; i < sizeof(input); i++)
		input[i] = (unsigned char)i;
	memcpy(&secret, input, sizeof(secret));
	for (size_t v = 0; v < sizeof(vectors) / sizeof(vectors[0]); v++) {
		ofs_siphash(&secret, input, vectors[v].size, &out);
		memcpy(bytes, &out, sizeof(bytes));
		for (int i = 0; i < 16; i++) {
			if (bytes[i] != vectors[v].out[i])
				fprintf(stderr, "size %u byte %d: %02x\n", vectors[v].size, i, bytes[i]);
			assert(bytes[i] == vectors[v].out[i]);
		}
	}
}

/* Does each width give libxxhash's hash, alone and with a copy, at lengths around its blocks and at
 * any alignment, and copy no other byte? */
static void
test_checksums(uint64_t hash(const void *source, size_t size),
	uint64_t copy(void *target, const void *source, size_t size))
{
	static uint8_t bytes[3 * 4096 + 64 + 8];
	static uint8_t target[sizeof(bytes)];

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * i >> 5);
	for (uint32_t size = 0; size <= sizeof(bytes) - 8; size += size < 1100 ? 1 : 61) {
		const uint8_t *source = bytes + size % 8;
		uint8_t *to = target + size / 8 % 8;
		uint64_t expected = XXH3_64bits(source, size);

		memset(target, 0, sizeof(target));
		assert(hash(source, size) == expected);
		assert(copy(to, source, size) == expected);
		assert(memcmp(to, source, size) == 0);
		assert(to + size == target + sizeof(target) || to[size] == 0);
		assert(to == target || to[-1] == 0);
	}
}

static void
test_checksums_at_every_width(void)
{
	test_checksums(ofs_checksum, ofs_checksum_copy);
#if defined(__x86_64__) && defined(__GNUC__)
	if (__builtin_cpu_supports("avx2"))
		test_checksums(ofs_checksum_avx2, ofs_checksum_copy_avx2);
	if (__builtin_cpu_supports("avx512f"))
		test_checksums(ofs_checksum_avx512, ofs_checksum_copy_avx512);
#endif
}

static void
test_block_keys_differ(void)
{
	struct ofs_key chunk = {1, 2}, a, b, again;

	ofs_block_key(&chunk, 0, &a);
	ofs_block_key(&chunk, 1, &b);
	ofs_block_key(&chunk, 0, &again);
	assert(!ofs_key_equal(&a, &b) && ofs_key_equal(&a, &again));
}

int
main(void)
{
	test_siphash();
	test_checksums_at_every_width();
	test_block_keys_differ();
	return 0;
}
