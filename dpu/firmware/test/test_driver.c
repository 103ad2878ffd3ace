/* Does the driver return exactly the requested bytes over shared memory, under every fault? */
#include "driver_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* While the DPU answers. */
static void
served(struct support_fetch *fetch, int rc)
{
	support_start(&dpu);
	assert(ofs_driver_fetch(driver, &fetch->fetch) == rc);
	support_stop(&dpu);
}

static void
test_hits_and_misses(void)
{
	struct support_fetch *fetch;
	uint16_t scores[4] = {1, 20, 300, 4000};
	bool staged[16];
	uint32_t staged_count = 0;

	set_up();
	for (uint32_t i = 0; i < 10; i++)
		support_stage(&dpu, i); /* a later one may take an earlier one's slot */
	for (uint32_t i = 0; i < 16; i++) {
		staged[i] = dpu.slot_of[i] != OFS_NONE;
		staged_count += staged[i];
	}
	dpu.length_of[15] = 0;   /* the store does not have it */
	dpu.length_of[14] = 100; /* a short block */
	fetch = support_fetch_new(&dpu, 16, all);
	fetch->fetch.scores = scores;
	fetch->fetch.score_count = 4;
	served(fetch, 0);
	assert(support_fetch_check(fetch) == 15);
	assert(fetch->fetch.hit_count == staged_count && staged_count > 0);
	assert(dpu.seen_count[OFS_CAUSE_WINDOW] + dpu.seen_count[OFS_CAUSE_PATTERN] == staged_count);
	assert(fetch->rcs[15] == -ENOENT && fetch->ends[15] == 255);
	assert(fetch->lengths[14] == 100 && fetch->lengths[0] == PAYLOAD);
	assert(fetch->fetch.failed_count == 1 && fetch->fetch.stall_ns > 0);
	assert(dpu.score_sum == 4321 && dpu.step_count == 1 && dpu.selected_count == 21);
	for (uint32_t i = 0; i < 15; i++)
		assert(fetch->ends[i] == (staged[i] ? OFS_END_WINDOW : OFS_END_COLD));
	support_fetch_free(fetch);
	tear_down();
}

/* All there: no stall is counted, although the DPU got the step. */
static void
test_all_hits_do_not_stall(void)
{
	struct support_fetch *fetch;

	set_up();
	support_stage(&dpu, 5);
	fetch = support_fetch_new(&dpu, 1, &all[5]);
	served(fetch, 0);
	assert(support_fetch_check(fetch) == 1 && fetch->fetch.hit_count == 1);
	assert(fetch->fetch.stall_ns == 0 && fetch->fetch.copy_ns > 0 && dpu.step_count == 1);
	support_fetch_free(fetch);
	tear_down();
}

/* Rows from the fourth on lie apart, of hits and of what is waited for. */
static void
test_rows_apart(void)
{
	uint8_t *spare = calloc(12, PAYLOAD);
	struct support_fetch *fetch;

	set_up();
	support_stage(&dpu, 5);
	fetch = support_fetch_new(&dpu, 16, all);
	fetch->fetch.spare = spare;
	fetch->fetch.target_rows = 4;
	memset(fetch->target, 0xee, 17 * PAYLOAD);
	served(fetch, 0);
	for (size_t i = 4 * PAYLOAD; i < 17 * PAYLOAD; i++)
		assert(fetch->target[i] == 0xee);
	memcpy(fetch->target + 4 * PAYLOAD, spare, 12 * PAYLOAD);
	assert(support_fetch_check(fetch) == 16);
	support_fetch_free(fetch);
	free(spare);
	tear_down();
}

/* 64 demands over a STEP that carries 16: four STEPs, selected and scores counted once. */
static void
test_more_than_a_step_carries(void)
{
	struct support_fetch *fetch;
	uint16_t scores[2] = {7, 8};

	set_up();
	fetch = support_fetch_new(&dpu, BLOCKS, all);
	fetch->fetch.scores = scores;
	fetch->fetch.score_count = 2;
	served(fetch, 0);
	assert(support_fetch_check(fetch) + fetch->fetch.failed_count == BLOCKS);
	assert(dpu.step_count - dpu.retry_count == 4 && dpu.score_sum == 15);
	assert(dpu.selected_count == BLOCKS + 5);
	support_fetch_free(fetch);
	tear_down();
}

