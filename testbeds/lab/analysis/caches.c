/*
 * caches.c: least-recently-used caches over the same numbered blocks.
 *
 * Model: an entry is a block in a cache. Entries stand in one array, found by a hash table with
 * linear probing that is at most half full; what leaves is taken out by shifting back, so there are
 * no tombstones. Each cache is a ring of entries around a head of its own, the most recent first.
 */
#include <stdlib.h>
#include <string.h>

#include "ofs_caches.h"

#define TABLE_MIN 1024u
#define NOTHING UINT32_MAX

struct entry {
	uint32_t cache, block;
	uint32_t next, prev;
};

struct ofs_caches {
	struct entry *entries; /* the heads of all caches, then blocks */
	uint32_t *table;       /* entry, or NOTHING */
	uint64_t *room;
	uint64_t *held;
	uint64_t mask;
	uint32_t cache_count;
	uint32_t used, entry_max; /* entries ever used, and there is memory for */
	uint32_t free;            /* list of entries that left, by next */
	uint64_t live;
};

static uint64_t
hash_of(uint32_t cache, uint32_t block)
{
	uint64_t word = ((uint64_t)cache << 32 | block) + 0x9E3779B97F4A7C15u;

	word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
	word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
	return word ^ (word >> 31);
}

/* Where the entry stands in the table, or the empty place where it would. */
static uint64_t
place_of(const struct ofs_caches *c, uint32_t cache, uint32_t block)
{
	uint64_t at = hash_of(cache, block) & c->mask;

	for (; c->table[at] != NOTHING; at = (at + 1) & c->mask) {
		const struct entry *one = &c->entries[c->table[at]];

		if (one->cache == cache && one->block == block)
			break;
	}
	return at;
}

static void
ring_remove(struct ofs_caches *c, uint32_t number)
{
	struct entry *one = &c->entries[number];

	c->entries[one->prev].next = one->next;
	c->entries[one->next].prev = one->prev;
}

static void
ring_add(struct ofs_caches *c, uint32_t number)
{
	struct entry *one = &c->entries[number], *head = &c->entries[one->cache];

	one->prev = one->cache;
	one->next = head->next;
	c->entries[head->next].prev = number;
	head->next = number;
}

static void
table_remove(struct ofs_caches *c, uint64_t hole)
{
	for (uint64_t at = hole;;) {
		at = (at + 1) & c->mask;
		if (c->table[at] == NOTHING)
			break;
		const struct entry *one = &c->entries[c->table[at]];
		uint64_t wanted = hash_of(one->cache, one->block) & c->mask;

		/* It may stand in the hole if its own place is not between the hole and here. */
		if (((at - wanted) & c->mask) >= ((at - hole) & c->mask)) {
			c->table[hole] = c->table[at];
			hole = at;
		}
	}
	c->table[hole] = NOTHING;
}

static void
leave(struct ofs_caches *c, uint32_t number)
{
	struct entry *one = &c->entries[number];

	table_remove(c, place_of(c, one->cache, one->block));
	ring_remove(c, number);
	c->held[one->cache]--;
	c->live--;
	one->next = c->free;
	c->free = number;
}

static int
grow_table(struct ofs_caches *c)
{
	uint64_t size = 2 * (c->mask + 1), mask = size - 1;
	uint32_t *table = malloc(size * sizeof(*table));

	if (!table)
		return -ENOMEM;
	memset(table, 0xff, size * sizeof(*table));
	for (uint64_t i = 0; i <= c->mask; i++) {
		if (c->table[i] == NOTHING)
			continue;
		const struct entry *one = &c->entries[c->table[i]];
		uint64_t at = hash_of(one->cache, one->block) & mask;

		while (table[at] != NOTHING)
			at = (at + 1) & mask;
		table[at] = c->table[i];
	}
	free(c->table);
	c->table = table;
	c->mask = mask;
	return 0;
}

