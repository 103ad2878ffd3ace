/*
 * Do all sides of the timing seam keep its contract: no end before its request, every end that is
 * owed handed out once and in its time, and the same times after reset? And does the engine run on
 * a side that owes every end?
 */
#include <stdio.h>

#include "core_fixture.h"
#include "drive.h"
#include "ofs_sim.h"

#define REQUESTS 400u
#define BLOCK 65536u
#define SCHEDULED "nvme with schedulers"
#define UNKNOWN (OFS_TIMING_LATER - 1)

static void
side_name(struct ofs_timing_config *config, const char *name)
{
	snprintf(config->side, sizeof(config->side), "%s", name);
}

static struct ofs_timing *
side_open(const char *name)
{
	struct ofs_timing_config config = {.in_flight_max = 4096,
		.read_ps = 70000,
		.write_ps = 20000,
		.hit_ps = 3000,
		.command_ps = 1000,
		.writes = 1,
		.seed = 7};
	struct ofs_timing *timing;

	config.nvme = test_drive;
	if (strcmp(name, SCHEDULED) == 0) {
		config.nvme.scheduled = 1;
		config.nvme.read_command_ps = config.nvme.program_command_ps = 300000;
		config.nvme.suspend_ps = 20000000;
		config.nvme.write_buffer_bytes = 1 << 20;
		name = "nvme";
	}
	side_name(&config, name);
	assert(ofs_timing_open(&timing, &config) == 0);
	assert(ofs_timing_check(timing) == 0 && timing->in_flight_max > 0);
	return timing;
}

/* Take every end up to now_ps; returns how many. `ends` [REQUESTS] by tag. */
static uint32_t
take(struct ofs_timing *timing, uint64_t now_ps, uint64_t *ends)
{
	struct ofs_timing_end some[3];
	uint64_t last_ps = 0;
	uint32_t taken = 0;
	int count;

	do {
		count = timing->ops->poll(timing, now_ps, some, 3);
		assert(count >= 0 && count <= 3);
		for (int i = 0; i < count; i++, taken++) {
			assert(some[i].tag < REQUESTS && ends[some[i].tag] == OFS_TIMING_LATER);
			assert(some[i].end_ps <= now_ps && some[i].end_ps >= last_ps);
			ends[some[i].tag] = last_ps = some[i].end_ps;
		}
	} while (count == 3);
	assert(timing->ops->next_ps(timing) > now_ps);
	return taken;
}

/* Requests of all kinds at times that rise, some of them together; `ends` [REQUESTS]. */
static void
drive(struct ofs_timing *timing, uint64_t *ends)
{
	uint64_t asked[REQUESTS], now_ps = 0, state = 1;
	uint32_t owed = 0;

	for (uint32_t i = 0; i < REQUESTS; i++)
		ends[i] = UNKNOWN;
	for (uint32_t i = 0; i < REQUESTS; i++) {
		const struct ofs_timing_ops *ops = timing->ops;
		struct ofs_timing_request request = {.tag = i, .size_bytes = BLOCK, .count = 1};
		uint64_t (*calls[])(struct ofs_timing *, uint64_t,
			const struct ofs_timing_request *) = {ops->read, ops->write, ops->hit, ops->command};

		state = state * 6364136223846793005ull + 1442695040888963407ull;
		now_ps += (state >> 33) % 3 ? (state >> 40) % 90000 : 0;
		owed -= take(timing, now_ps, ends);
		request.offset_bytes = (state >> 20) % 1024 * BLOCK;
		request.deadline_ps = (state >> 50) % 2 ? now_ps + 1000000 : 0;
		asked[i] = now_ps;
		ends[i] = calls[(state >> 60) % 4](timing, now_ps, &request);
		owed += ends[i] == OFS_TIMING_LATER;
	}
	while (owed) {
		uint64_t next_ps = timing->ops->next_ps(timing);

		assert(next_ps != OFS_TIMING_LATER);
		owed -= take(timing, next_ps, ends);
	}
	assert(timing->ops->next_ps(timing) == OFS_TIMING_LATER);
	for (uint32_t i = 0; i < REQUESTS; i++)
		assert(ends[i] >= asked[i] && ends[i] < UNKNOWN);
}

static void
test_the_contract(const char *name)
{
	uint64_t first[REQUESTS], again[REQUESTS];
	struct ofs_timing *timing = side_open(name), *other = side_open(name);

	drive(timing, first);
	timing->ops->reset(timing);
	drive(timing, again);
	assert(memcmp(first, again, sizeof(first)) == 0);
	drive(other, again);
	assert(memcmp(first, again, sizeof(first)) == 0);
	timing->ops->close(timing);
	other->ops->close(other);
}

static void
test_a_reset_drops_what_is_owed(const char *name)
{
	struct ofs_timing *timing = side_open(name);
	struct ofs_timing_request request = {.size_bytes = BLOCK, .count = 1};
	struct ofs_timing_end end;

	timing->ops->read(timing, 0, &request);
	timing->ops->hit(timing, 0, &request);
	timing->ops->reset(timing);
	assert(timing->ops->next_ps(timing) == OFS_TIMING_LATER);
	assert(timing->ops->poll(timing, 1ull << 60, &end, 1) == 0);
	timing->ops->close(timing);
}

