/*
 * device/stages.h: stage timers.
 *
 * Model: one histogram for each stage, of one in OFS_STAGE_STRIDE of what begins there. Belongs to
 * the reactor's thread; a control call copies them out.
 */
#ifndef OFS_DEVICE_STAGES_H
#define OFS_DEVICE_STAGES_H

#include "device.h"

#include <stdbool.h>

struct ofs_waiter;

struct ofs_stages {
	struct ofs_histogram histograms[OFS_STAGE_COUNT];
	bool on;
	uint32_t turns[OFS_STAGE_COUNT]; /* of those that begin there, since the last timed */
};

/* A read or write begins with `stage`: returns `now_ns` if it is one of those timed, else 0. */
uint64_t ofs_device_stage_begin(struct ofs_device *device, enum ofs_stage stage, uint64_t now_ns);
/* What began at `from_ns` ends now. Returns now; 0 if it is not timed (`from_ns` 0). */
uint64_t ofs_device_stage_end(struct ofs_device *device, enum ofs_stage stage, uint64_t from_ns);
/* The step of this waiter is answered now: records its times, if it is timed. */
void ofs_device_step_ended(struct ofs_device *device, const struct ofs_waiter *waiter);

#endif
