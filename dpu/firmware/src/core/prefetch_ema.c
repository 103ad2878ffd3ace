/*
 * prefetch_ema.c: the attention pattern: a decayed average of every block's score.
 *
 * Model: per (session, layer, ordinal) a 16-bit average a += (s - a) / 2^shift in integers, for
 * every ordinal of the hint, selected or not; the first score is taken as it is. The best
 * residency_percent of a selection are to be staged. When the overlap of what the scores would
 * select with the step before falls below half its own running average, the query has turned, and
 * this step's scores weigh 1 / 2^(shift / 2): the old pattern says little about the new one.
 */
#include "internal.h"

/* What the scores select now; returns how many of `count` it shares with the step before. */
static uint32_t
choose(uint64_t *chosen, uint32_t words, const uint16_t *scores, uint32_t count, uint32_t cut,
	uint32_t *overlap)
{
	uint32_t total = 0, common = 0;

	for (uint32_t word = 0; word < words; word++) {
		uint32_t begin = word * 64 < count ? word * 64 : count;
		uint32_t end = count - begin < 64 ? count - begin : 64;
		uint64_t bits = 0;

		for (uint32_t i = 0; i < end; i++)
			bits |= (uint64_t)(scores[begin + i] >= cut) << i;
		common += (uint32_t)__builtin_popcountll(bits & chosen[word]);
		total += (uint32_t)__builtin_popcountll(bits);
		chosen[word] = bits;
	}
	*overlap = common;
	return total;
}

static int
query_turned(struct ofs_core *core, const struct ofs_step *step)
{
	struct ofs_layer *layer = ofs_layer_of(core, step->session, step->layer);
	uint64_t place = (uint64_t)step->session * core->config.layer_count + step->layer;
	uint32_t rank = core->sessions[step->session].config.select_blocks;
	uint32_t before = layer->chosen_count, average = layer->overlap_permille;
	uint32_t total, common, permille;

	if (rank == 0)
		return 0;
	total = choose(core->chosen + place * core->chosen_words, core->chosen_words,
		step->scores, step->score_count,
		ofs_rank_cut(step->scores, step->score_count, rank), &common);
	layer->chosen_count = total > 65535 ? 65535 : (uint16_t)total;
	if (before == 0)
		return 0;
	permille = common * 1000 / before;
	if (permille > 1000)
		permille = 1000;
	if (average == 0) {
		layer->overlap_permille = (uint16_t)permille;
		return 0;
	}
	layer->overlap_permille = (uint16_t)(average - (average >> 3) + (permille >> 3));
	return 2 * permille < average;
}

static void
average_update(uint16_t *restrict averages, const uint16_t *restrict scores, uint32_t count,
	uint32_t shift)
{
	for (uint32_t i = 0; i < count; i++)
		averages[i] = (uint16_t)(averages[i] - (averages[i] >> shift)
			+ (scores[i] >> shift));
}

/* Resident blocks of this layer carry their new scores into the eviction order. */
static void
rescore(struct ofs_core *core, uint32_t session, uint32_t layer, uint32_t count)
{
	const uint32_t *chunks = ofs_session_list(core, session);
	const uint32_t *block_slot = core->block_slot + ofs_block_of(core, 0, layer);

	for (uint32_t i = 0; i < count; i++) {
		uint32_t slot = block_slot[chunks[i]];

		if (slot != OFS_NONE && core->slots[slot].state == OFS_SLOT_RESIDENT)
			ofs_score_update(core, slot, session,
				ofs_session_score(core, session, layer, i));
	}
}

static void
ema_observe(struct ofs_core *core, const struct ofs_step *step)
{
	struct ofs_layer *layer = ofs_layer_of(core, step->session, step->layer);
	uint16_t *averages = ofs_averages_of(core, step->session, step->layer);
	uint32_t count = step->score_count, shift = core->policy.ema_shift;
	uint32_t old = layer->known < count ? layer->known : count;

	if (count == 0)
		return;
	if (query_turned(core, step))
		shift /= 2;
	average_update(averages, step->scores, old, shift);
	if (count > old) {
		memcpy(averages + old, step->scores + old, (count - old) * sizeof(*averages));
		layer->known = count;
	}
	if (core->policy.eviction == OFS_EVICT_SCORE)
		rescore(core, step->session, step->layer, count);
}

static void
ema_propose(struct ofs_core *core, uint32_t session, uint32_t layer, const struct ofs_step *step)
{
	(void)step;
	ofs_prefetch_best(core, session, layer, ofs_averages_of(core, session, layer), 0,
		OFS_CAUSE_PATTERN);
}

const struct ofs_prefetch_ops ofs_prefetch_ema = {
	.bits = OFS_PREFETCH_EMA,
	.observe = ema_observe,
	.propose = ema_propose,
};
