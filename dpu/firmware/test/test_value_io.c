/* Are tasks on values what a plain table is: many at once, filled bit by bit, held, given up? */
#include "support_device.h"
#include "value_io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAYLOAD = 4096, LAYERS = 4, KEYS = 6, TASKS = 12, ROUNDS = 60, LONG = 11 };
#define VALUE_MAX (LAYERS * PAYLOAD)

struct bed {
	struct world world;
	struct world_host hosts[2];
	struct ofs_value_io *ios[2];
	uint64_t random;
};

/* A task with its memory, in up to three parts, and what it may say. */
struct errand {
	struct ofs_value_task task;
	struct iovec iovecs[3];
	uint8_t bytes[VALUE_MAX];
	uint32_t number;
	uint32_t seed; /* of a store */
};

static struct errand errands[TASKS]; /* registered with both hosts */

static uint32_t
below(struct bed *bed, uint32_t limit)
{
	return (uint32_t)(ofs_draw(&bed->random) % limit);
}

static struct ofs_key
key_of(uint32_t number)
{
	return (struct ofs_key){0x1234567800000000ull + number, number};
}

static uint64_t
length_of(uint32_t seed)
{
	return 1 + seed * 2654435761u % VALUE_MAX;
}

static void
fill(uint32_t seed, uint8_t *bytes)
{
	for (uint64_t i = 0; i < VALUE_MAX; i++)
		bytes[i] = (uint8_t)((i * 31 + (i >> 8) * 7 + seed * 131) ^ seed >> 3);
}

static void
bed_open_mode(struct bed *bed, uint64_t seed, uint32_t sessions, uint32_t write_mode)
{
	/* Answers take their time, so that a task may be given up before it has one. */
	const struct ofs_fabric_sim_config slow = {.seed = seed, .step_ns = 500, .delay_ns_max = 9000};
	struct ofs_device_config config;

	*bed = (struct bed){.random = seed};
	world_config(&config);
	config.core.layer_count = config.store.layer_count = LAYERS;
	config.policy.prefetchers |= OFS_PREFETCH_SHARED;
	config.value_max = 16;
	config.write_mode = write_mode;
	world_open(&bed->world, &config);
	world_tenant(&bed->world, 16);
	for (uint32_t i = 0; i < 2; i++) {
		world_attach(&bed->world, &bed->hosts[i], 0, &slow);
		assert(ofs_driver_register(bed->hosts[i].driver, errands, sizeof(errands)) == 0);
		assert(ofs_value_io_open(&bed->ios[i], bed->hosts[i].driver, sessions, SECOND_NS) == 0);
	}
}

static void
bed_open(struct bed *bed, uint64_t seed, uint32_t sessions)
{
	bed_open_mode(bed, seed, sessions, OFS_WRITE_THROUGH);
}

static void
bed_close(struct bed *bed)
{
	for (uint32_t i = 0; i < 2; i++) {
		if (bed->ios[i] != NULL)
			ofs_value_io_close(bed->ios[i]);
		world_abandon(&bed->hosts[i]);
	}
	world_verify(&bed->world);
	world_close(&bed->world, 0);
}

static void
lay_out(struct bed *bed, struct errand *errand, uint64_t length)
{
	uint64_t cuts[4] = {0, below(bed, (uint32_t)length + 1), below(bed, (uint32_t)length + 1),
		length};

	if (cuts[1] > cuts[2]) {
		uint64_t first = cuts[2];

		cuts[2] = cuts[1];
		cuts[1] = first;
	}
	if (below(bed, 2))
		cuts[1] = cuts[2] = length; /* in one part */
	for (uint32_t i = 0; i < 3; i++)
		errand->iovecs[i] =
			(struct iovec){errand->bytes + cuts[i], (size_t)(cuts[i + 1] - cuts[i])};
	errand->task.iovecs = errand->iovecs;
	errand->task.iovec_count = 3;
	errand->task.length = length;
}

static void
store(struct bed *bed, struct errand *errand, uint32_t number, uint32_t seed)
{
	*errand = (struct errand){.number = number, .seed = seed};
	errand->task.verb = OFS_VALUE_STORE;
	errand->task.key = key_of(number);
	fill(seed, errand->bytes);
	lay_out(bed, errand, length_of(seed));
	errand->task.filled = errand->task.length;
	errand->task.committed = 1;
}

