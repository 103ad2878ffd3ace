/*
 * Does a tenant that demands everything at once leave the others their turns at the drive, and in
 * the reactor's own turns? In virtual time, by counting the order of service.
 */
#include "support_device.h"

#include <stdio.h>
#include <stdlib.h>

#define FLOOD_STEPS 4
#define FLOOD_BLOCKS 16
#define VICTIM_BLOCKS 8
#define BOUND 3

struct neighbours {
	struct world world;
	struct world_host hosts[2];
	struct world_session sessions[2];
};

static struct ofs_tenant_status
figures(struct world *world, uint32_t tenant)
{
	struct ofs_tenant_status status;
	int rc = ofs_device_tenant_status_get(world->device, tenant, &status);

	assert(rc == 0);
	return status;
}

/* Two tenants with 64 written blocks each, of which none is staged. The drive serves two
 * requests at a time, so that nearly all demands wait. */
static void
neighbours_open(struct neighbours *pair, void (*change)(struct ofs_device_config *config))
{
	struct ofs_device_config config;

	world_config(&config);
	config.core.slot_count = 160;
	config.core.io_max = 96;
	config.core.demand_max = 16;
	config.reads_max = 8;
	config.in_flight_bytes_max = BOUND * 4608ull;
	config.storage.queue_depth_max = 16;
	if (change != NULL)
		change(&config);
	world_open(&pair->world, &config);
	for (uint32_t i = 0; i < 2; i++) {
		world_tenant(&pair->world, 80);
		world_attach(&pair->world, &pair->hosts[i], i, NULL);
		assert(world_session(&pair->hosts[i], &pair->sessions[i], 16) == 0);
		assert(world_append(&pair->sessions[i], 100, 64) == 0);
		world_put_all(&pair->sessions[i], 0, 0);
	}
	assert(ofs_device_reset(pair->world.device) == 0);
}

static void
neighbours_close(struct neighbours *pair)
{
	world_verify(&pair->world);
	for (uint32_t i = 0; i < 2; i++)
		world_detach(&pair->hosts[i]);
	world_close(&pair->world, 0);
}

static void
ask(struct neighbours *pair, uint32_t tenant, uint32_t first, uint32_t count,
	struct world_flight *flight)
{
	uint32_t ordinals[WORLD_DEMANDS_MAX];
	int rc;

	for (uint32_t i = 0; i < count; i++)
		ordinals[i] = first + i;
	rc = world_fetch_begin(&pair->sessions[tenant], 0, count, ordinals, NULL, SECOND_NS, flight);
	assert(rc == 0);
}

static void
finish(struct world_flight *flight)
{
	assert(world_fetch_end(flight) == 0);
	world_expect(&flight->out, 0);
}

/* All of the first tenant's demands are in flight; returns its pending ones. */
static struct ofs_tenant_status
flooded(struct neighbours *pair, struct world_flight *flights)
{
	for (uint32_t i = 0; i < FLOOD_STEPS; i++)
		ask(pair, 0, FLOOD_BLOCKS * i, FLOOD_BLOCKS, &flights[i]);
	world_pass(&pair->world, 20000);
	return figures(&pair->world, 0);
}

/*
 * One tenant floods with demands; the other demands once. Between that demand and its answer the
 * flood gets its weighted share, a turn and the requests in flight already, and no more, however
 * many wait.
 */
static void
test_flood_of_demands(void)
{
	struct world_flight flood[FLOOD_STEPS], victim;
	struct ofs_tenant_status before, after;
	struct neighbours pair;

	neighbours_open(&pair, NULL);
	before = flooded(&pair, flood);
	assert(before.waiting > FLOOD_BLOCKS); /* the flood is there */
	assert(before.in_flight <= before.in_flight_max && before.in_flight_max == BOUND);
	ask(&pair, 1, 0, VICTIM_BLOCKS, &victim);
	finish(&victim);
	after = figures(&pair.world, 0);
	printf("flood: %llu served beside a victim's %u\n",
		(unsigned long long)(after.issued - before.issued), VICTIM_BLOCKS);
	assert(after.issued - before.issued <= VICTIM_BLOCKS + 2 * BOUND);
	assert(after.waiting > 0); /* it went on all the while */
	for (uint32_t i = 0; i < FLOOD_STEPS; i++)
		finish(&flood[i]);
	neighbours_close(&pair);
}

