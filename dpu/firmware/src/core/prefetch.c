/*
 * prefetch.c: the prefetchers in the order in which they share the degree of a step.
 *
 * Model: structure first (the window is certain), then by the chance of a demand the session's own
 * averages, then its siblings', then the baselines. Each proposes candidates; queue.c orders them,
 * pump.c decides which is read.
 */
#include "internal.h"

static const struct ofs_prefetch_ops *const prefetchers[] = {
	&ofs_prefetch_window,
	&ofs_prefetch_ema,
	&ofs_prefetch_shared,
	&ofs_prefetch_baseline,
};
#define PREFETCHER_COUNT (sizeof(prefetchers) / sizeof(prefetchers[0]))

void
ofs_prefetch_observe(struct ofs_core *core, const struct ofs_step *step)
{
	for (size_t i = 0; i < PREFETCHER_COUNT; i++)
		if (prefetchers[i]->observe)
			prefetchers[i]->observe(core, step);
}

static void
propose_all(struct ofs_core *core, uint32_t session, uint32_t layer, const struct ofs_step *step)
{
	core->proposed = 0;
	core->propose_max = core->tenants[core->sessions[session].config.tenant].degree;
	for (size_t i = 0; i < PREFETCHER_COUNT; i++)
		if (core->policy.prefetchers & prefetchers[i]->bits)
			prefetchers[i]->propose(core, session, layer, step);
}

void
ofs_prefetch_step(struct ofs_core *core, const struct ofs_step *step)
{
	if (core->policy.prefetchers)
		propose_all(core, step->session, step->layer, step);
}

/* The session begins to generate: every layer is guessed from structure and siblings alone. */
void
ofs_prefetch_begin(struct ofs_core *core, uint32_t session)
{
	if (core->policy.prefetchers == 0)
		return;
	for (uint32_t layer = 0; layer < core->config.layer_count; layer++)
		propose_all(core, session, layer, NULL);
}

/* The lowest value whose chance is enough; one above the highest if there is none. */
static uint32_t
value_enough(const struct ofs_core *core, const struct ofs_guesses *guesses)
{
	uint32_t enough = (core->policy.probability_permille_min * OFS_SCORE_HIGHEST + 999) / 1000;

	if (guesses->chance == NULL)
		return enough ? enough : 1;
	for (uint32_t level = 0; level < OFS_LEVELS; level++)
		if (guesses->chance[level] >= enough)
			return level ? level << OFS_LEVEL_SHIFT : 1;
	return OFS_SCORE_HIGHEST + 1;
}

/* Bits of `above` for what may be proposed: at most `rank` of the values, except for ties. */
static void
mark_enough(struct ofs_core *core, const struct ofs_guesses *guesses, uint32_t rank)
{
	uint32_t found = 0, cut = value_enough(core, guesses);

	ofs_work_values(core, guesses->count, sizeof(*guesses->values));
	ofs_rank_above(core->above, core->row_words, guesses->values, guesses->count, cut);
	for (uint32_t word = 0; word < core->row_words; word++)
		found += ofs_bits_of(core->above[word]);
	if (found <= rank)
		return;
	cut = ofs_rank_cut(guesses->values, guesses->count, rank);
	ofs_rank_above(core->above, core->row_words, guesses->values, guesses->count, cut);
}

/* A block selected by rule is a candidate by its class, whatever its value. */
static void
mark_trivial(struct ofs_core *core, const struct ofs_session *s, uint32_t count)
{
	uint32_t begin = ofs_window_begin(s);

	for (uint32_t i = 0; i < s->config.sink_blocks && i < count; i++)
		core->above[i / 64] |= 1ull << (i % 64);
	for (uint32_t i = begin; i < count; i++)
		core->above[i / 64] |= 1ull << (i % 64);
}

/* The best `max` absent ordinals, sorted by (chance, value; both from the highest down, then
 * ordinal). */
static uint32_t
best_absent(struct ofs_core *core, uint32_t session, uint32_t layer,
	const struct ofs_guesses *guesses, uint32_t max)
{
	const uint32_t *chunks = ofs_session_list(core, session);
	const uint64_t *held = ofs_row_of(core, core->held, session, layer);
	uint32_t enough = (core->policy.probability_permille_min * OFS_SCORE_HIGHEST + 999) / 1000;
	uint32_t count = 0, ranked = 0;

	for (uint32_t word = 0; word < core->row_words; word++) {
		for (uint64_t bits = core->above[word] & ~held[word]; bits; bits &= bits - 1) {
			uint32_t i = word * 64 + (uint32_t)__builtin_ctzll(bits);
			uint32_t value = guesses->values[i], position;
			uint32_t chance =
				guesses->chance ? guesses->chance[ofs_class_of(core, session, layer, i)] : value;
			uint64_t entry = (uint64_t)(OFS_SCORE_HIGHEST - chance) << 48
				| (uint64_t)(OFS_SCORE_HIGHEST - value) << 32 | i;

			ranked++;
			if (chance < enough || (count == max && entry >= core->best[count - 1])
				|| !ofs_block_is_stored(core, chunks[i], layer))
				continue;
			/* Insertion into a short list: few absent blocks qualify. */
			position = count < max ? count++ : count - 1;
			for (; position > 0 && core->best[position - 1] > entry; position--)
				core->best[position] = core->best[position - 1];
			core->best[position] = entry;
		}
	}
	core->tally->work.ranked += ranked;
	ofs_work_touch(core, OFS_TABLE_BLOCK, ranked * sizeof(*core->block_flags));
	ofs_work_touch(core, OFS_TABLE_LAYER, core->row_words * sizeof(*held));
	return count;
}

/*
 * Proposes the best absent ordinals with a chance of probability_permille_min or more, among the
 * first select_blocks * residency_percent / 100 of all and of sinks and window.
 */
void
ofs_prefetch_best(struct ofs_core *core, uint32_t session, uint32_t layer,
	const struct ofs_guesses *guesses)
{
	const struct ofs_session *s = &core->sessions[session];
	uint64_t rank = (uint64_t)s->config.select_blocks * core->policy.residency_percent / 100;
	uint32_t max = core->propose_max - core->proposed, count;

	assert(core->proposed <= core->propose_max);
	if (rank == 0 || max == 0 || guesses->count == 0)
		return;
	mark_enough(core, guesses, rank > guesses->count ? guesses->count : (uint32_t)rank);
	if (guesses->chance)
		mark_trivial(core, s, guesses->count);
	count = best_absent(core, session, layer, guesses, max);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t chance = OFS_SCORE_HIGHEST - (uint32_t)(core->best[i] >> 48);

		if (ofs_queue_propose(core, session, layer, (uint32_t)core->best[i], guesses->cause, chance,
				core->now_ns + s->step_ns))
			return;
	}
}
