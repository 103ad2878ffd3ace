/* The calls of an archive's threads: blocks read and written by key; see archive.h. */
#include "device/archive.h"

#include "internal.h"

#include <string.h>

struct archive_call {
	uint32_t write;
	uint32_t tenant;
	uint64_t deletes;
	uint32_t first;
	uint32_t count;
	struct ofs_archive_block *blocks;
};

static void
fill_trailer(const struct ofs_device *device, uint32_t index, const struct ofs_archive_block *block)
{
	uint8_t *record = ofs_archive_record(device, index);
	uint32_t payload_size_bytes = device->config.store.payload_size_bytes, length = block->length;
	struct ofs_value_name value = {.key = block->key,
		.length = block->value_length,
		.generation = block->generation};

	memset(record + length, 0, payload_size_bytes - length);
	*ofs_archive_trailer(device, index) =
		(struct ofs_trailer){.length = length, .checksum = ofs_checksum(record, length)};
	ofs_device_fill_tag(ofs_archive_trailer(device, index), &block->store_key, &value);
	ofs_device_fill_granules(device, record, ofs_archive_trailer(device, index));
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
		ofs_archive_push(device, call->first + i, ofs_clock_unix_s(&device->clock));
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
	struct timespec until = ofs_device_until(device->config.io_timeout_ns);

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

	for (uint32_t i = 0; write && i < count; i++) {
		if (first + i >= device->config.archive_places
			|| blocks[i].length > device->config.store.payload_size_bytes)
			return -EINVAL;
		fill_trailer(device, first + i, &blocks[i]);
	}
	rc = ofs_device_call(device, run_begin, &call);
	if (rc != 0)
		return rc;
	for (uint64_t begun_ns = ofs_device_now_ns(device); !device->reactor.threaded
		 && !all_ended(device, &call)
		 && ofs_device_now_ns(device) - begun_ns < device->config.io_timeout_ns;)
		ofs_device_simulate(device);
	await_end(device, &call);
	return 0;
}

void *
ofs_device_archive_place(struct ofs_device *device, uint32_t place)
{
	return place < device->config.archive_places ? ofs_archive_record(device, place) : NULL;
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