static void
one_at_a_time(struct ofs_device_config *config)
{
	config->reads_max = 1;
}

/* Two floods of weights 3 and 1 over one slot of the drive: are issued reads in that proportion? */
static void
test_weights(void)
{
	struct world_flight flights[2][FLOOD_STEPS];
	struct ofs_tenant_share share = {.weight = 3};
	struct ofs_tenant_status of[2];
	struct neighbours pair;

	neighbours_open(&pair, one_at_a_time);
	assert(ofs_device_tenant_share(pair.world.device, 0, &share) == 0);
	for (uint32_t i = 0; i < FLOOD_STEPS; i++) {
		ask(&pair, 0, FLOOD_BLOCKS * i, FLOOD_BLOCKS, &flights[0][i]);
		ask(&pair, 1, FLOOD_BLOCKS * i, FLOOD_BLOCKS, &flights[1][i]);
	}
	of[0] = figures(&pair.world, 0);
	of[1] = figures(&pair.world, 1);
	for (uint64_t begun[2] = {of[0].issued, of[1].issued}; of[1].issued - begun[1] < 10;) {
		world_pass(&pair.world, 10000);
		of[0] = figures(&pair.world, 0);
		of[1] = figures(&pair.world, 1);
		assert(of[0].waiting > 0 && of[1].waiting > 0);
		if (of[1].issued - begun[1] < 10)
			continue;
		printf("weights: %llu and %llu\n", (unsigned long long)(of[0].issued - begun[0]),
			(unsigned long long)(of[1].issued - begun[1]));
		assert(of[0].issued - begun[0] >= 3 * (of[1].issued - begun[1]) - 4);
		assert(of[0].issued - begun[0] <= 3 * (of[1].issued - begun[1]) + 4);
	}
	for (uint32_t i = 0; i < FLOOD_STEPS; i++) {
		finish(&flights[0][i]);
		finish(&flights[1][i]);
	}
	share.weight = 0;
	assert(ofs_device_tenant_share(pair.world.device, 0, &share) == -EINVAL);
	assert(ofs_device_tenant_share(pair.world.device, 2, &share) == -EINVAL);
	neighbours_close(&pair);
}

/* A cap holds in every interval of virtual time, and requests that wait for it are not lost. */
static void
test_cap(void)
{
	struct ofs_tenant_share share = {.weight = 1, .bandwidth_bytes_per_s = 4608000};
	struct world_flight flight, free_one;
	struct ofs_tenant_status begun, now;
	struct neighbours pair;
	uint64_t at_ns;

	neighbours_open(&pair, NULL);
	assert(ofs_device_tenant_share(pair.world.device, 0, &share) == 0);
	begun = figures(&pair.world, 0);
	at_ns = pair.world.now_ns;
	for (uint32_t i = 0; i < FLOOD_STEPS; i++) {
		ask(&pair, 0, FLOOD_BLOCKS * i, FLOOD_BLOCKS, &flight);
		finish(&flight);
		now = figures(&pair.world, 0);
		/* 4.6 MB/s are a block in 1 ms; the bucket holds 20 ms of it. */
		assert(now.issued_bytes - begun.issued_bytes
			<= 4608000 / 50 + (pair.world.now_ns - at_ns) * 4608 / 1000000 + 4608);
	}
	ask(&pair, 1, 0, 16, &free_one);
	finish(&free_one);
	neighbours_close(&pair);
}

