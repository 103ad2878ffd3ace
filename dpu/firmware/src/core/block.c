/*
 * block.c: what the store reports of single blocks, and write-back staging.
 *
 * Model: whether a block is stored is a bit at the home chunk, shared by every chunk that reads
 * from one store key. A resident copy stays valid when the store loses its copy: its bytes were
 * checked.
 */
#include "internal.h"

/* The flags of one block, and its chunk. */
static void
count_block(const struct ofs_core *core)
{
	ofs_work_touch(core, OFS_TABLE_CHUNK, sizeof(*core->chunks));
	ofs_work_touch(core, OFS_TABLE_BLOCK, sizeof(*core->block_flags));
}

int
ofs_core_block_stored(struct ofs_core *core, uint64_t now_ns, uint32_t chunk, uint32_t layer)
{
	int rc = ofs_block_check(core, chunk, layer);
	uint8_t *flags;
	uint32_t home;

	if (rc || (rc = ofs_event_enter(core, now_ns, OFS_EVENT_STORED)))
		return rc;
	count_block(core);
	home = core->chunks[chunk].home;
	flags = &core->block_flags[ofs_block_of(core, home, layer)];
	if (!(*flags & OFS_BLOCK_STORED)) {
		*flags |= OFS_BLOCK_STORED;
		core->chunks[home].stored++;
		assert(core->chunks[home].stored <= core->config.layer_count);
	}
	ofs_log_numbers(core, OFS_EVENT_STORED, now_ns, 0, chunk, layer);
	return 0;
}

int
ofs_core_block_lost(struct ofs_core *core, uint64_t now_ns, uint32_t chunk, uint32_t layer)
{
	int rc = ofs_block_check(core, chunk, layer);

	if (rc || (rc = ofs_event_enter(core, now_ns, OFS_EVENT_LOST)))
		return rc;
	count_block(core);
	ofs_block_unstore(core, core->chunks[chunk].home, layer);
	ofs_log_numbers(core, OFS_EVENT_LOST, now_ns, 0, chunk, layer);
	return 0;
}

struct named_block {
	uint32_t tenant;
	uint32_t layer;
	struct ofs_key store_key;
};

static int
named_check(const struct ofs_core *core, uint32_t tenant, uint32_t layer)
{
	return tenant < core->tenant_count && layer < core->config.layer_count ? 0 : -EINVAL;
}

int
ofs_core_block_restore(struct ofs_core *core, uint64_t now_ns, uint32_t tenant,
	const struct ofs_key *store_key, uint32_t layer, uint32_t *chunk)
{
	struct named_block named = {tenant, layer, *store_key};
	struct ofs_bytes in = {&named, sizeof(named)}, out = {chunk, sizeof(*chunk)};
	int rc = named_check(core, tenant, layer);
	uint8_t *flags;

	if (rc || (rc = ofs_event_enter(core, now_ns, OFS_EVENT_RESTORE)))
		return rc;
	*chunk = ofs_index_find(core, tenant, store_key);
	if (*chunk == OFS_NONE)
		rc = ofs_chunk_create(core, tenant, store_key, OFS_NONE, chunk);
	if (rc == 0) {
		count_block(core);
		flags = &core->block_flags[ofs_block_of(core, *chunk, layer)];
		core->chunks[*chunk].stored += !(*flags & OFS_BLOCK_STORED);
		*flags |= OFS_BLOCK_STORED;
	}
	ofs_log_event(core, OFS_EVENT_RESTORE, now_ns, rc, &in, 1, &out, rc ? 0 : 1);
	return rc;
}

int
ofs_core_block_forget(struct ofs_core *core, uint64_t now_ns, uint32_t tenant,
	const struct ofs_key *store_key, uint32_t layer)
{
	struct named_block named = {tenant, layer, *store_key};
	struct ofs_bytes in = {&named, sizeof(named)};
	int rc = named_check(core, tenant, layer);
	uint32_t chunk;

	if (rc || (rc = ofs_event_enter(core, now_ns, OFS_EVENT_FORGET)))
		return rc;
	chunk = ofs_index_find(core, tenant, store_key);
	if (chunk == OFS_NONE) {
		rc = -ENOENT;
	} else {
		count_block(core);
		ofs_block_unstore(core, core->chunks[chunk].home, layer);
	}
	ofs_log_event(core, OFS_EVENT_FORGET, now_ns, rc, &in, 1, NULL, 0);
	return rc;
}

static int
stage(struct ofs_core *core, uint32_t chunk, uint32_t layer, uint32_t *slot_out,
	uint32_t *generation)
{
	uint32_t block = ofs_block_of(core, chunk, layer);
	uint32_t tenant = core->chunks[chunk].tenant;
	uint32_t slot = core->block_slot[block];

	if (slot != OFS_NONE
		&& (core->slots[slot].state != OFS_SLOT_RESIDENT
			|| (core->slots[slot].flags & OFS_FLAG_FILLING)))
		return -EAGAIN; /* a read into the slot is in flight */
	if (slot != OFS_NONE && !ofs_part_covers(core, slot, 0))
		return -EAGAIN; /* the slot has a part, which hosts may be reading */
	if (slot == OFS_NONE) {
		slot = ofs_slot_take(core, tenant, block, NULL);
		if (slot == OFS_NONE)
			return -EAGAIN;
		if (core->block_queued[block] != OFS_NONE)
			ofs_queue_cancel(core, block);
		ofs_slot_assign(core, slot, chunk, layer, OFS_CAUSE_WRITE, 0);
		ofs_slot_arrive(core, slot, 0);
	}
	assert(core->slots[slot].state == OFS_SLOT_RESIDENT);
	core->slots[slot].flags |= OFS_FLAG_DIRTY;
	*slot_out = slot - core->tenants[tenant].slot_base;
	*generation = core->slots[slot].generation;
	return 0;
}

