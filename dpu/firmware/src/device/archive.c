/* The store read and written by key, a few blocks at a time; see archive.h. */
#include "device/archive.h"

#include "internal.h"

#include <stdlib.h>

static uint64_t
user_of(uint32_t index)
{
	return ((uint64_t)OFS_IO_ARCHIVE << 56) | index;
}

uint8_t *
ofs_archive_record(const struct ofs_device *device, uint32_t index)
{
	return (uint8_t *)device->archive.memory.base + (uint64_t)index * device->record_size_bytes;
}

struct ofs_trailer *
ofs_archive_trailer(const struct ofs_device *device, uint32_t index)
{
	return (struct ofs_trailer *)(ofs_archive_record(device, index)
		+ device->config.store.payload_size_bytes);
}

int
ofs_archive_open(struct ofs_device *device)
{
	struct ofs_archive *archive = &device->archive;
	uint32_t count = device->config.archive_places;
	int rc;

	if (count == 0)
		return 0;
	archive->entries = calloc(count, sizeof(*archive->entries));
	if (archive->entries == NULL)
		return -ENOMEM;
	rc = ofs_dma_alloc(&archive->memory, &device->config.memory,
		(uint64_t)count * device->record_size_bytes, NULL);
	if (rc != 0)
		return rc;
	return ofs_storage_register_memory(device->storage, archive->memory.base,
		archive->memory.size_bytes);
}

void
ofs_archive_free(struct ofs_device *device)
{
	free(device->archive.entries);
	device->archive.entries = NULL;
	ofs_dma_free(&device->archive.memory);
}

static void
end(struct ofs_device *device, uint32_t index, int rc)
{
	struct ofs_archive_entry *entry = &device->archive.entries[index];
	const struct ofs_trailer *trailer = ofs_archive_trailer(device, index);

	assert(entry->state != OFS_PLACE_FREE && !entry->ended);
	assert(device->archive.waiting + device->archive.flying > 0);
	if (entry->state == OFS_PLACE_WAITS)
		device->archive.waiting--;
	else if (entry->state == OFS_PLACE_FLIES)
		device->archive.flying--;
	if (rc == 0 && !entry->write && trailer->tenant != entry->tenant)
		rc = -ENOENT;
	pthread_mutex_lock(&device->mailbox.mutex);
	entry->block.rc = rc;
	entry->block.length = rc == 0 ? trailer->length : 0;
	entry->ended = true;
	entry->state = OFS_PLACE_FREE;
	pthread_cond_broadcast(&device->mailbox.cond);
	pthread_mutex_unlock(&device->mailbox.mutex);
}

void
ofs_archive_push(struct ofs_device *device, uint32_t index, uint64_t now_s)
{
	struct ofs_archive_entry *entry = &device->archive.entries[index];
	const struct ofs_archive_block *block = &entry->block;
	int rc = 0;

	assert(entry->state == OFS_PLACE_WAITS);
	if (entry->write && ofs_device_move_holds(device))
		return; /* held like puts of hosts, until the last pass of a move has ended */
	if (entry->write
		&& (entry->deletes != device->tenants[entry->tenant].deletes
			|| !ofs_value_awaits(device, entry->tenant, block))) {
		rc = -ECANCELED;
	} else if (entry->write) {
		rc = ofs_device_quota_put(device,
			&(struct ofs_write){.kind = OFS_IO_PUT,
				.tenant = entry->tenant,
				.store_key = block->store_key,
				.layer = block->layer});
	}
	if (rc == 0 && entry->write) {
		ofs_value_name_block(device, entry->tenant, block, ofs_archive_trailer(device, index));
		rc = ofs_store_put(device->store, entry->tenant, &block->store_key, block->layer,
			ofs_archive_record(device, index), user_of(index), now_s);
	} else if (!entry->write) {
		rc = ofs_store_get(device->store, &block->store_key, block->layer,
			ofs_archive_record(device, index), user_of(index), now_s);
	}
	if (rc == -EAGAIN)
		return;
	if (rc != 0) {
		end(device, index, rc);
		return;
	}
	device->archive.waiting--;
	device->archive.flying++;
	entry->state = OFS_PLACE_FLIES;
}

bool
ofs_archive_turn(struct ofs_device *device)
{
	uint64_t now_s = ofs_clock_unix_s(&device->clock);
	uint32_t before = device->archive.waiting;

	for (uint32_t i = 0; device->archive.waiting > 0 && i < device->config.archive_places; i++) {
		struct ofs_archive_entry *entry = &device->archive.entries[i];
		bool left;

		if (entry->state != OFS_PLACE_WAITS)
			continue;
		pthread_mutex_lock(&device->mailbox.mutex);
		left = entry->left;
		pthread_mutex_unlock(&device->mailbox.mutex);
		if (left)
			end(device, i, -ECANCELED);
		else
			ofs_archive_push(device, i, now_s);
	}
	return device->archive.waiting < before;
}

/* A block that is back in the store is reported to the core like one that a host wrote, unless it
 * was deleted meanwhile. */
void
ofs_archive_done(struct ofs_device *device, uint32_t index, int rc)
{
	const struct ofs_archive_entry *entry = &device->archive.entries[index];
	const struct ofs_archive_block *block = &entry->block;
	uint32_t chunk;

	assert(index < device->config.archive_places && entry->state == OFS_PLACE_FLIES);
	if (rc == -EBADMSG)
		device->status.check_failures++;
	if (rc == -EBADMSG && !entry->write) {
		ofs_device_after_event(device,
			ofs_core_block_forget(device->core, ofs_device_now_ns(device), entry->tenant,
				&block->store_key, block->layer));
	}
	if (rc == 0 && entry->write
		&& ofs_store_position(device->store, &block->store_key, block->layer) != UINT64_MAX) {
		ofs_device_after_event(device,
			ofs_core_block_restore(device->core, ofs_device_now_ns(device), entry->tenant,
				&block->store_key, block->layer, &chunk));
		ofs_value_arrived(device, entry->tenant, block);
	}
	end(device, index, rc);
}
