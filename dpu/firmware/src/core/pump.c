/*
 * pump.c: which prefetch is read next, and the two events that make room for one: a read ends, time
 * passes.
 *
 * Model: tenants take turns by weight (stride scheduling: Waldspurger, Weihl 1995). The bandwidth
 * cap is a virtual schedule of one block every block_cost_ns that may run OFS_BURST_BLOCKS ahead. A
 * candidate that gets no slot is dropped. Demands that wait for a read handle come first.
 */
#include "internal.h"

static uint32_t
next_tenant(const struct ofs_core *core)
{
	uint32_t best = OFS_NONE;

	for (uint32_t tenant = 0; tenant < core->tenant_count; tenant++) {
		const struct ofs_tenant *t = &core->tenants[tenant];

		if (t->queue_count > 0 && (best == OFS_NONE || t->pass < core->tenants[best].pass))
			best = tenant;
	}
	return best;
}

static int
bandwidth_allows(const struct ofs_core *core)
{
	return core->block_cost_ns == 0
		|| core->bucket_ns <= core->now_ns + OFS_BURST_BLOCKS * core->block_cost_ns;
}

/* From here on the host's guess is the block's score: what the core measured may not reflect it. */
static void
hinted_begin(struct ofs_core *core, uint32_t slot, const struct ofs_candidate *candidate)
{
	struct ofs_slot *s = &core->slots[slot];

	s->flags |= OFS_FLAG_HINTED;
	if (core->policy.eviction == OFS_EVICT_SCORE)
		ofs_score_lift(core, slot, candidate->session,
			ofs_chunk_ordinal(core, s->chunk, candidate->session),
			ofs_chance_bucket(candidate->probability));
}

static void
issue_first(struct ofs_core *core, uint32_t tenant)
{
	struct ofs_tenant *t = &core->tenants[tenant];
	struct ofs_candidate candidate = ofs_queue_first(core, tenant);
	uint32_t layer = candidate.block / core->config.chunk_max;
	uint32_t chunk = candidate.block - layer * core->config.chunk_max;
	uint32_t slot = OFS_NONE;

	assert(t->queue_count > 0 && core->free_io_count > 0);
	if (ofs_block_is_stored(core, chunk, layer))
		slot = ofs_slot_take(core, tenant, candidate.block, &candidate);
	if (slot == OFS_NONE) {
		ofs_queue_drop_first(core, tenant);
		return;
	}
	ofs_queue_remove_first(core, tenant);
	core->queue_pass = t->pass;
	t->pass += t->stride;
	if (core->block_cost_ns) {
		uint64_t from_ns = core->bucket_ns > core->now_ns ? core->bucket_ns : core->now_ns;

		core->bucket_ns = from_ns + core->block_cost_ns;
	}
	ofs_slot_assign(core, slot, chunk, layer, candidate.cause,
		core->sessions[candidate.session].serial);
	if (candidate.hinted)
		hinted_begin(core, slot, &candidate);
	ofs_read_start(core, slot, candidate.session, candidate.key.first);
}

void
ofs_pump(struct ofs_core *core)
{
	uint32_t waiting = 0;

	for (uint32_t tenant = 0; tenant < core->tenant_count; tenant++) {
		if (core->tenants[tenant].queue_count == 0)
			continue;
		ofs_queue_drop_stale(core, tenant);
		waiting = 1;
	}
	if (!waiting)
		return;
	while (core->free_io_count > 0 && core->pending_head == OFS_NONE
		&& core->prefetch_in_flight < core->policy.prefetch_in_flight_max
		&& bandwidth_allows(core)) {
		uint32_t tenant = next_tenant(core);

		if (tenant == OFS_NONE)
			return;
		issue_first(core, tenant);
		ofs_queue_drop_stale(core, tenant);
	}
}

/* The time at which the bandwidth cap allows the next read, if only the cap prevents it; every
 * other cause ends with an event. */
static uint64_t
next_ns_of(const struct ofs_core *core)
{
	if (next_tenant(core) == OFS_NONE || bandwidth_allows(core))
		return UINT64_MAX;
	return core->bucket_ns - OFS_BURST_BLOCKS * core->block_cost_ns;
}

