/* What the daemon reads: ledger, work, records, decision log, status; and the drain. */
#include "internal.h"

#include <time.h>

#define LOG_BYTES_PER_CALL 262144
#define DRAIN_POLL_NS 2000000

static int
ledger(struct ofs_device *device, uint32_t tenant, struct ofs_ledger *out)
{
	return ofs_core_ledger(device->core, tenant, out);
}

OFS_DEVICE_CALL(ledger, (uint32_t, tenant), (struct ofs_ledger *, out));

static int
work(struct ofs_device *device, struct ofs_work *out)
{
	return ofs_core_work(device->core, out);
}

OFS_DEVICE_CALL(work, (struct ofs_work *, out));

static int
records(struct ofs_device *device, struct ofs_ledger_record *out, int max)
{
	return ofs_core_records(device->core, out, max);
}

OFS_DEVICE_CALL(records, (struct ofs_ledger_record *, out), (int, max));

/* Bounded, so that the reactor never copies for long. */
static int
log_take(struct ofs_device *device, void *bytes, int size_bytes)
{
	return ofs_core_log(device->core, bytes,
		size_bytes < LOG_BYTES_PER_CALL ? size_bytes : LOG_BYTES_PER_CALL);
}

OFS_DEVICE_CALL(log_take, (void *, bytes), (int, size_bytes));

static int
status_get(struct ofs_device *device, struct ofs_device_status *status)
{
	*status = device->status;
	status->now_ns = ofs_device_now_ns(device);
	status->dirty_blocks = device->writes.dirty;
	status->reads_in_flight = device->reads.flying;
	status->ports = device->ports.count;
	status->draining = device->draining;
	status->drained = device->draining && device->writes.live == 0;
	status->flushes_waiting = device->writes.parked;
	status->emulation_late = device->storage->stats.emulation_late;
	ofs_store_stats_get(device->store, &status->store);
	status->storage = device->storage->stats;
	return 0;
}

OFS_DEVICE_CALL(status_get, (struct ofs_device_status *, status));

static int
run_drain(struct ofs_device *device, void *argument)
{
	(void)argument;
	device->draining = true;
	return 0;
}

/* In virtual time only the caller's wait can advance the clock. */
void
ofs_device_simulate(struct ofs_device *device)
{
	uint64_t now_ns = ofs_device_now_ns(device);

	if (!ofs_device_turn(device))
		ofs_clock_advance_to(&device->clock, ofs_device_wake_at_ns(device, now_ns));
}

/* The reactor continues to serve reads; only the caller waits here. */
int
ofs_device_drain(struct ofs_device *device, uint64_t timeout_ns)
{
	struct timespec pause = {.tv_nsec = DRAIN_POLL_NS};
	struct ofs_device_status status;
	uint64_t begin_ns = ofs_device_now_ns(device);
	int rc = ofs_device_call(device, run_drain, NULL);

	while (rc == 0) {
		rc = ofs_device_status_get(device, &status);
		if (rc != 0 || status.drained)
			return rc;
		if (ofs_device_now_ns(device) - begin_ns >= timeout_ns)
			return -ETIMEDOUT;
		if (device->reactor.threaded)
			nanosleep(&pause, NULL);
		else
			ofs_device_simulate(device);
	}
	return rc;
}

static int
run_undrain(struct ofs_device *device, void *argument)
{
	(void)argument;
	device->draining = false;
	return 0;
}

int
ofs_device_undrain(struct ofs_device *device)
{
	return ofs_device_call(device, run_undrain, NULL);
}

int
ofs_device_advance(struct ofs_device *device, uint64_t now_ns)
{
	if (!device->config.sim_clock || now_ns < ofs_device_now_ns(device))
		return -EINVAL;
	ofs_clock_advance_to(&device->clock, now_ns);
	return 0;
}

const char *
ofs_device_storage_name(const struct ofs_device *device)
{
	return device->names.texts[atomic_load(&device->names.at)].storage;
}

const char *
ofs_device_warning(const struct ofs_device *device)
{
	return device->names.texts[atomic_load(&device->names.at)].warning;
}
