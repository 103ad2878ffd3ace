/*
 * due_heap.h: a bounded binary heap of (time, sequence) -> slot, for the sides that know when an
 * I/O ends. Equal times leave in order of arrival.
 *
 * Model: owned by one storage; room for `capacity` entries, allocated at open. A push beyond it is
 * a bug of ours (assert). Nothing else can fail.
 */
#ifndef OFS_DUE_HEAP_H
#define OFS_DUE_HEAP_H

#include "heap.h"

struct ofs_due {
	struct ofs_heap_key key; /* due_ns, then in order of arrival */
	uint32_t slot;
};

struct ofs_due_heap {
	struct ofs_due *items;
	uint32_t count;
	uint32_t capacity;
	uint64_t sequence_next;
};

int ofs_due_heap_open(struct ofs_due_heap *heap, uint32_t capacity);
void ofs_due_heap_close(struct ofs_due_heap *heap);
void ofs_due_heap_push(struct ofs_due_heap *heap, uint64_t due_ns, uint32_t slot);
/* The slot of the earliest entry; the heap is not empty. */
uint32_t ofs_due_heap_pop(struct ofs_due_heap *heap);

/* Time of the earliest entry, UINT64_MAX when there is none. */
static inline uint64_t
ofs_due_heap_next_ns(const struct ofs_due_heap *heap)
{
	return heap->count > 0 ? heap->items[0].key.first : UINT64_MAX;
}

#endif
