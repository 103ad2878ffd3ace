/* Are tasks on values what a plain table is: many at once, filled bit by bit, held, given up? */
#include "support_errands.h"

#include <string.h>

/* ---- a plain table ---- */

/* Tasks of a round have keys of their own, so that their order means nothing. */
static void
test_tasks_are_what_a_table_says(uint64_t seed)
{
	uint32_t table[KEYS] = {0};
	struct bed bed;

	bed_open(&bed, seed, 3);
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		uint32_t io = round % 2, kinds[KEYS];

		for (uint32_t i = 0; i < KEYS; i++) {
			kinds[i] = errand_below(&bed, 5);
			if (kinds[i] == 0)
				errand_store(&bed, &errands[i], i, round * KEYS + i);
			else if (kinds[i] == 1)
				errand_retrieve(&bed, &errands[i], i, 1 + errand_below(&bed, VALUE_MAX));
			else
				errand_name(&errands[i],
					kinds[i] == 2       ? OFS_VALUE_DELETE
						: kinds[i] == 3 ? OFS_VALUE_EXIST
										: OFS_VALUE_RETRIEVE,
					i);
			if (kinds[i] == 4) {
				errands[i].task.flags = OFS_TASK_HOLD;
				errands[i].task.hold_ns = errand_below(&bed, 2) * SECOND_NS;
				errands[i].task.probability = errand_below(&bed, 65536);
			}
			errand_submit(&bed, io, &errands[i]);
		}
		errand_settle(&bed, io);
		for (uint32_t i = 0; i < KEYS; i++) {
			const struct ofs_value_task *task = &errands[i].task;

			if (kinds[i] == 0)
				assert(task->rc == 0);
			else if (table[i] == 0)
				assert(task->rc == -ENOENT);
			else if (kinds[i] == 1)
				errand_check(&errands[i], table[i]);
			else if (kinds[i] >= 3)
				assert(task->rc == 0 && task->value_length == errand_length_of(table[i]));
			if (kinds[i] == 0)
				table[i] = errands[i].seed;
			else if (kinds[i] == 2)
				table[i] = 0;
		}
		world_pass(&bed.world, errand_below(&bed, 3) * SECOND_NS / 2);
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
	uint64_t length = errand_length_of(LONG);

	bed_open(&bed, 2, 4);
	assert(length > 2 * PAYLOAD);
	errand_store(&bed, filling, 1, LONG);
	filling->task.filled = filling->task.committed = 0;
	errand_submit(&bed, 0, filling);
	for (uint64_t filled = 0; filled < length; filled += PAYLOAD / 2 + 1) {
		ofs_value_io_fill(bed.ios[0], &filling->task, filled, 0);
		assert(ofs_value_io_run(bed.ios[0], SECOND_NS, ended, 1) == 0);
		assert(filling->task.pieces_begun == filled / PAYLOAD);
	}
	errand_retrieve(&bed, reading, 1, VALUE_MAX);
	errand_submit(&bed, 1, reading);
	errand_settle(&bed, 1);
	assert(reading->task.rc == -ENOENT);
	ofs_value_io_fill(bed.ios[0], &filling->task, length, 1);
	errand_settle(&bed, 0);
	assert(filling->task.rc == 0 && errand_alone(&bed, reading) == 0);
	errand_check(reading, LONG);
	/* Memory behind the length is the caller's. */
	errand_retrieve(&bed, reading, 1, PAYLOAD + 1);
	reading->iovecs[0] = (struct iovec){reading->bytes, VALUE_MAX};
	memset(reading->bytes, 0xa5, VALUE_MAX);
	assert(errand_alone(&bed, reading) == 0 && reading->bytes[PAYLOAD + 1] == 0xa5);
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
		errand_store(&bed, filling, 1, LONG);
		filling->task.committed = 0;
		errand_submit(&bed, 0, filling);
		for (uint32_t i = 0; i < turns; i++)
			assert(ofs_value_io_run(bed.ios[0], 0, ended, 1) == 0);
		ofs_value_io_drop(bed.ios[0], &filling->task);
		errand_settle(&bed, 0);
		assert(filling->task.rc == -ECANCELED);
		errand_retrieve(&bed, reading, 1, VALUE_MAX);
		assert(errand_alone(&bed, reading) == -ENOENT);
	}
	for (uint32_t i = 0; i < 5; i++) { /* the last one has no session */
		errand_store(&bed, &errands[i], i, LONG);
		errands[i].task.committed = 0;
		errand_submit(&bed, 0, &errands[i]);
	}
	assert(ofs_value_io_run(bed.ios[0], SECOND_NS / 100, ended, 1) == 0);
	assert(errands[4].task.state == OFS_TASK_READY);
	ofs_value_io_drop(bed.ios[0], &errands[4].task);
	assert(ofs_value_io_run(bed.ios[0], 0, ended, 1) == 1 && ended[0] == &errands[4].task);
	bed_close(&bed);
}