/* A hint alone is a STEP without demands. */
static void
test_no_demands(void)
{
	struct ofs_fetch fetch = {.selected_count = 9, .timeout_ns = 5000000000ull};
	uint16_t scores[2] = {1, 2};

	set_up();
	fetch.scores = scores;
	fetch.score_count = 2;
	support_start(&dpu);
	assert(ofs_driver_fetch(driver, &fetch) == 0);
	support_stop(&dpu);
	assert(dpu.step_count == 1 && dpu.score_sum == 3 && dpu.selected_count == 9);
	tear_down();
}

/* Guesses are sent in pieces without waiting, and leave half of the port to calls. */
static void
test_hints_wait_for_nothing(void)
{
	struct ofs_guess guesses[100] = {{.cause = OFS_CAUSE_LOOKAHEAD}};
	struct ofs_driver_stats stats;
	struct support_fetch *fetch;

	set_up();
	assert(ofs_driver_hint(driver, 1, guesses, 20) == 20);  /* pieces of 16 and 4, unanswered */
	assert(ofs_driver_hint(driver, 1, guesses, 100) == 32); /* four of eight areas are taken */
	assert(ofs_driver_hint(driver, 1, guesses, 1) == 0);
	fetch = support_fetch_new(&dpu, 1, &all[5]);
	served(fetch, 0);
	assert(support_fetch_check(fetch) == 1);
	assert(ofs_driver_hint(driver, 1, guesses, 3) == 3); /* answered: their areas are free */
	assert(dpu.guess_count == 52 && ofs_driver_stats_get(driver, &stats) == 0);
	assert(stats.guesses == 55);
	support_fetch_free(fetch);
	tear_down();
}

static void
test_busy_is_asked_again(void)
{
	struct support_fetch *fetch;

	set_up();
	fetch = support_fetch_new(&dpu, 4, all);
	dpu.busy_answers = 9;
	served(fetch, 0);
	assert(support_fetch_check(fetch) == 4);
	assert(dpu.retry_count >= 3 && fetch->fetch.retry_count >= 9);
	/* Never free: the timeout ends it. */
	dpu.busy_answers = UINT32_MAX;
	support_evict(&dpu, 0);
	fetch->fetch.timeout_ns = 10000000;
	served(fetch, -ETIMEDOUT);
	assert(fetch->rcs[0] == -ETIMEDOUT && fetch->fetch.hit_count == 3);
	assert(support_fetch_check(fetch) == 3);
	support_fetch_free(fetch);
	tear_down();
}

/* Bytes that fail their check are never handed out, however often they are asked for. */
static void
test_bad_bytes_are_refused(void)
{
	struct support_fetch *fetch;

	set_up();
	fetch = support_fetch_new(&dpu, 4, all);
	dpu.flip = true;
	support_stage(&dpu, 0);
	served(fetch, 0);
	assert(fetch->rcs[0] == -EBADMSG && fetch->ends[0] == 255);
	assert(support_fetch_check(fetch) == 0 && fetch->fetch.torn_count >= 8);
	support_fetch_free(fetch);
	tear_down();
}

/* Slots are rewritten all the time: a block arrives whole, or does not arrive. */
static void
test_eviction_while_reading(void)
{
	struct support_fetch *fetch;
	uint64_t came = 0;
	uint64_t torn = 0;

	set_up();
	fetch = support_fetch_new(&dpu, BLOCKS, all);
	dpu.churn = true;
	support_start(&dpu);
	for (uint32_t i = 0; i < 300; i++) {
		int rc = ofs_driver_fetch(driver, &fetch->fetch);

		assert(rc == 0 || rc == -ETIMEDOUT);
		came += support_fetch_check(fetch);
		torn += fetch->fetch.torn_count;
	}
	support_stop(&dpu);
	printf("eviction while reading: %llu blocks came whole, %llu reads were refused\n",
		(unsigned long long)came, (unsigned long long)torn);
	assert(came > 0);
	support_fetch_free(fetch);
	tear_down();
}

/* A DPU that does not answer: -ETIMEDOUT; areas are kept for the late answers, then used again. */
static void
test_timeout_and_recovery(void)
{
	struct support_fetch *fetch;

	set_up();
	fetch = support_fetch_new(&dpu, 2, all);
	fetch->fetch.timeout_ns = 1000000;
	for (uint32_t i = 0; i < 12; i++) { /* more than there are areas */
		assert(ofs_driver_fetch(driver, &fetch->fetch) == -ETIMEDOUT);
		assert(fetch->rcs[0] == -ETIMEDOUT && fetch->fetch.failed_count == 2);
	}
	fetch->fetch.timeout_ns = 5000000000ull;
	support_start(&dpu);
	for (uint32_t i = 0; i < 20; i++) {
		assert(ofs_driver_fetch(driver, &fetch->fetch) == 0);
		assert(support_fetch_check(fetch) == 2);
	}
	support_stop(&dpu);
	support_fetch_free(fetch);
	tear_down();
}

