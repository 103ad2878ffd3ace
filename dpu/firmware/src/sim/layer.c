/*
 * layer.c: one layer of one step, and the core's actions for it.
 *
 * Model: demands are submitted; when none of them waits any more, the layer computes and the next
 * is due. Actions are taken after every event of the core, in order.
 */
#include "engine.h"

#define ACTION_BATCH 64
#define APPENDED_CONTENT 0xdec0deull /* made-up contents: what decode itself wrote */

/* The layer is served at that time: it computes, and the next layer follows. */
int
ofs_sim_next_layer(struct ofs_engine *engine, uint32_t batch_slot, uint64_t served_ns)
{
	return ofs_sim_push(&engine->heap, served_ns + engine->config.compute_ns, OFS_SIM_LAYER, 0,
		batch_slot);
}

/* The layer's blocks are staged: the host fetches them. */
static int
layer_staged(struct ofs_engine *engine, uint32_t batch_slot)
{
	struct ofs_batch_slot *p = &engine->batch_slots[batch_slot];
	uint64_t stall_ns = engine->now_ns - p->need_ns, served_ns;
	uint32_t layer = p->layer;

	ofs_sim_row(engine, batch_slot, layer)->stall_ns =
		(uint32_t)(stall_ns < UINT32_MAX ? stall_ns : UINT32_MAX);
	if (p->slab.stall_ns)
		p->slab.stall_ns[p->slab_step] += stall_ns;
	if (++p->layer == engine->layer_count) {
		p->layer = 0;
		p->step++;
		p->slab_step++;
	}
	served_ns = p->demanded ? ofs_sim_hit_end(engine, batch_slot, layer) : engine->now_ns;
	return served_ns == OFS_TIMING_LATER ? 0 : ofs_sim_next_layer(engine, batch_slot, served_ns);
}

static int
demand_completes(struct ofs_engine *engine, const struct ofs_action *action)
{
	uint32_t batch_slot = action->waiter;
	struct ofs_batch_slot *p = &engine->batch_slots[batch_slot];

	if (action->rc == -EAGAIN) {
		p->busy++;
	} else if (action->rc) {
		engine->failed++;
		ofs_sim_row(engine, batch_slot, p->layer)->flags |= OFS_ROW_FAILED;
	}
	if (--p->remaining)
		return 0;
	if (p->busy == 0)
		return layer_staged(engine, batch_slot);
	ofs_sim_row(engine, batch_slot, p->layer)->flags |= OFS_ROW_RETRIED;
	return ofs_sim_push(&engine->heap, engine->now_ns + engine->config.retry_ns, OFS_SIM_RETRY, 0,
		batch_slot);
}

int
ofs_sim_act(struct ofs_engine *engine)
{
	struct ofs_action actions[ACTION_BATCH];
	int count, rc = 0;

	while ((count = ofs_core_actions(engine->core, actions, ACTION_BATCH)) > 0) {
		for (int i = 0; i < count && rc == 0; i++)
			if (actions[i].type == OFS_ACTION_READ)
				rc = ofs_sim_read(engine, &actions[i]);
			else if (actions[i].type == OFS_ACTION_RETRACT && engine->used)
				ofs_sim_uses_end(engine, &actions[i]);
			else if (actions[i].type == OFS_ACTION_COMPLETE
				&& actions[i].waiter < engine->config.batch_slot_max
				&& engine->batch_slots[actions[i].waiter].remaining)
				rc = demand_completes(engine, &actions[i]);
		if (rc)
			return rc;
	}
	return count;
}

int
ofs_sim_guess(struct ofs_engine *engine, uint32_t batch_slot, const struct ofs_guess *guesses,
	uint64_t count)
{
	uint32_t max = engine->core_config.queue_max;

	for (uint64_t done = 0; done < count;) {
		uint32_t batch = count - done < max ? (uint32_t)(count - done) : max;
		int rc = ofs_core_hint(engine->core, engine->now_ns,
			engine->batch_slots[batch_slot].session, guesses + done, batch);

		if (rc == 0)
			rc = ofs_sim_act(engine);
		if (rc)
			return rc;
		done += batch;
	}
	return 0;
}