/* ---- the bell ---- */

static const struct ofs_fabric_ops *quiet_ops;
static uint32_t rings, held_count;

static void
count_ring(struct ofs_fabric *fabric)
{
	assert(!fabric->bell_held);
	rings++;
}

static int
count_held(struct ofs_fabric *fabric, const struct ofs_sqe *sqe)
{
	held_count += fabric->bell_held;
	assert(!fabric->bell_held || sqe->op == OFS_OP_STEP || sqe->op == OFS_OP_PUT);
	return quiet_ops->submit(fabric, sqe);
}

/* Pieces that begin in one turn wake a DPU that sleeps once; a turn that begins none does not. */
static void
test_pieces_of_a_turn_ring_once(void)
{
	struct ofs_fabric_ops ops;
	struct ofs_fabric *fabric;
	struct ofs_value_task *ended[1];
	struct bed bed;

	bed_open(&bed, 6, TASKS);
	fabric = bed.hosts[0].fabric;
	quiet_ops = fabric->ops;
	ops = *quiet_ops;
	ops.ring = count_ring;
	ops.submit = count_held;
	fabric->ops = &ops;
	for (uint32_t turn = 0; turn < 2; turn++) {
		rings = held_count = 0;
		for (uint32_t i = 0; i < TASKS; i++)
			if (turn == 0)
				errand_store(&bed, &errands[i], i % KEYS, LONG);
			else
				errand_retrieve(&bed, &errands[i], i % KEYS, VALUE_MAX);
		for (uint32_t i = 0; i < TASKS; i++)
			errand_submit(&bed, 0, &errands[i]);
		errand_settle(&bed, 0);
		assert(held_count > TASKS && rings > 0 && rings < held_count);
	}
	rings = 0;
	for (uint32_t i = 0; i < 5; i++)
		assert(ofs_value_io_run(bed.ios[0], 0, ended, 1) == 0);
	assert(rings == 0 && !fabric->bell_held);
	fabric->ops = quiet_ops;
	bed_close(&bed);
}

/* ---- holds ---- */

static void
hold(struct bed *bed, struct errand *errand, uint32_t once)
{
	errand_name(errand, OFS_VALUE_RETRIEVE, 1);
	errand->task.flags = OFS_TASK_HOLD | (once ? OFS_TASK_ONCE : 0);
	errand->task.hold_ns = 100 * SECOND_NS;
	assert(errand_alone(bed, errand) == 0 && ofs_value_io_held(bed->ios[0]) == 1);
}

