/* The OS side of clock.h, and the clock on the heap that Python owns. */
#include "clock.h"

#include <assert.h>
#include <stdlib.h>

static uint64_t
clock_os_now_ns(struct ofs_clock *clock)
{
	(void)clock;
	return ofs_machine_now_ns();
}

static uint64_t
clock_dilated_now_ns(struct ofs_clock *clock)
{
	return clock_os_now_ns(clock) / clock->dilation;
}

void
ofs_clock_init_os(struct ofs_clock *clock)
{
	ofs_clock_init_dilated(clock, 1);
}

void
ofs_clock_init_dilated(struct ofs_clock *clock, uint32_t dilation)
{
	struct timespec now;

	assert(dilation > 0);
	clock_gettime(CLOCK_REALTIME, &now);
	*clock = (struct ofs_clock){.now_ns = dilation == 1 ? clock_os_now_ns : clock_dilated_now_ns,
		.dilation = dilation,
		.unix_ns =
			(uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec - ofs_machine_now_ns()};
}

int
ofs_clock_open(struct ofs_clock **out, int simulated, uint64_t now_ns)
{
	struct ofs_clock *clock = calloc(1, sizeof(*clock));

	*out = NULL;
	if (clock == NULL)
		return -ENOMEM;
	if (simulated)
		ofs_clock_init_sim(clock, now_ns);
	else
		ofs_clock_init_os(clock);
	*out = clock;
	return 0;
}

void
ofs_clock_close(struct ofs_clock *clock)
{
	free(clock);
}

uint64_t
ofs_clock_read_ns(struct ofs_clock *clock)
{
	return ofs_clock_now_ns(clock);
}