static int
put_blocks(uint32_t count, const uint8_t *source, uint32_t length, uint64_t timeout_ns,
	int32_t *rcs)
{
	struct ofs_put put = {.session = 1,
		.layer = 2,
		.count = count,
		.length_bytes = length,
		.ordinals = all,
		.source = source,
		.source_stride_bytes = PAYLOAD,
		.timeout_ns = timeout_ns,
		.rcs = rcs};

	return ofs_driver_put(driver, &put);
}

static void
test_puts(void)
{
	static uint8_t source[BLOCKS][PAYLOAD];
	struct ofs_driver_stats stats;
	int32_t rcs[BLOCKS];

	set_up();
	for (uint32_t i = 0; i < BLOCKS; i++) {
		support_fill(i, source[i], PAYLOAD);
		dpu.length_of[i] = 0;
	}
	dpu.busy_puts = 5;
	support_start(&dpu);
	assert(put_blocks(BLOCKS, source[0], PAYLOAD, 5000000000ull, rcs) == 0);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert(rcs[i] == 0 && dpu.length_of[i] == PAYLOAD);
	assert(ofs_driver_release(driver, 1) == 0);
	support_stop(&dpu);
	assert(ofs_driver_stats_get(driver, &stats) == 0);
	assert(stats.puts == BLOCKS && stats.bytes_put == BLOCKS * PAYLOAD);
	/* The store's errors reach the host block by block. */
	dpu.put_rc = -ENOSPC;
	support_start(&dpu);
	assert(put_blocks(7, source[0], PAYLOAD, 5000000000ull, rcs) == 0);
	support_stop(&dpu);
	for (uint32_t i = 0; i < 7; i++)
		assert(rcs[i] == -ENOSPC);
	assert(put_blocks(1, source[0], PAYLOAD + 1, 1, rcs) == -EINVAL);
	/* No answer, more often than the window has slots; then there is one. */
	for (uint32_t i = 0; i < 3; i++) {
		assert(put_blocks(6, source[0], PAYLOAD, 1000000, rcs) == -ETIMEDOUT);
		assert(rcs[0] == -ETIMEDOUT && rcs[5] == -ETIMEDOUT);
	}
	dpu.put_rc = 0;
	support_start(&dpu);
	assert(put_blocks(6, source[0], PAYLOAD, 5000000000ull, rcs) == 0);
	assert(rcs[0] == 0 && rcs[5] == 0);
	support_stop(&dpu);
	tear_down();
}

static void
test_refuses_bad_calls(void)
{
	struct support_fetch *fetch;

	set_up();
	fetch = support_fetch_new(&dpu, 2, all);
	fetch->fetch.score_count = 65;
	assert(ofs_driver_fetch(driver, &fetch->fetch) == -EINVAL);
	fetch->fetch.score_count = 0;
	fetch->fetch.selected_count = 1;
	assert(ofs_driver_fetch(driver, &fetch->fetch) == -EINVAL);
	fetch->fetch.selected_count = 2;
	fetch->fetch.target_stride_bytes = PAYLOAD - 1;
	assert(ofs_driver_fetch(driver, &fetch->fetch) == -EINVAL);
	support_fetch_free(fetch);
	tear_down();
}

/* The daemon is killed: the host learns of it at once, and not by a timeout. */
static void
test_daemon_dies(void)
{
	struct support_fetch *fetch;
	struct timespec start;
	struct timespec end;

	set_up();
	fetch = support_fetch_new(&dpu, 2, all);
	fetch->fetch.timeout_ns = 60000000000ull;
	assert(clock_gettime(CLOCK_MONOTONIC, &start) == 0);
	kill_daemon();
	assert(ofs_driver_fetch(driver, &fetch->fetch) == -EPIPE);
	assert(clock_gettime(CLOCK_MONOTONIC, &end) == 0);
	assert(end.tv_sec - start.tv_sec < 30);
	assert(fetch->rcs[0] == -EPIPE);
	support_fetch_free(fetch);
	tear_down();
}

int
main(void)
{
	test_hits_and_misses();
	test_all_hits_do_not_stall();
	test_rows_apart();
	test_more_than_a_step_carries();
	test_no_demands();
	test_hints_wait_for_nothing();
	test_busy_is_asked_again();
	test_bad_bytes_are_refused();
	test_eviction_while_reading();
	test_timeout_and_recovery();
	test_puts();
	test_refuses_bad_calls();
	test_daemon_dies();
	return 0;
}
