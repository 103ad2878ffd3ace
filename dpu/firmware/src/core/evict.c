/*
 * evict.c: which block is evicted, and what the policies share: lists, a change of set.
 *
 * Model: every tenant has two sets of resident slots: 0, blocks that no generating session refers
 * to, and 1, the rest. Victims come from set 0 while it has an unpinned slot. A set has OFS_BUCKETS
 * lists; a policy uses as many of them as it needs. The head is the next victim.
 */
#include "evict.h"

static inline struct ofs_list *
list_of(const struct ofs_core *core, uint32_t set, uint32_t bucket)
{
	return &core->lists[set * OFS_BUCKETS + bucket];
}

static inline void
list_push(struct ofs_core *core, uint32_t slot, uint32_t bucket)
{
	struct ofs_slot *s = &core->slots[slot];
	struct ofs_list *list = list_of(core, s->set, bucket);

	ofs_work_order(core, OFS_TABLE_SLOT, 2);
	s->bucket = bucket;
	s->next = OFS_NONE;
	s->prev = list->tail;
	if (list->tail != OFS_NONE) {
		core->slots[list->tail].next = slot;
	} else {
		list->head = slot;
		core->occupied[s->set * (OFS_BUCKETS / 64) + bucket / 64] |= 1ull << (bucket % 64);
	}
	list->tail = slot;
	list->count++;
}

static inline void
list_remove(struct ofs_core *core, uint32_t slot)
{
	const struct ofs_slot *s = &core->slots[slot];
	struct ofs_list *list = list_of(core, s->set, s->bucket);

	ofs_work_order(core, OFS_TABLE_SLOT, 3);
	if (s->next != OFS_NONE)
		core->slots[s->next].prev = s->prev;
	else
		list->tail = s->prev;
	if (s->prev != OFS_NONE)
		core->slots[s->prev].next = s->next;
	else
		list->head = s->next;
	if (--list->count == 0)
		core->occupied[s->set * (OFS_BUCKETS / 64) + s->bucket / 64] &= ~(1ull << (s->bucket % 64));
}

void
ofs_list_push(struct ofs_core *core, uint32_t slot, uint32_t bucket)
{
	list_push(core, slot, bucket);
}

void
ofs_list_remove(struct ofs_core *core, uint32_t slot)
{
	assert(list_of(core, core->slots[slot].set, core->slots[slot].bucket)->count > 0);
	list_remove(core, slot);
}

void
ofs_list_move(struct ofs_core *core, uint32_t slot, uint32_t bucket)
{
	list_remove(core, slot);
	list_push(core, slot, bucket);
}

/* First slot of the list that may be evicted. The walk is bounded by the number of held slots. */
uint32_t
ofs_list_victim(const struct ofs_core *core, uint32_t set, uint32_t bucket)
{
	uint32_t slot = list_of(core, set, bucket)->head, passed = 0;

	for (; slot != OFS_NONE && ofs_slot_is_held(&core->slots[slot]); passed++)
		slot = core->slots[slot].next;
	core->tally->work.victims += passed + (slot != OFS_NONE);
	return slot;
}

/* The tenant's slots in that list, in both sets. */
uint32_t
ofs_list_count(const struct ofs_core *core, uint32_t tenant, uint32_t bucket)
{
	return list_of(core, tenant * 2, bucket)->count + list_of(core, tenant * 2 + 1, bucket)->count;
}

const struct ofs_evict_ops *
ofs_evict_of(uint32_t eviction)
{
	static const struct ofs_evict_ops *const policies[OFS_EVICT_COUNT] = {
		[OFS_EVICT_LRU] = &ofs_evict_lru,
		[OFS_EVICT_FIFO] = &ofs_evict_fifo,
		[OFS_EVICT_RANDOM] = &ofs_evict_random,
		[OFS_EVICT_S3FIFO] = &ofs_evict_s3fifo,
		[OFS_EVICT_SCORE] = &ofs_evict_score,
		[OFS_EVICT_SIEVE] = &ofs_evict_sieve,
		[OFS_EVICT_LRU_K] = &ofs_evict_lru_k,
		[OFS_EVICT_ARC] = &ofs_evict_arc,
	};

	assert(eviction < OFS_EVICT_COUNT);
	return policies[eviction];
}

