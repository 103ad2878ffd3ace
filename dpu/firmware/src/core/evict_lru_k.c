/*
 * evict_lru_k.c: LRU-K with K = 2 (O'Neil, O'Neil, Weikum, SIGMOD 1993): evicts the block whose
 * second-to-last use is the oldest; before any of those, the oldest block that was used only once.
 *
 * Model: every use of a resident block has a node, the last one and the one before it, and the
 * nodes of a set are one list in the order of time. A further use drops the older node, so that the
 * newer becomes the older in its position, and appends a new one: no search, no heap. The victim is
 * the first older node from the front; the nodes before it belong to held slots. The history of a
 * block ends with its eviction. A guess does not count as a use: it has no node until a demand hits
 * it.
 */
#include "evict.h"
#include "self_check.h"

#define ONCE 0
#define TWICE 1
#define USES_MAX 2

static inline uint32_t
newer_of(const struct ofs_core *core, uint32_t slot)
{
	return 2 * slot + core->slots[slot].position;
}

static inline uint32_t
older_of(const struct ofs_core *core, uint32_t slot)
{
	return 2 * slot + (core->slots[slot].position ^ 1);
}

static void
lru_k_expect(struct ofs_core *core, uint32_t block, int demanded)
{
	(void)core;
	(void)block;
	(void)demanded;
}

/* A block from the other set keeps its number of uses; they are dated now. */
static void
lru_k_add(struct ofs_core *core, uint32_t slot)
{
	struct ofs_slot *s = &core->slots[slot];

	if (s->frequency == 0 && !(s->flags & OFS_FLAG_FRESH))
		s->frequency = 1;
	s->position = 0;
	if (s->frequency == USES_MAX)
		ofs_node_append(core, &core->evict_sets[s->set].references, older_of(core, slot));
	if (s->frequency > 0)
		ofs_node_append(core, &core->evict_sets[s->set].references, newer_of(core, slot));
	ofs_list_push(core, slot, s->frequency == USES_MAX ? TWICE : ONCE);
}

static void
lru_k_remove(struct ofs_core *core, uint32_t slot, int evicted)
{
	const struct ofs_slot *s = &core->slots[slot];

	(void)evicted;
	if (s->frequency > 0)
		ofs_node_remove(core, &core->evict_sets[s->set].references, newer_of(core, slot));
	if (s->frequency == USES_MAX)
		ofs_node_remove(core, &core->evict_sets[s->set].references, older_of(core, slot));
	ofs_list_remove(core, slot);
}

static void
lru_k_use(struct ofs_core *core, uint32_t slot)
{
	struct ofs_slot *s = &core->slots[slot];

	if (s->frequency == USES_MAX)
		ofs_node_remove(core, &core->evict_sets[s->set].references, older_of(core, slot));
	else
		ofs_list_move(core, slot, s->frequency++ == 0 ? ONCE : TWICE);
	s->position ^= 1;
	ofs_node_append(core, &core->evict_sets[s->set].references, newer_of(core, slot));
}

static void
lru_k_rescore(struct ofs_core *core, uint32_t slot)
{
	(void)core;
	(void)slot;
}

static uint32_t
lru_k_victim(struct ofs_core *core, uint32_t set)
{
	uint32_t slot = ofs_list_victim(core, set, ONCE);
	uint32_t node = core->evict_sets[set].references.head;

	if (slot != OFS_NONE)
		return slot;
	for (; node != OFS_NONE; node = core->nodes[node].next) {
		const struct ofs_slot *s = &core->slots[node / 2];

		core->tally->work.victims++;
		if (s->frequency == USES_MAX && node == older_of(core, node / 2) && !ofs_slot_is_held(s))
			return node / 2;
	}
	return OFS_NONE;
}

static int
lru_k_verify(const struct ofs_core *core, uint32_t tenant)
{
	for (uint32_t set = tenant * 2; set < tenant * 2 + 2; set++) {
		const struct ofs_list *list = &core->evict_sets[set].references;
		const struct ofs_list *lists = &core->lists[set * OFS_BUCKETS];
		uint32_t before = OFS_NONE, count = 0, olders = 0;

		for (uint32_t n = list->head; n != OFS_NONE; n = core->nodes[n].next) {
			const struct ofs_slot *s = &core->slots[n / 2];
			int newer = n == newer_of(core, n / 2);

			CHECK(s->state == OFS_SLOT_RESIDENT && s->set == set, n);
			CHECK(s->frequency >= (newer ? 1 : USES_MAX), n);
			CHECK((s->bucket == TWICE) == (s->frequency == USES_MAX), n);
			CHECK(core->nodes[n].prev == before, n);
			CHECK(++count <= list->count, set);
			olders += !newer;
			before = n;
		}
		CHECK(count == list->count && list->tail == before, set);
		CHECK(olders == lists[TWICE].count, set);
		CHECK(count - 2 * olders <= lists[ONCE].count, set); /* the rest are guesses */
	}
	return 0;
}

const struct ofs_evict_ops ofs_evict_lru_k = {
	.expect = lru_k_expect,
	.add = lru_k_add,
	.remove = lru_k_remove,
	.use = lru_k_use,
	.rescore = lru_k_rescore,
	.victim = lru_k_victim,
	.verify = lru_k_verify,
};
