/*
 * The beginning of a move and its end: the target opened and closed, memory registered with both.
 *
 * The slow work, growing a file and formatting a store on it, runs on the caller's thread, through
 * a temporary storage. The reactor then opens the result: it blocks while the headers of the
 * target's segments are read.
 */
#include "internal.h"

#include "store_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int
for_each_memory(struct ofs_device *device, struct ofs_storage *storage,
	int (*call)(struct ofs_storage *, void *, uint64_t))
{
	int rc = call(storage, device->bounces.memory.base, device->bounces.memory.size_bytes);

	if (rc == 0 && device->archive.memory.base != NULL)
		rc = call(storage, device->archive.memory.base, device->archive.memory.size_bytes);
	for (uint32_t i = 0; i < device->tenant_count && rc == 0; i++) {
		uint64_t size_bytes;
		void *base = ofs_region_base(device->tenants[i].region, &size_bytes);

		rc = call(storage, base, size_bytes);
	}
	return rc;
}

void
ofs_move_close_other(struct ofs_device *device)
{
	struct ofs_move *move = &device->move;

	ofs_store_close(move->store);
	if (move->storage != NULL && move->storage->stats.in_flight == 0) {
		(void)for_each_memory(device, move->storage, ofs_storage_unregister_memory);
		if (move->memory.base != NULL)
			(void)ofs_storage_unregister_memory(move->storage, move->memory.base,
				move->memory.size_bytes);
	}
	if (move->storage != NULL)
		ofs_storage_close(move->storage);
	move->store = NULL;
	move->storage = NULL;
}

void
ofs_move_free_memory(struct ofs_device *device)
{
	struct ofs_move *move = &device->move;

	if (move->memory.base != NULL && device->storage != NULL)
		(void)ofs_storage_unregister_memory(device->storage, move->memory.base,
			move->memory.size_bytes);
	ofs_dma_free(&move->memory);
}

/* Records of the copies, and one more place for the record of the switch. */
static int
open_memory(struct ofs_device *device)
{
	struct ofs_move *move = &device->move;
	uint32_t size_bytes = device->record_size_bytes;
	uint32_t record_bytes = ofs_store_forward_size_bytes(device->store);
	int rc;

	rc = ofs_dma_alloc(&move->memory, &device->config.memory,
		(uint64_t)OFS_MOVE_COPIES * size_bytes + record_bytes, NULL);
	if (rc != 0)
		return rc;
	for (uint32_t i = 0; i < OFS_MOVE_COPIES; i++)
		move->copies[i].record = (uint8_t *)move->memory.base + (uint64_t)i * size_bytes;
	rc = ofs_storage_register_memory(device->storage, move->memory.base, move->memory.size_bytes);
	if (rc == 0)
		rc = ofs_storage_register_memory(move->storage, move->memory.base, move->memory.size_bytes);
	return rc == 0 ? for_each_memory(device, move->storage, ofs_storage_register_memory) : rc;
}

/* Whether all stored blocks fit into `target_bytes`, lane by lane, with the reserve. */
static int
check_fits(struct ofs_device *device, uint64_t target_bytes, char *error, size_t size_bytes)
{
	struct ofs_store_stats had;
	uint32_t *lanes = calloc(ofs_store_lane_count(device->store), sizeof(*lanes));
	uint64_t needed_bytes;

	if (lanes == NULL)
		return ofs_device_refuse(error, size_bytes, -ENOMEM, "out of memory");
	needed_bytes =
		ofs_store_segments_needed(device->store, lanes) * device->config.store.segment_size_bytes
		+ OFS_STORE_SEGMENTS_OFFSET;
	free(lanes);
	ofs_store_stats_get(device->store, &had);
	if (target_bytes >= needed_bytes)
		return 0;
	return ofs_device_refuse(error, size_bytes, -ENOSPC,
		"the target has %llu B, but the %llu blocks here need %llu B; choose a larger one",
		(unsigned long long)target_bytes, (unsigned long long)had.blocks,
		(unsigned long long)needed_bytes);
}

struct begin {
	const struct ofs_storage_config *target;
	uint32_t format;
	char *error;
	size_t error_size_bytes;
};

