/*
 * Does a driver with several calls in flight end each as if it had been alone? Landing in any
 * order, deadlines of their own, a full table that is refused, a daemon that dies under all of
 * them.
 */
#include "driver_fixture.h"

#include <string.h>

static struct support_fetch *
begin(uint32_t first, uint32_t count, uint64_t timeout_ns, uint64_t *ticket)
{
	struct support_fetch *fetch = support_fetch_new(&dpu, count, &all[first]);

	fetch->fetch.timeout_ns = timeout_ns;
	assert(ofs_driver_fetch_begin(driver, &fetch->fetch, ticket) == 0);
	return fetch;
}

/* All of its blocks have come. */
static void
finish(struct support_fetch *fetch, uint64_t ticket, uint32_t count)
{
	assert(ofs_driver_fetch_end(driver, ticket) == 0);
	assert(support_fetch_check(fetch) == count);
	support_fetch_free(fetch);
}

/* The late answers give back what they held: all of the table can be used again. */
static void
use_whole_table(void)
{
	struct support_fetch *fetches[ENTRIES];
	uint64_t tickets[ENTRIES];

	for (uint32_t round = 0; round < 3; round++) {
		for (uint32_t i = 0; i < ENTRIES; i++)
			fetches[i] = begin(i, 2, LONG_NS, &tickets[i]);
		for (uint32_t i = 0; i < ENTRIES; i++)
			finish(fetches[i], tickets[i], 2);
	}
}

/* Ended in another order than begun: each has its own blocks. */
static void
test_several_in_flight(void)
{
	struct support_fetch *fetches[ENTRIES];
	uint64_t tickets[ENTRIES];

	set_up();
	support_stage(&dpu, 3);
	for (uint32_t i = 0; i < ENTRIES; i++)
		fetches[i] = begin(8 * i, 8, LONG_NS, &tickets[i]);
	assert(fetches[0]->rcs[3] == 0); /* a hit is there before anybody has answered */
	support_start(&dpu);
	for (uint32_t i = ENTRIES; i-- > 0;) {
		finish(fetches[i], tickets[i], 8);
		assert(ofs_driver_fetch_end(driver, tickets[i]) == -EBADF);
	}
	support_stop(&dpu);
	tear_down();
}

/* Landed parts are read while the rest is in flight, in any order of landing. */
static void
test_read_as_they_land(void)
{
	struct support_fetch *fetch;
	uint64_t ticket;
	uint64_t ended;

	set_up();
	dpu.land_first = 3;
	dpu.busy_answers = 1; /* demand 0 is asked for again, alone */
	fetch = begin(0, 8, LONG_NS, &ticket);
	support_turn(&dpu);
	assert(ofs_driver_poll(driver, 0, &ended, 1) == 0);
	for (uint32_t i = 0; i < 8; i++) {
		const uint8_t *block = fetch->target + (uint64_t)fetch->target_index[i] * PAYLOAD;

		assert((fetch->rcs[i] == 0) == (i >= 5));
		assert(i < 5 || support_matches(i, block, PAYLOAD));
	}
	support_turn(&dpu);
	assert(ofs_driver_poll(driver, 0, &ended, 1) == 0 && fetch->rcs[0] != 0 && fetch->rcs[4] == 0);
	support_start(&dpu);
	assert(ofs_driver_fetch_end(driver, ticket) == 0);
	support_stop(&dpu);
	assert(support_fetch_check(fetch) == 8 && dpu.step_count == 2 && dpu.retry_count == 1);
	support_fetch_free(fetch);
	tear_down();
}

/* Poll reports each call once, and never waits when asked not to. */
static void
test_poll_tells_each_once(void)
{
	struct support_fetch *fetches[4];
	uint64_t tickets[4];
	uint64_t ended[ENTRIES];
	uint32_t reports[4] = {0};
	uint32_t count = 0;

	set_up();
	for (uint32_t i = 0; i < 4; i++)
		fetches[i] = begin(16 * i, 16, LONG_NS, &tickets[i]);
	assert(ofs_driver_poll(driver, 0, ended, ENTRIES) == 0); /* the port is not served */
	support_start(&dpu);
	while (count < 4) {
		int rc = ofs_driver_poll(driver, count < 2 ? LONG_NS : 0, ended, count < 2 ? 1 : ENTRIES);

		assert(rc >= 0);
		for (int k = 0; k < rc; k++)
			for (uint32_t i = 0; i < 4; i++)
				reports[i] += ended[k] == tickets[i];
		count += (uint32_t)rc;
	}
	support_stop(&dpu);
	for (uint32_t i = 0; i < 4; i++) {
		assert(reports[i] == 1);
		finish(fetches[i], tickets[i], 16);
	}
	assert(ofs_driver_poll(driver, LONG_NS, ended, ENTRIES) == 0); /* nothing in flight: no wait */
	tear_down();
}

