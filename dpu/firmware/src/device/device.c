/* Opening and closing the device: tables, thread, and cleanup. */
#include "internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int
check_config(const struct ofs_device_config *config, char *error, size_t size_bytes)
{
	if (config->port_max == 0 || config->port_max + 2 > OFS_WAIT_FDS_MAX) {
		return ofs_device_refuse(error, size_bytes, -EINVAL, "port_max is %u; choose 1 to %d",
			config->port_max, OFS_WAIT_FDS_MAX - 2);
	}
	if (config->core.layer_count != config->store.layer_count
		|| config->core.tenant_max != config->store.tenant_max) {
		return ofs_device_refuse(error, size_bytes, -EINVAL,
			"core and store disagree on layers or tenants; give both the same");
	}
	if (config->core.layer_count > UINT16_MAX || config->core.tenant_max > UINT16_MAX)
		return ofs_device_refuse(error, size_bytes, -EINVAL, "more than 65535 layers or tenants");
	if (config->store.io_max == 0 || config->put_slot_count == 0 || config->io_timeout_ns == 0) {
		return ofs_device_refuse(error, size_bytes, -EINVAL,
			"store.io_max, put_slot_count or io_timeout_ns is 0; choose at least 1");
	}
	return 0;
}

static int
open_fifos(struct ofs_device *device)
{
	int rc = ofs_fifo_open(&device->waiters.free, device->waiters.count, true);

	rc = rc == 0 ? ofs_fifo_open(&device->waiters.landed, device->waiters.count, false) : rc;
	rc = rc == 0 ? ofs_fifo_open(&device->reads.free, device->reads.count, true) : rc;
	rc = rc == 0 ? ofs_fifo_open(&device->writes.free, device->writes.count, true) : rc;
	for (uint32_t i = 0; rc == 0 && i < device->config.core.tenant_max; i++)
		rc = ofs_fifo_open(&device->tenants[i].writes, device->writes.count, false);
	device->reads.oldest = device->reads.newest = OFS_NONE;
	return rc;
}

static int
open_tables(struct ofs_device *device)
{
	const struct ofs_device_config *config = &device->config;

	/* The core's reads, as many that timed out while waiting, and those still in the store. */
	device->reads.count = 2 * config->core.io_max + config->store.io_max;
	/* Every put window, every dirty block, and writes in the store of hosts that have left. */
	device->writes.count =
		config->port_max * config->put_slot_count + config->dirty_blocks_max + config->store.io_max;
	device->waiters.count = config->port_max * config->port_entry_count;
	device->tenants = calloc(config->core.tenant_max, sizeof(*device->tenants));
	device->ports.entries = calloc(config->port_max, sizeof(*device->ports.entries));
	device->sessions.entries = calloc(config->core.session_max, sizeof(*device->sessions.entries));
	device->sessions.chunks =
		calloc((size_t)config->core.session_max * config->core.session_chunk_max,
			sizeof(*device->sessions.chunks));
	device->marks.entries = calloc(config->core.chunk_max, sizeof(*device->marks.entries));
	device->sessions.looked =
		calloc(config->core.session_chunk_max, sizeof(*device->sessions.looked));
	device->waiters.entries = calloc(device->waiters.count, sizeof(*device->waiters.entries));
	device->waiters.results = calloc((size_t)device->waiters.count * config->core.demand_max,
		sizeof(*device->waiters.results));
	device->reads.entries = calloc(device->reads.count, sizeof(*device->reads.entries));
	device->writes.entries = calloc(device->writes.count, sizeof(*device->writes.entries));
	device->commands.command.ordinals = calloc(config->core.demand_max, sizeof(uint32_t));
	device->commands.command.granules = calloc(config->core.demand_max, sizeof(uint32_t));
	device->commands.command.seen = calloc(config->core.demand_max, 1);
	device->commands.command.scores = calloc(config->score_max + 1, sizeof(uint16_t));
	device->commands.command.guesses = calloc(config->core.demand_max, sizeof(struct ofs_guess));
	device->commands.command.asks =
		calloc(config->core.demand_max / 2 + 1, sizeof(struct ofs_value_ask));
	device->waiters.ends = calloc(device->waiters.count, config->core.demand_max);
	if (device->tenants == NULL || device->ports.entries == NULL || device->sessions.entries == NULL
		|| device->sessions.chunks == NULL || device->marks.entries == NULL
		|| device->sessions.looked == NULL || device->waiters.entries == NULL
		|| device->waiters.results == NULL || device->reads.entries == NULL
		|| device->writes.entries == NULL || device->commands.command.ordinals == NULL
		|| device->commands.command.granules == NULL || device->commands.command.seen == NULL
		|| device->commands.command.scores == NULL || device->commands.command.guesses == NULL
		|| device->commands.command.asks == NULL || ofs_device_open_values(device) != 0
		|| device->waiters.ends == NULL || ofs_device_open_admit(device) != 0
		|| ofs_device_moments_open(device) != 0 || open_fifos(device) != 0) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < device->waiters.count; i++) {
		device->waiters.entries[i].results =
			device->waiters.results + (size_t)i * config->core.demand_max;
		device->waiters.entries[i].ends =
			device->waiters.ends + (size_t)i * config->core.demand_max;
	}
	return 0;
}

static int
open_mailbox(struct ofs_device *device)
{
	pthread_condattr_t attributes;

	device->mailbox.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (device->mailbox.wake_fd < 0)
		return -errno;
	pthread_mutex_init(&device->mailbox.mutex, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&device->mailbox.cond, &attributes);
	pthread_condattr_destroy(&attributes);
	return 0;
}