/*
 * A guess costs a read, and a wrong guess also costs the block it displaces, so it must be four
 * times as likely to be demanded as that block. A host's guess names the step: if it is right, the
 * demand would soon have displaced the same block, so only its odds count. The core's own chance is
 * that of a demand within many steps.
 */
static int
guess_is_worth(const struct ofs_core *core, const struct ofs_candidate *candidate, uint32_t slot)
{
	uint32_t bucket = candidate->hinted ? ofs_odds_bucket(candidate->probability)
										: ofs_chance_bucket(candidate->probability);

	return bucket >= core->slots[slot].score + 2 * OFS_OCTAVE;
}

uint32_t
ofs_evict_victim(struct ofs_core *core, uint32_t tenant, const struct ofs_candidate *candidate)
{
	uint32_t slot = core->evict->victim(core, tenant * 2);

	if (slot != OFS_NONE)
		return slot;
	slot = core->evict->victim(core, tenant * 2 + 1);
	if (slot != OFS_NONE && candidate != NULL && core->policy.eviction == OFS_EVICT_SCORE
		&& !guess_is_worth(core, candidate, slot))
		return OFS_NONE;
	return slot;
}

/* No set has a slot. */
void
ofs_evict_open(struct ofs_core *core)
{
	static const struct ofs_list empty = {OFS_NONE, OFS_NONE, 0};

	for (uint32_t i = 0; i < core->config.tenant_max * 2 * OFS_BUCKETS; i++)
		core->lists[i] = empty;
	for (uint32_t i = 0; i < core->config.tenant_max * 2; i++)
		core->evict_sets[i] = (struct ofs_evict_set){empty, OFS_NONE};
	memset(core->occupied, 0, (size_t)core->config.tenant_max * 2 * (OFS_BUCKETS / 8));
}

/* What was learnt from evicted blocks is lost. */
void
ofs_evict_forget(struct ofs_core *core, uint32_t tenant)
{
	struct ofs_tenant *t = &core->tenants[tenant];

	ofs_ghost_clear(core, tenant);
	t->arc_target = 0;
	t->arc_often = 0;
	t->filled = 0;
}

/* The policy changed: its structures are rebuilt, with slots in the order of their numbers. */
void
ofs_evict_rebuild(struct ofs_core *core)
{
	ofs_evict_open(core);
	for (uint32_t tenant = 0; tenant < core->tenant_count; tenant++)
		ofs_evict_forget(core, tenant);
	for (uint32_t slot = 0; slot < core->config.slot_count; slot++) {
		struct ofs_slot *s = &core->slots[slot];

		s->score = 0;
		s->owner = OFS_NONE;
		s->flags &= (uint8_t)~OFS_FLAG_LIFTED;
		if (s->state != OFS_SLOT_RESIDENT)
			continue;
		s->frequency = 0;
		s->bucket = 0;
		if (core->policy.eviction == OFS_EVICT_SCORE)
			ofs_score_arrive(core, slot);
		core->evict->add(core, slot);
	}
}

/* A block that changes sets becomes the last of its new one. */
void
ofs_evict_move(struct ofs_core *core, uint32_t slot, uint32_t set)
{
	assert(core->slots[slot].state == OFS_SLOT_RESIDENT);
	core->evict->remove(core, slot, 0);
	core->slots[slot].set = set;
	core->evict->add(core, slot);
}

int
ofs_evict_verify(const struct ofs_core *core, uint32_t tenant)
{
	return ofs_ghost_verify(core, tenant) || core->evict->verify(core, tenant) ? -EFAULT : 0;
}