static int
open_target(struct ofs_device *device, const struct begin *call)
{
	struct ofs_move *move = &device->move;
	struct ofs_store_config config = device->config.store;
	int rc;

	config.format = call->format;
	config.uuid = (struct ofs_key){0};
	rc = ofs_storage_open(&move->storage, &move->config, &device->clock, call->error,
		call->error_size_bytes);
	call->error[0] = rc == 0 ? '\0' : call->error[0];
	if (rc != 0)
		return rc;
	if (move->storage->lba_size_bytes != device->storage->lba_size_bytes) {
		return ofs_device_refuse(call->error, call->error_size_bytes, -EINVAL,
			"the target has logical blocks of %u B, not %u B; records would differ",
			move->storage->lba_size_bytes, device->storage->lba_size_bytes);
	}
	rc = ofs_store_open(&move->store, move->storage, ofs_device_lock_path(&move->config), &config,
		ofs_clock_unix_s(&device->clock), call->error, call->error_size_bytes);
	if (rc == 0)
		rc = check_fits(device, move->storage->size_bytes, call->error, call->error_size_bytes);
	if (rc != 0)
		return rc;
	rc = open_memory(device);
	return rc == 0 ? 0
				   : ofs_device_refuse(call->error, call->error_size_bytes, rc,
						 "no memory for blocks in flight (%s)", strerror(-rc));
}

static int
refuse_now(const struct ofs_device *device, const struct begin *call)
{
	if (device->move.step != OFS_STEP_NONE) {
		return ofs_device_refuse(call->error, call->error_size_bytes, -EBUSY,
			"a move is running; wait until it ends");
	}
	if (device->paced.pace != NULL) {
		return ofs_device_refuse(call->error, call->error_size_bytes, -EINVAL,
			"a modelled device cannot move its storage; start it on the other one");
	}
	if (device->storage->lba_size_bytes > OFS_STORE_FORWARD_LBA_MAX) {
		return ofs_device_refuse(call->error, call->error_size_bytes, -EINVAL,
			"with logical blocks above %d B there is no room to record a move",
			OFS_STORE_FORWARD_LBA_MAX);
	}
	return 0;
}

static int
run_check(struct ofs_device *device, void *argument)
{
	const struct begin *call = argument;
	int rc = refuse_now(device, call);

	if (rc == 0 && call->target->size_bytes > 0)
		rc = check_fits(device, call->target->size_bytes, call->error, call->error_size_bytes);
	return rc;
}

static int
run_begin(struct ofs_device *device, void *argument)
{
	const struct begin *call = argument;
	struct ofs_move *move = &device->move;
	int rc = refuse_now(device, call);

	if (rc != 0)
		return rc;
	*move = (struct ofs_move){.config = *call->target};
	rc = open_target(device, call);
	if (rc != 0) {
		ofs_move_close_other(device);
		ofs_move_free_memory(device);
		return rc;
	}
	move->step = OFS_STEP_COPY;
	move->status.state = OFS_MOVE_RUNNING;
	snprintf(move->status.path, sizeof(move->status.path), "%s", move->config.path);
	return 0;
}

static int
make_store(struct ofs_device *device, const struct begin *call)
{
	struct ofs_store_config config = device->config.store;
	struct ofs_storage *storage = NULL;
	struct ofs_store *store = NULL;
	struct ofs_clock clock;
	int rc;

	ofs_clock_init_os(&clock);
	config.format = OFS_STORE_MAKE_NEW;
	config.uuid = (struct ofs_key){0};
	rc = ofs_storage_open(&storage, call->target, &clock, call->error, call->error_size_bytes);
	if (rc != 0)
		return rc;
	call->error[0] = '\0';
	rc = ofs_store_open(&store, storage, ofs_device_lock_path(call->target), &config,
		ofs_clock_unix_s(&clock), call->error, call->error_size_bytes);
	ofs_store_close(store);
	ofs_storage_close(storage);
	return rc;
}

int
ofs_device_move(struct ofs_device *device, const struct ofs_storage_config *target, char *error,
	size_t error_size_bytes)
{
	struct begin call = {target, OFS_STORE_MAKE_NEW, error, error_size_bytes};
	int rc;

	error[0] = '\0';
	rc = ofs_device_call(device, run_check, &call);
	if (rc == 0 && device->reactor.threaded) {
		rc = make_store(device, &call);
		call.format = OFS_STORE_MAKE;
	}
	rc = rc == 0 ? ofs_device_call(device, run_begin, &call) : rc;
	if (rc != 0 && error[0] == '\0')
		(void)ofs_device_refuse(error, error_size_bytes, rc, "%s", strerror(-rc));
	return rc;
}

void
ofs_device_move_close(struct ofs_device *device)
{
	if (device->move.step != OFS_STEP_NONE)
		ofs_move_close_other(device);
}
