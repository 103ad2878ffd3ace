/*
 * prefetch.c: the prefetchers in the order in which they share the degree of a step.
 *
 * Model: structure first (the window is certain), then the session's own average, then its
 * siblings', then the baselines. Each proposes candidates; queue.c decides what is read.
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
		prefetchers[i]->observe(core, step);
}

static void
propose_all(struct ofs_core *core, uint32_t session, uint32_t layer, const struct ofs_step *step)
{
	core->proposed = 0;
	core->propose_max = core->tenants[core->sessions[session].config.tenant].degree;
	for (size_t i = 0; i < PREFETCHER_COUNT; i++) {
		if (core->policy.prefetchers & prefetchers[i]->bits)
			prefetchers[i]->propose(core, session, layer, step);
	}
}

void
ofs_prefetch_step(struct ofs_core *core, const struct ofs_step *step)
{
	if (core->policy.prefetchers)
		propose_all(core, step->session, step->layer, step);
}

/* The session begins to generate: every layer is a guess from structure and siblings alone. */
void
ofs_prefetch_begin(struct ofs_core *core, uint32_t session)
{
	if (core->policy.prefetchers == 0)
		return;
	for (uint32_t layer = 0; layer < core->config.layer_count; layer++)
		propose_all(core, session, layer, NULL);
}

/* The best `max` absent ordinals above the cut, sorted by (distance from the top, ordinal). */
static uint32_t
best_absent(struct ofs_core *core, uint32_t session, uint32_t layer, const uint16_t *values,
	uint32_t begin, uint32_t max)
{
	const uint32_t *chunks = ofs_session_list(core, session);
	const uint64_t *held = ofs_row_of(core, core->held, session, layer);
	uint32_t count = 0;

	for (uint32_t word = begin / 64; word < core->row_words; word++) {
		for (uint64_t bits = core->above[word] & ~held[word]; bits; bits &= bits - 1) {
			uint32_t i = word * 64 + (uint32_t)__builtin_ctzll(bits), place;
			uint64_t entry = ((uint64_t)(OFS_SCORE_HIGHEST - values[i]) << 32) | i;

			if (i < begin || !ofs_block_is_stored(core, chunks[i], layer)
				|| (count == max && entry >= core->best[count - 1]))
				continue;
			/* Insertion into a short list: few blocks above the cut are absent. */
			place = count < max ? count++ : count - 1;
			for (; place > 0 && core->best[place - 1] > entry; place--)
				core->best[place] = core->best[place - 1];
			core->best[place] = entry;
		}
	}
	return count;
}

/*
 * Propose the best absent ordinals from `begin` on that stand among the first
 * select_blocks * residency_percent / 100 of all. `values` has one entry per ordinal.
 */
void
ofs_prefetch_best(struct ofs_core *core, uint32_t session, uint32_t layer,
	const uint16_t *values, uint32_t begin, uint32_t cause)
{
	const struct ofs_session *s = &core->sessions[session];
	uint32_t end = cause == OFS_CAUSE_PATTERN ? ofs_layer_of(core, session, layer)->known
		: s->count;
	uint64_t rank = (uint64_t)s->config.select_blocks * core->policy.residency_percent / 100;
	uint32_t max = core->propose_max - core->proposed, count, cut;

	if (rank == 0 || max == 0 || begin >= end)
		return;
	cut = ofs_rank_cut(values, end, rank > end ? end + 1 : (uint32_t)rank);
	ofs_rank_above(core->above, core->row_words, values, end, cut);
	count = best_absent(core, session, layer, values, begin, max);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t ordinal = (uint32_t)core->best[i];

		if (ofs_queue_propose(core, session, layer, ordinal, cause, values[ordinal],
			core->now_ns + s->step_ns))
			return;
	}
}
