/* The heap of due_heap.h. */
#include "due_heap.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static int
due_before(const struct ofs_due *a, const struct ofs_due *b)
{
	return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->sequence < b->sequence;
}

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
	struct ofs_due item = {due_ns, heap->sequence_next++, slot};
	uint32_t at = heap->count++;

	assert(heap->count <= heap->capacity);
	while (at > 0 && due_before(&item, &heap->items[(at - 1) / 2])) {
		heap->items[at] = heap->items[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap->items[at] = item;
}

uint32_t
ofs_due_heap_pop(struct ofs_due_heap *heap)
{
	uint32_t slot = heap->items[0].slot;
	struct ofs_due item;
	uint32_t at = 0;

	assert(heap->count > 0);
	item = heap->items[--heap->count];
	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child >= heap->count)
			break;
		if (child + 1 < heap->count && due_before(&heap->items[child + 1], &heap->items[child]))
			child++;
		if (!due_before(&heap->items[child], &item))
			break;
		heap->items[at] = heap->items[child];
		at = child;
	}
	heap->items[at] = item;
	return slot;
}
