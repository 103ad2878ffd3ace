/*
 * engine.c: batch slots, slabs and the loop over events.
 *
 * Model: the loop stops before the event that needs a slab and leaves it in the heap, so that the
 * division of steps into slabs changes neither the events nor their order.
 */
#include <stdlib.h>

#include "engine.h"

#define TICKS_MAX 32 /* waiting at the same time; a tick too few only delays a guess */

static int
tables_open(struct ofs_engine *engine, uint32_t batch_slot_max)
{
	const struct ofs_core_config *config = &engine->core_config;
	uint32_t writes = engine->config.append_steps ? batch_slot_max * engine->layer_count : 0;

	/* One event for every read and write; the begin and the next layer of a batch slot; the ticks.
	 * */
	engine->heap.max = config->io_max + writes + 2 * batch_slot_max + TICKS_MAX;
	engine->heap.events = calloc(engine->heap.max, sizeof(*engine->heap.events));
	engine->batch_slots = calloc(batch_slot_max, sizeof(*engine->batch_slots));
	engine->batch_slot_of = malloc(config->session_max * sizeof(*engine->batch_slot_of));
	engine->demands = malloc(config->demand_max * sizeof(*engine->demands));
	engine->ends = malloc(config->demand_max);
	if (engine->heap.events == NULL || engine->batch_slots == NULL || engine->batch_slot_of == NULL
		|| engine->demands == NULL || engine->ends == NULL)
		return -ENOMEM;
	for (uint32_t session = 0; session < config->session_max; session++)
		engine->batch_slot_of[session] = OFS_NONE;
	return 0;
}

/* It owes no more ends than this: a batch slot waits for one thing at a time, except for writes. */
static uint64_t
in_flight_max(const struct ofs_engine *engine)
{
	return engine->core_config.io_max
		+ engine->config.batch_slot_max * (1ull + engine->core_config.layer_count);
}

int
ofs_engine_open(struct ofs_engine **out, struct ofs_core *core,
	const struct ofs_engine_config *config)
{
	struct ofs_engine *engine;
	struct ofs_policy policy;
	int rc = ofs_timing_check(config->timing);

	if (rc)
		return rc;
	engine = calloc(1, sizeof(*engine));
	if (engine == NULL)
		return -ENOMEM;
	ofs_core_describe(core, &engine->core_config, &policy);
	engine->core = core;
	engine->timing = config->timing;
	engine->config = *config;
	engine->layer_count = engine->core_config.layer_count;
	engine->tick_ns = UINT64_MAX;
	if (config->batch_slot_max == 0 || config->batch_slot_max > 1u << 20
		|| engine->core_config.demand_max > UINT16_MAX
		|| in_flight_max(engine) > config->timing->in_flight_max)
		rc = -EINVAL;
	else
		rc = tables_open(engine, config->batch_slot_max);
	if (rc) {
		ofs_engine_close(engine);
		return rc;
	}
	*out = engine;
	return 0;
}

void
ofs_engine_close(struct ofs_engine *engine)
{
	for (uint32_t batch_slot = 0; engine->batch_slots && batch_slot < engine->config.batch_slot_max;
		 batch_slot++)
		free(engine->batch_slots[batch_slot].rows);
	free(engine->heap.events);
	free(engine->batch_slots);
	free(engine->batch_slot_of);
	free(engine->demands);
	free(engine->ends);
	free(engine->used);
	free(engine);
}

int
ofs_engine_start(struct ofs_engine *engine, uint32_t batch_slot, uint32_t session, uint64_t at_ns,
	uint64_t lead_ns, const struct ofs_guess *guesses, uint32_t guess_count)
{
	struct ofs_session_view view;
	struct ofs_batch_slot *p;
	int rc;

	if (batch_slot >= engine->config.batch_slot_max || at_ns < engine->now_ns
		|| lead_ns > UINT64_MAX - at_ns)
		return -EINVAL;
	p = &engine->batch_slots[batch_slot];
	if (ofs_core_session_view(engine->core, session, &view))
		return -EINVAL;
	if (p->running || engine->batch_slot_of[session] != OFS_NONE)
		return -EBUSY;
	p->session = session;
	p->step = p->layer = p->slab_step = p->remaining = 0;
	p->fed = 0;
	p->guesses = guesses;
	p->guess_count = guess_count;
	rc = ofs_sim_rows_open(engine, batch_slot);
	if (rc == 0 && guess_count)
		rc = ofs_sim_push(&engine->heap, at_ns, OFS_SIM_BEGIN, 0, batch_slot);
	if (rc == 0)
		rc = ofs_sim_push(&engine->heap, at_ns + lead_ns, OFS_SIM_LAYER, 0, batch_slot);
	if (rc)
		return rc;
	p->running = 1;
	engine->batch_slot_of[session] = batch_slot;
	return 0;
}

static int
is_used_up(const struct ofs_batch_slot *p)
{
	return !p->fed || p->slab_step >= p->slab.step_count;
}

int
ofs_engine_feed(struct ofs_engine *engine, uint32_t batch_slot, const struct ofs_slab *slab)
{
	struct ofs_batch_slot *p;

	if (batch_slot >= engine->config.batch_slot_max || slab->width > UINT16_MAX
		|| slab->score_count > slab->score_stride || (slab->step_count == 0 && !slab->last))
		return -EINVAL;
	p = &engine->batch_slots[batch_slot];
	if (!p->running)
		return -EINVAL;
	if (!is_used_up(p) || (p->fed && p->slab.last))
		return -EBUSY;
	if (slab->units && ofs_sim_uses_open(engine))
		return -ENOMEM;
	p->slab = *slab;
	p->slab_step = 0;
	p->fed = 1;
	for (uint32_t step = 0; slab->stall_ns && step < slab->step_count; step++)
		slab->stall_ns[step] = 0;
	return 0;
}