static void
read_failed(struct ofs_core *core, uint32_t slot, int rc)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t chunk = s->chunk, layer = s->layer, home = core->chunks[chunk].home;
	uint32_t tenant = core->chunks[chunk].tenant;

	core->ledgers[tenant].io_errors += rc != -ESTALE;
	if (s->state == OFS_SLOT_RESIDENT) {
		ofs_fill_failed(core, slot, rc);
		if (rc == -EBADMSG || rc == -EIO || rc == -ENOENT)
			ofs_block_unstore(core, home, layer);
		return;
	}
	if (s->flags & OFS_FLAG_FRESH)
		ofs_slot_fate(core, slot, OFS_FATE_CANCELLED);
	ofs_wait_end(core, slot, OFS_NONE, rc);
	ofs_slot_release(core, slot, rc == -ETIMEDOUT);
	if (rc == -EBADMSG || rc == -EIO || rc == -ENOENT)
		ofs_block_unstore(core, home, layer);
}

static void
read_done(struct ofs_core *core, uint32_t slot)
{
	const struct ofs_chunk *chunk = &core->chunks[core->slots[slot].chunk];

	if (core->slots[slot].state == OFS_SLOT_RESIDENT) {
		ofs_fill_done(core, slot);
		return;
	}
	/* Its private session closed meanwhile: the block can no longer be demanded. */
	if (chunk->references == 0 && chunk->home != core->slots[slot].chunk) {
		ofs_slot_release(core, slot, 0);
		return;
	}
	ofs_slot_arrive(core, slot, 1);
	ofs_wait_end(core, slot, OFS_NONE, 0);
	ofs_part_go_on(core, slot);
}

int
ofs_core_io_done(struct ofs_core *core, uint64_t now_ns, uint32_t io, int io_rc)
{
	uint32_t slot;
	int rc;

	if (io >= core->config.io_max || !core->ios[io].used || io_rc > 0)
		return -EINVAL;
	rc = ofs_event_enter(core, now_ns, OFS_EVENT_IO_DONE);
	if (rc)
		return rc;
	slot = core->ios[io].slot;
	assert(core->slots[slot].generation == core->ios[io].generation);
	assert(core->slots[slot].state == OFS_SLOT_READING
		|| (core->slots[slot].flags & OFS_FLAG_FILLING));
	core->ios[io].used = 0;
	core->free_ios[core->free_io_count++] = io;
	core->io_in_flight--;
	ofs_work_touch(core, OFS_TABLE_READ, sizeof(*core->ios));
	ofs_read_raise(core, slot);
	if (io_rc == 0)
		read_done(core, slot);
	else
		read_failed(core, slot, io_rc);
	ofs_read_pending(core);
	ofs_pump(core);
	ofs_log_numbers(core, OFS_EVENT_IO_DONE, now_ns, 0, io, (uint32_t)io_rc);
	return 0;
}

int
ofs_core_tick(struct ofs_core *core, uint64_t now_ns, uint64_t *next_ns)
{
	struct ofs_bytes out = {next_ns, sizeof(*next_ns)};
	uint64_t lease_ns = core->policy.lease_ns;
	int rc = ofs_event_enter(core, now_ns, OFS_EVENT_TICK);

	if (rc)
		return rc;
	assert(core->io_in_flight + core->free_io_count == core->config.io_max);
	while (lease_ns && core->lease_head != OFS_LEASE_END) {
		uint32_t session = core->lease_head;
		struct ofs_session *s = &core->sessions[session];

		if (s->lease_begin_ns + lease_ns > core->now_ns)
			break;
		core->ledgers[s->config.tenant].leases_expired += s->pin_count;
		ofs_lease_end(core, session);
	}
	ofs_pump(core);
	*next_ns = next_ns_of(core);
	if (lease_ns && core->lease_head != OFS_LEASE_END) {
		uint64_t end_ns = core->sessions[core->lease_head].lease_begin_ns + lease_ns;

		*next_ns = end_ns < *next_ns ? end_ns : *next_ns;
	}
	ofs_log_event(core, OFS_EVENT_TICK, now_ns, 0, NULL, 0, &out, 1);
	return 0;
}
