/*
 * arena.c: slots, their generations and pins. Which block leaves for another: evict.c.
 *
 * Model: free -> pending or reading -> resident -> free; a slot whose read timed out is quarantined
 * until the owner says that the device no longer writes to it. The generation moves at every
 * assignment and is never 0, so that a reader with an old (slot, generation) always sees the
 * difference. Pinned and dirty slots are never victims.
 */
#include "evict.h"

uint32_t
ofs_slot_take(struct ofs_core *core, uint32_t tenant, uint32_t block,
	const struct ofs_candidate *candidate)
{
	struct ofs_tenant *t = &core->tenants[tenant];

	core->evict->expect(core, block, candidate == NULL);
	if (t->free_count == 0) {
		uint32_t slot = ofs_evict_victim(core, tenant, candidate);

		if (slot == OFS_NONE)
			return OFS_NONE;
		ofs_slot_evict(core, slot, candidate != NULL);
	}
	return t->slot_base + core->free_slots[t->slot_base + --t->free_count];
}

/* Every session that refers to the chunk has a bit for whether the block has a slot. */
static void
block_hold(struct ofs_core *core, uint32_t chunk, uint32_t layer, int hold)
{
	uint32_t mask = (1u << core->link_shift) - 1;

	ofs_work_touch(core, OFS_TABLE_CHUNK, sizeof(*core->chunks));
	for (uint32_t link = core->chunks[chunk].link; link != OFS_NONE; link = core->link_next[link]) {
		uint32_t ordinal = link & mask;
		uint64_t *row = ofs_row_of(core, core->held, link >> core->link_shift, layer);
		uint64_t bit = 1ull << (ordinal % 64);

		ofs_work_touch(core, OFS_TABLE_CHUNK, OFS_LINK_BYTES);
		ofs_work_touch(core, OFS_TABLE_LAYER, sizeof(bit));
		row[ordinal / 64] = hold ? row[ordinal / 64] | bit : row[ordinal / 64] & ~bit;
	}
}

void
ofs_slot_assign(struct ofs_core *core, uint32_t slot, uint32_t chunk, uint32_t layer,
	uint32_t cause, uint32_t serial)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t block = ofs_block_of(core, chunk, layer);
	uint32_t generation = s->generation + 1;

	assert(s->state == OFS_SLOT_FREE && core->block_slot[block] == OFS_NONE);
	memset(s, 0, sizeof(*s));
	s->generation = generation ? generation : 1;
	s->chunk = chunk;
	s->layer = (uint16_t)layer;
	s->cause = (uint8_t)cause;
	s->staged_by = serial;
	s->owner = OFS_NONE;
	s->waiters = OFS_NONE;
	s->state = OFS_SLOT_PENDING;
	s->flags = ofs_cause_is_prefetch(cause) ? OFS_FLAG_FRESH : 0;
	memset(core->used_bits + (size_t)slot * core->used_words, 0, core->used_words * 8);
	if (ofs_granular(core))
		core->parts[slot] = (struct ofs_part){0};
	core->block_slot[block] = slot;
	core->block_flags[block] &= (uint8_t)~OFS_BLOCK_POLLUTED;
	core->chunks[chunk].slots++;
	ofs_work_touch(core, OFS_TABLE_SLOT, sizeof(*s) + core->used_words * sizeof(*core->used_bits));
	ofs_work_touch(core, OFS_TABLE_BLOCK, sizeof(*core->block_slot) + sizeof(*core->block_flags));
	block_hold(core, chunk, layer, 1);
}

/* The bytes have arrived: the slot becomes visible and may be evicted. */
void
ofs_slot_arrive(struct ofs_core *core, uint32_t slot, int publish)
{
	struct ofs_slot *s = &core->slots[slot];
	const struct ofs_chunk *chunk = &core->chunks[s->chunk];

	ofs_work_touch(core, OFS_TABLE_SLOT, sizeof(*s));
	ofs_work_touch(core, OFS_TABLE_CHUNK, sizeof(*chunk));
	assert(s->state == OFS_SLOT_PENDING || s->state == OFS_SLOT_READING);
	s->state = OFS_SLOT_RESIDENT;
	ofs_part_arrive(core, slot, publish);
	s->arrived_ns = core->now_ns;
	s->set = chunk->tenant * 2 + (chunk->generating != 0);
	core->tenants[chunk->tenant].resident++;
	if (core->policy.eviction == OFS_EVICT_SCORE)
		ofs_score_arrive(core, slot);
	core->evict->add(core, slot);
	if (publish)
		ofs_action_slot(core, OFS_ACTION_PUBLISH, slot);
}

