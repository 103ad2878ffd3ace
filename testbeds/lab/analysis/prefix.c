/*
 * prefix.c: prefix caching across requests, over one decision core.
 *
 * Model: the core owns the arena; here is only what a host would know besides: which blocks are
 * resident (by the core's actions), when each was last used, and who asked for it first. In
 * order of use the blocks form a list, so that what expires next is at its head. Consecutive hits
 * go to the core as one step; a miss ends the step first, because what it displaces must be chosen
 * after them.
 */
#include <stdlib.h>
#include <string.h>

#include "ofs_prefix.h"

#define ACTION_BATCH 64
#define APPEND_BATCH 256

struct block {
	uint64_t used_ns;    /* last asked for */
	uint32_t next, prev; /* in order of last use, while resident */
	uint32_t chunk;
	uint32_t session; /* that asked first */
	uint32_t batch;   /* the step it was put into last */
	uint8_t resident;
	uint8_t asked;
	uint8_t shared; /* a second session has asked */
};

struct cache {
	const struct ofs_core_calls *calls;
	struct ofs_core *core;
	struct ofs_prefix_plan *plan;
	struct block *blocks;
	uint32_t *block_of; /* by chunk */
	uint32_t *demands;
	uint8_t *ends;
	uint64_t now_ns;
	uint32_t session;
	uint32_t head, tail;
	uint32_t demand_count, demand_max;
	uint32_t batch;
	int pinned; /* the core holds what the last step demanded */
};

static void
list_remove(struct cache *c, uint32_t number)
{
	struct block *b = &c->blocks[number];

	if (b->prev != OFS_NONE)
		c->blocks[b->prev].next = b->next;
	else
		c->head = b->next;
	if (b->next != OFS_NONE)
		c->blocks[b->next].prev = b->prev;
	else
		c->tail = b->prev;
}

static void
list_push(struct cache *c, uint32_t number)
{
	struct block *b = &c->blocks[number];

	b->next = OFS_NONE;
	b->prev = c->tail;
	if (c->tail != OFS_NONE)
		c->blocks[c->tail].next = number;
	else
		c->head = number;
	c->tail = number;
}

/* What the core took out of the arena; `count` is the counter it belongs to. */
static int
take_actions(struct cache *c, uint64_t *count)
{
	struct ofs_action actions[ACTION_BATCH];
	int taken;

	while ((taken = c->calls->actions(c->core, actions, ACTION_BATCH)) > 0) {
		for (int i = 0; i < taken; i++) {
			uint32_t number = c->block_of[actions[i].chunk];

			if (actions[i].type != OFS_ACTION_RETRACT)
				continue;
			c->blocks[number].resident = 0;
			if (c->plan->ttl_ns)
				list_remove(c, number);
			(*count)++;
		}
	}
	return taken;
}

static int
unpin(struct cache *c)
{
	if (!c->pinned)
		return 0;
	c->pinned = 0;
	return c->calls->session_release(c->core, c->now_ns, c->session);
}

static int
flush(struct cache *c, uint32_t request)
{
	struct ofs_step step = {
		.session = c->session,
		.step = request,
		.selected_count = c->demand_count,
		.demand_count = c->demand_count,
		.demands = c->demands,
	};
	int rc;

	if (c->demand_count == 0)
		return 0;
	c->demand_count = 0;
	c->batch++;
	c->pinned = 1;
	rc = c->calls->step(c->core, c->now_ns, &step, c->ends);
	for (uint32_t i = 0; rc == 0 && i < step.demand_count; i++)
		if (c->ends[i] >= OFS_END_LATE)
			rc = -EFAULT; /* the core and this file disagree on what is resident */
	return rc;
}

static int
expire(struct cache *c)
{
	uint64_t ttl_ns = c->plan->ttl_ns;
	int rc = 0;

	while (ttl_ns && c->head != OFS_NONE && c->now_ns - c->blocks[c->head].used_ns >= ttl_ns
		&& rc == 0) {
		rc = unpin(c);
		if (rc == 0)
			rc = c->calls->block_drop(c->core, c->now_ns, c->blocks[c->head].chunk, 0);
		if (rc == 0)
			rc = take_actions(c, &c->plan->expired);
	}
	return rc;
}

static int
is_admitted(const struct cache *c, uint32_t request, const struct block *b)
{
	const struct ofs_prefix_plan *plan = c->plan;

	switch (plan->admission) {
	case OFS_PREFIX_ADMIT_SECOND_TOUCH:
		return b->asked && c->now_ns - b->used_ns <= plan->window_ns;
	case OFS_PREFIX_ADMIT_TURNS:
		return plan->turns[request] > 0 || b->shared
			|| (b->asked && b->session != plan->sessions[request]);
	default:
		return 1;
	}
}

/* Written into the arena, as what has just been prefilled is. */
static int
admit(struct cache *c, uint32_t number)
{
	uint32_t slot, generation, chunk = c->blocks[number].chunk;
	int rc = unpin(c);

	if (rc == 0)
		rc = c->calls->block_stage(c->core, c->now_ns, chunk, 0, &slot, &generation);
	if (rc == 0)
		rc = c->calls->block_clean(c->core, c->now_ns, chunk, 0);
	if (rc == 0)
		rc = take_actions(c, &c->plan->evicted);
	if (rc)
		return rc;
	c->blocks[number].resident = 1;
	if (c->plan->ttl_ns)
		list_push(c, number);
	c->plan->admitted++;
	return 0;
}

static int
hit(struct cache *c, uint32_t request, uint32_t number)
{
	struct block *b = &c->blocks[number];
	int rc = 0;

	if (c->demand_count == c->demand_max || b->batch == c->batch)
		rc = flush(c, request);
	b->batch = c->batch;
	c->demands[c->demand_count++] = number;
	if (c->plan->ttl_ns) {
		list_remove(c, number);
		list_push(c, number);
	}
	return rc;
}

