/*
 * evict_ghost.c: evicted blocks that eviction remembers.
 *
 * Model: a tenant has two nodes for each of its slots and three lists of them, oldest first: two
 * whose meaning the policy defines, and one of blocks that were in one of those when a slot was
 * requested for them and that have not arrived yet. A block is in at most one list; its entry in
 * block_ghost says where. If no node is free, the oldest block that waits to arrive is forgotten
 * first.
 */
#include "evict.h"
#include "self_check.h"

#define LIST_MASK 3u
_Static_assert(OFS_GHOST_LISTS <= LIST_MASK + 1, "an entry has two bits for its list");

static inline struct ofs_tenant *
tenant_of(const struct ofs_core *core, uint32_t block)
{
	return &core->tenants[core->chunks[block % core->config.chunk_max].tenant];
}

/* No list has an entry; the blocks in them must have been forgotten. */
void
ofs_ghost_open(struct ofs_core *core, uint32_t tenant)
{
	struct ofs_tenant *t = &core->tenants[tenant];

	for (uint32_t i = 0; i < OFS_GHOST_LISTS; i++)
		t->ghosts[i] = (struct ofs_list){OFS_NONE, OFS_NONE, 0};
	t->ghost_free = OFS_NONE;
	t->ghost_fresh = 0;
}

void
ofs_ghost_clear(struct ofs_core *core, uint32_t tenant)
{
	const struct ofs_tenant *t = &core->tenants[tenant];

	for (uint32_t i = 0; i < OFS_GHOST_LISTS; i++)
		for (uint32_t n = t->ghosts[i].head; n != OFS_NONE; n = core->nodes[n].next)
			core->block_ghost[core->nodes[n].block] = 0;
	ofs_ghost_open(core, tenant);
}

void
ofs_ghost_forget(struct ofs_core *core, uint32_t block)
{
	struct ofs_tenant *t = tenant_of(core, block);
	uint32_t entry = core->block_ghost[block], node = entry / (LIST_MASK + 1) - 1;

	assert(entry != 0 && core->nodes[node].block == block);
	ofs_node_remove(core, &t->ghosts[entry & LIST_MASK], node);
	core->nodes[node].next = t->ghost_free;
	t->ghost_free = node;
	core->block_ghost[block] = 0;
}

/* Forget the oldest of the list, if there is one. */
int
ofs_ghost_drop(struct ofs_core *core, uint32_t tenant, uint32_t list)
{
	uint32_t node = core->tenants[tenant].ghosts[list].head;

	if (node == OFS_NONE)
		return 0;
	ofs_ghost_forget(core, core->nodes[node].block);
	return 1;
}

static uint32_t
node_take(struct ofs_core *core, struct ofs_tenant *t)
{
	uint32_t tenant = (uint32_t)(t - core->tenants), node;

	if (t->ghost_free == OFS_NONE && t->ghost_fresh < 2 * t->slot_count)
		return 2 * t->slot_base + t->ghost_fresh++;
	if (t->ghost_free == OFS_NONE && !ofs_ghost_drop(core, tenant, OFS_GHOST_RETURNS)
		&& !ofs_ghost_drop(core, tenant, OFS_GHOST_OFTEN))
		ofs_ghost_drop(core, tenant, OFS_GHOST_ONCE);
	node = t->ghost_free;
	assert(node != OFS_NONE); /* all nodes are in lists, and one was just dropped */
	t->ghost_free = core->nodes[node].next;
	return node;
}

static void
ghost_place(struct ofs_core *core, struct ofs_tenant *t, uint32_t node, uint32_t list)
{
	ofs_node_append(core, &t->ghosts[list], node);
	core->block_ghost[core->nodes[node].block] = (node + 1) * (LIST_MASK + 1) + list;
}

/* The block, which is no ghost, becomes the newest of the list. */
void
ofs_ghost_push(struct ofs_core *core, uint32_t block, uint32_t list)
{
	struct ofs_tenant *t = tenant_of(core, block);
	uint32_t node;

	assert(core->block_ghost[block] == 0);
	node = node_take(core, t);
	core->nodes[node].block = block;
	ghost_place(core, t, node, list);
}

/* A slot was requested for the block: the list it was in, or OFS_NONE; it waits to arrive now. */
uint32_t
ofs_ghost_expect(struct ofs_core *core, uint32_t block)
{
	uint32_t entry = core->block_ghost[block], list = entry & LIST_MASK;
	struct ofs_tenant *t;

	if (entry == 0 || list == OFS_GHOST_RETURNS)
		return OFS_NONE;
	t = tenant_of(core, block);
	ofs_node_remove(core, &t->ghosts[list], entry / (LIST_MASK + 1) - 1);
	ghost_place(core, t, entry / (LIST_MASK + 1) - 1, OFS_GHOST_RETURNS);
	return list;
}

/* The block arrived: returns whether it was a ghost; it is one no longer. */
int
ofs_ghost_returned(struct ofs_core *core, uint32_t block)
{
	if (core->block_ghost[block] == 0)
		return 0;
	assert((core->block_ghost[block] & LIST_MASK) == OFS_GHOST_RETURNS);
	ofs_ghost_forget(core, block);
	return 1;
}

int
ofs_ghost_verify(const struct ofs_core *core, uint32_t tenant)
{
	const struct ofs_tenant *t = &core->tenants[tenant];
	uint32_t nodes = 0;

	for (uint32_t list = 0; list < OFS_GHOST_LISTS; list++) {
		uint32_t before = OFS_NONE, count = 0;

		for (uint32_t n = t->ghosts[list].head; n != OFS_NONE; n = core->nodes[n].next) {
			uint32_t block = core->nodes[n].block, slot = core->block_slot[block];

			CHECK(tenant_of(core, block) == t, n);
			CHECK(core->block_ghost[block] == (n + 1) * (LIST_MASK + 1) + list, n);
			CHECK(core->nodes[n].prev == before, n);
			CHECK(slot == OFS_NONE
					|| (list == OFS_GHOST_RETURNS && core->slots[slot].state != OFS_SLOT_RESIDENT),
				n);
			CHECK(++count <= t->ghosts[list].count, tenant);
			before = n;
		}
		CHECK(count == t->ghosts[list].count && t->ghosts[list].tail == before, tenant);
		nodes += count;
	}
	for (uint32_t n = t->ghost_free; n != OFS_NONE; n = core->nodes[n].next)
		CHECK(++nodes <= t->ghost_fresh, tenant);
	CHECK(nodes == t->ghost_fresh && nodes <= 2 * t->slot_count, tenant);
	return 0;
}
