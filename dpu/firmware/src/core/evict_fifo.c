/* evict_fifo.c: first staged, first out. One list per set; a use changes nothing. */
#include "evict.h"

static void
fifo_expect(struct ofs_core *core, uint32_t block, int demanded)
{
	(void)core;
	(void)block;
	(void)demanded;
}

static void
fifo_add(struct ofs_core *core, uint32_t slot)
{
	ofs_list_push(core, slot, 0);
}

static void
fifo_remove(struct ofs_core *core, uint32_t slot, int evicted)
{
	(void)evicted;
	ofs_list_remove(core, slot);
}

static void
fifo_use(struct ofs_core *core, uint32_t slot)
{
	(void)core;
	(void)slot;
}

static void
fifo_rescore(struct ofs_core *core, uint32_t slot)
{
	(void)core;
	(void)slot;
}

static uint32_t
fifo_victim(struct ofs_core *core, uint32_t set)
{
	return ofs_list_victim(core, set, 0);
}

static int
fifo_verify(const struct ofs_core *core, uint32_t tenant)
{
	(void)core;
	(void)tenant;
	return 0;
}

const struct ofs_evict_ops ofs_evict_fifo = {
	.expect = fifo_expect,
	.add = fifo_add,
	.remove = fifo_remove,
	.use = fifo_use,
	.rescore = fifo_rescore,
	.victim = fifo_victim,
	.verify = fifo_verify,
};