/* One more than the port has entries is refused at once, and changes nothing of the others. */
static void
test_full_is_refused(void)
{
	struct support_fetch *fetches[ENTRIES];
	uint64_t tickets[ENTRIES];
	struct support_fetch *more;
	uint64_t ticket;

	set_up();
	assert(ofs_driver_calls_max(driver) == ENTRIES);
	for (uint32_t i = 0; i < ENTRIES; i++)
		fetches[i] = begin(i, 1, LONG_NS, &tickets[i]);
	more = support_fetch_new(&dpu, 1, all);
	assert(ofs_driver_fetch_begin(driver, &more->fetch, &ticket) == -EAGAIN);
	support_start(&dpu);
	assert(ofs_driver_fetch_end(driver, tickets[5]) == 0);
	assert(ofs_driver_fetch_begin(driver, &more->fetch, &ticket) == 0);
	assert(ofs_driver_fetch_end(driver, ticket) == 0 && support_fetch_check(more) == 1);
	for (uint32_t i = 0; i < ENTRIES; i++) {
		assert(i == 5 || ofs_driver_fetch_end(driver, tickets[i]) == 0);
		assert(support_fetch_check(fetches[i]) == 1);
		support_fetch_free(fetches[i]);
	}
	support_stop(&dpu);
	support_fetch_free(more);
	tear_down();
}

/* The hasty end by their own deadlines while the patient one goes on and comes. */
static void
test_deadlines_are_their_own(void)
{
	struct support_fetch *hasty;
	struct support_fetch *patient;
	uint64_t tickets[3];
	uint64_t ended[3];
	int32_t rcs[2];
	uint8_t source[2 * PAYLOAD] = {0};
	struct ofs_put put = {.count = 2,
		.length_bytes = PAYLOAD,
		.ordinals = all,
		.source = source,
		.source_stride_bytes = PAYLOAD,
		.timeout_ns = 2000000,
		.rcs = rcs};

	set_up();
	patient = begin(0, 16, LONG_NS, &tickets[0]);
	hasty = begin(16, 16, 1000000, &tickets[1]);
	assert(ofs_driver_put_begin(driver, &put, &tickets[2]) == 0);
	for (uint32_t count = 0; count < 2;) {
		int rc = ofs_driver_poll(driver, LONG_NS, ended, 3);

		assert(rc > 0);
		for (int i = 0; i < rc; i++)
			assert(ended[i] != tickets[0]);
		count += (uint32_t)rc;
	}
	assert(ofs_driver_put_end(driver, tickets[1]) == -EBADF); /* it is a fetch */
	assert(ofs_driver_fetch_end(driver, tickets[1]) == -ETIMEDOUT);
	assert(hasty->rcs[0] == -ETIMEDOUT && hasty->fetch.failed_count == 16);
	assert(ofs_driver_put_end(driver, tickets[2]) == -ETIMEDOUT);
	assert(rcs[0] == -ETIMEDOUT && rcs[1] == -ETIMEDOUT);
	support_start(&dpu);
	finish(patient, tickets[0], 16);
	use_whole_table();
	support_stop(&dpu);
	support_fetch_free(hasty);
	tear_down();
}

/* The target of a cancelled fetch is no longer written, however late its blocks land; the other
 * fetch completes, and the whole table can be used again. */
