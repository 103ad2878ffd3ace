/*
 * partial_fill.c: ends of reads into resident slots, and what follows the end of a partial read
 * (the model is in granule.c). A failed fill leaves the slot's bytes, which were checked; a slot
 * that a device may still write is quarantined. If the block's bytes have changed since its part
 * was read, the part is evicted, and the waiting demands are retried for the whole block.
 */
#include "internal.h"

/* Evicts the slot, even if pinned; quarantines it if a device may still write to it. */
static void
leave(struct ofs_core *core, uint32_t slot, int quarantine)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t tenant = core->chunks[s->chunk].tenant;

	assert(s->state == OFS_SLOT_RESIDENT && core->tenants[tenant].resident > 0);
	ofs_action_slot(core, OFS_ACTION_RETRACT, slot);
	core->evict->remove(core, slot, 1);
	core->block_gone[ofs_block_of(core, s->chunk, s->layer)] = core->event;
	core->tenants[tenant].resident--;
	ofs_slot_release(core, slot, quarantine);
}

static void
fill_over(struct ofs_core *core, uint32_t slot)
{
	assert((core->slots[slot].flags & OFS_FLAG_FILLING) && core->parts[slot].reading != 0);
	core->slots[slot].flags &= (uint8_t)~OFS_FLAG_FILLING;
	core->parts[slot].reading = 0;
}

void
ofs_fill_done(struct ofs_core *core, uint32_t slot)
{
	struct ofs_slot *s = &core->slots[slot];
	const struct ofs_chunk *chunk = &core->chunks[s->chunk];
	uint32_t held = core->parts[slot].valid;

	core->parts[slot].valid |= core->parts[slot].reading;
	fill_over(core, slot);
	/* Its private session closed meanwhile: the block can no longer be demanded. */
	if (chunk->references == 0 && chunk->home != s->chunk) {
		ofs_slot_evict(core, slot, 0);
		return;
	}
	ofs_action_slot(core, OFS_ACTION_PUBLISH, slot);
	core->actions[core->action_tail - 1].held = held;
	core->evict->use(core, slot);
	ofs_wait_end(core, slot, OFS_NONE, 0);
	ofs_part_go_on(core, slot);
}

void
ofs_fill_failed(struct ofs_core *core, uint32_t slot, int rc)
{
	struct ofs_slot *s = &core->slots[slot];
	const struct ofs_chunk *chunk = &core->chunks[s->chunk];

	ofs_wait_end(core, slot, OFS_NONE, rc == -ESTALE ? -EAGAIN : rc);
	fill_over(core, slot);
	if (rc == -ETIMEDOUT || rc == -ESTALE)
		leave(core, slot, rc == -ETIMEDOUT);
	else if (chunk->references == 0 && chunk->home != s->chunk)
		ofs_slot_evict(core, slot, 0);
}

void
ofs_part_go_on(struct ofs_core *core, uint32_t slot)
{
	struct ofs_slot *s = &core->slots[slot];

	if (!ofs_granular(core) || s->waiters == OFS_NONE)
		return;
	if (!ofs_block_is_stored(core, s->chunk, s->layer))
		ofs_wait_end(core, slot, OFS_NONE, -ENOENT);
	else if (core->free_io_count == 0)
		ofs_wait_end(core, slot, OFS_NONE, -EAGAIN);
	else
		ofs_read_issue(core, slot, ofs_read_first_asker(core, slot), core->now_ns);
}
