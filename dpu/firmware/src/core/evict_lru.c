/* evict_lru.c: least recently used first. One list per set; a use moves the slot to its tail. */
#include "evict.h"

static void
lru_expect(struct ofs_core *core, uint32_t block, int demanded)
{
	(void)core;
	(void)block;
	(void)demanded;
}

static void
lru_add(struct ofs_core *core, uint32_t slot)
{
	ofs_list_push(core, slot, 0);
}

static void
lru_remove(struct ofs_core *core, uint32_t slot, int evicted)
{
	(void)evicted;
	ofs_list_remove(core, slot);
}

static void
lru_use(struct ofs_core *core, uint32_t slot)
{
	if (core->slots[slot].next == OFS_NONE)
		return;
	ofs_list_move(core, slot, 0);
}

static void
lru_rescore(struct ofs_core *core, uint32_t slot)
{
	(void)core;
	(void)slot;
}

static uint32_t
lru_victim(struct ofs_core *core, uint32_t set)
{
	return ofs_list_victim(core, set, 0);
}

static int
lru_verify(const struct ofs_core *core, uint32_t tenant)
{
	(void)core;
	(void)tenant;
	return 0;
}

const struct ofs_evict_ops ofs_evict_lru = {
	.expect = lru_expect,
	.add = lru_add,
	.remove = lru_remove,
	.use = lru_use,
	.rescore = lru_rescore,
	.victim = lru_victim,
	.verify = lru_verify,
};
