/*
 * evict.h: which block is evicted. What every eviction policy provides, and what the policies
 * share.
 *
 * Model: a resident slot is in one set of its tenant, and in one of the set's lists, from add to
 * remove. A policy owns only the order inside the set and its memory of evicted blocks (ghosts).
 * Nothing here can fail; OFS_NONE means that there is no victim.
 */
#ifndef OFS_CORE_EVICT_H
#define OFS_CORE_EVICT_H

#include "internal.h"

#pragma GCC visibility push(hidden)

/*
 * The same functions in the same order in every evict_*.c. Pinned and dirty slots stay in their set
 * and are stepped over.
 */
struct ofs_evict_ops {
	/* Called before a slot is taken for the block: for a demand or a write, else for a guess. */
	void (*expect)(struct ofs_core *core, uint32_t block, int demanded);
	void (*add)(struct ofs_core *core, uint32_t slot);
	void (*remove)(struct ofs_core *core, uint32_t slot, int evicted);
	void (*use)(struct ofs_core *core, uint32_t slot);           /* demanded */
	void (*rescore)(struct ofs_core *core, uint32_t slot);       /* its score changed */
	uint32_t (*victim)(struct ofs_core *core, uint32_t set);     /* OFS_NONE: all pinned */
	int (*verify)(const struct ofs_core *core, uint32_t tenant); /* 0 or -EFAULT */
};
extern const struct ofs_evict_ops ofs_evict_lru, ofs_evict_fifo, ofs_evict_random, ofs_evict_s3fifo,
	ofs_evict_score, ofs_evict_sieve, ofs_evict_lru_k, ofs_evict_arc;
const struct ofs_evict_ops *ofs_evict_of(uint32_t eviction);
/* The slot that leaves for a demand, or for the guess `candidate`; OFS_NONE if none may. */
uint32_t ofs_evict_victim(struct ofs_core *core, uint32_t tenant,
	const struct ofs_candidate *candidate);
void ofs_evict_open(struct ofs_core *core);
void ofs_evict_rebuild(struct ofs_core *core);
void ofs_evict_forget(struct ofs_core *core, uint32_t tenant);
int ofs_evict_verify(const struct ofs_core *core, uint32_t tenant);
void ofs_evict_move(struct ofs_core *core, uint32_t slot, uint32_t set);
void ofs_list_push(struct ofs_core *core, uint32_t slot, uint32_t bucket);
void ofs_list_remove(struct ofs_core *core, uint32_t slot);
void ofs_list_move(struct ofs_core *core, uint32_t slot, uint32_t bucket); /* to its tail */
uint32_t ofs_list_victim(const struct ofs_core *core, uint32_t set, uint32_t bucket);
uint32_t ofs_list_count(const struct ofs_core *core, uint32_t tenant, uint32_t bucket);

/* evict_ghost.c: evicted blocks that are remembered, at most two for each slot of the tenant. */
void ofs_ghost_open(struct ofs_core *core, uint32_t tenant);
void ofs_ghost_clear(struct ofs_core *core, uint32_t tenant);
void ofs_ghost_push(struct ofs_core *core, uint32_t block, uint32_t list);
int ofs_ghost_drop(struct ofs_core *core, uint32_t tenant, uint32_t list);
void ofs_ghost_forget(struct ofs_core *core, uint32_t block);
uint32_t ofs_ghost_expect(struct ofs_core *core, uint32_t block);
int ofs_ghost_returned(struct ofs_core *core, uint32_t block);
int ofs_ghost_verify(const struct ofs_core *core, uint32_t tenant);

#pragma GCC visibility pop

/* The order of a policy that needs more than a slot's own links: a list of nodes. */
static inline void
ofs_node_append(struct ofs_core *core, struct ofs_list *list, uint32_t node)
{
	struct ofs_node *n = &core->nodes[node];

	ofs_work_order(core, OFS_TABLE_ORDER, 2);
	n->next = OFS_NONE;
	n->prev = list->tail;
	if (list->tail != OFS_NONE)
		core->nodes[list->tail].next = node;
	else
		list->head = node;
	list->tail = node;
	list->count++;
}

static inline void
ofs_node_remove(struct ofs_core *core, struct ofs_list *list, uint32_t node)
{
	const struct ofs_node *n = &core->nodes[node];

	ofs_work_order(core, OFS_TABLE_ORDER, 3);
	assert(list->count > 0);
	if (n->next != OFS_NONE)
		core->nodes[n->next].prev = n->prev;
	else
		list->tail = n->prev;
	if (n->prev != OFS_NONE)
		core->nodes[n->prev].next = n->next;
	else
		list->head = n->next;
	list->count--;
}

#endif
