/*
 * Stage timers: how long each stage took, as the reactor sees it, in one histogram per stage. They
 * belong to the reactor's thread and use its clock: in virtual time they are as reproducible as
 * everything else.
 */
#include "internal.h"

#include <string.h>

uint64_t
ofs_device_stage_begin(struct ofs_device *device, enum ofs_stage stage, uint64_t now_ns)
{
	if (!device->stages.on
		|| (++device->stages.turns[stage] < OFS_STAGE_STRIDE && !ofs_moments_on(&device->moments)))
		return 0;
	device->stages.turns[stage] = 0;
	return now_ns;
}

uint64_t
ofs_device_stage_end(struct ofs_device *device, enum ofs_stage stage, uint64_t from_ns)
{
	uint64_t now_ns;

	if (!device->stages.on || from_ns == 0)
		return 0;
	now_ns = ofs_device_now_ns(device);
	if (from_ns <= now_ns) /* a host may send any number */
		ofs_histogram_add(&device->stages.histograms[stage], now_ns - from_ns);
	return now_ns;
}

/* A read may have begun for another session's demand, before this step arrived. */
void
ofs_device_step_ended(struct ofs_device *device, const struct ofs_waiter *waiter)
{
	struct ofs_step_times *times =
		device->tenants[device->ports.entries[waiter->port].tenant].steps;
	uint64_t issued_ns =
		waiter->issued_ns > waiter->taken_ns ? waiter->issued_ns : waiter->taken_ns;
	uint64_t at_ns[OFS_STEP_PART_COUNT + 1] = {waiter->sqe.sent_ns, waiter->taken_ns, issued_ns,
		waiter->ended_ns};
	uint32_t bucket;

	if (!device->stages.on || waiter->taken_ns == 0 || waiter->issued_ns == 0
		|| at_ns[0] > at_ns[1]) {
		return; /* the host's clock differs, or it sent an invalid time */
	}
	at_ns[OFS_STEP_PART_COUNT] = ofs_device_now_ns(device);
	ofs_histogram_add(&times->steps, at_ns[OFS_STEP_PART_COUNT] - at_ns[0]);
	bucket = ofs_histogram_bucket(at_ns[OFS_STEP_PART_COUNT] - at_ns[0]);
	for (uint32_t part = 0; part < OFS_STEP_PART_COUNT; part++)
		times->sums[part][bucket] += at_ns[part + 1] - at_ns[part];
}

static int
step_times_get(struct ofs_device *device, uint32_t tenant, struct ofs_step_times *times)
{
	if (tenant >= device->tenant_count)
		return -EINVAL;
	memcpy(times, device->tenants[tenant].steps, sizeof(*times));
	return 0;
}

OFS_DEVICE_CALL(step_times_get, (uint32_t, tenant), (struct ofs_step_times *, times));

static int
stages_get(struct ofs_device *device, struct ofs_histogram *stages)
{
	memcpy(stages, device->stages.histograms, sizeof(device->stages.histograms));
	return 0;
}

OFS_DEVICE_CALL(stages_get, (struct ofs_histogram *, stages));

static int
stages_set(struct ofs_device *device, int on)
{
	device->stages.on = on != 0;
	ofs_device_moments_switch(device, on != 0);
	return 0;
}

OFS_DEVICE_CALL(stages_set, (int, on));
