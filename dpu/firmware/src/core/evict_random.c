/*
 * evict_random.c: any slot of the set, by a counter-based generator from the configured seed.
 *
 * Model: each set is an unordered array of its slots; removal fills the gap with the last one. The
 * arrays of set 0 and set 1 of a tenant are at the offset of its slots in two arrays of slot_count.
 * The list count of bucket 0 is the size of the set. If the drawn slot is held, the next one in the
 * array that is not held is evicted.
 */
#include "evict.h"

static uint32_t *
array_of(const struct ofs_core *core, uint32_t set)
{
	return core->random_slots + (size_t)(set & 1) * core->config.slot_count
		+ core->tenants[set >> 1].slot_base;
}

static void
random_expect(struct ofs_core *core, uint32_t block, int demanded)
{
	(void)core;
	(void)block;
	(void)demanded;
}

static void
random_add(struct ofs_core *core, uint32_t slot)
{
	struct ofs_slot *s = &core->slots[slot];
	struct ofs_list *list = &core->lists[s->set * OFS_BUCKETS];

	ofs_work_order(core, OFS_TABLE_SLOT, 1);
	assert(list->count < core->tenants[s->set >> 1].slot_count);
	s->position = list->count;
	array_of(core, s->set)[list->count++] = slot;
}

static void
random_remove(struct ofs_core *core, uint32_t slot, int evicted)
{
	const struct ofs_slot *s = &core->slots[slot];
	uint32_t *array = array_of(core, s->set);
	uint32_t last = array[--core->lists[s->set * OFS_BUCKETS].count];

	(void)evicted;
	ofs_work_order(core, OFS_TABLE_SLOT, 2);
	assert(array[s->position] == slot);
	array[s->position] = last;
	core->slots[last].position = s->position;
}

static void
random_use(struct ofs_core *core, uint32_t slot)
{
	(void)core;
	(void)slot;
}

static void
random_rescore(struct ofs_core *core, uint32_t slot)
{
	(void)core;
	(void)slot;
}

static uint32_t
random_below(struct ofs_core *core, uint32_t limit)
{
	uint64_t x = ofs_mix(core->config.seed + ++core->random_count * 0x9e3779b97f4a7c15ull);

	return (uint32_t)(((x >> 32) * limit) >> 32);
}

static uint32_t
random_victim(struct ofs_core *core, uint32_t set)
{
	const uint32_t *array = array_of(core, set);
	uint32_t count = core->lists[set * OFS_BUCKETS].count;
	uint32_t position;

	if (count == 0)
		return OFS_NONE;
	position = random_below(core, count);
	for (uint32_t i = 0; i < count; i++) {
		core->tally->work.victims++;
		if (!ofs_slot_is_held(&core->slots[array[position]]))
			return array[position];
		position = position + 1 == count ? 0 : position + 1;
	}
	return OFS_NONE;
}

static int
random_verify(const struct ofs_core *core, uint32_t tenant)
{
	(void)core;
	(void)tenant;
	return 0;
}

const struct ofs_evict_ops ofs_evict_random = {
	.expect = random_expect,
	.add = random_add,
	.remove = random_remove,
	.use = random_use,
	.rescore = random_rescore,
	.victim = random_victim,
	.verify = random_verify,
};
