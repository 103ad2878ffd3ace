/*
 * Stage timers: how long what the reactor sees took, in one histogram for each stage. They belong
 * to the reactor's thread, like all it owns, and take the time from its clock: in virtual time they
 * are as reproducible as everything else.
 */
#include "internal.h"

#include <string.h>

uint64_t
ofs_device_stage_begin(struct ofs_device *device, enum ofs_stage stage, uint64_t now_ns)
{
	if (!device->stages_on || ++device->stage_turns[stage] < OFS_STAGE_STRIDE)
		return 0;
	device->stage_turns[stage] = 0;
	return now_ns;
}

uint64_t
ofs_device_stage_end(struct ofs_device *device, enum ofs_stage stage, uint64_t from_ns)
{
	uint64_t now_ns;

	if (!device->stages_on || from_ns == 0)
		return 0;
	now_ns = ofs_device_now_ns(device);
	if (from_ns <= now_ns) /* what a host says may be any number */
		ofs_histogram_add(&device->stages[stage], now_ns - from_ns);
	return now_ns;
}

static int
run_get(struct ofs_device *device, void *argument)
{
	memcpy(argument, device->stages, sizeof(device->stages));
	return 0;
}

int
ofs_device_stages_get(struct ofs_device *device, struct ofs_histogram *stages)
{
	return ofs_device_call(device, run_get, stages);
}

static int
run_set(struct ofs_device *device, void *argument)
{
	device->stages_on = *(const int *)argument != 0;
	return 0;
}

int
ofs_device_stages_set(struct ofs_device *device, int on)
{
	return ofs_device_call(device, run_set, &on);
}
