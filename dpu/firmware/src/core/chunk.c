/*
 * chunk.c: chunks, the sessions that refer to them, and what the store has of them.
 *
 * Model: a chunk exists while a session refers to it, the store has a block of it, a slot has one
 * of its blocks, or a private chunk reads from it. A private chunk (sharing off) has a *home*: the
 * common chunk under the store key; only the home counts what is stored. Sessions that share a
 * chunk are a list of links, so that the best score over them can be found.
 */
#include "internal.h"

int
ofs_chunk_create(struct ofs_core *core, uint32_t tenant, const struct ofs_key *key, uint32_t home,
	uint32_t *chunk)
{
	uint32_t number;
	struct ofs_chunk *c;

	if (core->free_chunk_count == 0)
		return -ENOSPC;
	number = core->free_chunks[core->free_chunk_count - 1];
	c = &core->chunks[number];
	assert(!c->used && (home == OFS_NONE || core->chunks[home].used));
	memset(c, 0, sizeof(*c));
	c->key = *key;
	c->tenant = tenant;
	c->home = home == OFS_NONE ? number : home;
	c->link = OFS_NONE;
	if (ofs_index_insert(core, number))
		return -ENOSPC;
	core->free_chunk_count--;
	core->tenants[tenant].chunk_count++;
	c->used = 1;
	if (home != OFS_NONE)
		core->chunks[home].home_references++;
	for (uint32_t layer = 0; layer < core->config.layer_count; layer++) {
		uint32_t block = ofs_block_of(core, number, layer);

		core->block_slot[block] = OFS_NONE;
		core->block_queued[block] = OFS_NONE;
		core->block_shadow[block] = OFS_NONE;
		core->block_ghost[block] = 0;
		core->block_gone[block] = 0;
		core->block_flags[block] = 0;
	}
	ofs_work_touch(core, OFS_TABLE_CHUNK, 2 * sizeof(*c));
	ofs_work_touch(core, OFS_TABLE_BLOCK, core->config.layer_count * OFS_BLOCK_BYTES);
	*chunk = number;
	return 0;
}

void
ofs_chunk_maybe_free(struct ofs_core *core, uint32_t chunk)
{
	struct ofs_chunk *c = &core->chunks[chunk];
	uint32_t home = c->home;

	if (!c->used || c->references || c->home_references || c->slots || c->stored)
		return;
	for (uint32_t layer = 0; layer < core->config.layer_count; layer++) {
		uint32_t block = ofs_block_of(core, chunk, layer);

		assert(core->block_slot[block] == OFS_NONE);
		if (core->block_queued[block] != OFS_NONE)
			ofs_queue_cancel(core, block);
		if (core->block_shadow[block] != OFS_NONE)
			ofs_shadow_forget(core, block);
		if (core->block_ghost[block] != 0)
			ofs_ghost_forget(core, block);
	}
	ofs_work_touch(core, OFS_TABLE_BLOCK, core->config.layer_count * OFS_BLOCK_BYTES);
	ofs_index_remove(core, chunk);
	assert(core->tenants[c->tenant].chunk_count > 0);
	assert(core->free_chunk_count < core->config.chunk_max);
	c->used = 0;
	core->tenants[c->tenant].chunk_count--;
	core->free_chunks[core->free_chunk_count++] = chunk;
	if (home != chunk) {
		assert(core->chunks[home].home_references > 0);
		core->chunks[home].home_references--;
		ofs_chunk_maybe_free(core, home);
	}
}

/* A link between its neighbours, the chunk and its home. */
static void
count_link(const struct ofs_core *core)
{
	core->tally->work.order_moves++;
	ofs_work_touch(core, OFS_TABLE_CHUNK, 2 * sizeof(*core->chunks) + 3 * OFS_LINK_BYTES);
}

void
ofs_chunk_link(struct ofs_core *core, uint32_t chunk, uint32_t session, uint32_t ordinal)
{
	struct ofs_chunk *c = &core->chunks[chunk];
	uint32_t link = (session << core->link_shift) + ordinal;

	assert(ordinal >> core->link_shift == 0); /* a link names one ordinal of one session */
	core->link_next[link] = c->link;
	core->link_prev[link] = OFS_NONE;
	if (c->link != OFS_NONE)
		core->link_prev[c->link] = link;
	c->link = link;
	c->references++;
	count_link(core);
	core->chunks[c->home].store_references++;
}

