/*
 * decode.c: runs a whole plan through an engine, one step of a session at a time.
 *
 * Model: every batch slot has one buffer of one step, which it has used up when it requests the
 * next.
 */
#include <stdlib.h>

#include "engine.h"

/* The session's next step as a slab of one. */
static int
step_feed(struct ofs_engine *engine, struct ofs_sim_decode *plan, uint32_t batch_slot,
	uint32_t *selected)
{
	uint32_t width = engine->core_config.demand_max, step = engine->batch_slots[batch_slot].step;
	uint64_t of_step = (uint64_t)batch_slot * plan->step_count + step;
	uint64_t row = of_step * engine->layer_count;
	struct ofs_slab slab = {
		.step_count = step < plan->step_count,
		.last = step + 1 >= plan->step_count,
		.width = width,
		.selected_count = plan->selected_count,
		.selected = selected,
		.scores = plan->scores ? plan->scores + row * plan->score_count : NULL,
		.score_stride = plan->score_count,
		.score_count = plan->score_counts ? plan->score_counts[batch_slot] : plan->score_count,
		.stall_ns = plan->stall_ns + of_step,
	};

	for (uint32_t layer = 0; slab.step_count && layer < engine->layer_count; layer++) {
		const uint32_t *demands = plan->demands + plan->offsets[row + layer];
		uint64_t count = plan->offsets[row + layer + 1] - plan->offsets[row + layer];
		uint32_t *to = selected + (uint64_t)layer * width;

		if (count > width)
			return -EINVAL;
		for (uint32_t i = 0; i < count; i++) {
			if (demands[i] == OFS_NONE)
				return -EINVAL;
			to[i] = demands[i];
		}
		if (count < width)
			to[count] = OFS_NONE;
	}
	return ofs_engine_feed(engine, batch_slot, &slab);
}

static int
session_start(struct ofs_engine *engine, const struct ofs_sim_decode *plan, uint32_t batch_slot)
{
	const uint64_t *offsets = plan->guess_offsets ? plan->guess_offsets + batch_slot : NULL;

	return ofs_engine_start(engine, batch_slot, plan->sessions[batch_slot],
		batch_slot * plan->stagger_ns, plan->lead_ns, offsets ? plan->guesses + offsets[0] : NULL,
		offsets ? (uint32_t)(offsets[1] - offsets[0]) : 0);
}

static int
plan_run(struct ofs_engine *engine, struct ofs_sim_decode *plan, uint32_t *selected)
{
	uint64_t step_size = (uint64_t)engine->layer_count * engine->core_config.demand_max;
	uint32_t batch_slot;
	int rc = 0;

	for (batch_slot = 0; batch_slot < plan->session_count && rc == 0; batch_slot++)
		rc = session_start(engine, plan, batch_slot);
	while (rc == 0 && (rc = ofs_engine_run(engine, &batch_slot)) > 0) {
		engine->batch_slots[batch_slot].row_count = 0; /* no caller takes them */
		plan->end_ns = engine->now_ns;
		rc = rc == OFS_ENGINE_ROWS
			? step_feed(engine, plan, batch_slot, selected + batch_slot * step_size)
			: 0;
	}
	return rc;
}

int
ofs_sim_decode(struct ofs_core *core, struct ofs_sim_decode *plan)
{
	struct ofs_engine_config config = {
		.batch_slot_max = plan->session_count,
		.append_steps = plan->append_steps,
		.compute_ns = plan->compute_ns,
		.retry_ns = plan->retry_ns,
		.timing = plan->timing,
	};
	struct ofs_engine *engine;
	uint32_t *selected;
	int rc;

	plan->end_ns = plan->reads = plan->failed = 0;
	rc = ofs_engine_open(&engine, core, &config);
	if (rc)
		return rc;
	selected = malloc((size_t)plan->session_count * engine->layer_count
		* engine->core_config.demand_max * sizeof(*selected));
	rc = selected ? plan_run(engine, plan, selected) : -ENOMEM;
	plan->reads = engine->reads;
	plan->failed = engine->failed;
	free(selected);
	ofs_engine_close(engine);
	return rc;
}
