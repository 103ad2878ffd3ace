/* heap.c: events in the order of (time, sequence), bounded. */
#include "engine.h"

int
ofs_sim_push(struct ofs_sim_heap *heap, uint64_t time_ns, uint32_t kind, uint32_t layer,
	uint32_t id)
{
	struct ofs_sim_event event = {{time_ns, heap->sequence++}, (uint16_t)kind, (uint16_t)layer, id};

	if (heap->count == heap->max)
		return -ENOSPC;
	ofs_heap_up(heap->events, sizeof(event), heap->count++, &event, NULL, NULL);
	return 0;
}

struct ofs_sim_event
ofs_sim_pop(struct ofs_sim_heap *heap)
{
	struct ofs_sim_event first = heap->events[0], last = heap->events[--heap->count];

	ofs_heap_down(heap->events, sizeof(last), heap->count, 0, &last, NULL, NULL);
	return first;
}
