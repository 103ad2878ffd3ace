/*
 * layer.c: one layer of one step, and what the core wants done about it.
 *
 * Model: demands go in; when none of them waits any more the layer computes and the next is due.
 * Actions are taken after every event of the core, in order.
 */
#include "engine.h"

#define ACTION_BATCH 64
#define PS_PER_NS 1000
#define APPENDED_CONTENT 0xdec0deull /* of made-up contents: what decode wrote itself */

static int
read_begins(struct ofs_engine *engine, const struct ofs_action *action)
{
	const struct ofs_core_config *config = &engine->core->config;
	/* Layer-major, as the store lays blocks out: a window is one stretch. */
	uint64_t block = (uint64_t)action->layer * config->chunk_max + action->chunk;
	uint64_t end_ns = engine->now_ns;

	engine->reads++;
	ofs_sim_row_read(engine, action);
	if (engine->nvme) {
		uint64_t end_ps = ofs_nvme_model_submit(engine->nvme, engine->now_ns * PS_PER_NS, 0,
			block * config->block_size_bytes, config->block_size_bytes);

		end_ns = (end_ps + PS_PER_NS - 1) / PS_PER_NS;
	}
	return ofs_sim_push(&engine->heap, end_ns, OFS_SIM_READ, action->io);
}

/* The layer's blocks are there: it computes, and the next layer follows. */
static int
layer_served(struct ofs_engine *engine, uint32_t place, int demanded)
{
	struct ofs_sim_place *p = &engine->places[place];
	uint64_t next_ns =
		engine->now_ns + engine->config.compute_ns + (demanded ? engine->config.hit_ns : 0);
	uint64_t stall_ns = engine->now_ns - p->need_ns;

	ofs_sim_row(engine, place, p->layer)->stall_ns =
		(uint32_t)(stall_ns < UINT32_MAX ? stall_ns : UINT32_MAX);
	if (p->slab.stall_ns)
		p->slab.stall_ns[p->slab_step] += stall_ns;
	if (++p->layer == engine->layer_count) {
		p->layer = 0;
		p->step++;
		p->slab_step++;
	}
	return ofs_sim_push(&engine->heap, next_ns, OFS_SIM_LAYER, place);
}

static int
demand_completes(struct ofs_engine *engine, const struct ofs_action *action)
{
	uint32_t place = action->waiter;
	struct ofs_sim_place *p = &engine->places[place];

	if (action->rc == -EAGAIN) {
		p->busy++;
	} else if (action->rc) {
		engine->failed++;
		ofs_sim_row(engine, place, p->layer)->flags |= OFS_ROW_FAILED;
	}
	if (--p->remaining)
		return 0;
	if (p->busy == 0)
		return layer_served(engine, place, 1);
	ofs_sim_row(engine, place, p->layer)->flags |= OFS_ROW_RETRIED;
	return ofs_sim_push(&engine->heap, engine->now_ns + engine->config.retry_ns, OFS_SIM_RETRY,
		place);
}

int
ofs_sim_act(struct ofs_engine *engine)
{
	struct ofs_action actions[ACTION_BATCH];
	int count, rc = 0;

	while ((count = ofs_core_actions(engine->core, actions, ACTION_BATCH)) > 0) {
		for (int i = 0; i < count && rc == 0; i++)
			if (actions[i].type == OFS_ACTION_READ)
				rc = read_begins(engine, &actions[i]);
			else if (actions[i].type == OFS_ACTION_COMPLETE
				&& actions[i].waiter < engine->config.place_max
				&& engine->places[actions[i].waiter].remaining)
				rc = demand_completes(engine, &actions[i]);
		if (rc)
			return rc;
	}
	return count;
}

int
ofs_sim_tell(struct ofs_engine *engine, uint32_t place, const struct ofs_guess *guesses,
	uint64_t count)
{
	uint32_t max = engine->core->config.queue_max;

	for (uint64_t done = 0; done < count;) {
		uint32_t batch = count - done < max ? (uint32_t)(count - done) : max;
		int rc = ofs_core_hint(engine->core, engine->now_ns, engine->places[place].session,
			guesses + done, batch);

		if (rc == 0)
			rc = ofs_sim_act(engine);
		if (rc)
			return rc;
		done += batch;
	}
	return 0;
}

