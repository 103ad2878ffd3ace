/*
 * prefetch_ema.c: the attention pattern: a decayed average of every block's score.
 *
 * Model: per (session, layer, ordinal) a 16-bit average a += (s - a) / 2^shift in integers, for
 * every ordinal of the hint, selected or not; the first score is taken as it is. calibrate.c
 * measures the chance of a demand for each average; blocks with a chance of at least
 * probability_permille_min are staged, among the first residency_percent of a selection. When the
 * overlap between the selections of this step's and the last step's scores falls below half its
 * running average, the query has changed, and this step's scores weigh 1 / 2^(shift / 2), because
 * the old pattern predicts little now.
 */
#include "internal.h"

static int
query_turned(struct ofs_core *core, const struct ofs_step *step)
{
	struct ofs_layer *layer = ofs_layer_of(core, step->session, step->layer);
	uint64_t *chosen = ofs_row_of(core, core->chosen, step->session, step->layer);
	uint32_t rank = core->sessions[step->session].config.select_blocks;
	uint32_t before = layer->chosen_count, average = layer->overlap_permille;
	uint32_t total = 0, common = 0, permille;
	uint32_t cut;

	if (rank == 0)
		return 0;
	ofs_work_values(core, step->score_count, 0); /* the step's own, in no table */
	ofs_work_touch(core, OFS_TABLE_LAYER, core->row_words * sizeof(*chosen));
	/* The cut of a layer changes little from step to step. */
	cut = ofs_rank_cut_near(step->scores, step->score_count, rank, layer->cut - layer->cut / 32);
	layer->cut = cut;
	ofs_rank_above(core->above, core->row_words, step->scores, step->score_count, cut);
	for (uint32_t word = 0; word < core->row_words; word++) {
		total += ofs_bits_of(core->above[word]);
		common += ofs_bits_of(core->above[word] & chosen[word]);
		chosen[word] = core->above[word];
	}
	layer->chosen_count = total;
	if (before == 0)
		return 0;
	permille = (uint32_t)((uint64_t)common * 1000 / before);
	if (average == 0) {
		layer->overlap_permille = permille;
		return 0;
	}
	layer->overlap_permille = average - (average >> 3) + (permille >> 3);
	return 2 * permille < average;
}

/* Eight at a time in 16-bit lanes: C's own arithmetic would widen every value to an int. */
typedef uint16_t lanes __attribute__((vector_size(16)));

/* Applies scores to sixty-four averages; returns the bits of those that changed their level. */
static uint64_t
average_word(uint16_t *averages, const uint16_t *scores, uint32_t shift)
{
	uint16_t moved[64];

	for (uint32_t i = 0; i < 64; i += 8) {
		lanes old, new, score;

		memcpy(&old, averages + i, sizeof(old));
		memcpy(&score, scores + i, sizeof(score));
		new = old - (old >> shift) + (score >> shift);
		memcpy(averages + i, &new, sizeof(new));
		new = (new ^ old) >> OFS_LEVEL_SHIFT;
		memcpy(moved + i, &new, sizeof(new));
	}
	return ofs_rank_nonzero(moved);
}

/* Applies scores to the first `known` averages; the others start at their score. */
static void
average_update(uint64_t *moved, uint16_t *averages, const uint16_t *scores, uint32_t known,
	uint32_t count, uint32_t shift)
{
	uint32_t i = 0;

	for (; i + 64 <= known; i += 64)
		moved[i / 64] = average_word(averages + i, scores + i, shift);
	for (uint32_t word = i / 64; word * 64 < count; word++)
		moved[word] = ~0ull;
	for (; i < known; i++)
		averages[i] = (uint16_t)(averages[i] - (averages[i] >> shift) + (scores[i] >> shift));
	if (count > known)
		memcpy(averages + known, scores + known, (count - known) * sizeof(*averages));
}

/*
 * Prefetches into the CPU's cache the slots that `rescore` will visit, as in step.c: first their
 * numbers, then the slots, so that their cache misses overlap.
 */
static void
fetch_slots(const struct ofs_core *core, const uint32_t *block_slot, const uint32_t *chunks,
	uint64_t bits, int where)
{
	for (; bits; bits &= bits - 1) {
		const uint32_t *slot = &block_slot[chunks[__builtin_ctzll(bits)]];

		if (where)
			__builtin_prefetch(slot);
		else if (*slot != OFS_NONE)
			__builtin_prefetch(&core->slots[*slot], 1);
	}
}

