/*
 * heap.h: the one binary heap, over an array of the caller.
 *
 * Model: every item begins with its key; the lowest key is at position 0. A key has two numbers, so
 * that the second orders items with the same first: a sequence number, for order of arrival. The
 * caller keeps the count and bounds it. `moved` is called with every position that an item takes,
 * for a caller that must find items again; or it is NULL. All of it is inlined, with the size and
 * `moved` known: it costs no more than a heap written by hand. Nothing can fail.
 */
#ifndef OFS_HEAP_H
#define OFS_HEAP_H

#include <stdint.h>
#include <string.h>

struct ofs_heap_key {
	uint64_t first, second;
};

typedef void ofs_heap_moved(void *owner, const void *item, uint32_t position);

#define OFS_HEAP_INLINE static inline __attribute__((always_inline))

OFS_HEAP_INLINE int
ofs_heap_before(const void *a, const void *b)
{
	const struct ofs_heap_key *x = (const struct ofs_heap_key *)a;
	const struct ofs_heap_key *y = (const struct ofs_heap_key *)b;

	return x->first != y->first ? x->first < y->first : x->second < y->second;
}

OFS_HEAP_INLINE void
ofs_heap_set(void *items, size_t size, uint32_t position, const void *item, ofs_heap_moved *moved,
	void *owner)
{
	memcpy((char *)items + position * size, item, size);
	if (moved)
		moved(owner, item, position);
}

/* The position is a hole: the item goes there or towards the end. It is not part of the array. */
OFS_HEAP_INLINE void
ofs_heap_down(void *items, size_t size, uint32_t count, uint32_t position, const void *item,
	ofs_heap_moved *moved, void *owner)
{
	char *base = (char *)items;
	uint32_t child;

	while ((child = 2 * position + 1) < count) {
		if (child + 1 < count && ofs_heap_before(base + (child + 1) * size, base + child * size))
			child++;
		if (!ofs_heap_before(base + child * size, item))
			break;
		ofs_heap_set(items, size, position, base + child * size, moved, owner);
		position = child;
	}
	ofs_heap_set(items, size, position, item, moved, owner);
}

/* The same, towards the root; returns its position. */
OFS_HEAP_INLINE uint32_t
ofs_heap_up(void *items, size_t size, uint32_t position, const void *item, ofs_heap_moved *moved,
	void *owner)
{
	char *base = (char *)items;

	while (position > 0 && ofs_heap_before(item, base + (position - 1) / 2 * size)) {
		ofs_heap_set(items, size, position, base + (position - 1) / 2 * size, moved, owner);
		position = (position - 1) / 2;
	}
	ofs_heap_set(items, size, position, item, moved, owner);
	return position;
}

#endif