static void
test_given_up(void)
{
	struct support_fetch *fetches[ENTRIES];
	uint64_t tickets[ENTRIES];
	struct support_fetch *patient;
	uint64_t ticket;

	set_up();
	patient = begin(56, 8, LONG_NS, &ticket);
	for (uint32_t i = 1; i < ENTRIES; i++)
		fetches[i] = begin(7 * i, 7, LONG_NS, &tickets[i]);
	for (uint32_t i = 1; i < ENTRIES; i++) {
		assert(ofs_driver_fetch_cancel(driver, tickets[i]) == 0);
		assert(ofs_driver_fetch_cancel(driver, tickets[i]) == -EBADF);
		assert(ofs_driver_fetch_end(driver, tickets[i]) == -EBADF);
		assert(fetches[i]->rcs[0] == -ETIMEDOUT && fetches[i]->fetch.failed_count == 7);
		support_fetch_free(fetches[i]); /* which a sanitizer watches from here on */
	}
	support_start(&dpu);
	finish(patient, ticket, 8);
	use_whole_table();
	support_stop(&dpu);
	tear_down();
}

/* Fetches and puts side by side, more of both than there are payload areas. */
static void
test_puts_and_fetches_together(void)
{
	static uint8_t source[BLOCKS][PAYLOAD];
	struct support_fetch *fetches[3];
	uint64_t tickets[6];
	int32_t rcs[3][8];
	struct ofs_put puts[3];

	set_up();
	for (uint32_t i = 0; i < BLOCKS; i++)
		support_fill(i, source[i], PAYLOAD);
	for (uint32_t i = 0; i < 24; i++)
		dpu.length_of[i] = 0;
	for (uint32_t i = 0; i < 3; i++) {
		puts[i] = (struct ofs_put){.count = 8,
			.length_bytes = PAYLOAD,
			.ordinals = &all[8 * i],
			.source = source[8 * i],
			.source_stride_bytes = PAYLOAD,
			.timeout_ns = LONG_NS,
			.rcs = rcs[i]};
		assert(ofs_driver_put_begin(driver, &puts[i], &tickets[i]) == 0);
		fetches[i] = begin(24, 40, LONG_NS, &tickets[3 + i]);
	}
	dpu.busy_puts = 7;
	support_start(&dpu);
	for (uint32_t i = 0; i < 3; i++) {
		finish(fetches[i], tickets[3 + i], 40);
		assert(ofs_driver_put_end(driver, tickets[i]) == 0);
		for (uint32_t k = 0; k < 8; k++)
			assert(rcs[i][k] == 0 && dpu.length_of[8 * i + k] == PAYLOAD);
	}
	assert(ofs_driver_release(driver, 1) == 0);
	support_stop(&dpu);
	tear_down();
}

/* The daemon is killed under several calls: all of them end so, by looking alone too. */
static void
test_daemon_dies_under_all(int by_polling)
{
	struct support_fetch *fetches[3];
	uint64_t tickets[4];
	uint64_t ended[4];
	uint8_t source[PAYLOAD] = {0};
	int32_t rc;
	struct ofs_put put = {.count = 1,
		.length_bytes = PAYLOAD,
		.ordinals = all,
		.source = source,
		.timeout_ns = 600000000000ull,
		.rcs = &rc};
	uint32_t count = 0;

	set_up();
	for (uint32_t i = 0; i < 3; i++)
		fetches[i] = begin(4 * i, 4, 600000000000ull, &tickets[i]);
	assert(ofs_driver_put_begin(driver, &put, &tickets[3]) == 0);
	kill_daemon();
	while (by_polling && count < 4)
		count += (uint32_t)ofs_driver_poll(driver, 0, ended, 4);
	for (uint32_t i = 0; i < 3; i++) {
		assert(ofs_driver_fetch_end(driver, tickets[i]) == -EPIPE);
		assert(fetches[i]->rcs[0] == -EPIPE && fetches[i]->rcs[3] == -EPIPE);
		support_fetch_free(fetches[i]);
	}
	assert(ofs_driver_put_end(driver, tickets[3]) == -EPIPE && rc == -EPIPE);
	tear_down();
}

int
main(void)
{
	test_several_in_flight();
	test_read_as_they_land();
	test_poll_tells_each_once();
	test_full_is_refused();
	test_deadlines_are_their_own();
	test_given_up();
	test_puts_and_fetches_together();
	test_daemon_dies_under_all(0);
	test_daemon_dies_under_all(1);
	return 0;
}
