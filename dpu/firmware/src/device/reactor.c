/*
 * The reactor: one thread that polls ports, store and core in turn, and sleeps when there was nothing
 * to do for a while. Pollers say whether they were busy; that is all the utilisation accounting needs.
 */
#include "internal.h"

#include <pthread.h>

static bool
serve_store(struct ofs_device *device)
{
	struct ofs_store_done done[OFS_DONE_BATCH];
	int count = ofs_store_poll(device->store, done, OFS_DONE_BATCH);
	int i;

	for (i = 0; i < count; i++) {
		uint32_t index = (uint32_t)done[i].user;

		if (done[i].user >> 56 == OFS_IO_READ) {
			ofs_device_read_done(device, index, done[i].rc);
		} else {
			ofs_device_write_done(device, index, done[i].rc);
		}
	}
	return count > 0;
}

/* Expiry and cleaning: what the store drops, the core must not promise any more. */
static bool
tick_store(struct ofs_device *device, uint64_t now_ns)
{
	struct ofs_store_entry entries[OFS_DONE_BATCH];
	int count;
	int i;

	if (now_ns < device->store_tick_ns) {
		return false;
	}
	device->store_tick_ns = now_ns + OFS_STORE_TICK_INTERVAL_NS;
	count = ofs_store_tick(device->store, ofs_clock_unix_s(&device->clock), entries,
		OFS_DONE_BATCH);
	for (i = 0; i < count; i++) {
		(void)ofs_core_block_forget(device->core, now_ns, entries[i].tenant,
			&entries[i].store_key, entries[i].layer);
	}
	if (count > 0) {
		ofs_device_act(device);
	}
	return count > 0;
}

static bool
tick_core(struct ofs_device *device, uint64_t now_ns, bool busy)
{
	if (!busy && now_ns < device->core_next_ns) {
		return false;
	}
	(void)ofs_core_tick(device->core, now_ns, &device->core_next_ns);
	ofs_device_act(device);
	return false;
}

static bool
turn(struct ofs_device *device)
{
	uint64_t now_ns = ofs_device_now_ns(device);
	bool busy = ofs_device_serve_calls(device);

	busy |= serve_store(device);
	busy |= ofs_device_serve_ports(device);
	busy |= tick_core(device, now_ns, busy);
	busy |= ofs_device_retry_reads(device);
	busy |= ofs_device_retry_writes(device);
	ofs_device_scan_deadlines(device, now_ns);
	busy |= tick_store(device, now_ns);
	return busy;
}

static uint64_t
wake_at_ns(struct ofs_device *device, uint64_t now_ns)
{
	uint64_t due_ns = device->storage->ops->due_ns(device->storage);
	uint64_t until_ns = now_ns + OFS_SLEEP_NS_MAX;

	until_ns = device->core_next_ns < until_ns ? device->core_next_ns : until_ns;
	until_ns = due_ns < until_ns ? due_ns : until_ns;
	if (ofs_store_in_flight(device->store) > 0 || device->reads_flying > 0) {
		uint64_t scan_ns = now_ns + OFS_IO_SCAN_INTERVAL_NS;

		until_ns = scan_ns < until_ns ? scan_ns : until_ns;
	}
	return until_ns;
}

/* Announce sleep to every host first: who submits after that rings the bell. */
static void
sleep_until_woken(struct ofs_device *device, uint64_t now_ns)
{
	int fds[OFS_WAIT_FDS_MAX];
	int storage_fd = device->storage->ops->wait_fd(device->storage);
	bool work = false;
	int count = 0;
	uint32_t i;

	if (storage_fd < 0 && ofs_store_in_flight(device->store) > 0) {
		return; /* a device that can only be polled */
	}
	fds[count++] = device->wake_fd;
	fds[count++] = storage_fd;
	for (i = 0; i < device->config.port_max; i++) {
		if (device->ports[i].used && !device->ports[i].closing) {
			work |= ofs_port_sleep(device->ports[i].port) != 0;
			fds[count++] = ofs_port_dpu_wake_fd(device->ports[i].port);
		}
	}
	if (!work && atomic_load(&device->call_count) == 0) {
		device->status.sleeps++;
		(void)ofs_clock_wait(&device->clock, fds, count, wake_at_ns(device, now_ns));
	}
	ofs_wait_fd_clear(device->wake_fd);
	for (i = 0; i < device->config.port_max; i++) {
		if (device->ports[i].used && !device->ports[i].closing) {
			ofs_port_wake(device->ports[i].port);
		}
	}
}

int
ofs_device_poll(struct ofs_device *device)
{
	bool busy = turn(device);

	device->status.loops++;
	device->status.busy_loops += busy;
	return busy;
}

/* Opens what this thread will own, and tells the caller of ofs_device_open. */
static int
open_and_tell(struct ofs_device *device)
{
	int rc = ofs_device_open_parts(device, device->opening.error,
		device->opening.error_size_bytes);

	if (rc != 0) {
		ofs_device_close_parts(device);
	}
	pthread_mutex_lock(&device->mutex);
	device->opening.rc = rc;
	pthread_cond_broadcast(&device->cond);
	pthread_mutex_unlock(&device->mutex);
	return rc;
}

void *
ofs_device_reactor(void *argument)
{
	struct ofs_device *device = argument;
	uint64_t before_ns;

	if (open_and_tell(device) != 0) {
		return NULL;
	}
	before_ns = ofs_device_now_ns(device);
	device->idle_since_ns = before_ns;
	while (!atomic_load_explicit(&device->stopping, memory_order_relaxed)) {
		bool busy = ofs_device_poll(device) != 0;
		uint64_t now_ns = ofs_device_now_ns(device);

		if (busy) {
			device->status.busy_ns += now_ns - before_ns;
			device->idle_since_ns = now_ns;
		} else {
			device->status.idle_ns += now_ns - before_ns;
			if (now_ns - device->idle_since_ns >= device->config.spin_ns) {
				sleep_until_woken(device, now_ns);
				device->status.idle_ns += ofs_device_now_ns(device) - now_ns;
				now_ns = ofs_device_now_ns(device);
			}
		}
		before_ns = now_ns;
	}
	ofs_device_close_parts(device);
	return NULL;
}
