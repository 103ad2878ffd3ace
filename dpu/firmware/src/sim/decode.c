/*
 * decode.c: sessions that decode in parallel over one core and one modelled drive.
 *
 * Model: a heap of events ordered by (time, sequence): a session is ready for its next layer, a
 * read ends, a retry is due, the core wants a tick. One event runs to its end before the next.
 */
#include <stdlib.h>
#include <string.h>

#include "ofs_sim.h"

#define ACTION_BATCH 64
#define PS_PER_NS 1000
#define TICKS_MAX 32 /* waiting at once; a tick too few only delays a guess */

enum event_kind {
	EVENT_LAYER = 0, /* the session's next layer may demand */
	EVENT_RETRY = 1, /* the same demands again */
	EVENT_READ = 2,
	EVENT_TICK = 3
};

struct event {
	uint64_t time_ns;
	uint64_t sequence;
	uint32_t kind;
	uint32_t id; /* place of the session, or read handle */
};

struct decoder {
	uint64_t need_ns;    /* when the layer at hand demanded */
	uint32_t step, layer;
	uint32_t remaining;  /* demands that have not completed */
	uint32_t busy;       /* of them, how many must be asked again */
	uint32_t appended;
};

struct sim {
	struct ofs_core *core;
	struct ofs_sim_decode *plan;
	struct ofs_nvme_model *nvme;
	struct decoder *decoders;
	struct event *events;
	uint32_t event_count, event_max;
	uint32_t layer_count, chunk_max, block_size_bytes, demand_max;
	uint8_t *ends;
	uint64_t now_ns, sequence, tick_ns;
	uint32_t tick_count;
	int ticks; /* the policy has a bandwidth cap or a lease */
};

static int
goes_before(const struct event *a, const struct event *b)
{
	return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->sequence < b->sequence;
}

static int
event_push(struct sim *sim, uint64_t time_ns, uint32_t kind, uint32_t id)
{
	struct event event = { time_ns, sim->sequence++, kind, id };
	uint32_t place = sim->event_count;

	if (place == sim->event_max)
		return -ENOSPC;
	sim->event_count++;
	while (place > 0 && goes_before(&event, &sim->events[(place - 1) / 2])) {
		sim->events[place] = sim->events[(place - 1) / 2];
		place = (place - 1) / 2;
	}
	sim->events[place] = event;
	return 0;
}

static struct event
event_pop(struct sim *sim)
{
	struct event first = sim->events[0], last = sim->events[--sim->event_count];
	uint32_t place = 0, child;

	while ((child = 2 * place + 1) < sim->event_count) {
		if (child + 1 < sim->event_count
			&& goes_before(&sim->events[child + 1], &sim->events[child]))
			child++;
		if (!goes_before(&sim->events[child], &last))
			break;
		sim->events[place] = sim->events[child];
		place = child;
	}
	sim->events[place] = last;
	return first;
}

static int
read_begins(struct sim *sim, const struct ofs_action *action)
{
	/* Layer-major, as the store lays blocks out: a window is one stretch. */
	uint64_t block = (uint64_t)action->layer * sim->chunk_max + action->chunk;
	uint64_t end_ns = sim->now_ns;

	sim->plan->reads++;
	if (sim->nvme) {
		uint64_t end_ps = ofs_nvme_model_submit(sim->nvme, sim->now_ns * PS_PER_NS, 0,
			block * sim->block_size_bytes, sim->block_size_bytes);

		end_ns = (end_ps + PS_PER_NS - 1) / PS_PER_NS;
	}
	return event_push(sim, end_ns, EVENT_READ, action->io);
}

/* The layer's blocks are there: it computes, and the next layer follows. */
static int
layer_served(struct sim *sim, uint32_t place, int demanded)
{
	struct ofs_sim_decode *plan = sim->plan;
	struct decoder *d = &sim->decoders[place];
	uint64_t next_ns = sim->now_ns + plan->compute_ns + (demanded ? plan->hit_ns : 0);

	plan->stall_ns[(uint64_t)place * plan->step_count + d->step] += sim->now_ns - d->need_ns;
	if (++d->layer == sim->layer_count) {
		d->layer = 0;
		if (++d->step == plan->step_count) {
			plan->end_ns = next_ns > plan->end_ns ? next_ns : plan->end_ns;
			return 0;
		}
	}
	return event_push(sim, next_ns, EVENT_LAYER, place);
}

static int
demand_completes(struct sim *sim, const struct ofs_action *action)
{
	struct decoder *d = &sim->decoders[action->waiter];

	if (action->rc == -EAGAIN)
		d->busy++;
	else if (action->rc)
		sim->plan->failed++;
	if (--d->remaining)
		return 0;
	if (d->busy)
		return event_push(sim, sim->now_ns + sim->plan->retry_ns, EVENT_RETRY,
			action->waiter);
	return layer_served(sim, action->waiter, 1);
}

static int
act(struct sim *sim)
{
	struct ofs_action actions[ACTION_BATCH];
	int count, rc = 0;

	while ((count = ofs_core_actions(sim->core, actions, ACTION_BATCH)) > 0) {
		for (int i = 0; i < count && rc == 0; i++) {
			if (actions[i].type == OFS_ACTION_READ)
				rc = read_begins(sim, &actions[i]);
			else if (actions[i].type == OFS_ACTION_COMPLETE)
				rc = demand_completes(sim, &actions[i]);
		}
		if (rc)
			return rc;
	}
	return count;
}

