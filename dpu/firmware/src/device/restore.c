/* What the store recovered, told to the core, and to the table of values. */
#include "device/value_table.h"
#include "internal.h"

#define VALUES_BATCH 64

/* What is there of a value that is not kept; and the piece that named it, whatever its tag says. */
static void
drop(struct ofs_device *device, const struct ofs_value *value, const struct ofs_store_value *found)
{
	uint32_t chunk = ofs_core_chunk_find(device->core, value->tenant, &found->store_key);

	if (ofs_value_fits(device, found->length))
		ofs_value_drop(device, value);
	if (chunk != OFS_NONE)
		ofs_device_delete_named(device, value->tenant, &found->store_key, chunk);
}

/* Of two stores of a key that are both whole the later one counts: a crash came between its last
 * piece and the end of the other. What is whole stays, also where there are more than value_max, as
 * far as the table has room. -EMSGSIZE, -ENOSPC: a whole value is too long, or one too many.
 * Where the index has `left_out` blocks, nothing is deleted because it is not whole. */
static int
restore_value(struct ofs_device *device, uint32_t tenant, const struct ofs_store_value *found,
	bool left_out)
{
	struct ofs_value *entry = ofs_value_find(&device->values, tenant, &found->key);
	struct ofs_value value = {.tenant = tenant};
	struct ofs_key content;
	bool whole;

	value.name = (struct ofs_value_name){.key = found->key,
		.length = found->length,
		.generation = found->generation,
		.name_bytes = (uint16_t)found->name_bytes,
		.name = found->name};
	if (entry != NULL && entry->name.generation == found->generation)
		return 0; /* another piece of it was here before */
	content = ofs_value_content(&value.name);
	value.store_key = ofs_core_first_key(device->core, tenant, &content);
	whole = ofs_value_is_whole(device, &value, false);
	if (!whole && left_out) {
		device->values.left_out++;
		return 0;
	}
	if (!whole || (entry != NULL && found->generation < entry->name.generation)) {
		drop(device, &value, found);
		return 0;
	}
	if (!ofs_value_fits(device, found->length))
		return -EMSGSIZE;
	if (entry == NULL && device->values.count >= device->values.mask)
		return -ENOSPC;
	if (entry != NULL) {
		device->values.unnamed -= entry->name.name_bytes == 0;
		ofs_value_forget(device, entry);
	}
	entry = ofs_value_insert(&device->values, &value);
	device->values.unnamed += found->name_bytes == 0;
	ofs_value_note(device, entry, OFS_LIST_STORED);
	return 0;
}

static int
restore_values(struct ofs_device *device, uint32_t tenant, bool left_out)
{
	struct ofs_store_value found[VALUES_BATCH];
	int count, rc = 0;

	while ((count = ofs_store_take_values(device->store, tenant, found, VALUES_BATCH)) > 0) {
		for (int i = 0; i < count && device->values.entries != NULL && rc == 0; i++) {
			if (found[i].generation > device->values.generation)
				device->values.generation = found[i].generation;
			rc = restore_value(device, tenant, &found[i], left_out);
		}
	}
	return rc;
}

/* Tells the core which blocks the store recovered, each for its own tenant. */
static int
restore(struct ofs_device *device, uint32_t tenant)
{
	struct ofs_store_entry entries[OFS_DONE_BATCH];
	uint64_t cursor = 0;
	uint32_t chunk;
	bool left_out = false;
	int count, rc;

	if (tenant >= device->tenant_count)
		return -EINVAL;
	while ((count = ofs_store_scan(device->store, &cursor, entries, OFS_DONE_BATCH)) > 0) {
		for (int i = 0; i < count; i++) {
			if (entries[i].tenant == tenant) {
				rc = ofs_core_block_restore(device->core, ofs_device_now_ns(device), tenant,
					&entries[i].store_key, entries[i].layer, &chunk);
				ofs_device_after_event(device, rc);
				/* The index is smaller than the store: the block becomes a miss. */
				left_out |= rc == -ENOSPC;
			}
		}
	}
	return restore_values(device, tenant, left_out);
}

OFS_DEVICE_CALL(restore, (uint32_t, tenant));

static int
value_unnamed(struct ofs_device *device, uint32_t *count, uint64_t *left_out)
{
	*count = device->values.unnamed;
	*left_out = device->values.left_out;
	return 0;
}

OFS_DEVICE_CALL(value_unnamed, (uint32_t *, count), (uint64_t *, left_out));