static void
retrieve(struct bed *bed, struct errand *errand, uint32_t number, uint64_t length)
{
	*errand = (struct errand){.number = number};
	errand->task.verb = OFS_VALUE_RETRIEVE;
	errand->task.key = key_of(number);
	lay_out(bed, errand, length);
}

static void
name(struct errand *errand, uint32_t verb, uint32_t number)
{
	*errand = (struct errand){.number = number};
	errand->task.verb = verb;
	errand->task.key = key_of(number);
}

static void
submit(struct bed *bed, uint32_t io, struct errand *errand)
{
	assert(ofs_value_io_submit(bed->ios[io], &errand->task) == 0);
}

/* Runs until every task has ended. */
static void
settle(struct bed *bed, uint32_t io)
{
	struct ofs_value_task *ended[TASKS];

	while (ofs_value_io_count(bed->ios[io]) > 0)
		assert(ofs_value_io_run(bed->ios[io], SECOND_NS, ended, TASKS) >= 0);
}

static int
alone(struct bed *bed, struct errand *errand)
{
	submit(bed, 0, errand);
	settle(bed, 0);
	return errand->task.rc;
}

/* The memory has the first bytes of the seed's value. */
static void
check(const struct errand *errand, uint32_t seed)
{
	static uint8_t expected[VALUE_MAX];
	uint64_t length = length_of(seed);

	fill(seed, expected);
	assert(errand->task.rc == 0 && errand->task.value_length == length);
	if (errand->task.length < length)
		length = errand->task.length;
	assert(errand->task.landed == length && memcmp(errand->bytes, expected, length) == 0);
}

/* ---- a plain table ---- */

/* Tasks of a round have keys of their own, so that their order means nothing. */
static void
test_tasks_are_what_a_table_says(void)
{
	uint32_t table[KEYS] = {0};
	struct bed bed;

	bed_open(&bed, 1, 3);
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		uint32_t io = round % 2, kinds[KEYS];

		for (uint32_t i = 0; i < KEYS; i++) {
			kinds[i] = below(&bed, 5);
			if (kinds[i] == 0)
				store(&bed, &errands[i], i, round * KEYS + i);
			else if (kinds[i] == 1)
				retrieve(&bed, &errands[i], i, 1 + below(&bed, VALUE_MAX));
			else
				name(&errands[i],
					kinds[i] == 2       ? OFS_VALUE_DELETE
						: kinds[i] == 3 ? OFS_VALUE_EXIST
										: OFS_VALUE_RETRIEVE,
					i);
			if (kinds[i] == 4) {
				errands[i].task.flags = OFS_TASK_HOLD;
				errands[i].task.hold_ns = below(&bed, 2) * SECOND_NS;
				errands[i].task.probability = below(&bed, 65536);
			}
			submit(&bed, io, &errands[i]);
		}
		settle(&bed, io);
		for (uint32_t i = 0; i < KEYS; i++) {
			const struct ofs_value_task *task = &errands[i].task;

			if (kinds[i] == 0)
				assert(task->rc == 0);
			else if (table[i] == 0)
				assert(task->rc == -ENOENT);
			else if (kinds[i] == 1)
				check(&errands[i], table[i]);
			else if (kinds[i] >= 3)
				assert(task->rc == 0 && task->value_length == length_of(table[i]));
			if (kinds[i] == 0)
				table[i] = errands[i].seed;
			else if (kinds[i] == 2)
				table[i] = 0;
		}
		world_pass(&bed.world, below(&bed, 3) * SECOND_NS / 2);
	}
	bed_close(&bed);
}

/* ---- stores that are filled bit by bit ---- */

