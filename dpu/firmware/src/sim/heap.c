/* heap.c: events in the order of (time, sequence), a binary heap of fixed size. */
#include "engine.h"

static int
goes_before(const struct ofs_sim_event *a, const struct ofs_sim_event *b)
{
	return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->sequence < b->sequence;
}

int
ofs_sim_push(struct ofs_sim_heap *heap, uint64_t time_ns, uint32_t kind, uint32_t id)
{
	struct ofs_sim_event event = {time_ns, heap->sequence++, kind, id};
	uint32_t place = heap->count;

	if (place == heap->max)
		return -ENOSPC;
	heap->count++;
	while (place > 0 && goes_before(&event, &heap->events[(place - 1) / 2])) {
		heap->events[place] = heap->events[(place - 1) / 2];
		place = (place - 1) / 2;
	}
	heap->events[place] = event;
	return 0;
}

struct ofs_sim_event
ofs_sim_pop(struct ofs_sim_heap *heap)
{
	struct ofs_sim_event first = heap->events[0], last = heap->events[--heap->count];
	uint32_t place = 0, child;

	while ((child = 2 * place + 1) < heap->count) {
		if (child + 1 < heap->count && goes_before(&heap->events[child + 1], &heap->events[child]))
			child++;
		if (!goes_before(&heap->events[child], &last))
			break;
		heap->events[place] = heap->events[child];
		place = child;
	}
	heap->events[place] = last;
	return first;
}
