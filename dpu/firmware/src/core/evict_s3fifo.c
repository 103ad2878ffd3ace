/*
 * evict_s3fifo.c: S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", 2023).
 *
 * Model: bucket 0 is the small queue (a tenth of the tenant's slots), bucket 1 the main queue. A
 * block leaves small for main when it was used twice, else it is evicted and remembered as a ghost;
 * a ghost that returns enters main. Main gives a used block another round. The ghost list is a
 * count: a block is a ghost while fewer than nine tenths of the slots left small after it.
 */
#include "internal.h"

#define SMALL 0
#define MAIN 1
#define FREQUENCY_MAX 3
#define PROMOTE_USES 2

static uint32_t
small_target(const struct ofs_core *core, uint32_t set)
{
	uint32_t tenth = core->tenants[set >> 1].slot_count / 10;

	return tenth ? tenth : 1;
}

static void
s3fifo_add(struct ofs_core *core, uint32_t slot)
{
	const struct ofs_slot *s = &core->slots[slot];
	const struct ofs_tenant *tenant = &core->tenants[s->set >> 1];
	uint32_t block = ofs_block_of(core, s->chunk, s->layer);
	uint32_t ghost = core->block_ghost[block];
	uint32_t size = tenant->slot_count - tenant->slot_count / 10;

	core->block_ghost[block] = 0;
	if (ghost != 0 && tenant->ghost_count - ghost < size)
		ofs_list_push(core, slot, MAIN);
	else
		ofs_list_push(core, slot, SMALL);
}

static void
s3fifo_remove(struct ofs_core *core, uint32_t slot, int evicted)
{
	const struct ofs_slot *s = &core->slots[slot];
	struct ofs_tenant *tenant = &core->tenants[s->set >> 1];

	if (evicted && s->bucket == SMALL) {
		if (++tenant->ghost_count == 0)
			tenant->ghost_count = 1; /* 0 means: never */
		core->block_ghost[ofs_block_of(core, s->chunk, s->layer)] = tenant->ghost_count;
	}
	ofs_list_remove(core, slot);
}

static void
s3fifo_use(struct ofs_core *core, uint32_t slot)
{
	if (core->slots[slot].frequency < FREQUENCY_MAX)
		core->slots[slot].frequency++;
}

static void
s3fifo_rescore(struct ofs_core *core, uint32_t slot)
{
	(void)core;
	(void)slot;
}

static uint32_t
small_victim(struct ofs_core *core, uint32_t set)
{
	uint32_t slot = core->lists[set * OFS_BUCKETS + SMALL].head;

	while (slot != OFS_NONE) {
		struct ofs_slot *s = &core->slots[slot];
		uint32_t next = s->next;

		if (!ofs_slot_is_held(s)) {
			if (s->frequency < PROMOTE_USES)
				return slot;
			s->frequency = 0;
			ofs_list_remove(core, slot);
			ofs_list_push(core, slot, MAIN);
		}
		slot = next;
	}
	return OFS_NONE;
}

static uint32_t
main_victim(struct ofs_core *core, uint32_t set)
{
	const struct ofs_list *list = &core->lists[set * OFS_BUCKETS + MAIN];

	/* A slot can be spared FREQUENCY_MAX times, then it goes: the rounds are bounded. */
	for (uint32_t round = 0; round <= FREQUENCY_MAX; round++) {
		uint32_t slot = list->head;

		for (uint32_t i = list->count; i > 0; i--) {
			struct ofs_slot *s = &core->slots[slot];
			uint32_t next = s->next;

			if (!ofs_slot_is_held(s)) {
				if (s->frequency == 0)
					return slot;
				s->frequency--;
				ofs_list_remove(core, slot);
				ofs_list_push(core, slot, MAIN);
			}
			slot = next;
		}
	}
	return OFS_NONE;
}

static uint32_t
s3fifo_victim(struct ofs_core *core, uint32_t set)
{
	uint32_t small = core->lists[set * OFS_BUCKETS + SMALL].count;
	uint32_t slot;

	if (small >= small_target(core, set)) {
		slot = small_victim(core, set);
		return slot != OFS_NONE ? slot : main_victim(core, set);
	}
	slot = main_victim(core, set);
	return slot != OFS_NONE ? slot : small_victim(core, set);
}

const struct ofs_evict_ops ofs_evict_s3fifo = {
	.add = s3fifo_add,
	.remove = s3fifo_remove,
	.use = s3fifo_use,
	.rescore = s3fifo_rescore,
	.victim = s3fifo_victim,
};
