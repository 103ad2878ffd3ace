/* Do both clocks keep their one promise: nanoseconds that never go back? */
#include "clock.h"

#include <assert.h>
#include <stdio.h>

int
main(void)
{
	struct ofs_clock clock;
	struct ofs_clock *heap;
	uint64_t before_ns;

	ofs_clock_init_os(&clock);
	before_ns = ofs_clock_now_ns(&clock);
	for (int i = 0; i < 1000; i++) {
		uint64_t now_ns = ofs_clock_now_ns(&clock);

		assert(now_ns >= before_ns);
		before_ns = now_ns;
	}
	ofs_clock_init_sim(&clock, 7);
	assert(ofs_clock_now_ns(&clock) == 7);
	ofs_clock_advance_to(&clock, 7);
	ofs_clock_advance_to(&clock, 1000000000007ull);
	assert(ofs_clock_now_ns(&clock) == 1000000000007ull);

	assert(ofs_clock_open(&heap, 1, 5) == 0);
	assert(ofs_clock_read_ns(heap) == 5);
	ofs_clock_close(heap);
	assert(ofs_clock_open(&heap, 0, 5) == 0);
	assert(ofs_clock_read_ns(heap) >= before_ns);
	ofs_clock_close(heap);
	puts("clock ok");
	return 0;
}
