/*
 * siphash.c: SipHash-2-4 with 128-bit output, and the key of one block.
 *
 * Model: pure functions. The cipher is Aumasson and Bernstein, "SipHash: a fast short-input PRF"
 * (2012), with the 128-bit finish of their reference implementation. It is keyed with a tenant's
 * secret, so that a tenant can neither guess another's chunk keys nor crowd one bucket of the
 * index.
 */
#include <string.h>

#include "ofs_base.h"

struct sip {
	uint64_t v0, v1, v2, v3;
};

static inline uint64_t
rotate(uint64_t x, unsigned bits)
{
	return (x << bits) | (x >> (64 - bits));
}

static inline void
sip_round(struct sip *s)
{
	s->v0 += s->v1;
	s->v1 = rotate(s->v1, 13) ^ s->v0;
	s->v0 = rotate(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = rotate(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = rotate(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = rotate(s->v1, 17) ^ s->v2;
	s->v2 = rotate(s->v2, 32);
}

static inline void
sip_word(struct sip *s, uint64_t word)
{
	s->v3 ^= word;
	sip_round(s);
	sip_round(s);
	s->v0 ^= word;
}

static inline uint64_t
load_le64(const unsigned char *bytes)
{
	uint64_t word = 0;

	for (unsigned i = 0; i < 8; i++)
		word |= (uint64_t)bytes[i] << (8 * i);
	return word;
}

static inline uint64_t
sip_finish(struct sip *s)
{
	for (int i = 0; i < 4; i++)
		sip_round(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

void
ofs_siphash(const struct ofs_key *secret, const void *data, size_t size, struct ofs_key *out)
{
	const unsigned char *bytes = data;
	struct sip s = {
		secret->lo ^ 0x736f6d6570736575ull,
		secret->hi ^ 0x646f72616e646f6dull ^ 0xee, /* 0xee: 128-bit output */
		secret->lo ^ 0x6c7967656e657261ull,
		secret->hi ^ 0x7465646279746573ull,
	};
	uint64_t last = (uint64_t)size << 56;
	size_t i;

	for (i = 0; i + 8 <= size; i += 8)
		sip_word(&s, load_le64(bytes + i));
	for (size_t rest = i; rest < size; rest++)
		last |= (uint64_t)bytes[rest] << (8 * (rest - i));
	sip_word(&s, last);
	s.v2 ^= 0xee;
	out->lo = sip_finish(&s);
	s.v1 ^= 0xdd;
	out->hi = sip_finish(&s);
}

/*
 * A bijective mix of the layer is enough: chunk keys are already pseudo-random, and two blocks
 * collide only if two 128-bit keys differ by exactly the difference of two mixes.
 */
void
ofs_block_key(const struct ofs_key *chunk, uint32_t layer, struct ofs_key *out)
{
	uint64_t word = ofs_mix((uint64_t)layer + 0x9e3779b97f4a7c15ull);

	out->lo = chunk->lo ^ word;
	out->hi = chunk->hi ^ ofs_mix(word);
}

void
ofs_fold_key(const struct ofs_key *first, uint32_t number, struct ofs_key *out)
{
	*out = *first;
	if (number > 0)
		ofs_block_key(first, UINT16_MAX + number, out); /* no layer has such a number */
}

void
ofs_value_key(const uint8_t *volume, const uint8_t *key, uint32_t length, struct ofs_key *out)
{
	uint8_t named[1 + sizeof(struct ofs_key)] = {(uint8_t)length};
	struct ofs_key secret;

	memcpy(&secret, volume, sizeof(secret));
	memcpy(named + 1, key, length < sizeof(*out) ? length : sizeof(*out));
	ofs_siphash(&secret, named, sizeof(named), out);
}
