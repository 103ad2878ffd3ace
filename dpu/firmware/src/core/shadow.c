/*
 * shadow.c: the directory of a demand-only LRU of the same size, per tenant.
 *
 * Model: it sees every demand and nothing else, stores no bytes and knows no latency. If the shadow
 * hits where the core misses, the core's decisions lost the block; if both miss, capacity did. The
 * node of a block that ceases to exist moves to the head, where it is reused first.
 */
#include "internal.h"

static void
shadow_unlink(struct ofs_core *core, struct ofs_tenant *t, uint32_t node)
{
	const struct ofs_shadow *n = &core->shadows[node];

	ofs_work_order(core, OFS_TABLE_SHADOW, 3);
	if (n->next != OFS_NONE)
		core->shadows[n->next].prev = n->prev;
	else
		t->shadow_tail = n->prev;
	if (n->prev != OFS_NONE)
		core->shadows[n->prev].next = n->next;
	else
		t->shadow_head = n->next;
}

static void
shadow_append(struct ofs_core *core, struct ofs_tenant *t, uint32_t node)
{
	struct ofs_shadow *n = &core->shadows[node];

	ofs_work_order(core, OFS_TABLE_SHADOW, 2);
	n->next = OFS_NONE;
	n->prev = t->shadow_tail;
	if (t->shadow_tail != OFS_NONE)
		core->shadows[t->shadow_tail].next = node;
	else
		t->shadow_head = node;
	t->shadow_tail = node;
}

int
ofs_shadow_touch(struct ofs_core *core, uint32_t tenant, uint32_t block)
{
	struct ofs_tenant *t = &core->tenants[tenant];
	uint32_t node = core->block_shadow[block];

	ofs_work_touch(core, OFS_TABLE_BLOCK, sizeof(node));
	if (node != OFS_NONE) {
		if (t->shadow_tail != node) {
			shadow_unlink(core, t, node);
			shadow_append(core, t, node);
		}
		return 0;
	}
	if (t->shadow_count < t->slot_count) {
		node = t->slot_base + t->shadow_count++;
	} else {
		node = t->shadow_head;
		shadow_unlink(core, t, node);
		if (core->shadows[node].block != OFS_NONE)
			core->block_shadow[core->shadows[node].block] = OFS_NONE;
	}
	core->shadows[node].block = block;
	core->block_shadow[block] = node;
	shadow_append(core, t, node);
	return 1;
}

void
ofs_shadow_forget(struct ofs_core *core, uint32_t block)
{
	uint32_t node = core->block_shadow[block];
	uint32_t tenant = core->chunks[block % core->config.chunk_max].tenant;
	struct ofs_tenant *t = &core->tenants[tenant];
	struct ofs_shadow *n = &core->shadows[node];

	assert(n->block == block);
	shadow_unlink(core, t, node);
	n->block = OFS_NONE;
	n->prev = OFS_NONE;
	n->next = t->shadow_head;
	if (t->shadow_head != OFS_NONE)
		core->shadows[t->shadow_head].prev = node;
	else
		t->shadow_tail = node;
	t->shadow_head = node;
	core->block_shadow[block] = OFS_NONE;
}