void
ofs_chunk_unlink(struct ofs_core *core, uint32_t chunk, uint32_t session, uint32_t ordinal)
{
	struct ofs_chunk *c = &core->chunks[chunk];
	uint32_t link = (session << core->link_shift) + ordinal;
	uint32_t next = core->link_next[link], prev = core->link_prev[link];

	if (next != OFS_NONE)
		core->link_prev[next] = prev;
	if (prev != OFS_NONE)
		core->link_next[prev] = next;
	else
		c->link = next;
	assert(c->references > 0 && core->chunks[c->home].store_references > 0);
	c->references--;
	count_link(core);
	core->chunks[c->home].store_references--;
}

/* The index of the chunk in the list of a session that refers to it. */
uint32_t
ofs_chunk_ordinal(const struct ofs_core *core, uint32_t chunk, uint32_t session)
{
	uint32_t link = core->chunks[chunk].link;

	ofs_work_touch(core, OFS_TABLE_CHUNK, sizeof(*core->chunks) + OFS_LINK_BYTES);
	while (link >> core->link_shift != session) {
		assert(link != OFS_NONE); /* the session refers to the chunk */
		link = core->link_next[link];
		ofs_work_touch(core, OFS_TABLE_CHUNK, OFS_LINK_BYTES);
	}
	return link & ((1u << core->link_shift) - 1);
}

/* One generating session more or fewer refers to the chunk; when that makes it the first or leaves
 * none, its blocks change sets. */
void
ofs_chunk_generating(struct ofs_core *core, uint32_t chunk, int change)
{
	struct ofs_chunk *c = &core->chunks[chunk];
	uint32_t before = c->generating;

	assert(change > 0 || c->generating > 0);
	c->generating += (uint32_t)change;
	ofs_work_touch(core, OFS_TABLE_CHUNK, sizeof(*c));
	if ((before != 0) == (c->generating != 0) || c->slots == 0)
		return;
	ofs_work_touch(core, OFS_TABLE_BLOCK, core->config.layer_count * sizeof(*core->block_slot));
	for (uint32_t layer = 0; layer < core->config.layer_count; layer++) {
		uint32_t slot = core->block_slot[ofs_block_of(core, chunk, layer)];

		if (slot != OFS_NONE && core->slots[slot].state == OFS_SLOT_RESIDENT)
			ofs_evict_move(core, slot, c->tenant * 2 + (c->generating != 0));
	}
}

uint32_t
ofs_core_chunk_find(const struct ofs_core *core, uint32_t tenant, const struct ofs_key *store_key)
{
	return ofs_index_peek(core, tenant, store_key);
}

uint32_t
ofs_core_store_references(const struct ofs_core *core, uint32_t tenant,
	const struct ofs_key *store_key)
{
	uint32_t home = ofs_index_peek(core, tenant, store_key);

	return home == OFS_NONE ? 0 : core->chunks[home].store_references;
}

void
ofs_chunk_info_get(const struct ofs_core *core, uint32_t chunk, struct ofs_chunk_info *info)
{
	const struct ofs_chunk *c = &core->chunks[chunk];

	*info = (struct ofs_chunk_info){
		.key = c->key,
		.store_key = core->chunks[c->home].key,
		.chunk = chunk,
		.stored_layers = core->chunks[c->home].stored,
		.references = c->references,
	};
}

uint32_t
ofs_core_chunk_count(const struct ofs_core *core, uint32_t tenant)
{
	return core->tenants[tenant].chunk_count;
}

uint32_t
ofs_core_chunk_home(const struct ofs_core *core, uint32_t chunk)
{
	return core->chunks[chunk].home;
}

int
ofs_core_chunk_state(const struct ofs_core *core, uint32_t chunk, struct ofs_chunk_state *state)
{
	const struct ofs_chunk *c;

	if (chunk >= core->config.chunk_max || !core->chunks[chunk].used)
		return -ENOENT;
	c = &core->chunks[chunk];
	*state = (struct ofs_chunk_state){.store_key = core->chunks[c->home].key,
		.tenant = c->tenant,
		.stored_layers = c->home == chunk ? c->stored : 0,
		.references = c->home == chunk ? c->store_references : c->references,
		.slots = c->slots,
		.kept = c->home == chunk && c->stored > 0 && c->references == 0 && c->home_references == 0};
	return 0;
}

void
ofs_block_unstore(struct ofs_core *core, uint32_t home, uint32_t layer)
{
	uint8_t *flags = &core->block_flags[ofs_block_of(core, home, layer)];

	if (!(*flags & OFS_BLOCK_STORED))
		return;
	assert(core->chunks[home].stored > 0);
	*flags &= (uint8_t)~OFS_BLOCK_STORED;
	core->chunks[home].stored--;
	ofs_chunk_maybe_free(core, home);
}
