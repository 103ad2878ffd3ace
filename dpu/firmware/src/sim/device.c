/*
 * device.c: the engine's requests to the timed device.
 *
 * Model: a request ends at a known time, or the timing side reports its end later under a tag that
 * names the event. The side's contract excludes times before now.
 */
#include "engine.h"

#define PS_PER_NS 1000

typedef uint64_t timing_call(struct ofs_timing *timing, uint64_t now_ps,
	const struct ofs_timing_request *request);

/* When the device is done, in ns; OFS_TIMING_LATER: an event of this kind will follow. */
static uint64_t
ask(struct ofs_engine *engine, timing_call *call, struct ofs_timing_request *request,
	const struct ofs_sim_event *event)
{
	uint64_t end_ps;

	request->tag = (uint64_t)event->kind << 48 | (uint64_t)event->layer << 32 | event->id;
	end_ps = call(engine->timing, engine->now_ns * PS_PER_NS, request);
	if (end_ps == OFS_TIMING_LATER) {
		engine->later_count++;
		return OFS_TIMING_LATER;
	}
	return (end_ps + PS_PER_NS - 1) / PS_PER_NS;
}

/* Layer-major, as the store lays blocks out: a window is contiguous. */
static uint64_t
offset_of(const struct ofs_engine *engine, uint32_t chunk, uint32_t layer)
{
	const struct ofs_core_config *config = &engine->core_config;

	return ((uint64_t)layer * config->chunk_max + chunk) * config->block_size_bytes;
}

int
ofs_sim_read(struct ofs_engine *engine, const struct ofs_action *action)
{
	uint64_t needed_ns = action->deadline_ns, end_ns;
	struct ofs_sim_event event = {.kind = OFS_SIM_READ, .id = action->io};
	struct ofs_timing_request request = {
		.offset_bytes = offset_of(engine, action->chunk, action->layer),
		.deadline_ps = needed_ns < UINT64_MAX / PS_PER_NS ? needed_ns * PS_PER_NS : UINT64_MAX,
		.size_bytes = engine->core_config.block_size_bytes,
		.count = 1,
		.tenant = action->tenant,
		.cause = action->cause,
		.session = action->session,
		.layer = action->layer,
		.chunk = ofs_core_chunk_home(engine->core, action->chunk),
	};

	engine->reads++;
	ofs_sim_row_read(engine, action);
	end_ns = ask(engine, engine->timing->ops->read, &request, &event);
	if (end_ns == OFS_TIMING_LATER)
		return 0;
	return ofs_sim_push(&engine->heap, end_ns, OFS_SIM_READ, 0, action->io);
}

uint64_t
ofs_sim_write_end(struct ofs_engine *engine, uint32_t batch_slot, uint32_t layer)
{
	const struct ofs_batch_slot *p = &engine->batch_slots[batch_slot];
	struct ofs_sim_event event = {.kind = OFS_SIM_WRITTEN,
		.layer = (uint16_t)layer,
		.id = batch_slot};
	struct ofs_timing_request request = {
		.offset_bytes = offset_of(engine, p->written_chunk, layer),
		.size_bytes = engine->core_config.block_size_bytes,
		.count = 1,
		.tenant = p->view.tenant,
		.session = p->session,
		.layer = layer,
		.chunk = ofs_core_chunk_home(engine->core, p->written_chunk),
	};

	return ask(engine, engine->timing->ops->write, &request, &event);
}

uint64_t
ofs_sim_hit_end(struct ofs_engine *engine, uint32_t batch_slot, uint32_t layer)
{
	const struct ofs_batch_slot *p = &engine->batch_slots[batch_slot];
	struct ofs_sim_event event = {.kind = OFS_SIM_SERVED, .id = batch_slot};
	struct ofs_timing_request request = {
		.size_bytes = engine->core_config.block_size_bytes,
		.count = p->demanded,
		.tenant = p->view.tenant,
		.session = p->session,
		.layer = layer,
	};

	return ask(engine, engine->timing->ops->hit, &request, &event);
}

uint64_t
ofs_sim_command_end(struct ofs_engine *engine, uint32_t batch_slot, const struct ofs_step *step)
{
	struct ofs_sim_event event = {.kind = OFS_SIM_DECIDE, .id = batch_slot};
	struct ofs_timing_request request = {
		.size_bytes = engine->core_config.block_size_bytes,
		.count = step->demand_count,
		.score_count = step->score_count,
		.session = step->session,
		.layer = step->layer,
		.blocks = step->demands,
		.tenant = engine->batch_slots[batch_slot].view.tenant,
	};

	return ask(engine, engine->timing->ops->command, &request, &event);
}

uint64_t
ofs_sim_device_next_ns(const struct ofs_engine *engine)
{
	uint64_t next_ps = engine->timing->ops->next_ps(engine->timing);

	return next_ps == OFS_TIMING_LATER ? UINT64_MAX : (next_ps + PS_PER_NS - 1) / PS_PER_NS;
}

int
ofs_sim_device_poll(struct ofs_engine *engine, struct ofs_sim_event *event)
{
	struct ofs_timing_end end;

	if (engine->timing->ops->poll(engine->timing, engine->now_ns * PS_PER_NS, &end, 1) == 0)
		return 0;
	engine->later_count--;
	*event = (struct ofs_sim_event){.kind = (uint16_t)(end.tag >> 48),
		.layer = (uint16_t)(end.tag >> 32),
		.id = (uint32_t)end.tag};
	return 1;
}
