/* Opening and closing the device: tables, storage, store, core, thread. See device.h. */
#include "internal.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int
refuse(char *error, size_t size_bytes, int rc, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error, size_bytes, format, arguments);
	va_end(arguments);
	return rc;
}

static int
check_config(const struct ofs_device_config *config, char *error, size_t size_bytes)
{
	if (config->port_max == 0 || config->port_max + 2 > OFS_WAIT_FDS_MAX) {
		return refuse(error, size_bytes, -EINVAL, "port_max is %u; choose 1 to %d",
			config->port_max, OFS_WAIT_FDS_MAX - 2);
	}
	if (config->core.layer_count != config->store.layer_count ||
		config->core.tenant_max != config->store.tenant_max) {
		return refuse(error, size_bytes, -EINVAL,
			"core and store disagree on layers or tenants; give both the same");
	}
	if (config->core.layer_count > UINT16_MAX || config->core.tenant_max > UINT16_MAX) {
		return refuse(error, size_bytes, -EINVAL, "more than 65535 layers or tenants");
	}
	return 0;
}

static int
open_tables(struct ofs_device *device)
{
	const struct ofs_device_config *config = &device->config;
	uint32_t i;

	device->read_count = 2 * config->core.io_max + config->store.io_max;
	device->write_count = config->port_max * config->put_slot_count + config->dirty_blocks_max + 1;
	device->waiter_count = config->port_max * config->port_entry_count;
	device->tenants = calloc(config->core.tenant_max, sizeof(*device->tenants));
	device->ports = calloc(config->port_max, sizeof(*device->ports));
	device->sessions = calloc(config->core.session_max, sizeof(*device->sessions));
	device->session_chunks = calloc((size_t)config->core.session_max *
		config->core.session_chunk_max, sizeof(*device->session_chunks));
	device->waiters = calloc(device->waiter_count, sizeof(*device->waiters));
	device->waiter_results = calloc((size_t)device->waiter_count * config->core.demand_max,
		sizeof(*device->waiter_results));
	device->reads = calloc(device->read_count, sizeof(*device->reads));
	device->writes = calloc(device->write_count, sizeof(*device->writes));
	device->command.ordinals = calloc(config->core.demand_max, sizeof(uint32_t));
	device->command.seen = calloc(config->core.demand_max, 1);
	device->command.scores = calloc(config->score_max + 1, sizeof(uint16_t));
	device->ends = calloc(config->core.demand_max, 1);
	if (device->tenants == NULL || device->ports == NULL || device->sessions == NULL ||
		device->session_chunks == NULL || device->waiters == NULL ||
		device->waiter_results == NULL || device->reads == NULL ||
		device->writes == NULL || device->command.ordinals == NULL ||
		device->command.seen == NULL || device->command.scores == NULL ||
		device->ends == NULL ||
		ofs_fifo_open(&device->free_waiters, device->waiter_count, true) != 0 ||
		ofs_fifo_open(&device->free_reads, device->read_count, true) != 0 ||
		ofs_fifo_open(&device->pending_reads, device->read_count, false) != 0 ||
		ofs_fifo_open(&device->free_writes, device->write_count, true) != 0 ||
		ofs_fifo_open(&device->pending_writes, device->write_count, false) != 0) {
		return -ENOMEM;
	}
	for (i = 0; i < device->waiter_count; i++) {
		device->waiters[i].results =
			device->waiter_results + (size_t)i * config->core.demand_max;
	}
	return 0;
}

static int
open_threads(struct ofs_device *device)
{
	pthread_condattr_t attributes;

	device->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (device->wake_fd < 0) {
		return -errno;
	}
	pthread_mutex_init(&device->mutex, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&device->cond, &attributes);
	pthread_condattr_destroy(&attributes);
	return 0;
}

/* The name that was had, and one line where it is not what was asked for. */
static void
note_storage(struct ofs_device *device, const char *text)
{
	const char *had = device->storage->ops->name;
	const char *asked = device->config.storage.backend;

	snprintf(device->storage_name, sizeof(device->storage_name), "%s", had);
	if (text[0] != '\0') {
		snprintf(device->warning, sizeof(device->warning), "%s", text);
	} else if (strcmp(asked, "auto") == 0 && strcmp(had, "io_uring") != 0) {
		snprintf(device->warning, sizeof(device->warning),
			"storage is %s: io_uring cannot be had here", had);
	} else if (device->config.storage.direct && !device->storage->direct &&
		device->config.storage.path[0] != '\0') {
		snprintf(device->warning, sizeof(device->warning),
			"%s refuses O_DIRECT: reads go through the page cache",
			device->config.storage.path);
	}
}

int
ofs_device_open_parts(struct ofs_device *device, char *error, size_t size_bytes)
{
	struct ofs_device_config *config = &device->config;
	bool on_file = config->storage.path[0] != '\0' && strcmp(config->storage.backend, "sim") != 0;
	int rc = ofs_storage_open(&device->storage, &config->storage, &device->clock, error,
		size_bytes);

	if (rc != 0) {
		return rc;
	}
	note_storage(device, error);
	error[0] = '\0';
	rc = ofs_store_open(&device->store, device->storage,
		on_file ? config->storage.path : NULL, &config->store,
		ofs_clock_unix_s(&device->clock), error, size_bytes);
	if (rc != 0) {
		return rc;
	}
	config->core.block_size_bytes =
		config->store.payload_size_bytes + device->storage->lba_size_bytes;
	rc = ofs_core_open(&device->core, &config->core, &config->policy);
	if (rc != 0) {
		return refuse(error, size_bytes, rc,
			"the decision core refuses its configuration (%s); see the limits in [limits]",
			strerror(-rc));
	}
	return 0;
}

