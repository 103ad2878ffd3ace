/*
 * Does the whole firmware keep its promises in virtual time: put, miss, hit and late; write-through
 * and write-back; a full store; EIO and corruption; a hung device; tenants apart; a host that goes
 * in the middle of everything; a drain; a restart?
 */
#include "support_device.h"

#include <stdio.h>

static const uint32_t FIRST_FOUR[] = {0, 1, 2, 3};
/* Of the test that runs: it opens them anew. */
static struct ofs_device_config config;
static struct world world;
static struct world_host host;
static struct world_session session;

/* Never written: a miss that says so. Written: read once, then a hit without the store. */
static void
test_put_miss_hit(void)
{
	struct ofs_device_status before, after;
	struct world_fetch fetch;

	world_config(&config);
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 8);
	world_read(&session, 0, 4, -ENOENT);
	world_put_all(&session, 0, 0);
	session.step = 1;
	fetch = world_read(&session, 0, 4, 0);
	assert(fetch.hit_count == 0 && fetch.ends[0] == OFS_END_COLD);
	before = world_status(&world);
	session.step = 2;
	fetch = world_read(&session, 0, 4, 0);
	assert(fetch.hit_count == 4 && fetch.ends[0] == OFS_END_RETAINED);
	after = world_status(&world);
	assert(after.storage.reads == before.storage.reads && before.puts == 8);
	world_end(&host, 0);
}

/* A prefetch that is on its way when the demand comes is late, not missed and not hit. */
static void
test_late(void)
{
	struct world_fetch fetch;
	uint32_t last = 7;

	world_config(&config);
	config.policy.prefetchers = OFS_PREFETCH_WINDOW;
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 8);
	world_put_all(&session, 1, 0);
	/* Beginning to generate asks for the window; nothing has been read when the demand comes. */
	assert(ofs_device_session_set_generating(world.device, session.number, 1) == 0);
	assert(world_fetch(&session, 1, 1, &last, NULL, SECOND_NS, &fetch) == 0);
	world_expect(&fetch, 0);
	assert(fetch.ends[0] == OFS_END_LATE);
	assert(world_ledger(&world).ends[OFS_END_LATE] == 1);
	world_end(&host, 0);
}

/* Staged before its layer asks, also of more than the core takes at once; nonsense is counted. */
static void
test_hint(void)
{
	struct ofs_guess guesses[4];
	struct world_fetch fetch;

	world_config(&config);
	config.core.queue_max = 3;
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 8);
	world_put_all(&session, 1, 0);
	for (uint32_t i = 0; i < 4; i++) {
		guesses[i] = (struct ofs_guess){.layer = 1,
			.ordinal = i,
			.probability = UINT16_MAX,
			.cause = OFS_CAUSE_LOOKAHEAD};
	}
	assert(ofs_driver_hint(host.driver, session.number, guesses, 4) == 4);
	world_pass(&world, 10000000);
	fetch = world_read(&session, 1, 4, 0);
	assert(fetch.hit_count == 4);
	assert(world_ledger(&world).ends[OFS_END_LOOKAHEAD] == 4);
	assert(world_status(&world).commands_bad == 0);
	guesses[0].ordinal = 8;
	assert(ofs_driver_hint(host.driver, session.number, guesses, 1) == 1);
	assert(ofs_driver_hint(host.driver, session.number + 1, guesses, 1) == 1);
	world_pass(&world, 10000000);
	assert(world_status(&world).commands_bad == 2);
	world_end(&host, 0);
}

/* More demands than slots that are not pinned: those that find none say so, and the others come. */
static void
test_all_pinned(void)
{
	struct world_session session, second;
	struct world_fetch fetch;

	world_config(&config);
	config.policy.lease_ns = 10 * SECOND_NS;
	world_open(&world, &config);
	world_tenant(&world, 8);
	world_attach(&world, &host, 0, NULL);
	assert(world_session(&host, &session, 8) == 0 && world_append(&session, 100, 8) == 0);
	world_join(&host, &second, 900, 4);
	world_put_all(&session, 0, 0);
	world_put_all(&second, 0, 0);
	world_read(&session, 0, 8, 0);
	(void)world_fetch(&second, 0, 4, FIRST_FOUR, NULL, 5000000, &fetch);
	for (uint32_t i = 0; i < 4; i++)
		assert(fetch.rcs[i] == -EAGAIN || fetch.rcs[i] == -ETIMEDOUT);
	assert(ofs_driver_release(host.driver, session.number) == 0);
	second.step = 1;
	world_read(&second, 0, 4, 0);
	world_end(&host, 0);
}

