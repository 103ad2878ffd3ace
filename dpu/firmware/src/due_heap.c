/* Implements due_heap.h. */
#include "due_heap.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int
ofs_due_heap_open(struct ofs_due_heap *heap, uint32_t capacity)
{
	*heap = (struct ofs_due_heap){.capacity = capacity};
	heap->items = calloc(capacity, sizeof(heap->items[0]));
	return heap->items == NULL ? -ENOMEM : 0;
}

void
ofs_due_heap_close(struct ofs_due_heap *heap)
{
	free(heap->items);
	*heap = (struct ofs_due_heap){0};
}

void
ofs_due_heap_push(struct ofs_due_heap *heap, uint64_t due_ns, uint32_t slot)
{
	struct ofs_due item = {{due_ns, heap->sequence_next++}, slot};

	assert(heap->count < heap->capacity);
	ofs_heap_up(heap->items, sizeof(item), heap->count++, &item, NULL, NULL);
}

uint32_t
ofs_due_heap_pop(struct ofs_due_heap *heap)
{
	uint32_t slot = heap->items[0].slot;
	struct ofs_due last;

	assert(heap->count > 0);
	last = heap->items[--heap->count];
	ofs_heap_down(heap->items, sizeof(last), heap->count, 0, &last, NULL, NULL);
	return slot;
}
