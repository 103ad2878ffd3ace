/*
 * The index: (store key, layer) -> record. Open addressing over record numbers, at most half full,
 * with linear probing; removal shifts the following entries back, so there are no tombstones.
 */
#include "internal.h"

#include <assert.h>
#include <string.h>

static uint32_t
home_of(const struct ofs_store *store, const struct ofs_key *key, uint32_t layer)
{
	uint64_t mixed =
		key->lo ^ (key->hi * 0x9e3779b97f4a7c15ull) ^ ((uint64_t)layer * 0xd6e8feb86659fd93ull);

	mixed = (mixed ^ (mixed >> 32)) * 0xd6e8feb86659fd93ull;
	return (uint32_t)(mixed >> 32) & store->index_mask;
}

static uint32_t
layer_of(const struct ofs_store *store, uint32_t record)
{
	return store->segments[record / store->records_per_segment].layer;
}

/* The slot with the key, or the empty one where the search ended. */
static uint32_t
slot_of(const struct ofs_store *store, const struct ofs_key *key, uint32_t layer)
{
	uint32_t slot = home_of(store, key, layer);

	while (store->index[slot] != OFS_NONE) {
		uint32_t record = store->index[slot];

		if (ofs_key_equal(&store->records[record].key, key) && layer_of(store, record) == layer)
			break;
		slot = (slot + 1) & store->index_mask;
	}
	return slot;
}

uint32_t
ofs_store_index_find(const struct ofs_store *store, const struct ofs_key *key, uint32_t layer)
{
	return store->index[slot_of(store, key, layer)];
}

void
ofs_store_index_insert(struct ofs_store *store, uint32_t record)
{
	uint32_t slot = slot_of(store, &store->records[record].key, layer_of(store, record));

	assert(store->index[slot] == OFS_NONE);
	store->index[slot] = record;
}

void
ofs_store_index_replace(struct ofs_store *store, uint32_t record, uint32_t next)
{
	uint32_t slot = slot_of(store, &store->records[record].key, layer_of(store, record));

	assert(store->index[slot] == record);
	store->index[slot] = next;
}

void
ofs_store_index_remove(struct ofs_store *store, uint32_t record)
{
	uint32_t hole = slot_of(store, &store->records[record].key, layer_of(store, record));
	uint32_t slot = hole;

	assert(store->index[hole] == record);
	for (;;) {
		uint32_t follower;
		uint32_t home;

		slot = (slot + 1) & store->index_mask;
		follower = store->index[slot];
		if (follower == OFS_NONE)
			break;
		home = home_of(store, &store->records[follower].key, layer_of(store, follower));
		/* It may move back only if its home is not between the hole and itself. */
		if (((slot - home) & store->index_mask) >= ((slot - hole) & store->index_mask)) {
			store->index[hole] = follower;
			hole = slot;
		}
	}
	store->index[hole] = OFS_NONE;
}

void
ofs_store_index_clear(struct ofs_store *store)
{
	memset(store->index, 0xff, ((size_t)store->index_mask + 1) * sizeof(*store->index));
}
