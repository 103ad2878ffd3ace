/*
 * evict_sieve.c: SIEVE (Zhang et al., "SIEVE is simpler than LRU", NSDI 2024).
 *
 * Model: one list per set in the order of arrival, and a hand. A use marks the slot and moves
 * nothing. The hand moves from the oldest to the newest and around again, clears marks, and stops
 * at the first slot without one: the victim. The next search continues there. Held slots keep their
 * mark.
 */
#include "evict.h"
#include "self_check.h"

static void
sieve_expect(struct ofs_core *core, uint32_t block, int demanded)
{
	(void)core;
	(void)block;
	(void)demanded;
}

static void
sieve_add(struct ofs_core *core, uint32_t slot)
{
	ofs_list_push(core, slot, 0);
}

static void
sieve_remove(struct ofs_core *core, uint32_t slot, int evicted)
{
	struct ofs_evict_set *set = &core->evict_sets[core->slots[slot].set];

	(void)evicted;
	if (set->hand == slot)
		set->hand = core->slots[slot].next;
	ofs_list_remove(core, slot);
}

static void
sieve_use(struct ofs_core *core, uint32_t slot)
{
	core->slots[slot].frequency = 1;
}

static void
sieve_rescore(struct ofs_core *core, uint32_t slot)
{
	(void)core;
	(void)slot;
}

static uint32_t
sieve_victim(struct ofs_core *core, uint32_t set)
{
	const struct ofs_list *list = &core->lists[set * OFS_BUCKETS];
	uint32_t slot = core->evict_sets[set].hand;

	/* One round clears the mark of every slot that is not held: the second finds a victim. */
	for (uint64_t i = 2 * (uint64_t)list->count; i > 0; i--) {
		struct ofs_slot *s;

		if (slot == OFS_NONE)
			slot = list->head;
		s = &core->slots[slot];
		core->tally->work.victims++;
		if (!ofs_slot_is_held(s)) {
			if (s->frequency == 0) {
				core->evict_sets[set].hand = slot;
				return slot;
			}
			s->frequency = 0;
		}
		slot = s->next;
	}
	return OFS_NONE;
}

static int
sieve_verify(const struct ofs_core *core, uint32_t tenant)
{
	for (uint32_t set = tenant * 2; set < tenant * 2 + 2; set++) {
		uint32_t hand = core->evict_sets[set].hand;

		CHECK(hand == OFS_NONE
				|| (core->slots[hand].state == OFS_SLOT_RESIDENT && core->slots[hand].set == set),
			set);
		CHECK(core->lists[set * OFS_BUCKETS].count != 0 || hand == OFS_NONE, set);
	}
	return 0;
}

const struct ofs_evict_ops ofs_evict_sieve = {
	.expect = sieve_expect,
	.add = sieve_add,
	.remove = sieve_remove,
	.use = sieve_use,
	.rescore = sieve_rescore,
	.victim = sieve_victim,
	.verify = sieve_verify,
};