static int
tick(struct ofs_engine *engine)
{
	uint64_t next_ns;
	int rc = ofs_core_tick(engine->core, engine->now_ns, &next_ns);

	if (rc == 0)
		rc = ofs_sim_act(engine);
	if (rc == 0 && next_ns < engine->tick_ns && engine->tick_count < TICKS_MAX) {
		engine->tick_count++;
		engine->tick_ns = next_ns > engine->now_ns ? next_ns : engine->now_ns + 1;
		rc = ofs_sim_push(&engine->heap, engine->tick_ns, OFS_SIM_TICK, 0, 0);
	}
	return rc;
}

static int
event_run(struct ofs_engine *engine, const struct ofs_sim_event *event)
{
	const struct ofs_batch_slot *p;
	int rc = 0;

	switch (event->kind) {
	case OFS_SIM_BEGIN:
		p = &engine->batch_slots[event->id];
		rc = ofs_sim_guess(engine, event->id, p->guesses, p->guess_count);
		break;
	case OFS_SIM_READ:
		rc = ofs_core_io_done(engine->core, engine->now_ns, event->id, 0);
		if (rc == 0)
			rc = ofs_sim_act(engine);
		break;
	case OFS_SIM_WRITTEN:
		rc = ofs_sim_written(engine, event->id, event->layer);
		if (rc == 0)
			rc = ofs_sim_act(engine);
		break;
	case OFS_SIM_DECIDE:
		rc = ofs_sim_decide(engine, event->id);
		break;
	case OFS_SIM_SERVED:
		rc = ofs_sim_next_layer(engine, event->id, engine->now_ns);
		break;
	case OFS_SIM_TICK:
		engine->tick_ns = UINT64_MAX;
		engine->tick_count--;
		break;
	default:
		rc = ofs_sim_layer(engine, event->id, event->kind == OFS_SIM_RETRY);
	}
	if (rc == 0 && engine->ticks)
		rc = tick(engine);
	return rc;
}

/*
 * The batch slot needs its next slab, or its last layer has computed and all its writes are on the
 * medium; OFS_ENGINE_IDLE: not yet. One that never ran a step has no rows.
 */
static int
batch_slot_stops(struct ofs_engine *engine, uint32_t batch_slot)
{
	struct ofs_batch_slot *p = &engine->batch_slots[batch_slot];

	if (!p->fed || !p->slab.last)
		return OFS_ENGINE_ROWS;
	ofs_sim_pop(&engine->heap);
	p->waiting = p->writing != 0;
	if (p->waiting)
		return OFS_ENGINE_IDLE;
	if (p->step)
		ofs_sim_rows_end(engine, batch_slot);
	engine->batch_slot_of[p->session] = OFS_NONE;
	p->running = p->fed = 0;
	return OFS_ENGINE_ENDED;
}

/* The policy's needs, which may have changed since the last run. */
static void
policy_look(struct ofs_engine *engine)
{
	struct ofs_core_config config;
	struct ofs_policy policy;

	ofs_core_describe(engine->core, &config, &policy);
	engine->ticks = policy.prefetch_bytes_per_s_max != 0 || policy.lease_ns != 0;
	engine->scores = (policy.prefetchers & (OFS_PREFETCH_EMA | OFS_PREFETCH_SHARED)) != 0
		|| policy.eviction == OFS_EVICT_SCORE;
}

/* Whether the timing side's next end precedes the engine's next event: then now is its time. */
static int
device_is_next(struct ofs_engine *engine)
{
	uint64_t next_ns = ofs_sim_device_next_ns(engine);

	if (next_ns == UINT64_MAX
		|| (engine->heap.count > 0 && next_ns > engine->heap.events[0].key.first))
		return 0;
	if (next_ns > engine->now_ns)
		engine->now_ns = next_ns;
	return 1;
}

int
ofs_engine_run(struct ofs_engine *engine, uint32_t *batch_slot)
{
	int rc;

	policy_look(engine);
	rc = ofs_sim_act(engine); /* actions caused by the caller's own calls of the core */
	while (rc == 0) {
		struct ofs_sim_event event;

		if (engine->later_count && device_is_next(engine)) {
			if (ofs_sim_device_poll(engine, &event))
				rc = event_run(engine, &event);
			continue;
		}
		if (engine->heap.count == 0)
			return engine->later_count ? -EPROTO : OFS_ENGINE_IDLE; /* it never ends */
		event = engine->heap.events[0];
		engine->now_ns = event.key.first;
		if (event.kind == OFS_SIM_LAYER && is_used_up(&engine->batch_slots[event.id])) {
			*batch_slot = event.id;
			rc = batch_slot_stops(engine, event.id);
			continue;
		}
		ofs_sim_pop(&engine->heap);
		rc = event_run(engine, &event);
	}
	return rc;
}

void
ofs_engine_describe(const struct ofs_engine *engine, struct ofs_engine_state *state)
{
	state->now_ns = engine->now_ns;
	state->reads = engine->reads;
	state->failed = engine->failed;
}
