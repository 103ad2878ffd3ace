/*
 * step.c: one layer of one decode step.
 *
 * Model: the pins of the session's last step end. Every demand is classified by what is resident,
 * and resident blocks are pinned, before any miss takes a slot, because the demands of one step are
 * a set: none may evict another. Then averages and window are updated, so that victims are chosen
 * by the newest scores; then the misses are read; then guesses are made.
 */
#include "internal.h"

struct turn {
	struct ofs_core *core;
	const struct ofs_step *step;
	struct ofs_session *session;
	struct ofs_ledger *ledger;
	const uint32_t *chunks;
	uint32_t base; /* block = base + chunk */
	uint32_t tenant;
	uint32_t miss_count;
	int counted; /* 0 for a retry */
};

static int
step_check(const struct ofs_core *core, const struct ofs_step *step)
{
	const struct ofs_session *s;

	if (ofs_session_check(core, step->session) || step->layer >= core->config.layer_count
		|| step->demand_count > core->config.demand_max)
		return -EINVAL;
	/* A context is the session's blocks and a last one, which is not appended until it is full. */
	if (step->selected_count > core->config.session_chunk_max + 1)
		return -EINVAL;
	s = &core->sessions[step->session];
	if (step->score_count > s->count || ofs_granules_check(core, step))
		return -EINVAL;
	for (uint32_t i = 0; i < step->demand_count; i++) {
		if (step->demands[i] >= s->count)
			return -EINVAL;
		if (step->seen && step->seen[i] >= OFS_CAUSE_COUNT && step->seen[i] != OFS_SEEN_UNKNOWN)
			return -EINVAL;
	}
	return 0;
}

/* The block was staged ahead and is needed for the first time. */
static void
fresh_ends(struct turn *t, uint32_t number, uint32_t fate)
{
	struct ofs_slot *slot = &t->core->slots[number];

	assert(slot->flags & OFS_FLAG_FRESH); /* it ends only once */
	slot->flags &= (uint8_t)~OFS_FLAG_FRESH;
	ofs_slot_fate(t->core, number, fate);
	if (fate == OFS_FATE_USED)
		t->ledger->lead_ns_log2[ofs_log2(t->core->now_ns - slot->arrived_ns)]++;
}

static uint8_t
hit_end(struct turn *t, uint32_t number)
{
	struct ofs_slot *slot = &t->core->slots[number];
	uint32_t session = t->step->session, serial = t->session->serial;
	uint64_t bits = t->core->used_bits[(size_t)number * t->core->used_words + session / 64];

	if (slot->flags & OFS_FLAG_FRESH) {
		fresh_ends(t, number, OFS_FATE_USED);
		return (uint8_t)ofs_end_of_cause(slot->cause);
	}
	if ((bits >> (session % 64)) & 1)
		return OFS_END_RETAINED;
	if ((slot->staged_by && slot->staged_by != serial)
		|| (slot->used_by && slot->used_by != serial))
		return OFS_END_SHARED;
	return OFS_END_RETAINED;
}

static uint8_t
resident_end(struct turn *t, uint32_t i, uint32_t number, uint32_t seen)
{
	struct ofs_core *core = t->core;
	struct ofs_slot *slot = &core->slots[number];
	uint8_t end;

	if (seen == OFS_SEEN_MISS) {
		/* It arrived after the host's lookup: late by the wire, not by the store. */
		end = OFS_END_LATE;
		if (slot->flags & OFS_FLAG_FRESH)
			fresh_ends(t, number, OFS_FATE_LATE);
		t->ledger->late_ns_log2[0] += (uint64_t)t->counted;
		ofs_action_complete(core, t->tenant, t->step->waiter, i, 0, number);
	} else {
		end = hit_end(t, number);
	}
	ofs_slot_used(core, number, t->step->session);
	ofs_session_pin(core, t->step->session, number);
	core->evict->use(core, number);
	return end;
}

static void
demand_busy(struct turn *t, uint32_t i)
{
	t->ledger->busy++;
	ofs_action_complete(t->core, t->tenant, t->step->waiter, i, -EAGAIN, OFS_NONE);
}

/* The block is in flight: wait for it. */
static void
demand_joins(struct turn *t, uint32_t i, uint32_t number)
{
	struct ofs_slot *slot = &t->core->slots[number];

	if (ofs_wait_add(t->core, number, t->step->session, t->step, i, t->counted)) {
		demand_busy(t, i);
		return;
	}
	if (slot->flags & OFS_FLAG_FRESH)
		fresh_ends(t, number, OFS_FATE_LATE);
	ofs_read_raise(t->core, number);
	ofs_session_pin(t->core, t->step->session, number);
}

static uint8_t
miss_end(struct turn *t, uint32_t block, int shadow_miss)
{
	struct ofs_core *core = t->core;

	ofs_work_touch(core, OFS_TABLE_BLOCK, sizeof(*core->block_flags) + sizeof(*core->block_gone));
	if (t->counted && (core->block_flags[block] & OFS_BLOCK_POLLUTED))
		t->ledger->pollution++;
	if (core->block_gone[block] < t->session->opened_event)
		return OFS_END_COLD;
	return shadow_miss ? OFS_END_CAPACITY : OFS_END_POLICY;
}

