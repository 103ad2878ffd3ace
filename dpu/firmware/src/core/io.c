/*
 * io.c: reads from the store and the demands that wait for them.
 *
 * Model: at most io_max reads are in flight. A demand that finds no handle keeps its slot and waits
 * in a list of pending slots, first come first served, before any prefetch; a prefetch is only
 * issued where a handle is free. The waiters of a slot are a ring in the order they came.
 */
#include "internal.h"

static void
read_issue(struct ofs_core *core, uint32_t slot, uint32_t session, uint64_t deadline_ns)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t tenant = core->chunks[s->chunk].tenant;
	struct ofs_ledger *ledger = &core->ledgers[tenant];
	uint32_t number = core->free_ios[--core->free_io_count];
	struct ofs_action *action;

	core->ios[number] = (struct ofs_io){.slot = slot, .generation = s->generation, .used = 1};
	core->io_in_flight++;
	s->state = OFS_SLOT_READING;
	ledger->issued[s->cause]++;
	if (ofs_cause_is_prefetch(s->cause)) {
		s->flags |= OFS_FLAG_PREFETCH;
		core->prefetch_in_flight++;
		ledger->prefetch_bytes_read += core->config.block_size_bytes;
	} else {
		ledger->demand_bytes_read += core->config.block_size_bytes;
	}
	ofs_action_slot(core, OFS_ACTION_READ, slot);
	action = &core->actions[core->action_tail - 1];
	action->io = number;
	action->session = session;
	action->deadline_ns = deadline_ns;
}

void
ofs_read_start(struct ofs_core *core, uint32_t slot, uint32_t session, uint64_t deadline_ns)
{
	struct ofs_slot *s = &core->slots[slot];

	if (core->free_io_count > 0) {
		read_issue(core, slot, session, deadline_ns);
		return;
	}
	assert(!ofs_cause_is_prefetch(s->cause));
	s->next = OFS_NONE;
	if (core->pending_tail != OFS_NONE)
		core->slots[core->pending_tail].next = slot;
	else
		core->pending_head = slot;
	core->pending_tail = slot;
}

/* OFS_NONE when all who waited have closed. */
static uint32_t
first_asker(const struct ofs_core *core, uint32_t slot)
{
	uint32_t last = core->slots[slot].waiters;

	return last == OFS_NONE ? OFS_NONE : core->waiters[core->waiters[last].next].session;
}

void
ofs_read_pending(struct ofs_core *core)
{
	while (core->free_io_count > 0 && core->pending_head != OFS_NONE) {
		uint32_t slot = core->pending_head;

		core->pending_head = core->slots[slot].next;
		if (core->pending_head == OFS_NONE)
			core->pending_tail = OFS_NONE;
		read_issue(core, slot, first_asker(core, slot), core->now_ns);
	}
}

int
ofs_wait_add(struct ofs_core *core, uint32_t slot, uint32_t session, const struct ofs_step *step,
	uint32_t index, int late)
{
	struct ofs_slot *s = &core->slots[slot];
	struct ofs_waiter *waiter;
	uint32_t number;

	if (core->free_waiter_count == 0)
		return -EAGAIN;
	number = core->free_waiters[--core->free_waiter_count];
	waiter = &core->waiters[number];
	waiter->need_ns = core->now_ns;
	waiter->session = session;
	waiter->serial = core->sessions[session].serial;
	waiter->waiter = step->waiter;
	waiter->index = index;
	waiter->late = (uint32_t)late;
	if (s->waiters == OFS_NONE) {
		waiter->next = number;
	} else {
		waiter->next = core->waiters[s->waiters].next;
		core->waiters[s->waiters].next = number;
	}
	s->waiters = number;
	return 0;
}

/* Take the ring apart in order; those of `session` (OFS_NONE: all) end with rc, the others stay. */
static void
waiters_end(struct ofs_core *core, uint32_t slot, uint32_t session, int rc)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t tenant = core->chunks[s->chunk].tenant;
	uint32_t last = s->waiters, number, next;

	if (last == OFS_NONE)
		return;
	next = core->waiters[last].next;
	s->waiters = OFS_NONE;
	do {
		struct ofs_waiter *w;

		number = next;
		w = &core->waiters[number];
		next = w->next;
		if (session != OFS_NONE && w->session != session) {
			w->next = s->waiters == OFS_NONE ? number : core->waiters[s->waiters].next;
			if (s->waiters != OFS_NONE)
				core->waiters[s->waiters].next = number;
			s->waiters = number;
			continue;
		}
		if (rc == 0) {
			ofs_slot_used(core, slot, w->session);
			if (w->late)
				core->ledgers[tenant].late_ns_log2[ofs_log2(core->now_ns - w->need_ns)]++;
		}
		ofs_action_complete(core, tenant, w->waiter, w->index, rc, slot);
		core->free_waiters[core->free_waiter_count++] = number;
	} while (number != last);
}

