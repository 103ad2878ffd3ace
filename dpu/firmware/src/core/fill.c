/*
 * fill.c: the ends of reads into slots that are resident, and what follows when a read of a part
 * has ended: the model is granule.c's. A fill that fails leaves what the slot has, whose bytes were
 * checked; one that a device may still write is quarantined.
 */
#include "internal.h"

/* As an eviction, but nobody may have the slot while a device may still write to it. */
static void
quarantine(struct ofs_core *core, uint32_t slot)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t tenant = core->chunks[s->chunk].tenant;

	ofs_action_slot(core, OFS_ACTION_RETRACT, slot);
	core->evict->remove(core, slot, 1);
	core->block_gone[ofs_block_of(core, s->chunk, s->layer)] = core->event;
	core->tenants[tenant].resident--;
	ofs_slot_release(core, slot, 1);
}

static void
fill_over(struct ofs_core *core, uint32_t slot)
{
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
	/* Its private session closed meanwhile: nobody can ask for the block any more. */
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

	ofs_wait_end(core, slot, OFS_NONE, rc);
	fill_over(core, slot);
	core->parts[slot].wanted = core->parts[slot].valid;
	if (rc == -ETIMEDOUT)
		quarantine(core, slot);
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