/* What decode wrote itself is staged and stored at once: the write path is not the subject here. */
static int
append_chunk(struct sim *sim, uint32_t place)
{
	struct ofs_key content = { sim->decoders[place].appended++, 0xdec0deull + place };
	struct ofs_chunk_info info;
	int rc = ofs_core_session_append(sim->core, sim->now_ns, sim->plan->sessions[place], 1,
		&content, &info);

	for (uint32_t layer = 0; rc == 0 && layer < sim->layer_count; layer++) {
		uint32_t slot, generation;
		int staged = ofs_core_block_stage(sim->core, sim->now_ns, info.chunk, layer,
			&slot, &generation);

		rc = ofs_core_block_stored(sim->core, sim->now_ns, info.chunk, layer);
		if (rc == 0 && staged == 0)
			rc = ofs_core_block_clean(sim->core, sim->now_ns, info.chunk, layer);
		if (rc == 0)
			rc = act(sim);
	}
	return rc;
}

static int
layer_demands(struct sim *sim, uint32_t place, int retry)
{
	const struct ofs_sim_decode *plan = sim->plan;
	struct decoder *d = &sim->decoders[place];
	uint64_t row = ((uint64_t)place * plan->step_count + d->step) * sim->layer_count + d->layer;
	struct ofs_step step = {
		.session = plan->sessions[place],
		.step = d->step,
		.layer = d->layer,
		.selected_count = plan->selected_count,
		.demand_count = (uint32_t)(plan->offsets[row + 1] - plan->offsets[row]),
		.waiter = place,
		.flags = retry ? OFS_STEP_RETRY : 0,
		.demands = plan->demands + plan->offsets[row],
	};
	int rc;

	if (!retry) {
		d->need_ns = sim->now_ns;
		if (plan->append_steps && d->layer == 0 && d->step
			&& d->step % plan->append_steps == 0) {
			rc = append_chunk(sim, place);
			if (rc)
				return rc;
		}
		if (plan->scores)
			step.score_count = plan->score_counts ? plan->score_counts[place]
				: plan->score_count;
		step.scores = plan->scores ? plan->scores + row * plan->score_count : NULL;
	}
	d->remaining = d->busy = 0;
	rc = ofs_core_step(sim->core, sim->now_ns, &step, sim->ends);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < step.demand_count; i++)
		d->remaining += sim->ends[i] >= OFS_END_LATE;
	if (d->remaining == 0) {
		rc = layer_served(sim, place, step.demand_count != 0);
		if (rc)
			return rc;
	}
	return act(sim);
}

static int
tick(struct sim *sim)
{
	uint64_t next_ns;
	int rc = ofs_core_tick(sim->core, sim->now_ns, &next_ns);

	if (rc == 0)
		rc = act(sim);
	if (rc == 0 && next_ns < sim->tick_ns && sim->tick_count < TICKS_MAX) {
		sim->tick_count++;
		sim->tick_ns = next_ns > sim->now_ns ? next_ns : sim->now_ns + 1;
		rc = event_push(sim, sim->tick_ns, EVENT_TICK, 0);
	}
	return rc;
}

static int
run(struct sim *sim)
{
	int rc = 0;

	for (uint32_t place = 0; place < sim->plan->session_count && rc == 0; place++)
		rc = event_push(sim, place * sim->plan->stagger_ns, EVENT_LAYER, place);
	while (sim->event_count > 0 && rc == 0) {
		struct event event = event_pop(sim);

		sim->now_ns = event.time_ns;
		if (event.kind == EVENT_READ) {
			rc = ofs_core_io_done(sim->core, sim->now_ns, event.id, 0);
			if (rc == 0)
				rc = act(sim);
		} else if (event.kind == EVENT_TICK) {
			sim->tick_ns = UINT64_MAX;
			sim->tick_count--;
		} else {
			rc = layer_demands(sim, event.id, event.kind == EVENT_RETRY);
		}
		if (rc == 0 && sim->ticks)
			rc = tick(sim);
	}
	return rc;
}

int
ofs_sim_decode(struct ofs_core *core, struct ofs_sim_decode *plan)
{
	struct ofs_core_config config;
	struct ofs_policy policy;
	struct sim sim = { .core = core, .plan = plan, .tick_ns = UINT64_MAX };
	int rc = ofs_core_describe(core, &config, &policy);

	if (rc)
		return rc;
	sim.layer_count = config.layer_count;
	sim.chunk_max = config.chunk_max;
	sim.block_size_bytes = config.block_size_bytes;
	sim.ticks = policy.prefetch_bytes_per_s_max != 0 || policy.lease_ns != 0;
	/* One event for every read in flight and every session, and the ticks. */
	sim.event_max = config.io_max + plan->session_count + TICKS_MAX;
	sim.events = calloc(sim.event_max, sizeof(*sim.events));
	sim.decoders = calloc(plan->session_count, sizeof(*sim.decoders));
	sim.ends = malloc(config.demand_max);
	plan->end_ns = plan->reads = plan->failed = 0;
	memset(plan->stall_ns, 0, 8ull * plan->session_count * plan->step_count);
	if (sim.events == NULL || sim.decoders == NULL || sim.ends == NULL)
		rc = -ENOMEM;
	if (rc == 0 && plan->nvme)
		rc = ofs_nvme_model_open(&sim.nvme, plan->nvme, plan->seed);
	if (rc == 0)
		rc = run(&sim);
	if (sim.nvme)
		ofs_nvme_model_close(sim.nvme);
	free(sim.events);
	free(sim.decoders);
	free(sim.ends);
	return rc;
}
