/*
 * The components of the device, opened and closed on the thread that uses them: a ring of io_uring
 * belongs to the thread that first submits, and recovery submits.
 */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BOUNCE_MAX 64 /* puts in flight to the store: more would not write faster */

int
ofs_device_refuse(char *error, size_t size_bytes, int rc, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error, size_bytes, format, arguments);
	va_end(arguments);
	return rc;
}

void
ofs_device_note_storage(struct ofs_device *device, const char *text)
{
	const char *had = device->storage->ops->name;
	const char *asked = device->config.storage.backend;
	unsigned int at = (atomic_load(&device->names.at) + 1) % 2;
	char *warning = device->names.texts[at].warning;
	size_t size_bytes = sizeof(device->names.texts[at].warning);

	snprintf(device->names.texts[at].storage, sizeof(device->names.texts[at].storage), "%s", had);
	warning[0] = '\0';
	if (text[0] != '\0') {
		snprintf(warning, size_bytes, "%s", text);
	} else if (strcmp(asked, "auto") == 0 && strcmp(had, "io_uring") != 0) {
		snprintf(warning, size_bytes, "storage is %s: io_uring is unavailable here", had);
	} else if (device->config.storage.direct && !device->storage->direct
		&& ofs_device_lock_path(&device->config.storage) != NULL) {
		snprintf(warning, size_bytes, "%s refuses O_DIRECT: reads go through the page cache",
			device->config.storage.path);
	}
	assert(at < 2 && at != atomic_load(&device->names.at)); /* not the one being read */
	atomic_store(&device->names.at, at);
}

const char *
ofs_device_lock_path(const struct ofs_storage_config *config)
{
	bool in_memory = strcmp(config->backend, "sim") == 0
		|| (strcmp(config->backend, "emulated") == 0 && config->inner[0] == '\0');
	bool on_file = config->path[0] != '\0' && !in_memory
		&& strcmp(config->backend, "spdk") != 0; /* SPDK has its own claim */

	return on_file ? config->path : NULL;
}

static int
open_store(struct ofs_device *device, char *error, size_t size_bytes)
{
	const struct ofs_device_config *config = &device->config;

	return ofs_store_open(&device->store, device->storage, ofs_device_lock_path(&config->storage),
		&config->store, ofs_clock_unix_s(&device->clock), error, size_bytes);
}

/*
 * Our memory for the puts in flight. Whatever a host does to its window meanwhile, the bytes
 * written are the bytes checked; and when the host leaves, nothing of its window is still in use.
 */
static int
open_bounces(struct ofs_device *device, char *error, size_t size_bytes)
{
	uint32_t io_max = device->config.store.io_max;
	int rc;

	device->record_size_bytes = ofs_store_record_size_bytes(device->store);
	device->bounces.count = io_max < BOUNCE_MAX ? io_max : BOUNCE_MAX;
	rc = ofs_dma_alloc(&device->bounces.memory, &device->config.memory,
		(uint64_t)device->bounces.count * device->record_size_bytes, NULL);
	if (rc == 0)
		rc = ofs_fifo_open(&device->bounces.free, device->bounces.count, true);
	if (rc == 0) {
		rc = ofs_storage_register_memory(device->storage, device->bounces.memory.base,
			device->bounces.memory.size_bytes);
	}
	return rc == 0 ? 0
				   : ofs_device_refuse(error, size_bytes, rc,
						 "no memory for puts in flight (%s); lower store.io_max", strerror(-rc));
}

