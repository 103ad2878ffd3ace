/*
 * Reads: from the store into slots. A read waits for its turn (issue.c), then is in flight until
 * the store answers or its deadline passes. After the deadline the core gets -ETIMEDOUT, and the
 * slot stays out of use (a zombie) until the device no longer writes to it. Reads that have not
 * ended form a list in the order they began, which is that of their deadlines.
 */
#include "internal.h"

#define DEADLINE_NS_MAX (1ull << 52) /* in ps it fits */

static uint64_t
read_user(uint32_t index)
{
	return ((uint64_t)OFS_IO_READ << 56) | index;
}

/* It has ended, or its deadline has passed. */
static void
forget_read(struct ofs_device *device, struct ofs_read *read)
{
	assert(read->state == OFS_READ_PENDING || read->state == OFS_READ_FLYING);
	assert(device->tenants[read->action.tenant].reads_live > 0);
	if (read->older == OFS_NONE)
		device->reads.oldest = read->newer;
	else
		device->reads.entries[read->older].newer = read->newer;
	if (read->newer == OFS_NONE)
		device->reads.newest = read->older;
	else
		device->reads.entries[read->newer].older = read->older;
	device->tenants[read->action.tenant].reads_live--;
	if (read->state == OFS_READ_FLYING) {
		assert(device->reads.flying > 0);
		device->reads.flying--;
		ofs_device_issue_ended(device, read->action.tenant);
	}
}

static void
end_read(struct ofs_device *device, uint32_t index, int rc)
{
	struct ofs_read *read = &device->reads.entries[index];
	uint64_t ended_ns = 0, now_ns = ofs_device_now_ns(device);
	bool came, flew = read->state == OFS_READ_FLYING;

	if (flew)
		ended_ns = ofs_device_stage_end(device, OFS_STAGE_READ_SERVICE, read->stage_ns);
	forget_read(device, read);
	read->state = OFS_READ_FREE;
	ofs_fifo_give(&device->reads.free, index);
	if (rc == -EBADMSG)
		device->status.check_failures++;
	if (rc < 0 && rc != -ENOENT && rc != -EBADMSG && rc != -ETIMEDOUT && rc != -ESTALE)
		rc = -EIO;
	came = rc == 0;
	device->reads.landing_issued_ns = read->issued_ns;
	device->reads.landing_ended_ns = now_ns;
	device->reads.published_ns = 0;
	rc = ofs_core_io_done(device->core, now_ns, read->action.io, rc);
	assert(rc == 0);
	ofs_device_act(device);
	device->reads.landing_issued_ns = 0;
	if (flew)
		ofs_device_note_read(device, read, now_ns);
	if (came)
		(void)ofs_device_stage_end(device, OFS_STAGE_PUBLISH, ended_ns);
}

static int
get(struct ofs_device *device, uint32_t index, uint64_t now_s)
{
	const struct ofs_action *action = &device->reads.entries[index].action;
	void *slot = ofs_region_slot(device->tenants[action->tenant].region, action->slot);
	struct ofs_timing_request asked = {.tenant = action->tenant,
		.cause = action->cause,
		.session = action->session,
		.layer = action->layer,
		.deadline_ps =
			(action->deadline_ns < DEADLINE_NS_MAX ? action->deadline_ns : DEADLINE_NS_MAX) * 1000};
	struct ofs_store_part part = {action->granules, action->held != 0};
	int rc;

	if (device->paced.pace != NULL)
		ofs_pace_for(device->paced.pace, &asked);
	rc = ofs_store_get_part(device->store, &action->store_key, action->layer, slot, &part,
		read_user(index), now_s);
	if (device->paced.pace != NULL)
		ofs_pace_for(device->paced.pace, NULL);
	return rc;
}

int
ofs_device_begin_read(struct ofs_device *device, uint32_t index, uint64_t now_s)
{
	struct ofs_read *read = &device->reads.entries[index];
	int rc;

	assert(read->state == OFS_READ_PENDING);
	rc = get(device, index, now_s);
	if (rc == -EAGAIN)
		return rc;
	if (rc != 0) {
		end_read(device, index, rc);
		return rc;
	}
	read->state = OFS_READ_FLYING;
	read->beside = device->reads.flying++;
	device->moments.turn.begun++;
	read->issued_ns = ofs_device_now_ns(device);
	read->stage_ns = ofs_device_stage_end(device, OFS_STAGE_READ_QUEUE, read->stage_ns);
	return 0;
}

void
ofs_device_read_done(struct ofs_device *device, uint32_t index, int rc)
{
	struct ofs_read *read = &device->reads.entries[index];

	assert(index < device->reads.count && read->state != OFS_READ_FREE);
	if (read->state == OFS_READ_FLYING) {
		end_read(device, index, rc);
		return;
	}
	/* The core got -ETIMEDOUT long ago; only now may the slot be used again. */
	assert(read->state == OFS_READ_ZOMBIE && device->status.slots_quarantined > 0);
	device->status.slots_quarantined--;
	read->state = OFS_READ_FREE;
	ofs_fifo_give(&device->reads.free, index);
	rc = ofs_core_slot_free(device->core, ofs_device_now_ns(device), read->action.tenant,
		read->action.slot);
	assert(rc == 0);
	ofs_device_act(device);
}

static void
time_out(struct ofs_device *device, struct ofs_read *read, uint64_t now_ns)
{
	int rc;

	forget_read(device, read);
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
	bool busy = false, waited = false;
	uint32_t index;

	while ((index = device->reads.oldest) != OFS_NONE
		&& now_ns >= device->reads.entries[index].deadline_ns) {
		bool waits = device->reads.entries[index].state == OFS_READ_PENDING;

		time_out(device, &device->reads.entries[index], now_ns);
		if (waits) /* nothing is in flight */
			ofs_device_read_done(device, index, -ETIMEDOUT);
		waited |= waits;
		busy = true;
	}
	if (waited)
		ofs_device_issue_anew(device);
	return busy;
}