/* The store first: it waits for I/O whose buffers the regions and ports own. */
void
ofs_device_close_parts(struct ofs_device *device)
{
	if (device->store != NULL) {
		ofs_store_close(device->store);
	}
	if (device->storage != NULL) {
		ofs_storage_close(device->storage);
	}
	device->store = NULL;
	device->storage = NULL;
}

static void
pin_thread(struct ofs_device *device)
{
	cpu_set_t cpus;

	if (device->config.cpu >= 0) {
		CPU_ZERO(&cpus);
		CPU_SET((size_t)device->config.cpu, &cpus);
		/* A core that is not ours is no reason not to run. */
		(void)pthread_setaffinity_np(device->thread, sizeof(cpus), &cpus);
	}
}

/*
 * One thread opens, polls and closes storage and store: a queue pair has one owner. The caller waits
 * here until that thread has opened them, and takes its verdict.
 */
static int
open_on_thread(struct ofs_device *device, char *error, size_t size_bytes)
{
	int rc;

	device->opening.error = error;
	device->opening.error_size_bytes = size_bytes;
	device->opening.rc = 1;
	rc = pthread_create(&device->thread, NULL, ofs_device_reactor, device);
	if (rc != 0) {
		return -rc;
	}
	device->started = true;
	(void)pthread_setname_np(device->thread, "ofs-reactor");
	pin_thread(device);
	pthread_mutex_lock(&device->mutex);
	while (device->opening.rc == 1) {
		pthread_cond_wait(&device->cond, &device->mutex);
	}
	rc = device->opening.rc;
	pthread_mutex_unlock(&device->mutex);
	if (rc != 0) {
		pthread_join(device->thread, NULL);
		device->started = false;
	}
	return rc;
}

/* The thread runs since open; this only proves that it answers. */
static int
run_start(struct ofs_device *device, void *argument)
{
	(void)argument;
	return device->core != NULL ? 0 : -EINVAL;
}

int
ofs_device_open(struct ofs_device **out, const struct ofs_device_config *config, char *error,
	size_t error_size_bytes)
{
	struct ofs_device *device = calloc(1, sizeof(*device));
	int rc;

	error[0] = '\0';
	if (device == NULL) {
		return refuse(error, error_size_bytes, -ENOMEM, "out of memory");
	}
	device->config = *config;
	device->wake_fd = -1;
	if (config->sim_clock) {
		ofs_clock_init_sim(&device->clock, 1);
	} else {
		ofs_clock_init_os(&device->clock);
	}
	device->status.epoch = ofs_clock_unix_s(&device->clock) << 20 |
		(ofs_device_now_ns(device) & 0xfffff);
	rc = check_config(config, error, error_size_bytes);
	rc = rc == 0 ? open_threads(device) : rc;
	rc = rc == 0 ? open_tables(device) : rc;
	if (rc == 0) {
		rc = config->sim_clock ? ofs_device_open_parts(device, error, error_size_bytes) :
			open_on_thread(device, error, error_size_bytes);
	}
	if (rc != 0) {
		if (error[0] == '\0') {
			(void)refuse(error, error_size_bytes, rc, "the device cannot be opened: %s",
				strerror(-rc));
		}
		ofs_device_close(device, 0);
		return rc;
	}
	*out = device;
	return 0;
}

int
ofs_device_start(struct ofs_device *device)
{
	if (device->config.sim_clock) {
		return -EINVAL;
	}
	return ofs_device_call(device, run_start, NULL);
}

static void
stop(struct ofs_device *device)
{
	uint64_t one = 1;

	if (!device->started) {
		return;
	}
	atomic_store(&device->stopping, true);
	if (write(device->wake_fd, &one, sizeof(one)) < 0) {
		/* Its counter is full: the reactor is awake. */
	}
	pthread_join(device->thread, NULL);
	device->started = false;
}

static void
close_tables(struct ofs_device *device)
{
	ofs_fifo_close(&device->free_waiters);
	ofs_fifo_close(&device->free_reads);
	ofs_fifo_close(&device->pending_reads);
	ofs_fifo_close(&device->free_writes);
	ofs_fifo_close(&device->pending_writes);
	free(device->tenants);
	free(device->ports);
	free(device->sessions);
	free(device->session_chunks);
	free(device->waiters);
	free(device->waiter_results);
	free(device->reads);
	free(device->writes);
	free(device->command.ordinals);
	free(device->command.seen);
	free(device->command.scores);
	free(device->ends);
}

void
ofs_device_close(struct ofs_device *device, int drain)
{
	uint32_t i;

	if (drain && device->core != NULL) {
		(void)ofs_device_drain(device, 2 * device->config.io_timeout_ns);
	}
	stop(device);
	ofs_device_close_parts(device);
	for (i = 0; device->ports != NULL && i < device->config.port_max; i++) {
		if (device->ports[i].used) {
			ofs_port_close(device->ports[i].port);
		}
	}
	for (i = 0; device->tenants != NULL && i < device->config.core.tenant_max; i++) {
		if (device->tenants[i].region != NULL) {
			ofs_region_close(device->tenants[i].region);
		}
	}
	if (device->core != NULL) {
		ofs_core_close(device->core);
	}
	if (device->wake_fd >= 0) {
		close(device->wake_fd);
		pthread_mutex_destroy(&device->mutex);
		pthread_cond_destroy(&device->cond);
	}
	close_tables(device);
	free(device);
}
