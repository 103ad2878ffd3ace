/*
 * The table of values, from key to chunk, and what sessions of values may do. Linear probing; an
 * entry that leaves is filled by those behind it, so that no search passes over a gap.
 */
#include "device/value_table.h"

#include "internal.h"

uint32_t
ofs_value_home(const struct ofs_values *values, uint32_t tenant, const struct ofs_key *key)
{
	uint64_t mixed = (key->lo ^ tenant) * 0x9e3779b97f4a7c15ull ^ key->hi;

	return (uint32_t)(mixed * 0xc2b2ae3d27d4eb4full >> 32) & values->mask;
}

struct ofs_value *
ofs_value_find(const struct ofs_values *values, uint32_t tenant, const struct ofs_key *key)
{
	if (values->entries == NULL)
		return NULL;
	for (uint32_t i = ofs_value_home(values, tenant, key);; i = (i + 1) & values->mask) {
		struct ofs_value *entry = &values->entries[i];

		if (entry->name.generation == 0)
			return NULL;
		if (entry->tenant == tenant && ofs_key_equal(&entry->name.key, key))
			return entry;
	}
}

struct ofs_value *
ofs_value_insert(struct ofs_values *values, const struct ofs_value *value)
{
	uint32_t i = ofs_value_home(values, value->tenant, &value->name.key);

	assert(value->name.generation != 0 && values->count < values->mask);
	while (values->entries[i].name.generation != 0)
		i = (i + 1) & values->mask;
	values->entries[i] = *value;
	values->entries[i].list = OFS_LIST_NONE;
	values->count++;
	return &values->entries[i];
}

/* Of the entry's neighbours in its list, the one before it is followed by `before`, and the one
 * behind it comes after `after`. */
static void
link_at(struct ofs_values *values, const struct ofs_value *entry, uint32_t before, uint32_t after)
{
	if (entry->list == OFS_LIST_NONE)
		return;
	if (entry->previous == OFS_NONE)
		values->firsts[entry->list] = before;
	else
		values->entries[entry->previous].next = before;
	if (entry->next == OFS_NONE)
		values->lasts[entry->list] = after;
	else
		values->entries[entry->next].previous = after;
}

void
ofs_value_enlist(struct ofs_values *values, struct ofs_value *entry, enum ofs_value_list list)
{
	uint32_t i = (uint32_t)(entry - values->entries);

	link_at(values, entry, entry->next, entry->previous);
	values->noted += (list != OFS_LIST_NONE) - (uint32_t)(entry->list != OFS_LIST_NONE);
	entry->list = (uint8_t)list;
	if (list == OFS_LIST_NONE)
		return;
	entry->previous = values->lasts[list];
	entry->next = OFS_NONE;
	link_at(values, entry, i, i);
}

void
ofs_value_remove(struct ofs_values *values, struct ofs_value *entry)
{
	uint32_t gap = (uint32_t)(entry - values->entries);

	assert(entry->name.generation != 0 && values->count > 0);
	ofs_value_enlist(values, entry, OFS_LIST_NONE);
	values->count--;
	for (uint32_t i = (gap + 1) & values->mask; values->entries[i].name.generation != 0;
		 i = (i + 1) & values->mask) {
		const struct ofs_value *next = &values->entries[i];
		uint32_t home = ofs_value_home(values, next->tenant, &next->name.key);

		/* It may not move before its home: from there on a search would miss it. */
		if (((i - home) & values->mask) >= ((i - gap) & values->mask)) {
			link_at(values, next, gap, gap);
			values->entries[gap] = *next;
			gap = i;
		}
	}
	values->entries[gap] = (struct ofs_value){0};
}

const struct ofs_value_name *
ofs_device_value_of(const struct ofs_device *device, uint32_t session)
{
	return &device->sessions.entries[session].value;
}

bool
ofs_device_is_piece(const struct ofs_device *device, const struct ofs_sqe *sqe)
{
	const struct ofs_device_session *state = &device->sessions.entries[sqe->session];
	uint32_t payload = device->config.store.payload_size_bytes;
	uint64_t index = (uint64_t)sqe->ordinal * device->config.core.layer_count + sqe->layer;
	uint64_t before = index * payload, left;

	if (state->role == OFS_VALUE_NO_ROLE)
		return true;
	if (state->role != OFS_VALUE_WRITES || before >= state->value.length)
		return false;
	left = state->value.length - before;
	return sqe->length == (left < payload ? left : payload);
}

bool
ofs_device_value_stays(const struct ofs_device *device, uint32_t session)
{
	const struct ofs_device_session *state = &device->sessions.entries[session];
	uint32_t tenant = device->ports.entries[state->port].tenant;
	const struct ofs_value *entry = ofs_value_find(&device->values, tenant, &state->value.key);

	return entry != NULL && entry->place < OFS_VALUE_LEAVING
		&& entry->name.generation == state->value.generation;
}