/* The store has the block. One that was written through, not staged, has nothing to clean. */
int
ofs_sim_written(struct ofs_engine *engine, uint32_t batch_slot, uint32_t layer)
{
	struct ofs_batch_slot *p = &engine->batch_slots[batch_slot];
	int rc = ofs_core_block_stored(engine->core, engine->now_ns, p->written_chunk, layer);

	if (rc == 0)
		rc = ofs_core_block_clean(engine->core, engine->now_ns, p->written_chunk, layer);
	if (rc && rc != -EINVAL)
		return rc;
	if (--p->writing == 0 && p->waiting)
		return ofs_sim_push(&engine->heap, engine->now_ns, OFS_SIM_LAYER, 0, batch_slot);
	return 0;
}

static int
block_write(struct ofs_engine *engine, uint32_t batch_slot, uint32_t layer)
{
	uint64_t end_ns = ofs_sim_write_end(engine, batch_slot, layer);

	engine->batch_slots[batch_slot].writing++;
	if (end_ns == OFS_TIMING_LATER)
		return 0;
	if (end_ns > engine->now_ns)
		return ofs_sim_push(&engine->heap, end_ns, OFS_SIM_WRITTEN, layer, batch_slot);
	return ofs_sim_written(engine, batch_slot, layer);
}

static int
append_chunk(struct ofs_engine *engine, uint32_t batch_slot)
{
	struct ofs_batch_slot *p = &engine->batch_slots[batch_slot];
	struct ofs_key content = {p->appended++, APPENDED_CONTENT + batch_slot};
	struct ofs_core *core = engine->core;
	struct ofs_chunk_info info;
	int rc = ofs_core_session_append(core, engine->now_ns, p->session, 1, &content, &info);

	p->written_chunk = info.chunk;
	for (uint32_t layer = 0; rc == 0 && layer < engine->layer_count; layer++) {
		uint32_t slot, generation;

		/* Written through if no slot is free. */
		(void)ofs_core_block_stage(core, engine->now_ns, info.chunk, layer, &slot, &generation);
		rc = block_write(engine, batch_slot, layer);
		if (rc == 0)
			rc = ofs_sim_act(engine);
	}
	return rc;
}

/* Splits the layer's selection into what the HBM pool serves and what is demanded. */
static int
selection_split(struct ofs_engine *engine, const struct ofs_batch_slot *p, uint64_t at,
	struct ofs_row *row, struct ofs_step *step)
{
	const uint32_t *selected = p->slab.selected + at * p->slab.width;
	const uint8_t *served = p->slab.served ? p->slab.served + at * p->slab.width : NULL;
	uint32_t count = 0, hits = 0, nontrivial = 0, nontrivial_hits = 0, i;

	for (i = 0; i < p->slab.width && selected[i] != OFS_NONE; i++) {
		uint32_t counts = (uint32_t)ofs_view_is_nontrivial(&p->view, selected[i]);

		nontrivial += counts;
		if (served && served[i]) {
			hits++;
			nontrivial_hits += counts;
			continue;
		}
		if (count == engine->core_config.demand_max)
			return -EINVAL;
		engine->demands[count++] = selected[i];
	}
	row->selected = (uint16_t)i;
	row->pool_hits = (uint16_t)hits;
	row->demands = (uint16_t)count;
	row->nontrivial_selected = (uint16_t)nontrivial;
	row->nontrivial_pool_hits = (uint16_t)nontrivial_hits;
	step->selected_count = p->slab.selected_count ? p->slab.selected_count : i;
	step->demand_count = count;
	step->demands = engine->demands;
	return 0;
}

static uint64_t
slab_row(const struct ofs_engine *engine, const struct ofs_batch_slot *p)
{
	return (uint64_t)p->slab_step * engine->layer_count + p->layer;
}

/* The command of the current layer. */
static int
step_make(struct ofs_engine *engine, uint32_t batch_slot, struct ofs_step *step)
{
	struct ofs_batch_slot *p = &engine->batch_slots[batch_slot];
	uint64_t at = slab_row(engine, p);
	int rc = ofs_core_session_view(engine->core, p->session, &p->view);

	if (rc)
		return rc;
	*step = (struct ofs_step){.session = p->session,
		.step = p->step,
		.layer = p->layer,
		.waiter = batch_slot,
		.flags = p->retrying ? OFS_STEP_RETRY : OFS_STEP_PACKED};
	if (!p->retrying && engine->scores && p->slab.scores) {
		uint32_t known = p->view.chunk_count;

		step->scores = p->slab.scores + at * p->slab.score_stride;
		step->score_count = p->slab.score_count < known ? p->slab.score_count : known;
	}
	return selection_split(engine, p, at, ofs_sim_row(engine, batch_slot, p->layer), step);
}