void
ofs_wait_cancel(struct ofs_core *core, uint32_t slot, uint32_t session)
{
	waiters_end(core, slot, session, -ECANCELED);
}

/* A demand waits for a prefetch: from now on the read counts as the demand's. */
void
ofs_read_raise(struct ofs_core *core, uint32_t slot)
{
	struct ofs_slot *s = &core->slots[slot];

	if (!(s->flags & OFS_FLAG_PREFETCH))
		return;
	s->flags &= (uint8_t)~OFS_FLAG_PREFETCH;
	core->prefetch_in_flight--;
}

static void
read_failed(struct ofs_core *core, uint32_t slot, int rc)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t chunk = s->chunk, layer = s->layer, home = core->chunks[chunk].home;
	uint32_t tenant = core->chunks[chunk].tenant;

	core->ledgers[tenant].io_errors++;
	if (s->flags & OFS_FLAG_FRESH)
		ofs_slot_fate(core, slot, OFS_FATE_CANCELLED);
	waiters_end(core, slot, OFS_NONE, rc);
	ofs_slot_release(core, slot, rc == -ETIMEDOUT);
	if (rc == -EBADMSG || rc == -EIO || rc == -ENOENT)
		ofs_block_unstore(core, home, layer);
}

static void
read_done(struct ofs_core *core, uint32_t slot)
{
	const struct ofs_chunk *chunk = &core->chunks[core->slots[slot].chunk];

	/* Its private session closed meanwhile: nobody can ask for the block any more. */
	if (chunk->references == 0 && chunk->home != core->slots[slot].chunk) {
		ofs_slot_release(core, slot, 0);
		return;
	}
	ofs_slot_arrive(core, slot, 1);
	waiters_end(core, slot, OFS_NONE, 0);
}

int
ofs_core_io_done(struct ofs_core *core, uint64_t now_ns, uint32_t io, int io_rc)
{
	uint32_t slot;
	int rc;

	if (io >= core->config.io_max || !core->ios[io].used || io_rc > 0)
		return -EINVAL;
	rc = ofs_event_enter(core, now_ns);
	if (rc)
		return rc;
	slot = core->ios[io].slot;
	assert(core->slots[slot].generation == core->ios[io].generation);
	core->ios[io].used = 0;
	core->free_ios[core->free_io_count++] = io;
	core->io_in_flight--;
	ofs_read_raise(core, slot);
	if (io_rc == 0)
		read_done(core, slot);
	else
		read_failed(core, slot, io_rc);
	ofs_read_pending(core);
	ofs_queue_pump(core);
	ofs_log_numbers(core, OFS_EVENT_IO_DONE, now_ns, 0, io, (uint32_t)io_rc);
	return 0;
}

int
ofs_core_tick(struct ofs_core *core, uint64_t now_ns, uint64_t *next_ns)
{
	struct ofs_part out = {next_ns, sizeof(*next_ns)};
	uint64_t lease_ns = core->policy.lease_ns;
	int rc = ofs_event_enter(core, now_ns);

	if (rc)
		return rc;
	while (lease_ns && core->lease_head != OFS_LEASE_END) {
		uint32_t session = core->lease_head;
		struct ofs_session *s = &core->sessions[session];

		if (s->lease_begin_ns + lease_ns > core->now_ns)
			break;
		core->ledgers[s->config.tenant].leases_expired += s->pin_count;
		ofs_lease_end(core, session);
	}
	ofs_queue_pump(core);
	*next_ns = ofs_queue_next_ns(core);
	if (lease_ns && core->lease_head != OFS_LEASE_END) {
		uint64_t end_ns = core->sessions[core->lease_head].lease_begin_ns + lease_ns;

		*next_ns = end_ns < *next_ns ? end_ns : *next_ns;
	}
	ofs_log_event(core, OFS_EVENT_TICK, now_ns, 0, NULL, 0, &out, 1);
	return 0;
}
