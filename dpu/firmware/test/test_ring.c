/*
 * Do the rings carry every command and completion once, in order, between two threads, with and
 * without sleep? Run under ThreadSanitizer: both sides use one mapping, so a missing order is seen.
 */
#include "fabric.h"
#include "region/shared.h"
#include "support_dpu.h"

#include <assert.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define COMMANDS 20000
#define ENTRIES 8

struct echo {
	struct ofs_port *port;
	struct ofs_command command;
	struct ofs_result results[64];
	uint32_t count;
	uint32_t sleeps;
};

/* The DPU's thread: answers every STEP with its own ordinals. */
static void *
run_echo(void *argument)
{
	struct echo *echo = argument;
	struct pollfd polled = {.fd = ofs_port_wake_fd(echo->port), .events = POLLIN};
	uint32_t idle_count = 0;

	while (echo->count < COMMANDS) {
		const struct ofs_sqe *sqe = &echo->command.sqe;
		struct ofs_cqe cqe = {0};
		uint32_t i;

		if (ofs_port_poll(echo->port, &echo->command) != 1) {
			if (++idle_count > 64) {
				if (!ofs_port_sleep(echo->port)) {
					echo->sleeps++;
					/* A lost wake-up would show as 10 s here. */
					assert(poll(&polled, 1, 10000) == 1);
				}
				ofs_port_wake(echo->port);
				idle_count = 0;
			}
			continue;
		}
		assert(sqe->user == echo->count && sqe->op == OFS_OP_STEP);
		for (i = 0; i < sqe->demand_count; i++) {
			assert(echo->command.ordinals[i] == echo->count + i);
			assert(echo->command.seen[i] == (uint8_t)(echo->count + i));
			echo->results[i] = (struct ofs_result){.slot = echo->command.ordinals[i]};
		}
		assert(sqe->score_count == 1 && echo->command.scores[0] == (uint16_t)echo->count);
		cqe.user = sqe->user;
		cqe.payload_index = sqe->payload_index;
		cqe.count = sqe->demand_count;
		assert(ofs_port_complete(echo->port, &cqe, echo->results) == 0);
		echo->count++;
	}
	return NULL;
}

static void
write_command(struct ofs_fabric *fabric, uint32_t number)
{
	uint32_t count = number % 33;
	struct ofs_sqe sqe = {.user = number,
		.op = OFS_OP_STEP,
		.payload_index = (uint16_t)(number % ENTRIES),
		.demand_count = count,
		.score_count = 1};
	uint8_t *payload = fabric->ops->payload(fabric, number % ENTRIES);
	uint16_t score = (uint16_t)number;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t ordinal = number + i;

		memcpy(payload + (size_t)i * 4, &ordinal, 4);
		payload[ofs_payload_seen_offset(count) + i] = (uint8_t)ordinal;
	}
	memcpy(payload + ofs_payload_scores_offset(count), &score, sizeof(score));
	while (fabric->ops->submit(fabric, &sqe) == -EAGAIN)
		ofs_cpu_relax(); /* answered, and its entry not yet given back */
}

/* The host's thread: at most ENTRIES in flight, as the payload areas allow. */
static void
drive(struct ofs_fabric *fabric)
{
	uint32_t sent = 0;
	uint32_t received = 0;

	while (received < COMMANDS) {
		struct ofs_cqe cqe;
		uint32_t burst = 1 + sent % ENTRIES;
		uint32_t i;

		while (sent < COMMANDS && sent - received < burst)
			write_command(fabric, sent++);
		while (fabric->ops->poll(fabric, &cqe, 1) == 0)
			assert(fabric->ops->wait(fabric, 10000000000ull) == 0);
		assert(cqe.user == received && cqe.rc == 0 && cqe.count == received % 33);
		for (i = 0; i < cqe.count; i++)
			assert(fabric->ops->results(fabric, &cqe)[i].slot == received + i);
		received++;
		if (received % 1000 == 0)
			fabric->ops->pause(fabric, 300000); /* long enough for the DPU to sleep */
	}
}

static void
test_two_threads(const char *side)
{
	struct support_config config = {.fabric = side,
		.block_count = 1,
		.slot_count = 4,
		.payload_size_bytes = 512,
		.entry_count = ENTRIES,
		.demand_max = 64,
		.score_max = 4,
		.put_slot_count = 2};
	static struct support_dpu dpu;
	struct echo echo = {0};
	struct ofs_fabric *fabric;
	pthread_t thread;

	support_open(&dpu, &config);
	echo.port = dpu.port;
	echo.command = dpu.command;
	fabric = support_fabric(&dpu);
	assert(pthread_create(&thread, NULL, run_echo, &echo) == 0);
	drive(fabric);
	pthread_join(thread, NULL);
	assert(echo.count == COMMANDS && (echo.sleeps > 0) == (ofs_port_wake_fd(dpu.port) >= 0));
	assert(ofs_port_nonsense_count(dpu.port) == 0);
	fabric->ops->close(fabric);
	support_close(&dpu);
}

/* One-sided reads while the DPU republishes, under ThreadSanitizer as well. */
static void
test_reads_beside_writes(void)
{
	struct support_config config = {.fabric = "memory",
		.block_count = 24,
		.slot_count = 8,
		.payload_size_bytes = 4096,
		.entry_count = ENTRIES,
		.demand_max = 24,
		.score_max = 4,
		.put_slot_count = 2};
	static struct support_dpu dpu;
	struct support_fetch *fetch;
	struct ofs_driver *driver;
	uint32_t ordinals[24];

	support_open(&dpu, &config);
	support_open_driver(&dpu, &driver);
	for (uint32_t i = 0; i < 24; i++)
		ordinals[i] = i;
	fetch = support_fetch_new(&dpu, 24, ordinals);
	fetch->fetch.timeout_ns = 20000000;
	dpu.churn = true;
	support_start(&dpu);
	for (uint32_t i = 0; i < 20; i++) {
		(void)ofs_driver_fetch(driver, &fetch->fetch);
		(void)support_fetch_check(fetch);
	}
	support_stop(&dpu);
	support_fetch_free(fetch);
	ofs_driver_close(driver);
	support_close(&dpu);
}

int
main(void)
{
	for (uint32_t i = 0; ofs_port_side(i) != NULL; i++)
		test_two_threads(ofs_port_side(i)->name);
	test_reads_beside_writes();
	return 0;
}