/* The slot is or will be resident, but lacks some of the granules that the demand names. */
static uint8_t
partial_end(struct turn *t, uint32_t i, uint32_t number, uint32_t granules)
{
	struct ofs_core *core = t->core;

	if (ofs_part_comes(core, number, granules)) {
		demand_joins(t, i, number);
		return OFS_END_LATE;
	}
	/* Its granules stay until the others have arrived. */
	if (core->slots[number].state == OFS_SLOT_RESIDENT)
		ofs_session_pin(core, t->step->session, number);
	core->misses[t->miss_count++] = i;
	return OFS_END_COLD;
}

static uint8_t
demand_end(struct turn *t, uint32_t i, int shadow_miss)
{
	struct ofs_core *core = t->core;
	uint32_t block = t->base + t->chunks[t->step->demands[i]];
	uint32_t number = core->block_slot[block];
	uint32_t seen = t->step->seen ? t->step->seen[i] : OFS_SEEN_UNKNOWN;
	uint32_t granules = ofs_granules_asked(core, t->step, i);

	if (number != OFS_NONE && core->slots[number].state == OFS_SLOT_RESIDENT
		&& ofs_part_covers(core, number, granules))
		return resident_end(t, i, number, seen);
	if (seen != OFS_SEEN_MISS && seen != OFS_SEEN_UNKNOWN)
		return (uint8_t)ofs_end_of_cause(seen); /* the host read it, and it was evicted since */
	if (number != OFS_NONE && ofs_granular(core))
		return partial_end(t, i, number, granules);
	if (number != OFS_NONE) {
		demand_joins(t, i, number);
		return OFS_END_LATE;
	}
	assert(t->miss_count < core->config.demand_max);
	core->misses[t->miss_count++] = i;
	return miss_end(t, block, shadow_miss);
}

/*
 * Prefetches into the CPU's cache what classifies each demand. A layer of a large model comes
 * around once a step, so none of this is cached; requested together, the misses overlap.
 */
static void
fetch_ahead(const struct turn *t)
{
	const struct ofs_core *core = t->core;
	const struct ofs_step *step = t->step;

	for (uint32_t i = 0; i < step->demand_count; i++) {
		uint32_t block = t->base + t->chunks[step->demands[i]];

		__builtin_prefetch(&core->block_slot[block]);
		__builtin_prefetch(&core->block_shadow[block]);
	}
	for (uint32_t i = 0; i < step->demand_count; i++) {
		uint32_t block = t->base + t->chunks[step->demands[i]];
		uint32_t slot = core->block_slot[block], node = core->block_shadow[block];

		if (slot != OFS_NONE) {
			__builtin_prefetch(&core->slots[slot], 1);
			__builtin_prefetch(&core->used_bits[(size_t)slot * core->used_words], 1);
		} else {
			__builtin_prefetch(&core->block_gone[block]);
			__builtin_prefetch(&core->block_flags[block]);
		}
		if (node != OFS_NONE)
			__builtin_prefetch(&core->shadows[node], 1);
	}
}

static void
classify(struct turn *t, uint8_t *ends)
{
	struct ofs_core *core = t->core;
	const struct ofs_step *step = t->step;
	struct ofs_ledger *ledger = t->ledger;

	for (uint32_t i = 0; i < step->demand_count; i++) {
		uint32_t ordinal = step->demands[i];
		uint32_t nontrivial = (uint32_t)ofs_is_nontrivial(t->session, ordinal);
		int shadow_miss = 0;

		if (t->counted)
			shadow_miss = ofs_shadow_touch(core, t->tenant, t->base + t->chunks[ordinal]);
		ends[i] = demand_end(t, i, shadow_miss);
		if (!t->counted)
			continue;
		ledger->ends[ends[i]]++;
		ledger->nontrivial_ends[ends[i]] += nontrivial;
		ledger->nontrivial += nontrivial;
		ledger->shadow_misses += (uint64_t)shadow_miss;
		ledger->shadow_nontrivial_misses += (uint64_t)shadow_miss & nontrivial;
	}
}

/* The slot has the block, or a read of it in flight, but not all that the demand names. */
static void
partial_read(struct turn *t, uint32_t i, uint32_t slot)
{
	struct ofs_core *core = t->core;
	const struct ofs_step *step = t->step;
	uint32_t granules = ofs_granules_asked(core, step, i);
	int resident = core->slots[slot].state == OFS_SLOT_RESIDENT;
	int flies = !resident || (core->slots[slot].flags & OFS_FLAG_FILLING);

	if (resident && !ofs_block_is_stored(core, core->slots[slot].chunk, step->layer)) {
		ofs_action_complete(core, t->tenant, step->waiter, i, -ENOENT, OFS_NONE);
		return;
	}
	if ((!flies && core->free_io_count == 0)
		|| ofs_wait_add(core, slot, step->session, step, i, 0)) {
		demand_busy(t, i);
		return;
	}
	if (!resident)
		ofs_session_pin(core, step->session, slot);
	ofs_part_want(core, slot, granules);
	if (!flies)
		ofs_read_issue(core, slot, step->session, core->now_ns);
}