int
ofs_core_block_stage(struct ofs_core *core, uint64_t now_ns, uint32_t chunk, uint32_t layer,
	uint32_t *slot, uint32_t *generation)
{
	uint32_t block[2] = {chunk, layer}, answer[2] = {0, 0};
	struct ofs_bytes in = {block, sizeof(block)}, out = {answer, sizeof(answer)};
	int rc = ofs_block_check(core, chunk, layer);

	if (rc || (rc = ofs_event_enter(core, now_ns, OFS_EVENT_STAGE)))
		return rc;
	rc = stage(core, chunk, layer, &answer[0], &answer[1]);
	if (rc == 0) {
		*slot = answer[0];
		*generation = answer[1];
	}
	ofs_log_event(core, OFS_EVENT_STAGE, now_ns, rc, &in, 1, &out, 1);
	return rc;
}

int
ofs_core_block_clean(struct ofs_core *core, uint64_t now_ns, uint32_t chunk, uint32_t layer)
{
	int rc = ofs_block_check(core, chunk, layer);
	const struct ofs_chunk *c;
	uint32_t slot;

	if (rc)
		return rc;
	slot = core->block_slot[ofs_block_of(core, chunk, layer)];
	if (slot == OFS_NONE || !(core->slots[slot].flags & OFS_FLAG_DIRTY))
		return -EINVAL;
	rc = ofs_event_enter(core, now_ns, OFS_EVENT_CLEAN);
	if (rc)
		return rc;
	core->slots[slot].flags &= (uint8_t)~OFS_FLAG_DIRTY;
	c = &core->chunks[chunk];
	/* Its private session closed while the block was dirty: it can no longer be demanded. */
	if (c->home != chunk && c->references == 0)
		ofs_slot_evict(core, slot, 0);
	ofs_log_numbers(core, OFS_EVENT_CLEAN, now_ns, 0, chunk, layer);
	return 0;
}

int
ofs_core_block_drop(struct ofs_core *core, uint64_t now_ns, uint32_t chunk, uint32_t layer)
{
	int rc = ofs_block_check(core, chunk, layer);
	uint32_t slot;

	if (rc)
		return rc;
	slot = core->block_slot[ofs_block_of(core, chunk, layer)];
	if (slot == OFS_NONE)
		return -ENOENT;
	if (core->slots[slot].state != OFS_SLOT_RESIDENT || ofs_slot_is_held(&core->slots[slot]))
		return -EAGAIN;
	rc = ofs_event_enter(core, now_ns, OFS_EVENT_DROP);
	if (rc)
		return rc;
	ofs_slot_evict(core, slot, 0);
	ofs_pump(core); /* a slot was freed */
	ofs_log_numbers(core, OFS_EVENT_DROP, now_ns, 0, chunk, layer);
	return 0;
}

int
ofs_core_block_slot(const struct ofs_core *core, uint32_t chunk, uint32_t layer, uint32_t *slot)
{
	int rc = ofs_block_check(core, chunk, layer);
	uint32_t number;

	if (rc)
		return rc;
	number = core->block_slot[ofs_block_of(core, chunk, layer)];
	if (number == OFS_NONE)
		return -ENOENT;
	*slot = number - core->tenants[core->chunks[chunk].tenant].slot_base;
	return core->slots[number].state == OFS_SLOT_RESIDENT;
}

int
ofs_core_block_is_stored(const struct ofs_core *core, uint32_t chunk, uint32_t layer)
{
	return ofs_block_check(core, chunk, layer) == 0 && ofs_block_is_stored(core, chunk, layer);
}

int
ofs_core_slot_free(struct ofs_core *core, uint64_t now_ns, uint32_t tenant, uint32_t slot)
{
	struct ofs_tenant *t;
	struct ofs_slot *s;
	int rc;

	if (tenant >= core->tenant_count || slot >= core->tenants[tenant].slot_count)
		return -EINVAL;
	t = &core->tenants[tenant];
	s = &core->slots[t->slot_base + slot];
	if (s->state != OFS_SLOT_QUARANTINED)
		return -EINVAL;
	rc = ofs_event_enter(core, now_ns, OFS_EVENT_SLOT_FREE);
	if (rc)
		return rc;
	assert(t->free_count < t->slot_count);
	s->state = OFS_SLOT_FREE;
	core->free_slots[t->slot_base + t->free_count++] = slot;
	ofs_pump(core);
	ofs_log_numbers(core, OFS_EVENT_SLOT_FREE, now_ns, 0, tenant, slot);
	return 0;
}
