/*
 * prefetch_baseline.c: the guesses that use no score: previous step, previous layer, next N.
 *
 * Model: baselines for comparison. Previous step: what the next layer demanded one step ago.
 * Previous layer: this layer's demands, proposed for the next layer. Next N: the neighbours after
 * each demand of this layer, proposed for the next step.
 */
#include "internal.h"

#define PROBABILITY 32768

static uint32_t *
last_demands_of(const struct ofs_core *core, uint32_t session, uint32_t layer)
{
	return core->last_demands
		+ ((size_t)session * core->config.layer_count + layer) * core->config.demand_max;
}

static void
baseline_observe(struct ofs_core *core, const struct ofs_step *step)
{
	uint32_t *last = last_demands_of(core, step->session, step->layer);

	ofs_work_touch(core, OFS_TABLE_LAYER, step->demand_count * sizeof(*step->demands));
	for (uint32_t i = 0; i < step->demand_count; i++)
		last[i] = step->demands[i];
	ofs_layer_of(core, step->session, step->layer)->last_count = step->demand_count;
}

static int
propose_list(struct ofs_core *core, uint32_t session, uint32_t layer, const uint32_t *ordinals,
	uint32_t count)
{
	uint64_t need_ns = core->now_ns + core->sessions[session].layer_ns;

	for (uint32_t i = 0; i < count; i++)
		if (ofs_queue_propose(core, session, layer, ordinals[i], OFS_CAUSE_BASELINE, PROBABILITY,
				need_ns))
			return -1;
	return 0;
}

static void
propose_next_n(struct ofs_core *core, uint32_t session, const struct ofs_step *step)
{
	const struct ofs_session *s = &core->sessions[session];
	uint64_t need_ns = core->now_ns + s->step_ns;

	for (uint32_t i = 0; i < step->demand_count; i++) {
		for (uint32_t n = 1; n <= core->policy.next_n; n++) {
			uint64_t ordinal = (uint64_t)step->demands[i] + n;

			if (ordinal >= s->count)
				break;
			if (ofs_queue_propose(core, session, step->layer, (uint32_t)ordinal, OFS_CAUSE_BASELINE,
					PROBABILITY, need_ns))
				return;
		}
	}
}

static void
baseline_propose(struct ofs_core *core, uint32_t session, uint32_t layer,
	const struct ofs_step *step)
{
	uint32_t next = layer + 1 == core->config.layer_count ? 0 : layer + 1;
	uint32_t bits = core->policy.prefetchers;

	if (step == NULL)
		return;
	if ((bits & OFS_PREFETCH_PREV_STEP)
		&& propose_list(core, session, next, last_demands_of(core, session, next),
			ofs_layer_of(core, session, next)->last_count))
		return;
	if ((bits & OFS_PREFETCH_PREV_LAYER)
		&& propose_list(core, session, next, step->demands, step->demand_count))
		return;
	if (bits & OFS_PREFETCH_NEXT_N)
		propose_next_n(core, session, step);
}

const struct ofs_prefetch_ops ofs_prefetch_baseline = {
	.bits = OFS_PREFETCH_PREV_STEP | OFS_PREFETCH_PREV_LAYER | OFS_PREFETCH_NEXT_N,
	.observe = baseline_observe,
	.propose = baseline_propose,
};