static void
miss_read(struct turn *t, uint32_t i)
{
	struct ofs_core *core = t->core;
	const struct ofs_step *step = t->step;
	uint32_t chunk = t->chunks[step->demands[i]];
	uint32_t block = t->base + chunk;
	uint32_t slot = core->block_slot[block];
	int rc;

	ofs_work_touch(core, OFS_TABLE_CHUNK, sizeof(*core->chunks));
	ofs_work_touch(core, OFS_TABLE_BLOCK, OFS_BLOCK_BYTES);
	if (slot != OFS_NONE && ofs_granular(core)) {
		partial_read(t, i, slot);
		return;
	}
	if (slot != OFS_NONE) {
		demand_joins(t, i, slot); /* named twice in one step */
		return;
	}
	if (!ofs_block_is_stored(core, chunk, step->layer)) {
		ofs_action_complete(core, t->tenant, step->waiter, i, -ENOENT, OFS_NONE);
		return;
	}
	if (core->free_waiter_count == 0) {
		demand_busy(t, i);
		return;
	}
	slot = ofs_slot_take(core, t->tenant, block, NULL);
	if (slot == OFS_NONE) {
		demand_busy(t, i);
		return;
	}
	if (core->block_queued[block] != OFS_NONE)
		ofs_queue_cancel(core, block);
	ofs_slot_assign(core, slot, chunk, step->layer, OFS_CAUSE_DEMAND, t->session->serial);
	ofs_session_pin(core, step->session, slot);
	ofs_part_want(core, slot, ofs_granules_asked(core, step, i));
	rc = ofs_wait_add(core, slot, step->session, step, i, 0);
	assert(rc == 0); /* a waiter is free, as checked above */
	ofs_read_start(core, slot, step->session, core->now_ns);
}

/* The first layer of a new token shows how long the last token took. */
static void
pace(struct ofs_core *core, struct ofs_session *s, uint32_t step)
{
	if (s->stepped && s->step == step)
		return;
	if (s->stepped) {
		uint64_t taken_ns = core->now_ns - s->step_begin_ns;

		/* A pause is not counted as pace. */
		if (taken_ns > 8 * s->step_ns)
			taken_ns = 8 * s->step_ns;
		taken_ns = s->step_ns - (s->step_ns >> 3) + (taken_ns >> 3);
		if (taken_ns != s->step_ns) {
			s->step_ns = taken_ns;
			s->layer_ns = taken_ns / core->config.layer_count;
		}
	}
	s->stepped = 1;
	s->step = step;
	s->step_begin_ns = core->now_ns;
}

static void
step_run(struct ofs_core *core, const struct ofs_step *step, uint8_t *ends)
{
	struct ofs_session *s = &core->sessions[step->session];
	struct turn t = {
		.core = core,
		.step = step,
		.session = s,
		.ledger = &core->ledgers[s->config.tenant],
		.chunks = ofs_session_list(core, step->session),
		.base = ofs_block_of(core, 0, step->layer),
		.tenant = s->config.tenant,
		.counted = !(step->flags & OFS_STEP_RETRY),
	};

	fetch_ahead(&t);
	core->tally->demands += step->demand_count;
	ofs_session_unpin(core, step->session);
	if (t.counted) {
		struct ofs_layer *layer = ofs_layer_of(core, step->session, step->layer);

		pace(core, s, step->step);
		layer->stamp++;
		layer->step = step->step;
		t.ledger->steps++;
		t.ledger->selected += step->selected_count;
		t.ledger->demands += step->demand_count;
	}
	classify(&t, ends);
	if (t.counted) {
		ofs_record_add(core, step->session, step, ends);
		ofs_prefetch_observe(core, step);
	}
	for (uint32_t i = 0; i < t.miss_count; i++)
		miss_read(&t, core->misses[i]);
	if (t.counted)
		ofs_prefetch_step(core, step);
	ofs_lease_begin(core, step->session);
	ofs_pump(core);
}

int
ofs_core_step(struct ofs_core *core, uint64_t now_ns, const struct ofs_step *step, uint8_t *ends)
{
	struct ofs_step kept;
	int rc = step_check(core, step);

	if (rc || (rc = ofs_event_enter(core, now_ns, OFS_EVENT_STEP)))
		return rc;
	if (ends == NULL)
		ends = core->ends;
	ofs_hint_limit(core, step, &kept);
	step_run(core, &kept, ends);
	if (core->config.log_size_bytes)
		ofs_log_step(core, now_ns, step, ends);
	return 0;
}
