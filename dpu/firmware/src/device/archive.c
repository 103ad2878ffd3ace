/* The store read and written by key, a few blocks at a time; see archive.h. */
#include "device/archive.h"

#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t
user_of(uint32_t index)
{
	return ((uint64_t)OFS_IO_ARCHIVE << 56) | index;
}

static uint8_t *
record_of(const struct ofs_device *device, uint32_t index)
{
	return (uint8_t *)device->archive.memory.base + (uint64_t)index * device->record_size_bytes;
}

static struct ofs_trailer *
trailer_of(const struct ofs_device *device, uint32_t index)
{
	return (
		struct ofs_trailer *)(record_of(device, index) + device->config.store.payload_size_bytes);
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
	const struct ofs_trailer *trailer = trailer_of(device, index);

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

static void
push(struct ofs_device *device, uint32_t index, uint64_t now_s)
{
	struct ofs_archive_entry *entry = &device->archive.entries[index];
	const struct ofs_archive_block *block = &entry->block;
	int rc = 0;

	assert(entry->state == OFS_PLACE_WAITS);
	if (entry->write && ofs_device_move_holds(device))
		return; /* held like puts of hosts, until the last pass of a move has ended */
	if (entry->write && entry->deletes != device->tenants[entry->tenant].deletes) {
		rc = -ECANCELED;
	} else if (entry->write) {
		rc = ofs_device_quota_put(device,
			&(struct ofs_write){.kind = OFS_IO_PUT,
				.tenant = entry->tenant,
				.store_key = block->store_key,
				.layer = block->layer});
	}
	if (rc == 0 && entry->write) {
		rc = ofs_store_put(device->store, entry->tenant, &block->store_key, block->layer,
			record_of(device, index), user_of(index), now_s);
	} else if (!entry->write) {
		rc = ofs_store_get(device->store, &block->store_key, block->layer, record_of(device, index),
			user_of(index), now_s);
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
			push(device, i, now_s);
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
	}
	end(device, index, rc);
}

/* ---- calls ---- */

struct archive_call {
	uint32_t write;
	uint32_t tenant;
	uint64_t deletes;
	uint32_t first;
	uint32_t count;
	struct ofs_archive_block *blocks;
};

static void
fill_trailer(const struct ofs_device *device, uint32_t index, uint32_t length)
{
	uint8_t *record = record_of(device, index);
	uint32_t payload_size_bytes = device->config.store.payload_size_bytes;

	memset(record + length, 0, payload_size_bytes - length);
	*trailer_of(device, index) =
		(struct ofs_trailer){.length = length, .checksum = ofs_checksum(record, length)};
	ofs_device_fill_granules(device, record, trailer_of(device, index));
}

static int
check_call(const struct ofs_device *device, const struct archive_call *call)
{
	const struct ofs_device_config *config = &device->config;

	if (call->tenant >= device->tenant_count || call->first >= config->archive_places
		|| call->count > config->archive_places - call->first) {
		return -EINVAL;
	}
	for (uint32_t i = 0; i < call->count; i++) {
		if (call->blocks[i].layer >= config->core.layer_count
			|| (call->write
				&& (call->blocks[i].length == 0
					|| call->blocks[i].length > config->store.payload_size_bytes))) {
			return -EINVAL;
		}
		if (device->archive.entries[call->first + i].state != OFS_PLACE_FREE)
			return -EBUSY;
	}
	if (device->move.step != OFS_STEP_NONE)
		return -EBUSY;
	return call->write && device->draining ? -ESHUTDOWN : 0;
}

/* Each place has one caller: a free place stays free until that caller calls again. */
static int
archive_free(struct ofs_device *device, uint32_t first, uint32_t count)
{
	if (first >= device->config.archive_places || count > device->config.archive_places - first)
		return -EINVAL;
	for (uint32_t i = 0; i < count; i++)
		if (device->archive.entries[first + i].state != OFS_PLACE_FREE)
			return -EBUSY;
	return 0;
}

OFS_DEVICE_CALL(archive_free, (uint32_t, first), (uint32_t, count));

static int
run_begin(struct ofs_device *device, void *argument)
{
	const struct archive_call *call = argument;
	int rc = check_call(device, call);

	for (uint32_t i = 0; rc == 0 && i < call->count; i++) {
		struct ofs_archive_entry *entry = &device->archive.entries[call->first + i];

		*entry = (struct ofs_archive_entry){.state = OFS_PLACE_WAITS,
			.write = call->write,
			.tenant = call->tenant,
			.deletes = call->deletes,
			.block = call->blocks[i]};
		device->archive.waiting++;
		push(device, call->first + i, ofs_clock_unix_s(&device->clock));
	}
	return rc;
}

static bool
all_ended(const struct ofs_device *device, const struct archive_call *call)
{
	for (uint32_t i = 0; i < call->count; i++)
		if (!device->archive.entries[call->first + i].ended)
			return false;
	return true;
}

/* I/O that has not ended by its deadline is abandoned. */
static void
await_end(struct ofs_device *device, const struct archive_call *call)
{
	uint64_t timeout_ns = device->config.io_timeout_ns;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += (long)(timeout_ns % 1000000000ull);
	until.tv_sec += (time_t)(timeout_ns / 1000000000ull) + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_mutex_lock(&device->mailbox.mutex);
	while (!all_ended(device, call) && !device->mailbox.stopped)
		if (pthread_cond_timedwait(&device->mailbox.cond, &device->mailbox.mutex, &until)
			== ETIMEDOUT)
			break;
	for (uint32_t i = 0; i < call->count; i++) {
		struct ofs_archive_entry *entry = &device->archive.entries[call->first + i];

		entry->left = true;
		call->blocks[i].rc = entry->ended ? entry->block.rc : -ETIMEDOUT;
		call->blocks[i].length = entry->ended ? entry->block.length : 0;
	}
	pthread_mutex_unlock(&device->mailbox.mutex);
}

int
ofs_device_archive_move(struct ofs_device *device, uint32_t write, uint32_t tenant,
	uint64_t deletes, uint32_t first, uint32_t count, struct ofs_archive_block *blocks)
{
	struct archive_call call = {write, tenant, deletes, first, count, blocks};
	int rc;

	if (!device->reactor.threaded)
		return -EINVAL;
	for (uint32_t i = 0; write && i < count; i++) {
		if (first + i >= device->config.archive_places
			|| blocks[i].length > device->config.store.payload_size_bytes)
			return -EINVAL;
		fill_trailer(device, first + i, blocks[i].length);
	}
	rc = ofs_device_call(device, run_begin, &call);
	if (rc == 0)
		await_end(device, &call);
	return rc;
}

void *
ofs_device_archive_place(struct ofs_device *device, uint32_t place)
{
	return place < device->config.archive_places ? record_of(device, place) : NULL;
}

static int
archive_look(struct ofs_device *device, uint32_t tenant, uint32_t count, const struct ofs_key *keys,
	uint32_t *layers, uint64_t *deletes)
{
	if (tenant >= device->tenant_count || count > OFS_ARCHIVE_LOOK_MAX)
		return -EINVAL;
	*deletes = device->tenants[tenant].deletes;
	for (uint32_t i = 0; i < count; i++) {
		layers[i] = 0;
		for (uint32_t layer = 0; layer < device->config.core.layer_count; layer++)
			layers[i] += ofs_store_position(device->store, &keys[i], layer) != UINT64_MAX;
	}
	return 0;
}

OFS_DEVICE_CALL(archive_look, (uint32_t, tenant), (uint32_t, count), (const struct ofs_key *, keys),
	(uint32_t *, layers), (uint64_t *, deletes));