static int
touch(struct cache *c, uint32_t request, uint32_t number)
{
	struct block *b = &c->blocks[number];
	struct ofs_prefix_row *row = &c->plan->rows[request];
	int rc;

	if (b->resident) {
		row->hits++;
		rc = hit(c, request, number);
	} else {
		rc = flush(c, request);
		if (rc == 0 && is_admitted(c, request, b))
			rc = admit(c, number);
		else
			c->plan->refused++;
	}
	if (c->plan->sessions) {
		if (b->asked)
			b->shared |= b->session != c->plan->sessions[request];
		else
			b->session = c->plan->sessions[request];
	}
	b->asked = 1;
	b->used_ns = c->now_ns;
	return rc;
}

static uint32_t
resident_prefix(const struct cache *c, uint64_t from, uint64_t to)
{
	const struct ofs_prefix_trace *t = c->plan->trace;
	uint32_t count = 0;

	for (uint64_t i = from; i < to; i++) {
		for (uint32_t j = 0; j < t->run_count[i]; j++) {
			if (!c->blocks[t->run_first[i] + j].resident)
				return count;
			count++;
		}
	}
	return count;
}

static int
request_run(struct cache *c, uint32_t request)
{
	const struct ofs_prefix_trace *t = c->plan->trace;
	struct ofs_prefix_row *row = &c->plan->rows[request];
	uint64_t from = t->offsets[request], to = t->offsets[request + 1];
	int rc = expire(c), tail_first = c->plan->tail_first != 0;
	uint32_t last = OFS_NONE;

	*row = (struct ofs_prefix_row){0, resident_prefix(c, from, to), 0};
	if (to > from)
		last = t->run_first[to - 1] + t->run_count[to - 1] - 1;
	for (uint64_t i = 0; i < to - from && rc == 0; i++) {
		uint64_t run = tail_first ? to - 1 - i : from + i;
		uint32_t count = t->run_count[run];

		for (uint32_t j = 0; j < count && rc == 0; j++) {
			uint32_t number = t->run_first[run] + (tail_first ? count - 1 - j : j);

			if (number == last)
				row->last = c->blocks[number].resident;
			rc = touch(c, request, number);
		}
	}
	return rc ? rc : flush(c, request);
}

static int
blocks_append(struct cache *c, uint32_t chunk_max)
{
	uint32_t count = c->plan->trace->block_count;
	struct ofs_chunk_info infos[APPEND_BATCH];
	struct ofs_key contents[APPEND_BATCH];

	for (uint32_t done = 0; done < count;) {
		uint32_t batch = count - done < APPEND_BATCH ? count - done : APPEND_BATCH;
		int rc;

		for (uint32_t i = 0; i < batch; i++)
			contents[i] = (struct ofs_key){done + i, 0};
		rc = c->calls->session_append(c->core, c->now_ns, c->session, batch, contents, infos);
		if (rc)
			return rc;
		for (uint32_t i = 0; i < batch; i++) {
			if (infos[i].chunk >= chunk_max)
				return -EINVAL;
			c->blocks[done + i].chunk = infos[i].chunk;
			c->block_of[infos[i].chunk] = done + i;
		}
		done += batch;
	}
	return 0;
}

static int
plan_check(const struct ofs_prefix_plan *plan)
{
	const struct ofs_prefix_trace *t = plan->trace;

	if (plan->admission >= OFS_PREFIX_ADMIT_COUNT
		|| (plan->admission == OFS_PREFIX_ADMIT_TURNS && !(plan->turns && plan->sessions)))
		return -EINVAL;
	for (uint32_t r = 0; r < t->request_count; r++) {
		if (t->offsets[r + 1] < t->offsets[r])
			return -EINVAL;
		if (r && plan->arrival_ns[r] < plan->arrival_ns[r - 1])
			return -EINVAL;
	}
	for (uint64_t i = 0; i < t->offsets[t->request_count]; i++)
		if (t->run_count[i] == 0 || (uint64_t)t->run_first[i] + t->run_count[i] > t->block_count)
			return -EINVAL;
	return 0;
}

int
ofs_prefix_run(const struct ofs_core_calls *calls, struct ofs_core *core, uint32_t session,
	struct ofs_prefix_plan *plan)
{
	struct cache c = {.calls = calls,
		.core = core,
		.plan = plan,
		.session = session,
		.head = OFS_NONE,
		.tail = OFS_NONE,
		.batch = 1};
	struct ofs_core_config config;
	struct ofs_policy policy;
	int rc = calls->abi_version == OFS_ABI_VERSION ? plan_check(plan) : -EPROTO;

	if (rc || (rc = calls->describe(core, &config, &policy)))
		return rc;
	plan->admitted = plan->refused = plan->evicted = plan->expired = 0;
	c.demand_max = config.demand_max;
	c.blocks = calloc((size_t)plan->trace->block_count + 1, sizeof(*c.blocks));
	c.block_of = calloc(config.chunk_max, sizeof(*c.block_of));
	c.demands = calloc(config.demand_max, sizeof(*c.demands));
	c.ends = calloc(config.demand_max, sizeof(*c.ends));
	if (c.blocks && c.block_of && c.demands && c.ends)
		rc = blocks_append(&c, config.chunk_max);
	else
		rc = -ENOMEM;
	for (uint32_t r = 0; r < plan->trace->request_count && rc == 0; r++) {
		c.now_ns = plan->arrival_ns[r];
		rc = request_run(&c, r);
	}
	free(c.blocks);
	free(c.block_of);
	free(c.demands);
	free(c.ends);
	return rc;
}