/* Acknowledged once staged, read before it is on NVMe, on NVMe soon after; then evictable. */
static void
test_write_back(void)
{
	struct world_fetch fetch;
	int32_t rcs[4];

	world_config(&config);
	config.write_mode = OFS_WRITE_BACK;
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 40);
	ofs_storage_hang(world.device->storage);
	assert(world_put(&session, 0, 0, 4, 5000000, rcs) == 0);
	world_expect_puts(rcs, 4, 0);
	assert(world_status(&world).dirty_blocks == 4);
	assert(world_put(&session, 0, 0, 4, 5000000, rcs) == 0); /* again: one flush is enough */
	assert(world_status(&world).dirty_blocks == 4);
	assert(world_fetch(&session, 0, 4, FIRST_FOUR, NULL, 5000000, &fetch) == 0);
	world_expect(&fetch, 0);
	assert(fetch.hit_count == 4);
	ofs_storage_unhang(world.device->storage);
	world_pass(&world, SECOND_NS);
	assert(world_status(&world).dirty_blocks == 0);
	world_put_all(&session, 0, 0); /* 40 blocks through 16 slots: some go through, all are kept */
	world_pass(&world, SECOND_NS);
	session.step = 1;
	world_read(&session, 0, 4, 0);
	world_end(&host, 1);
}

/* A flush that fails is tried again, meanwhile puts hear the truth, nothing is lost. */
static void
test_flush_retried(void)
{
	struct ofs_device_status status;
	struct world_fetch fetch;
	int32_t rcs[4];

	world_config(&config);
	config.write_mode = OFS_WRITE_BACK;
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 8);
	ofs_storage_hang(world.device->storage);
	assert(world_put(&session, 0, 0, 4, 5000000, rcs) == 0);
	world_pass(&world, 1000000);
	ofs_storage_unhang(world.device->storage); /* what fell due meanwhile ends with an error */
	world_pass(&world, 1000000);
	status = world_status(&world);
	assert(status.flush_retries > 0 && status.flushes_waiting > 0 && status.dirty_blocks == 4);
	world_pass(&world, SECOND_NS);
	status = world_status(&world);
	assert(status.flushes_waiting == 0 && status.dirty_blocks == 0 && status.puts_failed == 0);
	assert(ofs_device_reset(world.device) == 0);
	fetch = world_read(&session, 0, 4, 0);
	assert(fetch.hit_count == 0);
	world_end(&host, 1);
}

/* Does a full store report that to the host, and keep serving its blocks? */
static void
test_full_store(uint32_t write_mode)
{
	int32_t rc = 0;
	uint32_t put = 0;

	world_config(&config);
	config.storage.size_bytes = 10 * 65536; /* a few segments: fewer blocks than chunks */
	config.write_mode = write_mode;
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 64);
	while (rc == 0 && put < 2 * session.count) {
		(void)world_put(&session, put / session.count, put % session.count, 1, SECOND_NS, &rc);
		put += rc == 0;
		world_pass(&world, 10000000);
	}
	assert(rc == -ENOSPC && put > 8);
	assert(world_status(&world).store_full > 0);
	world_read(&session, 0, 4, 0);
	assert(ofs_device_drain(world.device, SECOND_NS)
		== (world_status(&world).dirty_blocks > 0 ? -ETIMEDOUT : 0));
	world_end(&host, 0);
}

/* From now on every I/O ends with -EIO, or every read with a flipped bit, until it is fixed. */
static const struct ofs_storage_ops *whole_ops;
static struct ofs_storage_ops broken_ops;
static uint8_t *read_into[64]; /* by the store's own number of the I/O */
static int flips;

static int
broken_submit(struct ofs_storage *storage, const struct ofs_io *io)
{
	assert(io->user < 64);
	read_into[io->user] = io->op == OFS_STORAGE_READ ? io->buffer : NULL;
	return whole_ops->submit(storage, io);
}

static int
broken_poll(struct ofs_storage *storage, struct ofs_io_done *done, int max)
{
	int count = whole_ops->poll(storage, done, max);

	for (int i = 0; i < count; i++)
		if (!flips)
			done[i].result = -EIO;
		else if (read_into[done[i].user] != NULL)
			read_into[done[i].user][17] ^= 4;
	return count;
}

static void
break_storage(struct world *world, int flip)
{
	flips = flip;
	whole_ops = world->device->storage->ops;
	broken_ops = *whole_ops;
	broken_ops.submit = broken_submit;
	broken_ops.poll = broken_poll;
	world->device->storage->ops = &broken_ops;
}

static void
repair_storage(struct world *world)
{
	world->device->storage->ops = whole_ops;
}

/* EIO: does the host get errors for its puts and reads, and are blocks that it puts again there? */
static void
test_eio(void)
{
	world_config(&config);
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 8);
	world_put_all(&session, 0, 0);
	break_storage(&world, 0);
	world_read(&session, 0, 4, -EIO);
	world_put_all(&session, 1, -EIO);
	world_verify(&world);
	repair_storage(&world);
	world_put_all(&session, 0, 0);
	world_put_all(&session, 1, 0);
	session.step = 1;
	world_read(&session, 0, 4, 0);
	world_end(&host, 0);
}