static void
test_a_held_value_stays_until_it_is_let_go(void)
{
	struct errand *errand = &errands[0];
	struct ofs_key key = errand_key_of(1);
	struct bed bed;

	bed_open(&bed, 4, 4);
	errand_store(&bed, errand, 1, LONG);
	assert(errand_alone(&bed, errand) == 0);
	for (uint32_t once = 0; once < 2; once++) {
		hold(&bed, errand, once);
		errand_retrieve(&bed, errand, 1, VALUE_MAX);
		assert(errand_alone(&bed, errand) == 0);
		assert(ofs_value_io_held(bed.ios[0]) == 1 - once);
		ofs_value_io_release(bed.ios[0], &key);
		assert(ofs_value_io_held(bed.ios[0]) == 0);
		hold(&bed, errand, once);
		errand_store(&bed, errand, 1, LONG);
		assert(errand_alone(&bed, errand) == 0);
		assert(ofs_value_io_held(bed.ios[0]) == 1 - once);
		ofs_value_io_release(bed.ios[0], &key);
	}
	errand_name(errand, OFS_VALUE_RETRIEVE, 1);
	errand->task.flags = OFS_TASK_HOLD | OFS_TASK_WHOLE;
	errand->task.length = errand_length_of(LONG) + 1;
	assert(errand_alone(&bed, errand) == -EMSGSIZE && ofs_value_io_held(bed.ios[0]) == 0);
	bed_close(&bed);
}

/* More values are held than there are sessions, and yet every task ends. */
static void
test_holds_give_way(void)
{
	struct bed bed;

	bed_open(&bed, 5, 4);
	for (uint32_t i = 0; i < TASKS; i++) {
		errand_store(&bed, &errands[i], i, i + 1);
		errand_submit(&bed, 0, &errands[i]);
	}
	errand_settle(&bed, 0);
	for (uint32_t i = 0; i < TASKS; i++) {
		assert(errands[i].task.rc == 0);
		errand_name(&errands[i], OFS_VALUE_RETRIEVE, i);
		errands[i].task.flags = OFS_TASK_HOLD;
		errands[i].task.hold_ns = 100 * SECOND_NS;
		errand_submit(&bed, 0, &errands[i]);
	}
	errand_settle(&bed, 0);
	assert(ofs_value_io_held(bed.ios[0]) >= 2);
	for (uint32_t i = 0; i < TASKS; i++) {
		assert(errands[i].task.rc == 0);
		errand_retrieve(&bed, &errands[i], i, VALUE_MAX);
		errand_submit(&bed, 0, &errands[i]);
	}
	errand_settle(&bed, 0);
	for (uint32_t i = 0; i < TASKS; i++)
		errand_check(&errands[i], i + 1);
	bed_close(&bed);
}

/* ---- ends that are not the daemon's ---- */

