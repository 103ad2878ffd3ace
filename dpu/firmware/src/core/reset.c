/*
 * reset.c: empties the arena and the ledger, so that runs of one daemon can be compared.
 *
 * Model: staged blocks that are clean and not pinned are evicted; candidates and the shadow are
 * forgotten; the store's contents and the sessions stay. A prefetch that has not ended is counted
 * as issued after the reset, so that issued and ended still balance. Eviction forgets its ghosts.
 */
#include "internal.h"

static void
reset_shadow(struct ofs_core *core, struct ofs_tenant *t)
{
	for (uint32_t node = t->shadow_head; node != OFS_NONE; node = core->shadows[node].next)
		if (core->shadows[node].block != OFS_NONE)
			core->block_shadow[core->shadows[node].block] = OFS_NONE;
	t->shadow_head = t->shadow_tail = OFS_NONE;
	t->shadow_count = 0;
}

static void
reset_tenant(struct ofs_core *core, uint32_t tenant)
{
	const struct ofs_candidate *heap = core->queue + (size_t)tenant * core->config.queue_max;
	struct ofs_tenant *t = &core->tenants[tenant];
	struct ofs_ledger *ledger = &core->ledgers[tenant];

	while (t->queue_count > 0)
		ofs_queue_cancel(core, heap[0].block);
	for (uint32_t slot = t->slot_base; slot < t->slot_base + t->slot_count; slot++)
		if (core->slots[slot].state == OFS_SLOT_RESIDENT && !ofs_slot_is_held(&core->slots[slot]))
			ofs_slot_evict(core, slot, 0);
	ofs_evict_forget(core, tenant);
	reset_shadow(core, t);
	/* What the rings lost stays counted: a log with a hole is not replayed, whatever came after. */
	*ledger = (struct ofs_ledger){.records_lost = ledger->records_lost,
		.log_bytes_lost = ledger->log_bytes_lost};
	for (uint32_t slot = t->slot_base; slot < t->slot_base + t->slot_count; slot++) {
		const struct ofs_slot *s = &core->slots[slot];

		if ((s->state == OFS_SLOT_RESIDENT || s->state == OFS_SLOT_READING)
			&& (s->flags & OFS_FLAG_FRESH)) {
			ledger->issued[s->cause]++;
			ledger->prefetch_bytes_read += core->config.block_size_bytes;
		}
	}
	ofs_feedback_reset(core, tenant);
}

int
ofs_core_reset(struct ofs_core *core, uint64_t now_ns)
{
	int rc = ofs_event_enter(core, now_ns, OFS_EVENT_RESET);

	if (rc)
		return rc;
	for (uint32_t tenant = 0; tenant < core->tenant_count; tenant++)
		reset_tenant(core, tenant);
	memset(core->tallies, 0, sizeof(core->tallies));
	ofs_log_event(core, OFS_EVENT_RESET, now_ns, 0, NULL, 0, NULL, 0);
	return 0;
}
