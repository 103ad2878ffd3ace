/*
 * Values that recovery found: the tags of pieces, kept from open until the owner has taken
 * them. The store itself knows blocks only.
 */
#include "internal.h"

#include <stdlib.h>

#define VALUES_MIN 64

int
ofs_store_note_value(struct ofs_store *store, uint32_t record, const struct ofs_value_tag *tag)
{
	struct ofs_store_found *found;

	if (store->value_count == store->value_max) {
		uint32_t max = store->value_max == 0 ? VALUES_MIN : 2 * store->value_max;

		found = realloc(store->values, max * sizeof(*found));
		if (found == NULL)
			return -ENOMEM;
		store->values = found;
		store->value_max = max;
	}
	store->values[store->value_count++] = (struct ofs_store_found){.record = record,
		.generation = tag->generation,
		.length = tag->length,
		.key = tag->key};
	found = &store->values[store->value_count - 1];
	if (ofs_value_tag_has_name(tag)) {
		found->name_bytes = tag->name_bytes;
		found->name = tag->name;
	}
	return 0;
}

static int
by_key(const void *left, const void *right)
{
	const struct ofs_store_found *a = left, *b = right;

	if (a->key.lo != b->key.lo)
		return a->key.lo < b->key.lo ? -1 : 1;
	if (a->key.hi != b->key.hi)
		return a->key.hi < b->key.hi ? -1 : 1;
	return a->generation < b->generation ? -1 : a->generation > b->generation;
}

void
ofs_store_doubt_values(struct ofs_store *store)
{
	uint32_t first = 0;

	if (store->value_count == 0)
		return;
	qsort(store->values, store->value_count, sizeof(*store->values), by_key);
	for (uint32_t i = 1; i <= store->value_count; i++) {
		if (i < store->value_count
			&& ofs_key_equal(&store->values[i].key, &store->values[first].key))
			continue;
		for (uint32_t j = first;
			 store->values[first].generation != store->values[i - 1].generation && j < i; j++)
			store->records[store->values[j].record].doubted = 1;
		first = i;
	}
}

static uint32_t
tenant_of(const struct ofs_store *store, uint32_t record)
{
	return store->segments[record / store->records_per_segment].tenant;
}

int
ofs_store_take_values(struct ofs_store *store, uint32_t tenant, struct ofs_store_value *values,
	int max)
{
	uint32_t kept = 0;
	int count = 0;

	for (uint32_t i = 0; i < store->value_count; i++) {
		const struct ofs_store_found *found = &store->values[i];
		const struct ofs_store_record *record = &store->records[found->record];

		if (record->state != OFS_RECORD_LIVE)
			continue;
		if (count == max || tenant_of(store, found->record) != tenant) {
			store->values[kept++] = *found;
			continue;
		}
		values[count++] = (struct ofs_store_value){.key = found->key,
			.store_key = record->key,
			.name = found->name,
			.name_bytes = found->name_bytes,
			.length = found->length,
			.generation = found->generation};
	}
	store->value_count = kept;
	if (kept == 0) {
		free(store->values);
		store->values = NULL;
		store->value_max = 0;
	}
	return count;
}
