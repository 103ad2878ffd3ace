/*
 * heap4.h: the scheduled events, the earliest first.
 *
 * Model: a heap with four children per node over an array allocated at open; the bound is known,
 * so a full heap is a programming error. A key is (time, order); an order has the class of the
 * event in its high bits and a sequence number below, so no two are equal and the output does not
 * depend on the shape of the heap. Four children: half the levels of two, and the four compared
 * keys are adjacent.
 *
 * In front of the heap are the next few events, in order, each earlier than all of the heap: most
 * events are due so soon that they never enter the heap. While anything is scheduled, the front is
 * not empty.
 */
#ifndef OFS_CHIP_HEAP4_H
#define OFS_CHIP_HEAP4_H

#include <stdint.h>
#include <string.h>

struct chip_event {
	uint64_t at_ps;
	uint64_t order;
	uint32_t what;
	uint32_t index;
};

#define CHIP_FRONT_MAX 8

struct chip_heap {
	struct chip_event *events;
	uint32_t count; /* in `events` */
	uint32_t max;   /* scheduled events, including the front */
	uint32_t front_count;
	struct chip_event front[CHIP_FRONT_MAX]; /* the earliest is the last */
};

static inline int
chip_event_before(const struct chip_event *a, const struct chip_event *b)
{
	return a->at_ps != b->at_ps ? a->at_ps < b->at_ps : a->order < b->order;
}

static inline void
chip_heap_sift_up(struct chip_heap *heap, struct chip_event event)
{
	struct chip_event *events = heap->events;
	uint32_t hole = heap->count++;

	while (hole > 0 && chip_event_before(&event, &events[(hole - 1) / 4])) {
		events[hole] = events[(hole - 1) / 4];
		hole = (hole - 1) / 4;
	}
	events[hole] = event;
}

static inline struct chip_event
chip_heap_take_root(struct chip_heap *heap)
{
	struct chip_event *events = heap->events;
	struct chip_event first = events[0], last = events[--heap->count];
	uint32_t count = heap->count, hole = 0, child, best;

	while ((child = 4 * hole + 1) < count) {
		best = child;
		for (uint32_t i = child + 1; i < count && i < child + 4; i++)
			if (chip_event_before(&events[i], &events[best]))
				best = i;
		if (!chip_event_before(&events[best], &last))
			break;
		events[hole] = events[best];
		hole = best;
	}
	events[hole] = last;
	return first;
}

static inline void
chip_heap_push(struct chip_heap *heap, struct chip_event event)
{
	uint32_t at = heap->front_count;

	if (heap->count && chip_event_before(&heap->events[0], &event)) {
		chip_heap_sift_up(heap, event);
		return;
	}
	if (at == CHIP_FRONT_MAX) {
		if (chip_event_before(&heap->front[0], &event)) {
			chip_heap_sift_up(heap, event);
			return;
		}
		chip_heap_sift_up(heap, heap->front[0]);
		memmove(heap->front, heap->front + 1, (CHIP_FRONT_MAX - 1) * sizeof(event));
		at--;
	} else {
		heap->front_count++;
	}
	for (; at > 0 && chip_event_before(&heap->front[at - 1], &event); at--)
		heap->front[at] = heap->front[at - 1];
	heap->front[at] = event;
}

/* Removes the earliest event. At least one must be scheduled. */
static inline struct chip_event
chip_heap_pop(struct chip_heap *heap)
{
	struct chip_event first = heap->front[--heap->front_count];

	if (heap->front_count == 0 && heap->count)
		heap->front[heap->front_count++] = chip_heap_take_root(heap);
	return first;
}

/* The time of the earliest event; UINT64_MAX: nothing is scheduled. */
static inline uint64_t
chip_heap_next_ps(const struct chip_heap *heap)
{
	return heap->front_count ? heap->front[heap->front_count - 1].at_ps : UINT64_MAX;
}

#endif