/* Takes the slot from its block without updating the directory. */
void
ofs_slot_release(struct ofs_core *core, uint32_t slot, int quarantine)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t chunk = s->chunk, block = ofs_block_of(core, chunk, s->layer);
	struct ofs_tenant *t = &core->tenants[core->chunks[chunk].tenant];

	assert(s->waiters == OFS_NONE && core->block_slot[block] == slot);
	core->block_slot[block] = OFS_NONE;
	core->chunks[chunk].slots--;
	ofs_work_touch(core, OFS_TABLE_SLOT, sizeof(*s));
	ofs_work_touch(core, OFS_TABLE_BLOCK, sizeof(*core->block_slot));
	block_hold(core, chunk, s->layer, 0);
	s->pins = 0;
	s->flags = 0;
	if (quarantine) {
		s->state = OFS_SLOT_QUARANTINED;
	} else {
		assert(t->free_count < t->slot_count);
		s->state = OFS_SLOT_FREE;
		core->free_slots[t->slot_base + t->free_count++] = slot - t->slot_base;
	}
	ofs_chunk_maybe_free(core, chunk);
}

void
ofs_slot_evict(struct ofs_core *core, uint32_t slot, int by_prefetch)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t tenant = core->chunks[s->chunk].tenant;
	uint32_t block = ofs_block_of(core, s->chunk, s->layer);
	struct ofs_ledger *ledger = &core->ledgers[tenant];

	assert(s->state == OFS_SLOT_RESIDENT && !ofs_slot_is_held(s));
	ofs_action_slot(core, OFS_ACTION_RETRACT, slot);
	core->evict->remove(core, slot, 1);
	ledger->evictions++;
	ledger->evictions_generating += s->set & 1;
	if (s->flags & OFS_FLAG_FRESH)
		ofs_slot_fate(core, slot, OFS_FATE_UNUSED);
	core->block_gone[block] = core->event;
	ofs_work_touch(core, OFS_TABLE_BLOCK, sizeof(*core->block_gone) + sizeof(*core->block_flags));
	if (by_prefetch)
		core->block_flags[block] |= OFS_BLOCK_POLLUTED;
	assert(core->tenants[tenant].resident > 0);
	core->tenants[tenant].resident--;
	ofs_slot_release(core, slot, 0);
}

void
ofs_session_pin(struct ofs_core *core, uint32_t session, uint32_t slot)
{
	struct ofs_session *s = &core->sessions[session];
	struct ofs_pin *pin = core->pins + (size_t)session * core->config.demand_max + s->pin_count++;

	assert(s->pin_count <= core->config.demand_max);
	pin->slot = slot;
	pin->generation = core->slots[slot].generation;
	core->slots[slot].pins++;
	ofs_work_touch(core, OFS_TABLE_SESSION, sizeof(*pin));
}

static void
lease_remove(struct ofs_core *core, uint32_t session)
{
	struct ofs_session *s = &core->sessions[session];

	assert(s->leased && core->lease_head != OFS_LEASE_END);
	if (s->lease_prev != OFS_LEASE_END)
		core->sessions[s->lease_prev].lease_next = s->lease_next;
	else
		core->lease_head = s->lease_next;
	if (s->lease_next != OFS_LEASE_END)
		core->sessions[s->lease_next].lease_prev = s->lease_prev;
	else
		core->lease_tail = s->lease_prev;
	s->leased = 0;
}

/* Sessions with pins are listed in the order their leases began; all leases are equally long. */
void
ofs_lease_begin(struct ofs_core *core, uint32_t session)
{
	struct ofs_session *s = &core->sessions[session];

	s->lease_begin_ns = core->now_ns;
	if (s->leased && core->lease_tail == session)
		return;
	if (s->leased)
		lease_remove(core, session);
	s->leased = 1;
	s->lease_next = OFS_LEASE_END;
	s->lease_prev = core->lease_tail;
	if (core->lease_tail != OFS_LEASE_END)
		core->sessions[core->lease_tail].lease_next = session;
	else
		core->lease_head = session;
	core->lease_tail = session;
}

void
ofs_lease_end(struct ofs_core *core, uint32_t session)
{
	ofs_session_unpin(core, session);
	if (core->sessions[session].leased)
		lease_remove(core, session);
}

void
ofs_session_unpin(struct ofs_core *core, uint32_t session)
{
	struct ofs_session *s = &core->sessions[session];
	struct ofs_pin *pins = core->pins + (size_t)session * core->config.demand_max;

	for (uint32_t i = 0; i < s->pin_count; i++) {
		struct ofs_slot *slot = &core->slots[pins[i].slot];

		/* A failed read frees its slot despite the pin; the generation shows it. */
		if (slot->generation == pins[i].generation && slot->pins > 0)
			slot->pins--;
	}
	core->tally->unpinned += s->pin_count;
	s->pin_count = 0;
}