static void
test_what_open_refuses(void)
{
	struct ofs_timing_config config = {.side = "none"};
	struct ofs_timing_ops foreign = {.name = "foreign", .version = OFS_TIMING_VERSION + 1};
	struct ofs_timing side = {.ops = &foreign, .in_flight_max = 1};
	struct ofs_timing *timing;

	assert(ofs_timing_open(&timing, &config) == -ENOENT);
	side_name(&config, "nvme");
	assert(ofs_timing_open(&timing, &config) == -EINVAL); /* a drive of nothing */
	side_name(&config, "skeleton");
	assert(ofs_timing_open(&timing, &config) == -EINVAL); /* nothing in flight */
	side_name(&config, "free");
	config.hit_ps = UINT64_MAX;
	assert(ofs_timing_open(&timing, &config) == -EINVAL);
	assert(ofs_timing_check(&side) == -EPROTO);
	assert(ofs_timing_check(NULL) == -EINVAL);
}

#define STEPS 6u
#define WIDTH 4u
#define APPEND 2u

/* One session, alone: six steps of one layer that select the same four blocks, two appends. */
static uint64_t
run_alone(const struct ofs_timing_config *device, uint64_t *stall_ns)
{
	struct ofs_engine_config config = {.batch_slot_max = 1,
		.append_steps = APPEND,
		.compute_ns = 1000};
	struct ofs_core_config sizes = fixture_config(16);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	uint32_t selected[STEPS * WIDTH], batch_slot;
	struct ofs_engine_state state;
	struct ofs_engine *engine;
	struct ofs_slab slab = {.step_count = STEPS,
		.last = 1,
		.width = WIDTH,
		.selected = selected,
		.stall_ns = stall_ns};
	struct fixture f;

	for (uint32_t i = 0; i < STEPS * WIDTH; i++)
		selected[i] = i % WIDTH;
	sizes.demand_max = WIDTH;
	fixture_open(&f, &sizes, &policy, WIDTH);
	assert(ofs_timing_open(&config.timing, device) == 0);
	assert(ofs_engine_open(&engine, f.core, &config) == 0);
	assert(ofs_engine_start(engine, 0, f.session, 0, 0, NULL, 0) == 0);
	assert(ofs_engine_run(engine, &batch_slot) == OFS_ENGINE_ROWS);
	assert(ofs_engine_feed(engine, 0, &slab) == 0);
	assert(ofs_engine_run(engine, &batch_slot) == OFS_ENGINE_ENDED);
	ofs_engine_describe(engine, &state);
	assert(ofs_engine_run(engine, &batch_slot) == OFS_ENGINE_IDLE);
	assert(ofs_core_verify(f.core) == 0);
	ofs_engine_close(engine);
	config.timing->ops->close(config.timing);
	ofs_core_close(f.core);
	return state.now_ns;
}

/* By hand: every layer 1000 compute, 300 hit, 50 command; the first has four reads of 7000. */
static void
test_where_the_time_of_a_step_goes(void)
{
	struct ofs_timing_config device = {.side = "free",
		.read_ps = 7000000,
		.hit_ps = 300000,
		.command_ps = 50000,
		.write_ps = 100000};
	uint64_t stall_ns[STEPS];

	assert(run_alone(&device, stall_ns) == STEPS * 1350 + 7000);
	assert(stall_ns[0] == 7050 && stall_ns[1] == 50 && stall_ns[STEPS - 1] == 50);
	/* The second append, and the end, wait for a write that takes 2300 longer than two steps. */
	device.write_ps = 5000000;
	assert(run_alone(&device, stall_ns) == STEPS * 1350 + 7000 + 2 * 2300);
	assert(stall_ns[APPEND] == 50 && stall_ns[2 * APPEND] == 2350);
	/* The same from a side that owes its ends: four reads one after another, nothing else waits. */
	side_name(&device, "skeleton");
	device.in_flight_max = 1024;
	device.write_ps = 0;
	assert(run_alone(&device, stall_ns) == STEPS * 1350 + 4 * 7000);
	assert(stall_ns[0] == 28050 && stall_ns[STEPS - 1] == 50);
}

static void
test_a_side_that_may_owe_too_little_is_refused(void)
{
	struct ofs_timing_config device = {.side = "skeleton", .in_flight_max = 2};
	struct ofs_engine_config config = {.batch_slot_max = 1};
	struct ofs_core_config sizes = fixture_config(16);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct ofs_engine *engine;
	struct fixture f;

	fixture_open(&f, &sizes, &policy, 4);
	assert(ofs_timing_open(&config.timing, &device) == 0);
	assert(ofs_engine_open(&engine, f.core, &config) == -EINVAL);
	config.timing->ops->close(config.timing);
	ofs_core_close(f.core);
}

int
main(void)
{
	const char *name;

	for (uint32_t side = 0; (name = ofs_timing_name(side)) != NULL; side++) {
		test_the_contract(name);
		test_a_reset_drops_what_is_owed(name);
	}
	test_the_contract(SCHEDULED);
	test_a_reset_drops_what_is_owed(SCHEDULED);
	test_what_open_refuses();
	test_where_the_time_of_a_step_goes();
	test_a_side_that_may_owe_too_little_is_refused();
	return 0;
}