/* A bit for each of `count` blocks; for those set: chunk, slot and average. */
static void
count_rescored(const struct ofs_core *core, uint32_t count, uint32_t rescored)
{
	core->tally->work.rescored += rescored;
	ofs_work_touch(core, OFS_TABLE_SESSION, rescored * sizeof(*core->session_chunks));
	ofs_work_touch(core, OFS_TABLE_BLOCK, rescored * sizeof(*core->block_slot));
	ofs_work_touch(core, OFS_TABLE_SLOT, rescored * sizeof(*core->slots));
	ofs_work_touch(core, OFS_TABLE_LAYER,
		rescored * sizeof(*core->averages) + (count + 63) / 64 * sizeof(*core->held));
}

/*
 * Moves resident blocks among the first `count` in the eviction order by their new scores; moved
 * NULL: all of them.
 */
static void
rescore(struct ofs_core *core, uint32_t session, uint32_t layer, uint32_t count,
	const uint64_t *moved)
{
	const uint32_t *chunks = ofs_session_list(core, session);
	const uint32_t *block_slot = core->block_slot + ofs_block_of(core, 0, layer);
	const uint64_t *held = ofs_row_of(core, core->held, session, layer);
	const uint8_t *buckets = ofs_calibration_of(core, session, layer)->bucket;
	const uint16_t *averages = ofs_averages_of(core, session, layer);
	const struct ofs_session *s = &core->sessions[session];
	uint32_t known = ofs_layer_of(core, session, layer)->known, rescored = 0;

	for (uint32_t word = 0; word * 64 < count; word++)
		fetch_slots(core, block_slot, chunks + word * 64,
			moved ? held[word] & moved[word] : held[word], 1);
	for (uint32_t word = 0; word * 64 < count; word++) {
		uint64_t bits = moved ? held[word] & moved[word] : held[word];

		fetch_slots(core, block_slot, chunks + word * 64, bits, 0);
		for (; bits; bits &= bits - 1) {
			uint32_t i = word * 64 + (uint32_t)__builtin_ctzll(bits);
			uint32_t slot = block_slot[chunks[i]], score;

			if (i >= count || core->slots[slot].state != OFS_SLOT_RESIDENT)
				continue;
			rescored++;
			score = i < known && ofs_is_nontrivial(s, i)
				? buckets[averages[i] >> OFS_LEVEL_SHIFT]
				: ofs_session_score(core, session, layer, i);
			if (score != core->slots[slot].score || core->slots[slot].owner != session)
				ofs_score_update(core, slot, session, i, score);
		}
	}
	count_rescored(core, count, rescored);
}

static void
ema_observe(struct ofs_core *core, const struct ofs_step *step)
{
	struct ofs_layer *layer = ofs_layer_of(core, step->session, step->layer);
	uint16_t *averages = ofs_averages_of(core, step->session, step->layer);
	uint32_t count = step->score_count, shift = core->policy.ema_shift;
	uint32_t old = layer->known < count ? layer->known : count;
	int changed;

	if (count == 0 && layer->known == 0) {
		/* No hint has covered this layer: there is nothing to learn yet. */
		if (core->policy.eviction == OFS_EVICT_SCORE)
			ofs_score_settle(core, step->session, step->layer);
		return;
	}
	changed = ofs_calibration_demands(core, step);
	if (count && query_turned(core, step))
		shift /= 2;
	ofs_work_values(core, count, sizeof(*averages));
	average_update(core->above, averages, step->scores, old, count, shift);
	if (count > old)
		layer->known = count;
	ofs_calibration_note(core, step->session, step->layer);
	if (core->policy.eviction != OFS_EVICT_SCORE)
		return;
	ofs_score_settle(core, step->session, step->layer);
	rescore(core, step->session, step->layer, changed ? core->sessions[step->session].count : count,
		changed ? NULL : core->above);
}

static void
ema_propose(struct ofs_core *core, uint32_t session, uint32_t layer, const struct ofs_step *step)
{
	const struct ofs_guesses guesses = {
		.values = ofs_averages_of(core, session, layer),
		.chance = ofs_calibration_of(core, session, layer)->chance,
		.count = ofs_layer_of(core, session, layer)->known,
		.cause = OFS_CAUSE_PATTERN,
	};

	(void)step;
	ofs_prefetch_best(core, session, layer, &guesses);
}

const struct ofs_prefetch_ops ofs_prefetch_ema = {
	.bits = OFS_PREFETCH_EMA,
	.observe = ema_observe,
	.propose = ema_propose,
};