/*
 * A tenant of weights' values with a floor, against a flood of 50 times its weight over one slot of
 * the drive: does it get its floor in every window, and no more of the drive than that and turns?
 */
static void
test_floor(void)
{
	struct ofs_tenant_share share = {.weight = 50},
							floor = {.weight = 1, .floor_bytes_per_s = 9216000};
	struct world_flight flights[2][FLOOD_STEPS];
	struct ofs_tenant_status begun, now;
	struct neighbours pair;
	uint64_t at_ns;

	neighbours_open(&pair, one_at_a_time);
	assert(ofs_device_tenant_share(pair.world.device, 0, &share) == 0);
	assert(ofs_device_tenant_share(pair.world.device, 1, &floor) == 0);
	for (uint32_t i = 0; i < FLOOD_STEPS; i++) {
		ask(&pair, 0, FLOOD_BLOCKS * i, FLOOD_BLOCKS, &flights[0][i]);
		ask(&pair, 1, FLOOD_BLOCKS * i, FLOOD_BLOCKS, &flights[1][i]);
	}
	while (figures(&pair.world, 1).waiting == 0)
		world_pass(&pair.world, 10000);
	begun = figures(&pair.world, 1);
	at_ns = pair.world.now_ns;
	do {
		world_pass(&pair.world, 10000);
		now = figures(&pair.world, 1);
		/* 9.2 MB/s are a block in 0.5 ms, and one may have been at the drive as it fell due. */
		assert(now.issued_bytes - begun.issued_bytes + 2 * 4608ull
			>= (pair.world.now_ns - at_ns) * 9216 / 1000000);
	} while (now.waiting > 0 && figures(&pair.world, 0).waiting > 0);
	printf("floor: %llu of %llu bytes were owed, in %llu us\n", (unsigned long long)now.floor_bytes,
		(unsigned long long)now.issued_bytes,
		(unsigned long long)(pair.world.now_ns - at_ns) / 1000);
	assert(now.floor_bytes > 0 && now.floor_bytes_per_s == floor.floor_bytes_per_s);
	assert(figures(&pair.world, 0).floor_bytes == 0);
	for (uint32_t i = 0; i < FLOOD_STEPS; i++) {
		finish(&flights[0][i]);
		finish(&flights[1][i]);
	}
	floor.bandwidth_bytes_per_s = floor.floor_bytes_per_s - 1;
	assert(ofs_device_tenant_share(pair.world.device, 1, &floor) == -EINVAL);
	neighbours_close(&pair);
}

static void
long_rings(struct ofs_device_config *config)
{
	config->port_entry_count = 32;
	config->score_max = 128;
}

/*
 * A flood of commands over three ports of a tenant has one tenant's part of a turn, not three
 * ports': and the other's command is served in the same turn.
 */
static void
test_flood_of_commands(void)
{
	/* Of no session, but its scores are copied before anybody knows that: 4 units and 1. */
	struct ofs_sqe step = {.op = OFS_OP_STEP, .score_count = 128, .session = OFS_NONE};
	struct ofs_sqe nop = {.op = OFS_OP_NOP, .user = 1ull << 41};
	struct world_host more[2], *floods[3] = {NULL, &more[0], &more[1]};
	struct ofs_cqe cqe;
	struct neighbours pair;
	uint64_t before, served;
	int answered = 0;

	neighbours_open(&pair, long_rings);
	floods[0] = &pair.hosts[0];
	world_attach(&pair.world, &more[0], 0, NULL);
	world_attach(&pair.world, &more[1], 0, NULL);
	world_pass(&pair.world, 1000000);
	before = world_status(&pair.world).commands;
	for (uint32_t i = 0; i < 3; i++)
		for (uint32_t k = 0; k < 32; k++)
			assert(floods[i]->fabric->ops->submit(floods[i]->fabric, &step) == 0);
	assert(pair.hosts[1].fabric->ops->submit(pair.hosts[1].fabric, &nop) == 0);
	assert(ofs_device_poll(pair.world.device) == 1);
	served = world_status(&pair.world).commands - before;
	printf("commands in one turn: %llu\n", (unsigned long long)served);
	assert(served <= 1 + (OFS_COMMAND_CREDIT + 4) / 5);
	for (int i = 0; i < 100 && !answered; i++) {
		pair.hosts[1].fabric->ops->pause(pair.hosts[1].fabric, 1000);
		answered = pair.hosts[1].fabric->ops->poll(pair.hosts[1].fabric, &cqe, 1);
	}
	assert(answered && cqe.user == nop.user && cqe.rc == 0);
	world_detach(&more[0]);
	world_detach(&more[1]);
	neighbours_close(&pair);
}