/* Flipped bits on the way from the device: a miss and a counter, never data. */
static void
test_corrupt(void)
{
	world_config(&config);
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 8);
	world_put_all(&session, 0, 0);
	break_storage(&world, 1);
	world_read(&session, 0, 4, -EBADMSG);
	assert(world_status(&world).check_failures == 4);
	world_read(&session, 0, 4, -ENOENT);
	repair_storage(&world);
	world_end(&host, 0);
}

/* A device that never answers: deadlines, quarantine, and after it answers everything is freed. */
static void
test_hung(void)
{
	struct ofs_device_status status;
	struct world_fetch fetch;
	int32_t rcs[2];

	world_config(&config);
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 8);
	world_put_all(&session, 0, 0);
	ofs_storage_hang(world.device->storage);
	(void)world_fetch(&session, 0, 4, FIRST_FOUR, NULL, SECOND_NS, &fetch);
	world_expect(&fetch, -ETIMEDOUT);
	(void)world_put(&session, 1, 0, 2, SECOND_NS, rcs);
	world_expect_puts(rcs, 2, -ETIMEDOUT);
	status = world_status(&world);
	assert(status.slots_quarantined == 4 && status.reads_timed_out == 4);
	assert(ofs_device_drain(world.device, 50000000) == -ETIMEDOUT); /* puts the store still has */
	world_verify(&world);
	ofs_storage_unhang(world.device->storage);
	world_pass(&world, SECOND_NS);
	status = world_status(&world);
	assert(status.slots_quarantined == 0 && status.drained);
	session.step = 1;
	world_read(&session, 0, 4, 0);
	world_end(&host, 0);
}

/* Reads that all hang, again and again: bounded, and no wait passes the deadline. */
static void
test_hung_long(void)
{
	static const uint32_t twelve[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
	struct world_fetch fetch;

	world_config(&config);
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 12);
	world_put_all(&session, 0, 0);
	world_put_all(&session, 1, 0);
	ofs_storage_hang(world.device->storage);
	for (uint32_t round = 0; round < 6; round++) {
		uint32_t i;

		session.step = round;
		(void)world_fetch(&session, round % 2, 12, twelve, NULL, SECOND_NS, &fetch);
		for (i = 0; i < 12; i++)
			assert(fetch.rcs[i] == -ETIMEDOUT || fetch.rcs[i] == -EAGAIN);
		world_verify(&world);
	}
	ofs_storage_unhang(world.device->storage);
	world_pass(&world, SECOND_NS);
	assert(world_status(&world).slots_quarantined == 0);
	assert(world_status(&world).reads_in_flight == 0);
	world_detach(&host);
	world_close(&world, 0);
}

/* One I/O in 31 is timed, by the device's clock; none with timers off; a reset forgets them. */
static void
test_stages(void)
{
	struct ofs_histogram stages[OFS_STAGE_COUNT];
	const struct ofs_histogram *write = &stages[OFS_STAGE_WRITE_SERVICE];
	const struct ofs_histogram *read = &stages[OFS_STAGE_READ_SERVICE];

	world_config(&config);
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 31);
	world_put_all(&session, 0, 0);
	assert(ofs_device_stages_get(world.device, stages) == 0);
	assert(write->count == 1 && stages[OFS_STAGE_WRITE_QUEUE].count == 1 && read->count == 0);
	assert(stages[OFS_STAGE_RING_WAIT].count == 1 && stages[OFS_STAGE_DECIDE].count == 0);
	/* A write ends in the drive's buffer; a read never before its cells were read. */
	assert(write->sum > 1000 && write->sum < 1000000);
	for (session.step = 0; session.step < 31; session.step++) {
		if (session.step < 4) { /* the blocks of the last read are pinned */
			assert(ofs_driver_release(host.driver, session.number) == 0);
			assert(ofs_device_reset(world.device) == 0);
		}
		world_read(&session, 0, 8, 0);
	}
	/* Of 4 * 8 reads, 31 STEPs and 31 * 8 copies. */
	assert(ofs_device_stages_get(world.device, stages) == 0);
	assert(read->count == 1 && stages[OFS_STAGE_READ_QUEUE].count == 1 && write->count == 0);
	assert(read->sum * 1000 > config.storage.nvme.read_ps && read->sum == read->max);
	assert(stages[OFS_STAGE_PUBLISH].count == 1 && stages[OFS_STAGE_DECIDE].count == 1);
	assert(stages[OFS_STAGE_RING_WAIT].count == 1 && stages[OFS_STAGE_COPY].count == 0);
	ofs_device_stages_set(world.device, 0);
	world_put_all(&session, 1, 0);
	assert(ofs_device_stages_get(world.device, stages) == 0);
	assert(stages[OFS_STAGE_RING_WAIT].count == 1 && write->count == 0);
	ofs_driver_stages_get(host.driver, stages);
	assert(stages[OFS_STAGE_ANSWER].count == 3 && stages[OFS_STAGE_RING_WAIT].count == 0);
	assert(stages[OFS_STAGE_COPY].count == 8 && stages[OFS_STAGE_CHECK].count == 8);
	assert(stages[OFS_STAGE_COPY].max > 0);
	ofs_driver_stages_set(host.driver, 0);
	world_put_all(&session, 0, 0);
	ofs_driver_stages_get(host.driver, stages);
	assert(stages[OFS_STAGE_ANSWER].count == 3);
	ofs_driver_stages_set(host.driver, 2); /* every command, but copies as before */
	for (session.step = 31; session.step < 62; session.step++)
		world_read(&session, 0, 8, 0);
	ofs_driver_stages_get(host.driver, stages);
	assert(stages[OFS_STAGE_ANSWER].count == 3 + 31 && stages[OFS_STAGE_COPY].count == 2 * 8);
	world_detach(&host);
	world_close(&world, 0);
}