/* Other values fill the staging memory, so that this one is read from the drive. */
static void
push_out(struct bed *bed, struct errand *errand)
{
	for (uint32_t i = 2; i < TASKS; i++) {
		errand_store(bed, errand, i, LONG);
		assert(errand_alone(bed, errand) == 0);
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
	errand_store(&bed, &errands[0], 1, LONG);
	assert(errand_alone(&bed, &errands[0]) == 0);
	for (uint32_t turns = 0; turns < 12; turns++) {
		push_out(&bed, &errands[0]);
		for (uint32_t i = 0; i < 3; i++) {
			errand_retrieve(&bed, &errands[i], 1, VALUE_MAX);
			errands[i].task.timeout_ns = 1 + turns * 4000;
			errand_submit(&bed, 0, &errands[i]);
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
		errand_name(&errands[3], OFS_VALUE_EXIST, 1);
		assert(errand_alone(&bed, &errands[3]) == 0);
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
		errand_store(&bed, &errands[i], i, LONG);
		assert(errand_alone(&bed, &errands[i]) == 0);
	}
	for (uint32_t i = 0; i < 3; i++) {
		errand_retrieve(&bed, &errands[i], i, errand_length_of(LONG));
		errands[i].task.flags = OFS_TASK_PARTS | OFS_TASK_WHOLE;
		errand_submit(&bed, 0, &errands[i]);
	}
	while (ofs_value_io_count(bed.ios[0]) > 0) {
		assert(ofs_value_io_run(bed.ios[0], SECOND_NS, ended, 3) >= 0);
		told++;
		for (uint32_t i = 0; i < 3; i++)
			first[i] +=
				errands[i].task.landed > 0 && errands[i].task.landed < errand_length_of(LONG);
	}
	assert(told > 1 && first[0] + first[1] + first[2] > 0);
	for (uint32_t i = 0; i < 3; i++)
		errand_check(&errands[i], LONG);
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
		errand_store(&bed, errand, 1, LONG);
		errand->task.flags = durable ? OFS_TASK_DURABLE : 0;
		assert(errand_alone(&bed, errand) == 0);
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
		errand_store(&bed, errand, 1, LONG);
		assert(errand_alone(&bed, errand) == 0);
		errand_retrieve(&bed, errand, 1, errand_length_of(LONG));
		errand_submit(&bed, 1, errand);
		errand_settle(&bed, 1);
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
	errand_name(errand, OFS_VALUE_COMMIT, 1);
	assert(ofs_value_io_submit(bed.ios[0], &errand->task) == -EINVAL);
	errand_store(&bed, errand, 1, LONG);
	errand->task.iovec_count = 0;
	assert(ofs_value_io_submit(bed.ios[0], &errand->task) == -EINVAL);
	errand_store(&bed, errand, 1, LONG);
	errand->task.flags = OFS_TASK_OVER;
	assert(errand_alone(&bed, errand) == -ENOENT);
	errand_store(&bed, errand, 1, LONG);
	assert(errand_alone(&bed, errand) == 0);
	errand_store(&bed, errand, 1, 10);
	errand->task.flags = OFS_TASK_KEEP;
	assert(errand_alone(&bed, errand) == -EEXIST);
	errand_retrieve(&bed, errand, 1, errand_length_of(LONG) - 1);
	errand->task.flags = OFS_TASK_WHOLE;
	assert(errand_alone(&bed, errand) == -EMSGSIZE);
	errand_name(errand, OFS_VALUE_EXIST, 1);
	errand->task.flags = OFS_TASK_WHOLE;
	errand->task.length = errand_length_of(LONG);
	assert(errand_alone(&bed, errand) == 0);
	bed_close(&bed);
}

/* A delete that an archive has yet to note has not ended, and a store of its key waits for it. */
static void
test_a_delete_waits_to_be_noted(void)
{
	struct ofs_value_task *ended[TASKS];
	struct ofs_value_note notes[2];
	struct bed bed;

	bed_open(&bed, 1, 3);
	bed.world.device->config.archive_places = 1;
	errand_name(&errands[0], OFS_VALUE_DELETE, 1);
	errand_store(&bed, &errands[1], 1, 5);
	errand_submit(&bed, 0, &errands[0]);
	assert(ofs_value_io_run(bed.ios[0], SECOND_NS / 4, ended, TASKS) == 0);
	errand_submit(&bed, 0, &errands[1]);
	assert(ofs_value_io_run(bed.ios[0], SECOND_NS / 4, ended, TASKS) == 0);
	assert(ofs_device_value_notes(bed.world.device, 1, notes, 2) == 1);
	assert(notes[0].kind == OFS_NOTE_GONE);
	assert(ofs_device_value_end(bed.world.device, 1, notes, 1) == 0);
	bed.world.device->config.archive_places = 0;
	errand_settle(&bed, 0);
	assert(errands[0].task.rc == 0 && errands[1].task.rc == 0);
	bed_close(&bed);
}

int
main(void)
{
	test_tasks_are_what_a_table_says(1);
	test_tasks_are_what_a_table_says(2);
	test_a_store_is_there_when_it_is_committed();
	test_a_store_that_is_dropped_stores_nothing();
	test_pieces_of_a_turn_ring_once();
	test_a_held_value_stays_until_it_is_let_go();
	test_holds_give_way();
	test_a_late_task_is_given_up();
	test_parts_land_in_turns();
	test_a_durable_value_is_on_the_drive();
	test_owners_have_values_of_their_own();
	test_what_cannot_be_is_refused();
	test_a_delete_waits_to_be_noted();
	return 0;
}