/* The device has taken the command: the core decides, then it gets the guesses. */
static int
step_run(struct ofs_engine *engine, uint32_t batch_slot, const struct ofs_step *step)
{
	struct ofs_batch_slot *p = &engine->batch_slots[batch_slot];
	const struct ofs_ledger *ledger = ofs_core_ledger_of(engine->core, p->view.tenant);
	struct ofs_row *row = ofs_sim_row(engine, batch_slot, p->layer);
	const uint64_t *offsets = p->retrying ? NULL : p->slab.guess_offsets;
	uint64_t at = slab_row(engine, p);
	struct ofs_ledger before;
	int rc;

	/* Copies only the counters that a row is made of, which come first in the ledger. */
	memcpy(&before, ledger, offsetof(struct ofs_ledger, evictions));
	p->busy = p->remaining = 0;
	p->demanded = step->demand_count;
	rc = ofs_core_step(engine->core, engine->now_ns, step, engine->ends);
	if (rc)
		return rc;
	if (!p->retrying)
		ofs_sim_row_step(row, &before, ledger);
	if (!p->retrying && p->slab.units)
		ofs_sim_uses_add(engine, p, at);
	for (uint32_t i = 0; i < step->demand_count; i++)
		p->remaining += engine->ends[i] >= OFS_END_LATE;
	if (p->remaining == 0)
		rc = layer_staged(engine, batch_slot);
	if (rc == 0)
		rc = ofs_sim_act(engine);
	if (rc == 0 && offsets)
		rc = ofs_sim_guess(engine, batch_slot, p->slab.guesses + offsets[at],
			offsets[at + 1] - offsets[at]);
	return rc;
}

int
ofs_sim_decide(struct ofs_engine *engine, uint32_t batch_slot)
{
	struct ofs_step step;
	int rc = step_make(engine, batch_slot, &step);

	return rc ? rc : step_run(engine, batch_slot, &step);
}

/* The layer's demands go to the device, which decides them once it has taken the command. */
static int
command(struct ofs_engine *engine, uint32_t batch_slot, const struct ofs_step *step)
{
	uint64_t end_ns = ofs_sim_command_end(engine, batch_slot, step);

	if (end_ns == OFS_TIMING_LATER)
		return 0;
	if (end_ns > engine->now_ns)
		return ofs_sim_push(&engine->heap, end_ns, OFS_SIM_DECIDE, 0, batch_slot);
	return step_run(engine, batch_slot, step);
}

/* 1: it appends a chunk first. */
static int
layer_appends(const struct ofs_engine *engine, const struct ofs_batch_slot *p)
{
	uint32_t every = engine->config.append_steps;

	return p->layer == 0 && p->step && every && p->step % every == 0;
}

/* The layer's first attempt in this step. */
static int
layer_begins(struct ofs_engine *engine, uint32_t batch_slot)
{
	struct ofs_batch_slot *p = &engine->batch_slots[batch_slot];
	int rc = 0;

	if (p->layer == 0 && p->step) {
		ofs_sim_rows_end(engine, batch_slot);
		rc = ofs_sim_rows_open(engine, batch_slot);
	}
	if (rc == 0 && layer_appends(engine, p))
		rc = append_chunk(engine, batch_slot);
	return rc;
}

int
ofs_sim_layer(struct ofs_engine *engine, uint32_t batch_slot, int retry)
{
	struct ofs_batch_slot *p = &engine->batch_slots[batch_slot];
	struct ofs_step step;
	int rc = 0;

	if (!retry && !p->waiting)
		p->need_ns = engine->now_ns;
	p->waiting = !retry && p->writing && layer_appends(engine, p);
	if (p->waiting)
		return 0; /* until its earlier append is on the medium */
	p->retrying = (uint8_t)retry;
	if (!retry)
		rc = layer_begins(engine, batch_slot);
	if (rc == 0)
		rc = step_make(engine, batch_slot, &step);
	return rc ? rc : command(engine, batch_slot, &step);
}