/* Of the turn that took the one command: how long it had rested. */
static uint32_t
rested_us(struct ofs_moment *moments)
{
	int count = ofs_device_moments_take(world.device, moments, 512);
	int turn = 0;

	while (moments[turn].kind != OFS_MOMENT_TURN || moments[turn].commands == 0)
		assert(++turn < count);
	return moments[turn].rested_us;
}

/* Every read and command leaves one moment, its stations in order; turns have their work and how
 * long it was since the last with any; a ring that is full says how many it lost. */
static void
test_moments(void)
{
	static struct ofs_moment moments[512];
	uint32_t kinds[4] = {0}, reads = 0, commands = 0, lost = 0;
	int count;

	world_config(&config);
	config.moment_max = 512;
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 31);
	world_put_all(&session, 0, 0);
	assert(ofs_device_moments_take(world.device, moments, 512) > 0);
	world_read(&session, 0, 8, 0);
	count = ofs_device_moments_take(world.device, moments, 512);
	for (int i = 0; i < count; i++) {
		const struct ofs_moment *one = &moments[i];
		int last = one->kind == OFS_MOMENT_READ ? OFS_READ_ANSWERED : OFS_COMMAND_ANSWERED;

		kinds[one->kind]++;
		lost += one->lost;
		if (one->kind == OFS_MOMENT_WINDOW)
			continue;
		if (one->kind == OFS_MOMENT_TURN) {
			assert(one->puts == 0);
			reads += one->ended;
			commands += one->commands;
			continue;
		}
		for (int k = one->kind == OFS_MOMENT_READ ? 1 : 2; k <= last; k++)
			assert(one->at_ns[k] >= one->at_ns[k - 1]);
		if (one->kind == OFS_MOMENT_READ) /* the simulated drive needs its time to read */
			assert(one->at_ns[OFS_READ_REAPED] - one->at_ns[OFS_READ_SUBMITTED]
				> config.storage.nvme.read_ps / 1000);
		else
			assert(one->demands == 8 && one->begun == 8);
	}
	assert(kinds[OFS_MOMENT_READ] == 8 && kinds[OFS_MOMENT_COMMAND] == 1 && lost == 0);
	assert(reads == 8 && commands == 1);
	world_pass(&world, 5000000); /* in which turns find nothing to do */
	world_read(&session, 0, 8, 0);
	assert(rested_us(moments) >= 5000);
	world_read(&session, 0, 8, 0);
	assert(rested_us(moments) < 1000);
	for (session.step = 1; session.step < 400; session.step++)
		world_read(&session, 0, 8, 0);
	assert(ofs_device_moments_take(world.device, moments, 512) == 512);
	world_read(&session, 0, 8, 0);
	assert(ofs_device_moments_take(world.device, moments, 512) > 0 && moments[0].lost > 0);
	ofs_device_stages_set(world.device, 0);
	(void)ofs_device_moments_take(world.device, moments, 512); /* that of the call itself */
	world_read(&session, 0, 8, 0);
	assert(ofs_device_moments_take(world.device, moments, 512) == 0);
	ofs_device_stages_set(world.device, 1);
	world_read(&session, 0, 8, 0);
	assert(rested_us(moments) < 1000);
	world_detach(&host);
	world_close(&world, 0);
}

int
main(void)
{
	test_stages();
	test_moments();
	test_put_miss_hit();
	test_late();
	test_hint();
	test_all_pinned();
	test_write_back();
	test_flush_retried();
	test_full_store(OFS_WRITE_THROUGH);
	test_full_store(OFS_WRITE_BACK);
	test_eio();
	test_corrupt();
	test_hung();
	test_hung_long();
	return 0;
}
