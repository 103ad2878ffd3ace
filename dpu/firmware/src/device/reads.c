/*
 * Reads: from the store into slots. actions.c begins a read. It waits in `pending_reads` until the
 * store takes it, then flies until the store answers or its deadline passes. After the deadline the
 * core is given -ETIMEDOUT, and the slot stays out of use (a zombie) until the device has let go.
 */
#include "internal.h"

#define DEADLINE_NS_MAX (1ull << 52) /* in ps it fits */

static uint64_t
read_user(uint32_t index)
{
	return ((uint64_t)OFS_IO_READ << 56) | index;
}

static void
end_read(struct ofs_device *device, uint32_t index, int rc)
{
	struct ofs_read *read = &device->reads[index];
	uint64_t ended_ns = 0;
	bool came;

	if (read->state == OFS_READ_FLYING)
		ended_ns = ofs_device_stage_end(device, OFS_STAGE_READ_SERVICE, read->stage_ns);
	read->state = OFS_READ_FREE;
	ofs_fifo_give(&device->free_reads, index);
	if (rc == -EBADMSG)
		device->status.check_failures++;
	if (rc < 0 && rc != -ENOENT && rc != -EBADMSG && rc != -ETIMEDOUT)
		rc = -EIO;
	came = rc == 0;
	rc = ofs_core_io_done(device->core, ofs_device_now_ns(device), read->action.io, rc);
	assert(rc == 0);
	ofs_device_act(device);
	if (came)
		(void)ofs_device_stage_end(device, OFS_STAGE_PUBLISH, ended_ns);
}

static int
get(struct ofs_device *device, uint32_t index, uint64_t now_s)
{
	const struct ofs_action *action = &device->reads[index].action;
	void *slot = ofs_region_slot(device->tenants[action->tenant].region, action->slot);
	struct ofs_timing_request asked = {.tenant = action->tenant,
		.cause = action->cause,
		.session = action->session,
		.layer = action->layer,
		.deadline_ps =
			(action->deadline_ns < DEADLINE_NS_MAX ? action->deadline_ns : DEADLINE_NS_MAX) * 1000};
	int rc;

	if (device->pace != NULL)
		ofs_pace_for(device->pace, &asked);
	rc = ofs_store_get(device->store, &action->store_key, action->layer, slot, read_user(index),
		now_s);
	if (device->pace != NULL)
		ofs_pace_for(device->pace, NULL);
	return rc;
}

/* Submits what waits, in order, until the store is busy. */
bool
ofs_device_retry_reads(struct ofs_device *device)
{
	uint64_t now_s;
	bool busy = false;
	uint32_t index;

	if (device->pending_reads.count == 0) /* as in most turns, which then read no clock */
		return false;
	now_s = ofs_clock_unix_s(&device->clock);
	while ((index = ofs_fifo_first(&device->pending_reads)) != OFS_NONE) {
		struct ofs_read *read = &device->reads[index];
		int rc;

		if (read->state == OFS_READ_ZOMBIE) { /* timed out while waiting: nothing flies */
			(void)ofs_fifo_take(&device->pending_reads);
			ofs_device_read_done(device, index, -ETIMEDOUT);
			continue;
		}
		rc = get(device, index, now_s);
		if (rc == -EAGAIN)
			break;
		(void)ofs_fifo_take(&device->pending_reads);
		busy = true;
		if (rc == 0) {
			read->state = OFS_READ_FLYING;
			device->reads_flying++;
			read->stage_ns = ofs_device_stage_end(device, OFS_STAGE_READ_QUEUE, read->stage_ns);
		} else {
			end_read(device, index, rc);
		}
	}
	return busy;
}

void
ofs_device_read_done(struct ofs_device *device, uint32_t index, int rc)
{
	struct ofs_read *read = &device->reads[index];

	assert(index < device->read_count && read->state != OFS_READ_FREE);
	if (read->state == OFS_READ_FLYING) {
		device->reads_flying--;
		end_read(device, index, rc);
		return;
	}
	/* The core heard -ETIMEDOUT long ago; only now may the slot be used again. */
	device->status.slots_quarantined--;
	read->state = OFS_READ_FREE;
	ofs_fifo_give(&device->free_reads, index);
	rc = ofs_core_slot_free(device->core, ofs_device_now_ns(device), read->action.tenant,
		read->action.slot);
	assert(rc == 0);
	ofs_device_act(device);
}

static void
time_out(struct ofs_device *device, struct ofs_read *read, uint64_t now_ns)
{
	int rc;

	if (read->state == OFS_READ_FLYING)
		device->reads_flying--;
	read->state = OFS_READ_ZOMBIE;
	device->status.reads_timed_out++;
	device->status.slots_quarantined++;
	rc = ofs_core_io_done(device->core, now_ns, read->action.io, -ETIMEDOUT);
	assert(rc == 0);
	ofs_device_act(device);
}

bool
ofs_device_scan_reads(struct ofs_device *device, uint64_t now_ns)
{
	bool busy = false;

	for (uint32_t i = 0; i < device->read_count; i++) {
		struct ofs_read *read = &device->reads[i];

		if ((read->state == OFS_READ_FLYING || read->state == OFS_READ_PENDING)
			&& now_ns >= read->deadline_ns) {
			time_out(device, read, now_ns);
			busy = true;
		}
	}
	return busy;
}
