/*
 * purge_told.c: purges a tenant down to a requested number of blocks.
 *
 * Model: one batch at a time, coldest first; other calls and commands are served in between. If
 * nothing is to be kept, blocks in flight are purged too. A write at the drive, or a read into a
 * slot, cannot be cancelled: a block being written is deleted in the store immediately, so that it
 * is not found when the write completes, and the slots in use are freed when their I/O completes.
 * Until then they are counted and the purge is not finished. Chunks that a session names are left
 * out. Belongs to the reactor's thread.
 */
#include "internal.h"

#define DROPS_MAX 4096 /* slots in one turn: other work waits meanwhile */

static bool
is_named(const struct ofs_device *device, uint32_t tenant, const struct ofs_key *store_key)
{
	return ofs_core_store_references(device->core, tenant, store_key) > 0;
}

static void
delete_block(struct ofs_device *device, uint32_t tenant, const struct ofs_key *store_key,
	uint32_t layer)
{
	ofs_device_move_forget(device, store_key, layer);
	if (ofs_store_delete(device->store, store_key, layer) == 0)
		ofs_device_after_event(device,
			ofs_core_block_forget(device->core, ofs_device_now_ns(device), tenant, store_key,
				layer));
}

/* Drops writes that have not been sent and deletes those that have; both kinds of I/O are
 * recognised later. */
static void
purge_under_way(struct ofs_device *device, uint32_t tenant)
{
	ofs_device_cancel_writes(device, tenant, NULL);
	for (uint32_t i = 0; i < device->writes.count && device->writes.live > 0; i++) {
		struct ofs_write *write = &device->writes.entries[i];

		if (write->state != OFS_WRITE_SENT || write->tenant != tenant
			|| is_named(device, tenant, &write->store_key)) {
			continue;
		}
		write->cancelled = write->purged = true; /* a flush that fails is not retried */
		delete_block(device, tenant, &write->store_key, write->layer);
	}
	for (uint32_t i = 0; i < device->config.archive_places && device->archive.flying > 0; i++) {
		const struct ofs_archive_entry *entry = &device->archive.entries[i];

		if (entry->state == OFS_PLACE_FLIES && entry->write && entry->tenant == tenant
			&& !is_named(device, tenant, &entry->block.store_key)) {
			delete_block(device, tenant, &entry->block.store_key, entry->block.layer);
		}
	}
	for (uint32_t i = device->reads.oldest; i != OFS_NONE; i = device->reads.entries[i].newer) {
		struct ofs_read *read = &device->reads.entries[i];

		if (read->action.tenant == tenant && !is_named(device, tenant, &read->action.store_key))
			read->purged = true;
	}
}

/* Evicts staged blocks that are not held. True: there are more. */
static bool
drop_staged(struct ofs_device *device, uint32_t tenant)
{
	struct ofs_chunk_state state;
	uint32_t drops = 0;

	for (uint32_t chunk = 0; chunk < device->config.core.chunk_max; chunk++) {
		if (ofs_core_chunk_state(device->core, chunk, &state) != 0 || state.tenant != tenant
			|| state.references > 0 || state.slots == 0) {
			continue;
		}
		if (drops >= DROPS_MAX)
			return true;
		for (uint32_t layer = 0; layer < device->config.core.layer_count; layer++) {
			int rc = ofs_core_block_drop(device->core, ofs_device_now_ns(device), chunk, layer);

			drops += rc == 0;
			ofs_device_after_event(device, rc);
		}
	}
	return false;
}

/* I/Os that were in flight when the purge began and have not ended. */
static uint32_t
count_writing(const struct ofs_device *device, uint32_t tenant)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < device->writes.count && device->writes.live > 0; i++) {
		const struct ofs_write *write = &device->writes.entries[i];

		count += write->state != OFS_WRITE_FREE && write->tenant == tenant && write->purged;
	}
	for (uint32_t i = device->reads.oldest; i != OFS_NONE; i = device->reads.entries[i].newer)
		count +=
			device->reads.entries[i].action.tenant == tenant && device->reads.entries[i].purged;
	return count;
}

static void
held_of(const struct ofs_device *device, uint32_t tenant, struct ofs_chunks_held *held)
{
	struct ofs_chunk_state state;

	*held = (struct ofs_chunks_held){0};
	for (uint32_t chunk = 0; chunk < device->config.core.chunk_max; chunk++) {
		if (ofs_core_chunk_state(device->core, chunk, &state) != 0 || state.tenant != tenant)
			continue;
		held->kept += state.kept;
		held->named += state.references > 0 && ofs_core_chunk_home(device->core, chunk) == chunk;
		held->blocks += state.stored_layers;
	}
}

static int
tenant_purge(struct ofs_device *device, uint32_t tenant, uint64_t keep_blocks, uint32_t again,
	struct ofs_purged *purged)
{
	bool all = keep_blocks == 0;
	struct ofs_chunks_held before, after;

	if (tenant >= device->tenant_count)
		return -EINVAL;
	device->tenants[tenant].deletes++;
	held_of(device, tenant, &before);
	if (all && !again) {
		purge_under_way(device, tenant);
		ofs_values_purge(device, tenant);
	}
	*purged = (struct ofs_purged){
		.chunks = ofs_purge_coldest(device, tenant, OFS_PURGE_BATCH, before.blocks, keep_blocks)};
	held_of(device, tenant, &after);
	purged->blocks = before.blocks - after.blocks;
	purged->bytes = purged->blocks * device->record_size_bytes;
	purged->more = purged->blocks > 0 && after.kept > 0 && after.blocks > keep_blocks;
	purged->named = after.named;
	if (all) {
		purged->more |= (uint32_t)drop_staged(device, tenant);
		purged->writing = count_writing(device, tenant);
	}
	purged->marking = ofs_store_marking(device->store, tenant)
		+ (uint32_t)ofs_store_wiping(device->store, tenant);
	return 0;
}

OFS_DEVICE_CALL(tenant_purge, (uint32_t, tenant), (uint64_t, keep_blocks), (uint32_t, again),
	(struct ofs_purged *, purged));
