/*
 * evict_score.c: least probable demand first, least recently used among equals.
 *
 * Model: a score is the number of one of OFS_BUCKETS lists, and a bitmap says which lists have
 * slots, so that a change of score and the search for a victim cost a constant.
 */
#include "evict.h"

static void
score_expect(struct ofs_core *core, uint32_t block, int demanded)
{
	(void)core;
	(void)block;
	(void)demanded;
}

static void
score_add(struct ofs_core *core, uint32_t slot)
{
	ofs_list_push(core, slot, core->slots[slot].score);
}

static void
score_remove(struct ofs_core *core, uint32_t slot, int evicted)
{
	(void)evicted;
	ofs_list_remove(core, slot);
}

static void
score_use(struct ofs_core *core, uint32_t slot)
{
	if (core->slots[slot].next == OFS_NONE)
		return;
	ofs_list_move(core, slot, core->slots[slot].bucket);
}

static void
score_rescore(struct ofs_core *core, uint32_t slot)
{
	uint32_t bucket = core->slots[slot].score;

	if (core->slots[slot].bucket == bucket)
		return;
	ofs_list_move(core, slot, bucket);
}

static uint32_t
score_victim(struct ofs_core *core, uint32_t set)
{
	const uint64_t *occupied = core->occupied + set * (OFS_BUCKETS / 64);

	for (uint32_t word = 0; word < OFS_BUCKETS / 64; word++) {
		for (uint64_t bits = occupied[word]; bits; bits &= bits - 1) {
			uint32_t bucket = word * 64 + (uint32_t)__builtin_ctzll(bits);
			uint32_t slot = ofs_list_victim(core, set, bucket);

			if (slot != OFS_NONE)
				return slot;
		}
	}
	return OFS_NONE;
}

static int
score_verify(const struct ofs_core *core, uint32_t tenant)
{
	(void)core;
	(void)tenant;
	return 0;
}

const struct ofs_evict_ops ofs_evict_score = {
	.expect = score_expect,
	.add = score_add,
	.remove = score_remove,
	.use = score_use,
	.rescore = score_rescore,
	.victim = score_victim,
	.verify = score_verify,
};