static void
test_a_store_is_there_when_it_is_committed(void)
{
	struct errand *filling = &errands[0], *reading = &errands[1];
	struct ofs_value_task *ended[1];
	struct bed bed;
	uint64_t length = length_of(LONG);

	bed_open(&bed, 2, 4);
	assert(length > 2 * PAYLOAD);
	store(&bed, filling, 1, LONG);
	filling->task.filled = filling->task.committed = 0;
	submit(&bed, 0, filling);
	for (uint64_t filled = 0; filled < length; filled += PAYLOAD / 2 + 1) {
		ofs_value_io_fill(bed.ios[0], &filling->task, filled, 0);
		assert(ofs_value_io_run(bed.ios[0], SECOND_NS, ended, 1) == 0);
		assert(filling->task.pieces_begun == filled / PAYLOAD);
	}
	retrieve(&bed, reading, 1, VALUE_MAX);
	submit(&bed, 1, reading);
	settle(&bed, 1);
	assert(reading->task.rc == -ENOENT);
	ofs_value_io_fill(bed.ios[0], &filling->task, length, 1);
	settle(&bed, 0);
	assert(filling->task.rc == 0 && alone(&bed, reading) == 0);
	check(reading, LONG);
	/* Memory behind the length is the caller's. */
	retrieve(&bed, reading, 1, PAYLOAD + 1);
	reading->iovecs[0] = (struct iovec){reading->bytes, VALUE_MAX};
	memset(reading->bytes, 0xa5, VALUE_MAX);
	assert(alone(&bed, reading) == 0 && reading->bytes[PAYLOAD + 1] == 0xa5);
	bed_close(&bed);
}

/* Before its session is open, and while pieces are on their way. */
static void
test_a_store_that_is_dropped_stores_nothing(void)
{
	struct errand *filling = &errands[0], *reading = &errands[1];
	struct ofs_value_task *ended[1];
	struct bed bed;

	bed_open(&bed, 3, 4);
	for (uint32_t turns = 0; turns < 6; turns++) {
		store(&bed, filling, 1, LONG);
		filling->task.committed = 0;
		submit(&bed, 0, filling);
		for (uint32_t i = 0; i < turns; i++)
			assert(ofs_value_io_run(bed.ios[0], 0, ended, 1) == 0);
		ofs_value_io_drop(bed.ios[0], &filling->task);
		settle(&bed, 0);
		assert(filling->task.rc == -ECANCELED);
		retrieve(&bed, reading, 1, VALUE_MAX);
		assert(alone(&bed, reading) == -ENOENT);
	}
	for (uint32_t i = 0; i < 5; i++) { /* the last one has no session */
		store(&bed, &errands[i], i, LONG);
		errands[i].task.committed = 0;
		submit(&bed, 0, &errands[i]);
	}
	assert(ofs_value_io_run(bed.ios[0], SECOND_NS / 100, ended, 1) == 0);
	assert(errands[4].task.state == OFS_TASK_READY);
	ofs_value_io_drop(bed.ios[0], &errands[4].task);
	assert(ofs_value_io_run(bed.ios[0], 0, ended, 1) == 1 && ended[0] == &errands[4].task);
	bed_close(&bed);
}

/* ---- holds ---- */

static void
test_a_held_value_stays_until_it_is_let_go(void)
{
	struct errand *errand = &errands[0];
	struct ofs_key key = key_of(1);
	struct bed bed;

	bed_open(&bed, 4, 4);
	store(&bed, errand, 1, LONG);
	assert(alone(&bed, errand) == 0);
	for (uint32_t once = 0; once < 2; once++) {
		name(errand, OFS_VALUE_RETRIEVE, 1);
		errand->task.flags = OFS_TASK_HOLD | (once ? OFS_TASK_ONCE : 0);
		errand->task.hold_ns = 100 * SECOND_NS;
		assert(alone(&bed, errand) == 0 && ofs_value_io_held(bed.ios[0]) == 1);
		retrieve(&bed, errand, 1, VALUE_MAX);
		assert(alone(&bed, errand) == 0);
		assert(ofs_value_io_held(bed.ios[0]) == 1 - once);
		ofs_value_io_release(bed.ios[0], &key);
		assert(ofs_value_io_held(bed.ios[0]) == 0);
	}
	name(errand, OFS_VALUE_RETRIEVE, 1);
	errand->task.flags = OFS_TASK_HOLD | OFS_TASK_WHOLE;
	errand->task.length = length_of(LONG) + 1;
	assert(alone(&bed, errand) == -EMSGSIZE && ofs_value_io_held(bed.ios[0]) == 0);
	bed_close(&bed);
}

