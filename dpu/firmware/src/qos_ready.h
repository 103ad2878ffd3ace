/*
 * qos_ready.h: the tenants of a scheduler that are ready, as bits (qos.c).
 *
 * Model: words under a summary of which words are not 0, so that the next turn is found in two
 * steps. Nothing can fail.
 */
#ifndef OFS_QOS_READY_H
#define OFS_QOS_READY_H

#include "qos.h"

#define OFS_QOS_WORD_BITS 64
#define OFS_QOS_WORDS (OFS_QOS_TENANTS_MAX / OFS_QOS_WORD_BITS)

_Static_assert(OFS_QOS_WORDS <= OFS_QOS_WORD_BITS, "one word is the summary of all");

struct ofs_qos_ready {
	uint64_t summary; /* 0: none is ready */
	uint64_t words[OFS_QOS_WORDS];
};

static inline int
ofs_qos_ready_has(const struct ofs_qos_ready *ready, uint32_t tenant)
{
	return ready->words[tenant / OFS_QOS_WORD_BITS] >> (tenant % OFS_QOS_WORD_BITS) & 1;
}

static inline void
ofs_qos_ready_set(struct ofs_qos_ready *ready, uint32_t tenant, int is_ready)
{
	uint64_t *word = &ready->words[tenant / OFS_QOS_WORD_BITS];
	uint64_t bit = 1ull << (tenant % OFS_QOS_WORD_BITS);
	uint64_t summary_bit = 1ull << (tenant / OFS_QOS_WORD_BITS);

	*word = is_ready ? *word | bit : *word & ~bit;
	ready->summary = *word ? ready->summary | summary_bit : ready->summary & ~summary_bit;
}

/* The first ready tenant after `tenant`, in a circle; itself comes last. One must be ready. */
static inline uint32_t
ofs_qos_ready_after(const struct ofs_qos_ready *ready, uint32_t tenant)
{
	uint32_t word = tenant / OFS_QOS_WORD_BITS, bit = tenant % OFS_QOS_WORD_BITS;
	/* Shifted twice, because a shift by the whole width is undefined. */
	uint64_t above = ready->words[word] >> bit >> 1;
	uint64_t words = ready->summary >> word >> 1;

	if (above)
		return tenant + 1 + (uint32_t)__builtin_ctzll(above);
	word = words ? word + 1 + (uint32_t)__builtin_ctzll(words)
				 : (uint32_t)__builtin_ctzll(ready->summary);
	return word * OFS_QOS_WORD_BITS + (uint32_t)__builtin_ctzll(ready->words[word]);
}

#endif