static int
entry_take(struct ofs_caches *c, uint32_t *number)
{
	if (c->free != NOTHING) {
		*number = c->free;
		c->free = c->entries[c->free].next;
		return 0;
	}
	if (c->used == c->entry_max) {
		if (c->entry_max > NOTHING / 2)
			return -ENOMEM;
		struct entry *more = realloc(c->entries, 2 * (size_t)c->entry_max * sizeof(*more));

		if (!more)
			return -ENOMEM;
		c->entries = more;
		c->entry_max *= 2;
	}
	*number = c->used++;
	return 0;
}

int
ofs_caches_open(struct ofs_caches **out, uint32_t cache_count, const uint64_t *room)
{
	struct ofs_caches *c;

	if (!cache_count || cache_count > UINT32_MAX / 8)
		return -EINVAL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->cache_count = cache_count;
	c->entry_max = cache_count + TABLE_MIN;
	c->mask = TABLE_MIN - 1;
	c->free = NOTHING;
	c->entries = malloc(c->entry_max * sizeof(*c->entries));
	c->table = malloc(TABLE_MIN * sizeof(*c->table));
	c->room = malloc(cache_count * sizeof(*c->room));
	c->held = calloc(cache_count, sizeof(*c->held));
	if (!c->entries || !c->table || !c->room || !c->held) {
		ofs_caches_close(c);
		return -ENOMEM;
	}
	memset(c->table, 0xff, TABLE_MIN * sizeof(*c->table));
	memcpy(c->room, room, cache_count * sizeof(*room));
	for (uint32_t i = 0; i < cache_count; i++)
		c->entries[i] = (struct entry){.cache = i, .next = i, .prev = i};
	c->used = cache_count;
	*out = c;
	return 0;
}

void
ofs_caches_close(struct ofs_caches *caches)
{
	if (!caches)
		return;
	free(caches->entries);
	free(caches->table);
	free(caches->room);
	free(caches->held);
	free(caches);
}

int64_t
ofs_caches_held(const struct ofs_caches *caches, uint32_t cache)
{
	return cache < caches->cache_count ? (int64_t)caches->held[cache] : -EINVAL;
}

int
ofs_caches_clear(struct ofs_caches *caches, uint32_t cache)
{
	if (cache >= caches->cache_count)
		return -EINVAL;
	while (caches->entries[cache].next != cache)
		leave(caches, caches->entries[cache].next);
	return 0;
}

int64_t
ofs_caches_find(const struct ofs_caches *caches, const uint32_t *at, const uint32_t *blocks,
	uint32_t count, uint8_t *found)
{
	int64_t leading = count;

	for (uint32_t i = 0; i < count; i++) {
		found[i] = at[i] < caches->cache_count
			&& caches->table[place_of(caches, at[i], blocks[i])] != NOTHING;
		if (!found[i] && leading > i)
			leading = i;
	}
	return leading;
}

int64_t
ofs_caches_use(struct ofs_caches *caches, const uint32_t *at, const uint32_t *blocks,
	uint32_t count)
{
	int64_t entered = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t cache = at[i], number;
		uint64_t place;

		if (cache == NOTHING)
			continue;
		if (cache >= caches->cache_count)
			return -EINVAL;
		if (!caches->room[cache])
			continue;
		place = place_of(caches, cache, blocks[i]);
		if (caches->table[place] != NOTHING) {
			number = caches->table[place];
			ring_remove(caches, number);
			ring_add(caches, number);
			continue;
		}
		if (caches->held[cache] == caches->room[cache])
			leave(caches, caches->entries[cache].prev);
		if (2 * (caches->live + 1) > caches->mask + 1 && grow_table(caches))
			return -ENOMEM;
		if (entry_take(caches, &number))
			return -ENOMEM;
		caches->entries[number].cache = cache;
		caches->entries[number].block = blocks[i];
		caches->table[place_of(caches, cache, blocks[i])] = number;
		ring_add(caches, number);
		caches->held[cache]++;
		caches->live++;
		entered++;
	}
	return entered;
}

void
ofs_caches_matched(const struct ofs_caches *caches, const uint32_t *blocks, uint32_t count,
	uint32_t *matched)
{
	for (uint32_t cache = 0; cache < caches->cache_count; cache++) {
		uint32_t i = 0;

		while (i < count && caches->table[place_of(caches, cache, blocks[i])] != NOTHING)
			i++;
		matched[cache] = i;
	}
}
