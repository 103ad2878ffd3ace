/* Over a fabric in virtual time with seeded faults: no wrong byte, and a seed repeats itself. */
#include "support_dpu.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define BLOCKS 48
#define PAYLOAD 4096
#define SEEDS 60

struct outcome {
	uint64_t came;
	uint64_t torn;
	uint64_t retries;
	uint64_t stall_ns;
	uint64_t now_ns;
	struct ofs_histogram stages[OFS_STAGE_COUNT];
};

static void
turn(void *context, uint64_t now_ns)
{
	(void)now_ns;
	support_turn(context);
}

static struct outcome
run(uint64_t seed, uint32_t torn_per_million, uint32_t flip_per_million, bool churn)
{
	struct support_config config = {.block_count = BLOCKS,
		.slot_count = 32,
		.payload_size_bytes = PAYLOAD,
		.entry_count = 4,
		.demand_max = 16,
		.score_max = 8,
		.put_slot_count = 2};
	struct ofs_fabric_sim_config sim = {.seed = seed,
		.step_ns = 500,
		.delay_ns_max = 40000,
		.torn_per_million = torn_per_million,
		.flip_per_million = flip_per_million};
	struct outcome outcome = {0};
	static struct support_dpu dpu;
	struct support_fetch *fetch;
	struct ofs_fabric *fabric;
	struct ofs_driver *driver;
	uint32_t ordinals[BLOCKS];
	uint32_t i;

	for (i = 0; i < BLOCKS; i++)
		ordinals[i] = (i * 7 + (uint32_t)seed) % BLOCKS;
	support_open(&dpu, &config);
	dpu.random = seed;
	dpu.churn = churn;
	fabric = support_fabric_sim(&dpu, &sim, turn, &dpu, 1000);
	assert(ofs_driver_open(&driver, fabric) == 0);
	fetch = support_fetch_new(&dpu, BLOCKS, ordinals);
	fetch->fetch.timeout_ns = 20000000;
	/* The DPU's side of the link would not know where to write otherwise. */
	assert(ofs_driver_fetch(driver, &fetch->fetch) == -EFAULT);
	assert(ofs_driver_register(driver, fetch->target, BLOCKS * PAYLOAD) == 0);
	for (i = 0; i < 10; i++) {
		int rc = ofs_driver_fetch(driver, &fetch->fetch);

		assert(rc == 0 || rc == -ETIMEDOUT);
		outcome.came += support_fetch_check(fetch);
		outcome.torn += fetch->fetch.torn_count;
		outcome.retries += fetch->fetch.retry_count;
		outcome.stall_ns += fetch->fetch.stall_ns;
	}
	outcome.now_ns = fabric->ops->now_ns(fabric);
	ofs_driver_stages_get(driver, outcome.stages);
	assert(outcome.stages[OFS_STAGE_COPY].count > 0 && outcome.stages[OFS_STAGE_COPY].sum > 0);
	support_fetch_free(fetch);
	ofs_driver_close(driver);
	support_close(&dpu);
	return outcome;
}

int
main(void)
{
	uint64_t came = 0;
	uint64_t torn = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct outcome a = run(seed, 200000, 20000, true);
		struct outcome b = run(seed, 200000, 20000, true);

		assert(memcmp(&a, &b, sizeof(a)) == 0);
		assert(a.torn > 0);
		came += a.came;
		torn += a.torn;
	}
	printf("sim: %llu blocks came whole, %llu reads were refused\n", (unsigned long long)came,
		(unsigned long long)torn);
	/* Most come in spite of all that, and all of them where nothing is wrong. */
	assert(came > SEEDS * 10 * BLOCKS * 9 / 10);
	assert(run(5, 0, 0, false).came == 10 * BLOCKS);
	return 0;
}
