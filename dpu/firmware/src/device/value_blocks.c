/* The blocks of values: whether they are there, and what becomes of an entry that has lost some. */
#include "device/value_table.h"
#include "internal.h"

#define SWEEP 64 /* entries looked at for one that has lost its blocks */

static uint32_t
pieces_of(const struct ofs_device *device, uint64_t length)
{
	uint32_t payload = device->config.store.payload_size_bytes;
	uint64_t pieces = length / payload + (length % payload != 0);

	return pieces > UINT32_MAX ? UINT32_MAX : (uint32_t)pieces;
}

uint32_t
ofs_value_chunks(const struct ofs_device *device, uint64_t length)
{
	uint32_t layers = device->config.core.layer_count;

	return (uint32_t)(((uint64_t)pieces_of(device, length) + layers - 1) / layers);
}

bool
ofs_value_fits(const struct ofs_device *device, uint64_t length)
{
	return pieces_of(device, length) < UINT32_MAX
		&& ofs_value_chunks(device, length) <= device->config.core.session_chunk_max;
}

static uint64_t
least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

int
ofs_value_never_fits(const struct ofs_device *device, uint32_t tenant, uint64_t length)
{
	if (!ofs_value_fits(device, length))
		return -EMSGSIZE;
	if (pieces_of(device, length) > ofs_store_blocks_max(device->store))
		return -ENOSPC;
	return pieces_of(device, length) > ofs_device_quota_blocks(device, tenant) ? -EDQUOT : 0;
}

static int
value_bytes_max(struct ofs_device *device, uint32_t tenant, uint64_t *bytes)
{
	uint64_t session =
		(uint64_t)device->config.core.session_chunk_max * device->config.core.layer_count;

	if (tenant >= device->tenant_count)
		return -EINVAL;
	*bytes = least(least(session, ofs_store_blocks_max(device->store)),
				 ofs_device_quota_blocks(device, tenant))
		* device->config.store.payload_size_bytes;
	return 0;
}

OFS_DEVICE_CALL(value_bytes_max, (uint32_t, tenant), (uint64_t *, bytes));

bool
ofs_value_has_chunk(const struct ofs_device *device, const struct ofs_value *value,
	const struct ofs_key *store_key)
{
	struct ofs_key key;

	for (uint32_t i = ofs_value_chunks(device, value->name.length); i-- > 0;) {
		ofs_fold_key(&value->store_key, i, &key);
		if (ofs_key_equal(&key, store_key))
			return true;
	}
	return false;
}

/* A content of its own for each store of a key, which no content of a host's chunk can be made to
 * equal without knowing the generation. */
struct ofs_key
ofs_value_content(const struct ofs_value_name *name)
{
	uint64_t words[4] = {name->key.lo, name->key.hi, name->generation, OFS_VALUE_MAGIC};
	struct ofs_key content;

	content.lo = ofs_checksum(words, sizeof(words));
	words[3] = content.lo;
	content.hi = ofs_checksum(words, sizeof(words));
	return content;
}

/* Written in write-back mode and acknowledged, though the store does not have it yet. */
static bool
is_dirty(const struct ofs_device *device, uint32_t tenant, uint32_t chunk, uint32_t layer)
{
	uint32_t slot;

	return ofs_core_block_slot(device->core, chunk, layer, &slot) == 1
		&& device->tenants[tenant].flush_of[slot] != OFS_NONE;
}

/* Of chunk `number` of the value: whether its first `pieces` are there. */
static bool
has_pieces(const struct ofs_device *device, const struct ofs_value *value, uint32_t number,
	uint32_t pieces, bool stored)
{
	struct ofs_key store_key;
	uint32_t chunk;

	ofs_fold_key(&value->store_key, number, &store_key);
	chunk = ofs_core_chunk_find(device->core, value->tenant, &store_key);
	if (chunk == OFS_NONE)
		return false;
	for (uint32_t layer = pieces; layer-- > 0;)
		if (!ofs_core_block_is_stored(device->core, chunk, layer)
			&& (stored || !is_dirty(device, value->tenant, chunk, layer)))
			return false;
	return true;
}

bool
ofs_value_is_whole(const struct ofs_device *device, const struct ofs_value *value, bool stored)
{
	uint32_t layers = device->config.core.layer_count;
	uint32_t left = pieces_of(device, value->name.length);

	for (uint32_t i = 0; left > 0; i++) {
		uint32_t some = left < layers ? left : layers;

		if (!has_pieces(device, value, i, some, stored))
			return false;
		left -= some;
	}
	return true;
}

void
ofs_value_drop(struct ofs_device *device, const struct ofs_value *value)
{
	for (uint32_t i = ofs_value_chunks(device, value->name.length); i-- > 0;) {
		struct ofs_key store_key;
		uint32_t chunk;

		ofs_fold_key(&value->store_key, i, &store_key);
		chunk = ofs_core_chunk_find(device->core, value->tenant, &store_key);
		if (chunk != OFS_NONE)
			ofs_device_delete_named(device, value->tenant, &store_key, chunk);
	}
}

void
ofs_value_forget(struct ofs_device *device, struct ofs_value *entry)
{
	struct ofs_value value = *entry;

	ofs_value_remove(&device->values, entry);
	ofs_value_drop(device, &value);
}

/* The blocks of an archived value are gone: the archive alone has it. */
static void
went(struct ofs_device *device, struct ofs_value *entry)
{
	assert(entry->archived && entry->place == OFS_VALUE_HERE);
	entry->place = OFS_VALUE_AWAY;
	entry->wanted_ns = 0;
	ofs_value_drop(device, entry); /* what is left of it */
}

/* The key's entry; NULL: it has none, or it had one that has lost blocks and is in no archive. */
struct ofs_value *
ofs_value_look(struct ofs_device *device, uint32_t tenant, const struct ofs_key *key)
{
	struct ofs_value *entry = ofs_value_find(&device->values, tenant, key);

	if (entry == NULL || entry->place != OFS_VALUE_HERE || ofs_value_is_whole(device, entry, false))
		return entry;
	if (entry->archived) {
		went(device, entry);
		return entry;
	}
	ofs_value_forget(device, entry);
	return NULL;
}

/* Whether the table takes one more; if it is full, some entries may have lost their blocks. One
 * that only the archive has gives way: it is found again at the next start. */
bool
ofs_values_room(struct ofs_device *device)
{
	struct ofs_values *values = &device->values;

	for (uint32_t i = 0; i < SWEEP && values->count >= device->config.value_max; i++) {
		struct ofs_value *entry = &values->entries[values->swept++ & values->mask];

		if (entry->name.generation != 0)
			entry = ofs_value_look(device, entry->tenant, &entry->name.key);
		if (entry == NULL || entry->name.generation == 0
			|| (entry->place != OFS_VALUE_AWAY && entry->place != OFS_VALUE_GONE))
			continue;
		values->listed = values->listed && entry->place == OFS_VALUE_GONE;
		ofs_value_forget(device, entry);
	}
	return values->count < device->config.value_max;
}