static void
few_reads(struct ofs_device_config *config)
{
	config->core.io_max = 40;
}

/*
 * Commands of a tenant whose reads fill its part of the core's table stay in the ring, and the
 * other tenant finds room: none of its demands gets -EAGAIN or queues after the flood's.
 */
static void
test_held_back(void)
{
	struct world_flight flood[FLOOD_STEPS], victim;
	struct ofs_tenant_status before, after;
	struct neighbours pair;

	neighbours_open(&pair, few_reads);
	before = flooded(&pair, flood);
	assert(before.held_back > 0 && before.waiting + before.in_flight <= 2 * FLOOD_BLOCKS);
	ask(&pair, 1, 0, VICTIM_BLOCKS, &victim);
	finish(&victim);
	after = figures(&pair.world, 0);
	assert(after.issued - before.issued <= VICTIM_BLOCKS + 2 * BOUND);
	for (uint32_t i = 0; i < FLOOD_STEPS; i++)
		finish(&flood[i]);
	assert(world_ledger(&pair.world).busy == 0);
	neighbours_close(&pair);
}

static uint64_t
part_of(const struct ofs_step_times *times, enum ofs_step_part part)
{
	uint64_t sum = 0;

	for (uint32_t bucket = 0; bucket < OFS_HISTOGRAM_BUCKETS; bucket++)
		sum += times->sums[part][bucket];
	return sum;
}

/* The parts of a waiting step's time add up to the whole; a neighbour's flood shows in the part
 * that it delays; a step of staged blocks is not counted. */
static void
test_where_time_went(void)
{
	struct ofs_step_times alone, beside;
	struct world_flight flood[FLOOD_STEPS], victim;
	struct neighbours pair;
	uint64_t whole = 0;

	neighbours_open(&pair, NULL);
	ofs_driver_stages_set(pair.hosts[1].driver, 2);
	for (uint32_t i = 0; i < 2; i++) { /* the second time they are staged */
		ask(&pair, 1, 0, VICTIM_BLOCKS, &victim);
		finish(&victim);
	}
	assert(ofs_device_step_times_get(pair.world.device, 1, &alone) == 0);
	assert(alone.steps.count == 1);
	for (uint32_t part = 0; part < OFS_STEP_PART_COUNT; part++)
		whole += part_of(&alone, part);
	assert(whole == alone.steps.sum);
	assert(part_of(&alone, OFS_STEP_PART_DRIVE) * 1000 > pair.world.config.storage.nvme.read_ps);
	assert(ofs_device_reset(pair.world.device) == 0);
	(void)flooded(&pair, flood);
	ask(&pair, 1, 16, VICTIM_BLOCKS, &victim);
	finish(&victim);
	assert(ofs_device_step_times_get(pair.world.device, 1, &beside) == 0);
	assert(beside.steps.count == 1); /* a reset forgets */
	assert(part_of(&beside, OFS_STEP_PART_TURN) + part_of(&beside, OFS_STEP_PART_DRIVE)
		> part_of(&alone, OFS_STEP_PART_TURN) + part_of(&alone, OFS_STEP_PART_DRIVE));
	assert(ofs_device_step_times_get(pair.world.device, 0, &beside) == 0);
	assert(
		beside.steps.count == 0 && ofs_device_step_times_get(pair.world.device, 2, &beside) != 0);
	for (uint32_t i = 0; i < FLOOD_STEPS; i++)
		finish(&flood[i]);
	neighbours_close(&pair);
}