/* More values are held than there are sessions, and yet every task ends. */
static void
test_holds_give_way(void)
{
	struct bed bed;

	bed_open(&bed, 5, 4);
	for (uint32_t i = 0; i < TASKS; i++) {
		store(&bed, &errands[i], i, i + 1);
		submit(&bed, 0, &errands[i]);
	}
	settle(&bed, 0);
	for (uint32_t i = 0; i < TASKS; i++) {
		assert(errands[i].task.rc == 0);
		name(&errands[i], OFS_VALUE_RETRIEVE, i);
		errands[i].task.flags = OFS_TASK_HOLD;
		errands[i].task.hold_ns = 100 * SECOND_NS;
		submit(&bed, 0, &errands[i]);
	}
	settle(&bed, 0);
	assert(ofs_value_io_held(bed.ios[0]) >= 2);
	for (uint32_t i = 0; i < TASKS; i++) {
		assert(errands[i].task.rc == 0);
		retrieve(&bed, &errands[i], i, VALUE_MAX);
		submit(&bed, 0, &errands[i]);
	}
	settle(&bed, 0);
	for (uint32_t i = 0; i < TASKS; i++)
		check(&errands[i], i + 1);
	bed_close(&bed);
}

/* ---- ends that are not the daemon's ---- */

/* Other values fill the staging memory, so that this one is read from the drive. */
static void
push_out(struct bed *bed, struct errand *errand)
{
	for (uint32_t i = 2; i < TASKS; i++) {
		store(bed, errand, i, LONG);
		assert(alone(bed, errand) == 0);
	}
	world_pass(&bed->world, SECOND_NS);
}

/* Wherever it is then, nothing is written into its memory any more, and no session is left. */
static void
test_a_late_task_is_given_up(void)
{
	struct ofs_value_task *ended[3];
	uint32_t late = 0, moving = 0;
	struct bed bed;

	bed_open(&bed, 6, 4);
	store(&bed, &errands[0], 1, LONG);
	assert(alone(&bed, &errands[0]) == 0);
	for (uint32_t turns = 0; turns < 12; turns++) {
		push_out(&bed, &errands[0]);
		for (uint32_t i = 0; i < 3; i++) {
			retrieve(&bed, &errands[i], 1, VALUE_MAX);
			errands[i].task.timeout_ns = 1 + turns * 4000;
			submit(&bed, 0, &errands[i]);
		}
		for (int count = 0; count < 3;)
			count += ofs_value_io_run(bed.ios[0], SECOND_NS, ended, 3);
		for (uint32_t i = 0; i < 3; i++) {
			moving += errands[i].task.pieces_begun > errands[i].task.pieces_ended;
			late += errands[i].task.rc == -ETIMEDOUT;
			assert(errands[i].task.rc == 0 || errands[i].task.rc == -ETIMEDOUT);
			memset(errands[i].bytes, 0xa5, VALUE_MAX);
		}
		world_pass(&bed.world, SECOND_NS / 10);
		name(&errands[3], OFS_VALUE_EXIST, 1);
		assert(alone(&bed, &errands[3]) == 0);
		while (ofs_value_io_busy(bed.ios[0]))
			(void)ofs_value_io_run(bed.ios[0], SECOND_NS, ended, 3);
		assert(world_status(&bed.world).sessions == 0);
		for (uint32_t i = 0; i < 3; i++)
			for (uint32_t j = 0; j < VALUE_MAX; j++)
				assert(errands[i].bytes[j] == 0xa5);
	}
	assert(late > 0 && moving > 0);
	bed_close(&bed);
}

/* Parts of several values land in turns, and are told before their ends. */
static void
test_parts_land_in_turns(void)
{
	struct ofs_value_task *ended[3];
	uint64_t first[3] = {0};
	uint32_t told = 0;
	struct bed bed;

	bed_open(&bed, 7, 4);
	for (uint32_t i = 0; i < 3; i++) {
		store(&bed, &errands[i], i, LONG);
		assert(alone(&bed, &errands[i]) == 0);
	}
	for (uint32_t i = 0; i < 3; i++) {
		retrieve(&bed, &errands[i], i, length_of(LONG));
		errands[i].task.flags = OFS_TASK_PARTS | OFS_TASK_WHOLE;
		submit(&bed, 0, &errands[i]);
	}
	while (ofs_value_io_count(bed.ios[0]) > 0) {
		assert(ofs_value_io_run(bed.ios[0], SECOND_NS, ended, 3) >= 0);
		told++;
		for (uint32_t i = 0; i < 3; i++)
			first[i] += errands[i].task.landed > 0 && errands[i].task.landed < length_of(LONG);
	}
	assert(told > 1 && first[0] + first[1] + first[2] > 0);
	for (uint32_t i = 0; i < 3; i++)
		check(&errands[i], LONG);
	bed_close(&bed);
}