/* A modelled device: its storage and its commands share one pace. */
static int
open_pace(struct ofs_device *device, char *error, size_t size_bytes)
{
	struct ofs_device_config *config = &device->config;
	uint32_t in_flight_max[OFS_PACE_USERS] = {
		[OFS_PACE_STORAGE] = config->storage.queue_depth_max,
		[OFS_PACE_COMMANDS] = 2 * device->waiters.count,
	};
	int rc;

	if (config->timing == NULL)
		return 0;
	if (strcmp(config->storage.backend, "emulated") != 0) {
		return ofs_device_refuse(error, size_bytes, -EINVAL,
			"a modelled device cannot use storage %s, which has times of its own; choose emulated",
			config->storage.backend);
	}
	rc = ofs_pace_open(&device->paced.pace, config->timing, &device->clock, in_flight_max);
	rc = rc == 0 ? ofs_device_open_held(device) : rc;
	if (rc != 0) {
		return ofs_device_refuse(error, size_bytes, rc,
			"the modelled device takes fewer requests at once than limits.ports x port_entries "
			"and storage.queue_depth (%s); lower them",
			strerror(-rc));
	}
	config->storage.pace = device->paced.pace;
	config->storage.busy_spin = 1;
	return 0;
}

int
ofs_device_open_parts(struct ofs_device *device, char *error, size_t size_bytes)
{
	struct ofs_device_config *config = &device->config;
	int rc = open_pace(device, error, size_bytes);

	if (rc == 0) {
		rc =
			ofs_storage_open(&device->storage, &config->storage, &device->clock, error, size_bytes);
	}
	if (rc != 0)
		return rc;
	ofs_device_note_storage(device, error);
	error[0] = '\0';
	config->store.memory = config->memory;
	rc = open_store(device, error, size_bytes);
	rc = rc == 0 ? open_bounces(device, error, size_bytes) : rc;
	if (rc != 0)
		return rc;
	rc = ofs_archive_open(device);
	if (rc != 0) {
		return ofs_device_refuse(error, size_bytes, rc,
			"no memory for kept blocks (%s); lower archive.connections", strerror(-rc));
	}
	rc = ofs_device_open_issue(device);
	if (rc != 0)
		return rc;
	config->core.block_size_bytes = device->record_size_bytes;
	config->core.granule_count = config->store.granule_count;
	if (config->store.granule_count > 1) {
		config->core.granule_size_bytes =
			config->store.payload_size_bytes / config->store.granule_count;
	}
	rc = ofs_core_open(&device->core, &config->core, &config->policy);
	return rc == 0
		? 0
		: ofs_device_refuse(error, size_bytes, rc,
			  "the decision core refuses its configuration (%s); see the limits in [limits]",
			  strerror(-rc));
}

/* Memory is unregistered before anything unmaps it. A device that hangs keeps its memory: its
 * storage's close ends that. */
static void
unregister_memory(struct ofs_device *device)
{
	uint64_t size_bytes;
	void *base;

	if (device->storage->stats.in_flight > 0)
		return;
	for (uint32_t i = 0; i < device->config.core.tenant_max; i++) {
		if (device->tenants[i].region != NULL) {
			base = ofs_region_base(device->tenants[i].region, &size_bytes);
			(void)ofs_storage_unregister_memory(device->storage, base, size_bytes);
		}
	}
	if (device->bounces.memory.base != NULL) {
		(void)ofs_storage_unregister_memory(device->storage, device->bounces.memory.base,
			device->bounces.memory.size_bytes);
	}
	if (device->archive.memory.base != NULL) {
		(void)ofs_storage_unregister_memory(device->storage, device->archive.memory.base,
			device->archive.memory.size_bytes);
	}
	if (device->move.memory.base != NULL) {
		(void)ofs_storage_unregister_memory(device->storage, device->move.memory.base,
			device->move.memory.size_bytes);
	}
}

/* Store and storage first: they wait for I/O to or from memory that the others own. */
void
ofs_device_close_parts(struct ofs_device *device)
{
	if (device->store != NULL) {
		ofs_store_close(device->store);
		device->store = NULL;
	}
	if (device->storage != NULL) {
		unregister_memory(device);
		ofs_storage_close(device->storage);
		device->storage = NULL;
	}
	if (device->core != NULL) {
		ofs_core_close(device->core);
		device->core = NULL;
	}
	ofs_device_close_issue(device);
	ofs_device_close_held(device);
	ofs_pace_close(device->paced.pace);
	device->paced.pace = NULL;
	ofs_fifo_close(&device->bounces.free);
	ofs_dma_free(&device->bounces.memory);
	ofs_dma_free(&device->move.memory);
	ofs_archive_free(device);
}