/* Of one host of a tenant whose other host waits: `hostile`, then its own in the same turn? */
static void
costs_one(struct world *world, struct world_host hosts[2], struct ofs_sqe hostile)
{
	struct ofs_fabric *bad = hosts[0].fabric, *good = hosts[1].fabric;
	uint64_t before;
	struct ofs_cqe cqe;

	assert(bad->ops->submit(bad, &hostile) == 0);
	(void)ofs_device_serve_ports(world->device);
	if (world->device->tenants[0].credit != OFS_COMMAND_CREDIT - 1) {
		printf("op %u: %d of credit left\n", hostile.op, world->device->tenants[0].credit);
		abort();
	}
	before = world->device->status.commands;
	assert(good->ops->submit(good, &(struct ofs_sqe){.op = OFS_OP_NOP}) == 0);
	(void)ofs_device_serve_ports(world->device);
	assert(world->device->status.commands == before + 1); /* in the very next turn */
	good->ops->pause(good, 50000);
	assert(good->ops->poll(good, &cqe, 1) == 1 && cqe.rc == 0);
	bad->ops->pause(bad, 50000);
	assert(bad->ops->poll(bad, &cqe, 1) == 1);
	assert((cqe.rc != 0) == (hostile.op != OFS_OP_NOP));
}

/* For every command with an absurd number in each of its fields: what is its tenant charged? */
static void
test_what_is_refused_costs_nothing_of_its_numbers(void)
{
	static const uint32_t absurd[] = {UINT32_MAX, INT32_MAX, 1u << 31, 65536, 4609, 4097, 4096};
	static const uint8_t ops[] = {OFS_OP_NOP, OFS_OP_STEP, OFS_OP_PUT, OFS_OP_RELEASE, OFS_OP_HINT,
		99};
	struct ofs_device_config config;
	struct world_host hosts[2];
	struct world world;

	world_config(&config);
	world_open(&world, &config);
	world_tenant(&world, 16);
	world_attach(&world, &hosts[0], 0, NULL);
	world_attach(&world, &hosts[1], 0, NULL);
	for (uint32_t i = 0; i < sizeof(absurd) / sizeof(*absurd); i++) {
		for (uint32_t k = 0; k < sizeof(ops); k++) {
			/* None of them has a session; a PUT and a STEP are else as they should be. */
			const struct ofs_sqe sqe = {.op = ops[k], .session = absurd[i], .length = 4096};
			struct ofs_sqe one = sqe;

			costs_one(&world, hosts, one);
			one.demand_count = ops[k] == OFS_OP_NOP ? 0 : absurd[i];
			costs_one(&world, hosts, one);
			one = sqe;
			one.score_count = absurd[i];
			costs_one(&world, hosts, one);
			one = sqe;
			one.ordinal = one.selected_count = absurd[i];
			one.flags = UINT8_MAX;
			costs_one(&world, hosts, one);
			one = sqe;
			one.put_slot = one.step = absurd[i];
			costs_one(&world, hosts, one);
			one = sqe;
			one.length = absurd[i];
			costs_one(&world, hosts, one);
			one = sqe;
			one.layer = (uint16_t)absurd[i];
			costs_one(&world, hosts, one);
		}
	}
	world_detach(&hosts[0]);
	world_detach(&hosts[1]);
	world_close(&world, 0);
}

int
main(void)
{
	test_what_is_refused_costs_nothing_of_its_numbers();
	test_where_time_went();
	test_flood_of_demands();
	test_weights();
	test_cap();
	test_floor();
	test_flood_of_commands();
	test_held_back();
	printf("device_tenants ok\n");
	return 0;
}