/* A value that is to be on the drive is there when its store has ended; another may not be. */
static void
test_a_durable_value_is_on_the_drive(void)
{
	struct errand *errand = &errands[0];
	uint64_t dirty = 0;
	struct bed bed;

	for (uint32_t durable = 0; durable < 2; durable++) {
		bed_open_mode(&bed, 10, 4, OFS_WRITE_BACK);
		store(&bed, errand, 1, LONG);
		errand->task.flags = durable ? OFS_TASK_DURABLE : 0;
		assert(alone(&bed, errand) == 0);
		dirty = world_status(&bed.world).dirty_blocks;
		assert((dirty > 0) == !durable);
		bed_close(&bed);
	}
}

/* Hosts of one owner have values together, and those of two owners have none of each other's. */
static void
test_owners_have_values_of_their_own(void)
{
	const struct ofs_key red = {1, 2}, blue = {3, 4};
	struct errand *errand = &errands[0];
	struct bed bed;

	bed_open(&bed, 9, 4);
	for (uint32_t together = 0; together < 2; together++) {
		assert(ofs_device_own_port(bed.world.device, bed.hosts[0].port, &red) == 0);
		assert(
			ofs_device_own_port(bed.world.device, bed.hosts[1].port, together ? &red : &blue) == 0);
		store(&bed, errand, 1, LONG);
		assert(alone(&bed, errand) == 0);
		retrieve(&bed, errand, 1, length_of(LONG));
		submit(&bed, 1, errand);
		settle(&bed, 1);
		assert(errand->task.rc == (together ? 0 : -ENOENT));
	}
	assert(ofs_device_own_port(bed.world.device, 99, &red) == -EINVAL);
	bed_close(&bed);
}

static void
test_what_cannot_be_is_refused(void)
{
	struct errand *errand = &errands[0];
	struct bed bed;

	bed_open(&bed, 8, 4);
	name(errand, OFS_VALUE_COMMIT, 1);
	assert(ofs_value_io_submit(bed.ios[0], &errand->task) == -EINVAL);
	store(&bed, errand, 1, LONG);
	errand->task.iovec_count = 0;
	assert(ofs_value_io_submit(bed.ios[0], &errand->task) == -EINVAL);
	store(&bed, errand, 1, LONG);
	errand->task.flags = OFS_TASK_OVER;
	assert(alone(&bed, errand) == -ENOENT);
	store(&bed, errand, 1, LONG);
	assert(alone(&bed, errand) == 0);
	store(&bed, errand, 1, 10);
	errand->task.flags = OFS_TASK_KEEP;
	assert(alone(&bed, errand) == -EEXIST);
	retrieve(&bed, errand, 1, length_of(LONG) - 1);
	errand->task.flags = OFS_TASK_WHOLE;
	assert(alone(&bed, errand) == -EMSGSIZE);
	name(errand, OFS_VALUE_EXIST, 1);
	errand->task.flags = OFS_TASK_WHOLE;
	errand->task.length = length_of(LONG);
	assert(alone(&bed, errand) == 0);
	bed_close(&bed);
}

int
main(void)
{
	test_tasks_are_what_a_table_says();
	test_a_store_is_there_when_it_is_committed();
	test_a_store_that_is_dropped_stores_nothing();
	test_a_held_value_stays_until_it_is_let_go();
	test_holds_give_way();
	test_a_late_task_is_given_up();
	test_parts_land_in_turns();
	test_a_durable_value_is_on_the_drive();
	test_owners_have_values_of_their_own();
	test_what_cannot_be_is_refused();
	return 0;
}
