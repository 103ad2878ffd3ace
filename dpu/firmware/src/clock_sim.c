/* The simulated side of clock.h: time stops until its simulator advances it. */
#include "clock.h"

#include <assert.h>

static uint64_t
clock_sim_now_ns(struct ofs_clock *clock)
{
	return __atomic_load_n(&clock->sim_now_ns, __ATOMIC_ACQUIRE);
}

void
ofs_clock_init_sim(struct ofs_clock *clock, uint64_t now_ns)
{
	*clock = (struct ofs_clock){.now_ns = clock_sim_now_ns, .sim_now_ns = now_ns, .dilation = 1};
}

void
ofs_clock_advance_to(struct ofs_clock *clock, uint64_t now_ns)
{
	assert(clock->now_ns == clock_sim_now_ns); /* the OS clock advances by itself */
	assert(now_ns >= clock->sim_now_ns);
	__atomic_store_n(&clock->sim_now_ns, now_ns, __ATOMIC_RELEASE);
}