/* The thread opens the components; the result is known when this returns. */
static int
open_thread(struct ofs_device *device, char *error, size_t error_size_bytes)
{
	int rc;

	device->mailbox.open_error = error;
	device->mailbox.open_error_size_bytes = error_size_bytes;
	rc = pthread_create(&device->reactor.thread, NULL, ofs_device_reactor, device);
	if (rc != 0)
		return -rc;
	device->reactor.threaded = true;
	(void)pthread_setname_np(device->reactor.thread, "ofs-reactor");
	pthread_mutex_lock(&device->mailbox.mutex);
	while (!device->mailbox.opened)
		pthread_cond_wait(&device->mailbox.cond, &device->mailbox.mutex);
	rc = device->mailbox.open_rc;
	pthread_mutex_unlock(&device->mailbox.mutex);
	return rc;
}

int
ofs_device_open(struct ofs_device **out, const struct ofs_device_config *config, char *error,
	size_t error_size_bytes)
{
	struct ofs_device *device = calloc(1, sizeof(*device));
	int rc;

	error[0] = '\0';
	if (device == NULL)
		return ofs_device_refuse(error, error_size_bytes, -ENOMEM, "out of memory");
	device->config = *config;
	if (config->reads_max == 0)
		device->config.reads_max = config->core.io_max;
	device->mailbox.wake_fd = -1;
	device->stages.on = config->stage_timers != 0;
	if (config->sim_clock)
		ofs_clock_init_sim(&device->clock, 1);
	else if (config->dilation > 1)
		ofs_clock_init_dilated(&device->clock, config->dilation);
	else
		ofs_clock_init_os(&device->clock);
	device->opened_ns = ofs_device_now_ns(device);
	device->status.boot_id = ofs_clock_unix_s(&device->clock) << 20 | (device->opened_ns & 0xfffff);
	rc = check_config(config, error, error_size_bytes);
	rc = rc == 0 ? open_mailbox(device) : rc;
	rc = rc == 0 ? open_tables(device) : rc;
	if (rc == 0) {
		rc = config->sim_clock ? ofs_device_open_parts(device, error, error_size_bytes)
							   : open_thread(device, error, error_size_bytes);
	}
	if (rc != 0) {
		if (error[0] == '\0') {
			(void)ofs_device_refuse(error, error_size_bytes, rc, "the device cannot be opened: %s",
				strerror(-rc));
		}
		ofs_device_close(device, 0);
		return rc;
	}
	atomic_store(&device->reactor.serving, config->sim_clock != 0);
	atomic_store(&device->reactor.serve_until_ns, UINT64_MAX);
	*out = device;
	return 0;
}

static int
run_start(struct ofs_device *device, void *argument)
{
	cpu_set_t cpus;

	(void)argument;
	if (device->config.cpu >= 0) {
		CPU_ZERO(&cpus);
		CPU_SET((size_t)device->config.cpu, &cpus);
		/* Failure to pin to a core is no reason not to run. */
		(void)sched_setaffinity(0, sizeof(cpus), &cpus);
	}
	atomic_store(&device->reactor.serving, true);
	return 0;
}

int
ofs_device_start(struct ofs_device *device)
{
	return device->reactor.threaded ? ofs_device_call(device, run_start, NULL) : -EINVAL;
}

static void
stop(struct ofs_device *device)
{
	uint64_t one = 1;

	if (!device->reactor.threaded) {
		ofs_device_move_close(device);
		ofs_device_close_parts(device);
		return;
	}
	atomic_store(&device->reactor.stopping, true);
	if (write(device->mailbox.wake_fd, &one, sizeof(one)) < 0) {
		/* Its counter is full: the reactor is awake. */
	}
	pthread_join(device->reactor.thread, NULL);
	device->reactor.threaded = false;
}

static void
close_tables(struct ofs_device *device)
{
	ofs_fifo_close(&device->waiters.free);
	ofs_fifo_close(&device->waiters.landed);
	ofs_fifo_close(&device->reads.free);
	ofs_fifo_close(&device->writes.free);
	for (uint32_t i = 0; device->tenants != NULL && i < device->config.core.tenant_max; i++)
		ofs_fifo_close(&device->tenants[i].writes);
	free(device->tenants);
	free(device->ports.entries);
	free(device->sessions.entries);
	free(device->sessions.chunks);
	free(device->marks.entries);
	free(device->admit.touches);
	free(device->sessions.looked);
	free(device->waiters.entries);
	free(device->waiters.results);
	free(device->reads.entries);
	free(device->writes.entries);
	free(device->commands.command.ordinals);
	free(device->commands.command.granules);
	free(device->commands.command.seen);
	free(device->commands.command.scores);
	free(device->commands.command.guesses);
	free(device->commands.command.asks);
	free(device->values.entries);
	free(device->values.told);
	free(device->values.infos);
	free(device->waiters.ends);
	free(device->moments.entries);
}

void
ofs_device_close(struct ofs_device *device, int drain)
{
	if (drain)
		(void)ofs_device_drain(device, 2 * device->config.io_timeout_ns);
	stop(device);
	for (uint32_t i = 0; device->ports.entries != NULL && i < device->config.port_max; i++)
		if (device->ports.entries[i].used)
			ofs_port_close(device->ports.entries[i].port);
	for (uint32_t i = 0; device->tenants != NULL && i < device->config.core.tenant_max; i++) {
		ofs_device_unshare(&device->tenants[i]);
		ofs_region_close(device->tenants[i].region);
		free(device->tenants[i].steps);
		free(device->tenants[i].flush_of);
	}
	if (device->mailbox.wake_fd >= 0) {
		close(device->mailbox.wake_fd);
		pthread_mutex_destroy(&device->mailbox.mutex);
		pthread_cond_destroy(&device->mailbox.cond);
	}
	close_tables(device);
	free(device);
}
