/*
 * Stage timers of the host: one in OFS_STAGE_STRIDE is timed, but all with a device in dilated
 * time, which counts where its software was too slow; see driver.h. A recording times all commands
 * too, but not all copies: to read the clock around each takes 5 to 10 % of a fetch of 32 KiB
 * blocks.
 */
#include "driver/internal.h"

#include <string.h>

uint64_t
ofs_driver_stage_begin(struct ofs_driver *driver, enum ofs_stage stage)
{
	if (!driver->stages_on)
		return 0;
	if (++driver->stage_turns[stage] < OFS_STAGE_STRIDE && driver->fabric->dilation == 1
		&& !(driver->stages_all && stage != OFS_STAGE_COPY))
		return 0;
	driver->stage_turns[stage] = 0;
	return ofs_driver_now_ns(driver);
}

uint64_t
ofs_driver_stage_end(struct ofs_driver *driver, enum ofs_stage stage, uint64_t from_ns)
{
	uint64_t now_ns;

	if (from_ns == 0)
		return 0;
	now_ns = ofs_driver_now_ns(driver);
	if (from_ns <= now_ns) /* the DPU's clock may differ */
		ofs_histogram_add(&driver->stages[stage], now_ns - from_ns);
	return now_ns;
}

void
ofs_driver_stages_get(const struct ofs_driver *driver, struct ofs_histogram *stages)
{
	memcpy(stages, driver->stages, sizeof(driver->stages));
}

void
ofs_driver_stages_set(struct ofs_driver *driver, int on)
{
	driver->stages_on = on != 0;
	driver->stages_all = on > 1;
}
