/*
 * io.c: reads from the store and the demands that wait for them.
 *
 * Model: at most io_max reads are in flight. A demand that finds no handle keeps its slot and waits
 * in a list of pending slots, first come first served, before any prefetch; a prefetch is only
 * issued where a handle is free. The waiters of a slot are a ring in the order they came.
 */
#include "internal.h"

void
ofs_read_issue(struct ofs_core *core, uint32_t slot, uint32_t session, uint64_t deadline_ns)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t tenant = core->chunks[s->chunk].tenant;
	struct ofs_ledger *ledger = &core->ledgers[tenant];
	uint32_t number = core->free_ios[--core->free_io_count];
	struct ofs_action *action;
	uint64_t size_bytes;

	/* At most one read of a slot is in flight. */
	assert(s->state == OFS_SLOT_PENDING
		|| (s->state == OFS_SLOT_RESIDENT && !(s->flags & OFS_FLAG_FILLING)));
	core->ios[number] =
		(struct ofs_read_handle){.slot = slot, .generation = s->generation, .used = 1};
	core->io_in_flight++;
	ofs_work_touch(core, OFS_TABLE_READ, sizeof(*core->ios));
	ofs_work_touch(core, OFS_TABLE_SLOT, sizeof(*s));
	ofs_action_slot(core, OFS_ACTION_READ, slot);
	action = &core->actions[core->action_tail - 1];
	size_bytes = ofs_part_begin(core, slot, action);
	if (s->state == OFS_SLOT_RESIDENT) {
		s->flags |= OFS_FLAG_FILLING;
		action->cause = OFS_CAUSE_DEMAND;
	} else {
		s->state = OFS_SLOT_READING;
	}
	ledger->issued[action->cause]++;
	if (ofs_cause_is_prefetch(action->cause)) {
		s->flags |= OFS_FLAG_PREFETCH;
		core->prefetch_in_flight++;
		ledger->prefetch_bytes_read += size_bytes;
	} else {
		ledger->demand_bytes_read += size_bytes;
	}
	action->io = number;
	action->session = session;
	action->deadline_ns = deadline_ns;
}

void
ofs_read_start(struct ofs_core *core, uint32_t slot, uint32_t session, uint64_t deadline_ns)
{
	struct ofs_slot *s = &core->slots[slot];

	if (core->free_io_count > 0) {
		ofs_read_issue(core, slot, session, deadline_ns);
		return;
	}
	assert(s->state == OFS_SLOT_PENDING && !ofs_cause_is_prefetch(s->cause));
	s->next = OFS_NONE;
	if (core->pending_tail != OFS_NONE)
		core->slots[core->pending_tail].next = slot;
	else
		core->pending_head = slot;
	core->pending_tail = slot;
}

uint32_t
ofs_read_first_asker(const struct ofs_core *core, uint32_t slot)
{
	uint32_t last = core->slots[slot].waiters;

	return last == OFS_NONE ? OFS_NONE : core->waiters[core->waiters[last].next].session;
}

void
ofs_read_pending(struct ofs_core *core)
{
	while (core->free_io_count > 0 && core->pending_head != OFS_NONE) {
		uint32_t slot = core->pending_head;

		assert(core->slots[slot].state == OFS_SLOT_PENDING);
		core->pending_head = core->slots[slot].next;
		if (core->pending_head == OFS_NONE)
			core->pending_tail = OFS_NONE;
		ofs_read_issue(core, slot, ofs_read_first_asker(core, slot), core->now_ns);
	}
}

int
ofs_wait_add(struct ofs_core *core, uint32_t slot, uint32_t session, const struct ofs_step *step,
	uint32_t index, int late)
{
	struct ofs_slot *s = &core->slots[slot];
	struct ofs_wait *waiter;
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
	if (ofs_granular(core))
		core->waiter_granules[number] = ofs_granules_asked(core, step, index);
	ofs_work_touch(core, OFS_TABLE_READ, sizeof(*waiter));
	if (s->waiters == OFS_NONE) {
		waiter->next = number;
	} else {
		waiter->next = core->waiters[s->waiters].next;
		core->waiters[s->waiters].next = number;
	}
	s->waiters = number;
	return 0;
}

/* Whether it keeps waiting: it is another session's, or its granules have not all arrived. */
static int
waits_on(const struct ofs_core *core, uint32_t slot, uint32_t number, uint32_t session, int rc)
{
	if (session != OFS_NONE && core->waiters[number].session != session)
		return 1;
	return rc == 0 && ofs_granular(core)
		&& !ofs_part_covers(core, slot, core->waiter_granules[number]);
}

void
ofs_wait_end(struct ofs_core *core, uint32_t slot, uint32_t session, int rc)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t tenant = core->chunks[s->chunk].tenant;
	uint32_t last = s->waiters, number, next;

	if (last == OFS_NONE)
		return;
	next = core->waiters[last].next;
	s->waiters = OFS_NONE;
	do {
		struct ofs_wait *w;

		number = next;
		w = &core->waiters[number];
		ofs_work_touch(core, OFS_TABLE_READ, sizeof(*w));
		next = w->next;
		if (waits_on(core, slot, number, session, rc)) {
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
	ofs_wait_end(core, slot, session, -ECANCELED);
}

/* A demand waits for a prefetch: the read now counts as the demand's. */
void
ofs_read_raise(struct ofs_core *core, uint32_t slot)
{
	struct ofs_slot *s = &core->slots[slot];

	if (!(s->flags & OFS_FLAG_PREFETCH))
		return;
	assert(core->prefetch_in_flight > 0);
	s->flags &= (uint8_t)~OFS_FLAG_PREFETCH;
	core->prefetch_in_flight--;
}
