/*
 * evict_s3fifo.c: S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", 2023).
 *
 * Model: bucket 0 is the small queue (a tenth of the tenant's slots), bucket 1 the main queue. A
 * block moves from small to main if it was used twice, else it is evicted and remembered as a
 * ghost; a ghost that returns enters main. Main gives a used block another round. Ghosts are a
 * queue of nine tenths of the slots; a ghost that returns leaves it. Until the first victim is
 * requested, blocks that the small queue has no room for enter main, as in the authors' code since
 * December 2024.
 */
#include "evict.h"
#include "self_check.h"

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

static uint32_t
ghost_max(const struct ofs_tenant *tenant)
{
	return (uint32_t)((uint64_t)tenant->slot_count * 9 / 10);
}

static void
s3fifo_expect(struct ofs_core *core, uint32_t block, int demanded)
{
	(void)demanded;
	ofs_ghost_expect(core, block);
}

/* A block from the other set stays in its queue. */
static void
s3fifo_add(struct ofs_core *core, uint32_t slot)
{
	const struct ofs_slot *s = &core->slots[slot];
	uint32_t small = core->lists[s->set * OFS_BUCKETS + SMALL].count;
	uint32_t bucket = s->bucket;

	if (ofs_ghost_returned(core, ofs_block_of(core, s->chunk, s->layer))
		|| (!core->tenants[s->set >> 1].filled && small >= small_target(core, s->set)))
		bucket = MAIN;
	ofs_list_push(core, slot, bucket);
}

static void
s3fifo_remove(struct ofs_core *core, uint32_t slot, int evicted)
{
	const struct ofs_slot *s = &core->slots[slot];
	uint32_t tenant = s->set >> 1;
	const struct ofs_list *ghosts = &core->tenants[tenant].ghosts[OFS_GHOST_ONCE];

	ofs_list_remove(core, slot);
	if (!evicted || s->bucket != SMALL)
		return;
	ofs_ghost_push(core, ofs_block_of(core, s->chunk, s->layer), OFS_GHOST_ONCE);
	if (ghosts->count > ghost_max(&core->tenants[tenant]))
		ofs_ghost_drop(core, tenant, OFS_GHOST_ONCE);
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

		core->tally->work.victims++;
		if (!ofs_slot_is_held(s)) {
			if (s->frequency < PROMOTE_USES)
				return slot;
			s->frequency = 0;
			ofs_list_move(core, slot, MAIN);
		}
		slot = next;
	}
	return OFS_NONE;
}

static uint32_t
main_victim(struct ofs_core *core, uint32_t set)
{
	const struct ofs_list *list = &core->lists[set * OFS_BUCKETS + MAIN];

	/* A slot can be spared FREQUENCY_MAX times, then it is evicted: the rounds are bounded. */
	for (uint32_t round = 0; round <= FREQUENCY_MAX; round++) {
		uint32_t slot = list->head;

		for (uint32_t i = list->count; i > 0; i--) {
			struct ofs_slot *s = &core->slots[slot];
			uint32_t next = s->next;

			core->tally->work.victims++;
			if (!ofs_slot_is_held(s)) {
				if (s->frequency == 0)
					return slot;
				s->frequency--;
				ofs_list_move(core, slot, MAIN);
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

	core->tenants[set >> 1].filled = 1;
	if (small >= small_target(core, set)) {
		slot = small_victim(core, set);
		return slot != OFS_NONE ? slot : main_victim(core, set);
	}
	slot = main_victim(core, set);
	return slot != OFS_NONE ? slot : small_victim(core, set);
}

static int
s3fifo_verify(const struct ofs_core *core, uint32_t tenant)
{
	const struct ofs_tenant *t = &core->tenants[tenant];

	CHECK(t->ghosts[OFS_GHOST_ONCE].count <= ghost_max(t), tenant);
	CHECK(t->ghosts[OFS_GHOST_OFTEN].count == 0, tenant);
	for (uint32_t i = t->slot_base; i < t->slot_base + t->slot_count; i++)
		CHECK(core->slots[i].state != OFS_SLOT_RESIDENT
				|| core->slots[i].frequency <= FREQUENCY_MAX,
			i);
	return 0;
}

const struct ofs_evict_ops ofs_evict_s3fifo = {
	.expect = s3fifo_expect,
	.add = s3fifo_add,
	.remove = s3fifo_remove,
	.use = s3fifo_use,
	.rescore = s3fifo_rescore,
	.victim = s3fifo_victim,
	.verify = s3fifo_verify,
};
