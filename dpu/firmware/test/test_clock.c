/* Do both clocks keep their one promise: nanoseconds that never go back? */
#include "clock_wait.h"

#include <assert.h>
#include <stdio.h>

/* Does a dilated clock fall behind the machine by its factor, and is a wait as much longer? */
static void
test_dilated(void)
{
	struct ofs_clock clock, dilated;
	uint64_t begin_ns, dilated_begin_ns, passed_ns;

	ofs_clock_init_os(&clock);
	ofs_clock_init_dilated(&dilated, 50);
	assert(ofs_clock_machine_ns(&dilated, 7) == 350 && ofs_clock_machine_ns(&clock, 7) == 7);
	assert(ofs_clock_machine_ns(&dilated, UINT64_MAX - 1) == UINT64_MAX);
	begin_ns = ofs_clock_now_ns(&clock);
	dilated_begin_ns = ofs_clock_now_ns(&dilated);
	assert(dilated_begin_ns >= begin_ns / 50);
	assert(dilated_begin_ns <= ofs_clock_now_ns(&clock) / 50);
	assert(ofs_clock_wait(&dilated, NULL, 0, dilated_begin_ns + 100000) == 0);
	passed_ns = ofs_clock_now_ns(&clock) - begin_ns;
	assert(passed_ns >= 50 * 100000 - 50);
	passed_ns = ofs_clock_now_ns(&dilated) - dilated_begin_ns;
	assert(passed_ns <= (ofs_clock_now_ns(&clock) - begin_ns) / 50 + 1);
}

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
	test_dilated();
	puts("clock ok");
	return 0;
}