/* What decode wrote itself is staged and stored at once: the write path is not the subject here. */
static int
append_chunk(struct ofs_engine *engine, uint32_t place)
{
	struct ofs_sim_place *p = &engine->places[place];
	struct ofs_key content = {p->appended++, APPENDED_CONTENT + place};
	struct ofs_core *core = engine->core;
	struct ofs_chunk_info info;
	int rc = ofs_core_session_append(core, engine->now_ns, p->session, 1, &content, &info);

	for (uint32_t layer = 0; rc == 0 && layer < engine->layer_count; layer++) {
		uint32_t slot, generation;
		int staged =
			ofs_core_block_stage(core, engine->now_ns, info.chunk, layer, &slot, &generation);

		rc = ofs_core_block_stored(core, engine->now_ns, info.chunk, layer);
		if (rc == 0 && staged == 0)
			rc = ofs_core_block_clean(core, engine->now_ns, info.chunk, layer);
		if (rc == 0)
			rc = ofs_sim_act(engine);
	}
	return rc;
}

/* Part the layer's selection into what the HBM pool serves and what is demanded. */
static int
selection_part(struct ofs_engine *engine, const struct ofs_sim_place *p, uint64_t at,
	struct ofs_row *row, struct ofs_step *step)
{
	const struct ofs_session *s = &engine->core->sessions[p->session];
	const uint32_t *selected = p->slab.selected + at * p->slab.width;
	const uint8_t *served = p->slab.served ? p->slab.served + at * p->slab.width : NULL;
	uint32_t count = 0, hits = 0, nontrivial = 0, nontrivial_hits = 0, i;

	for (i = 0; i < p->slab.width && selected[i] != OFS_NONE; i++) {
		uint32_t counts = (uint32_t)ofs_is_nontrivial(s, selected[i]);

		nontrivial += counts;
		if (served && served[i]) {
			hits++;
			nontrivial_hits += counts;
			continue;
		}
		if (count == engine->core->config.demand_max)
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

/* The first time that the layer asks in this step. */
static int
layer_begins(struct ofs_engine *engine, uint32_t place)
{
	struct ofs_sim_place *p = &engine->places[place];
	uint32_t every = engine->config.append_steps;
	int rc = 0;

	p->need_ns = engine->now_ns;
	if (p->layer || p->step == 0)
		return 0;
	ofs_sim_rows_end(engine, place);
	rc = ofs_sim_rows_open(engine, place);
	if (rc == 0 && every && p->step % every == 0)
		rc = append_chunk(engine, place);
	return rc;
}

static int
layer_asks(struct ofs_engine *engine, uint32_t place, uint64_t at, int retry)
{
	struct ofs_sim_place *p = &engine->places[place];
	struct ofs_core *core = engine->core;
	const struct ofs_session *s = &core->sessions[p->session];
	const struct ofs_ledger *ledger = &core->ledgers[s->config.tenant];
	struct ofs_step step = {.session = p->session,
		.step = p->step,
		.layer = p->layer,
		.waiter = place,
		.flags = retry ? OFS_STEP_RETRY : 0};
	struct ofs_row *row = ofs_sim_row(engine, place, p->layer);
	struct ofs_ledger before;
	int rc = selection_part(engine, p, at, row, &step);

	if (rc)
		return rc;
	if (!retry && engine->scores && p->slab.scores) {
		step.scores = p->slab.scores + at * p->slab.score_stride;
		step.score_count = p->slab.score_count < s->count ? p->slab.score_count : s->count;
	}
	/* The counters a row is made of come first in the ledger; the rest is not copied. */
	memcpy(&before, ledger, offsetof(struct ofs_ledger, evictions));
	p->busy = p->remaining = 0;
	rc = ofs_core_step(core, engine->now_ns, &step, engine->ends);
	if (rc)
		return rc;
	if (!retry)
		ofs_sim_row_step(row, &before, ledger);
	for (uint32_t i = 0; i < step.demand_count; i++)
		p->remaining += engine->ends[i] >= OFS_END_LATE;
	if (p->remaining == 0)
		rc = layer_served(engine, place, step.demand_count != 0);
	return rc ? rc : ofs_sim_act(engine);
}

int
ofs_sim_layer(struct ofs_engine *engine, uint32_t place, int retry)
{
	struct ofs_sim_place *p = &engine->places[place];
	const struct ofs_slab *slab = &p->slab;
	uint64_t at = (uint64_t)p->slab_step * engine->layer_count + p->layer;
	const uint64_t *told = slab->guess_offsets;
	int rc = retry ? 0 : layer_begins(engine, place);

	if (rc == 0)
		rc = layer_asks(engine, place, at, retry);
	if (rc == 0 && !retry && told)
		rc = ofs_sim_tell(engine, place, slab->guesses + told[at], told[at + 1] - told[at]);
	return rc;
}
