/*
 * Does a device move to another storage while hosts go on: every block there afterwards, checked;
 * writes and deletes in the middle of it; and does a target that is full, fails, lies or hangs, or
 * an old device that fails, leave it with all that was acknowledged?
 */
#include "store/internal.h"
#include "support_device.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHUNKS 24
#define USERS_MAX 256

/* One device whose I/O ends as told from some moment on; the one below it is real. */
static struct {
	const struct ofs_storage_ops *real;
	struct ofs_storage_ops ops;
	struct ofs_io ios[USERS_MAX];
	bool fail[4]; /* by enum ofs_storage_op: -EIO */
	bool corrupt; /* reads: another byte */
} bad;

static int
bad_submit(struct ofs_storage *storage, const struct ofs_io *io)
{
	assert(io->user < USERS_MAX);
	bad.ios[io->user] = *io;
	return bad.real->submit(storage, io);
}

static int
bad_poll(struct ofs_storage *storage, struct ofs_io_done *done, int max)
{
	int count = bad.real->poll(storage, done, max);

	for (int i = 0; i < count; i++) {
		const struct ofs_io *io = &bad.ios[done[i].user];

		if (bad.fail[io->op])
			done[i].result = -EIO;
		else if (bad.corrupt && io->op == OFS_STORAGE_READ)
			*(uint8_t *)io->buffer ^= 1;
	}
	return count;
}

static void
make_bad(struct ofs_storage *storage)
{
	memset(&bad, 0, sizeof(bad));
	bad.real = storage->ops;
	bad.ops = *storage->ops;
	bad.ops.submit = bad_submit;
	bad.ops.poll = bad_poll;
	storage->ops = &bad.ops;
}

struct scene {
	struct world world;
	struct world_host host;
	struct world_session session;
	struct ofs_device_config config;
	struct ofs_storage_config target;
};

static void
begin(struct scene *scene, uint32_t chunks)
{
	world_config(&scene->config);
	world_begin(&scene->world, &scene->host, &scene->config);
	world_join(&scene->host, &scene->session, 100, chunks);
	scene->target = scene->config.storage;
	scene->target.seed = 2;
}

static void
end(struct scene *scene)
{
	world_end(&scene->host, 0);
}

static int
move(struct scene *scene)
{
	char error[512];
	int rc = ofs_device_move(scene->world.device, &scene->target, error, sizeof(error));

	assert((rc == 0) == (error[0] == '\0'));
	return rc;
}

static struct ofs_move_status
status_of(struct scene *scene)
{
	struct ofs_move_status status;

	assert(ofs_device_move_status_get(scene->world.device, &status) == 0);
	return status;
}

static struct ofs_move_status
wait_for_end(struct scene *scene)
{
	for (int i = 0; i < 2000 && status_of(scene).state == OFS_MOVE_RUNNING; i++)
		world_pass(&scene->world, 1000000);
	assert(status_of(scene).state != OFS_MOVE_RUNNING);
	return status_of(scene);
}

/* Nothing of it is staged: the blocks come from the store. */
static void
expect_blocks(struct scene *scene, uint32_t layer, uint32_t first, uint32_t count, int32_t rc)
{
	struct world_fetch fetch;

	assert(ofs_device_reset(scene->world.device) == 0);
	for (uint32_t i = first; i < first + count; i++) {
		scene->session.step++;
		(void)world_fetch(&scene->session, layer, 1, &i, NULL, SECOND_NS, &fetch);
		world_expect(&fetch, rc);
	}
}

/* Every block comes from the target, and the same host and session go on. */
static void
test_all_comes_over(void)
{
	struct scene scene;
	struct ofs_move_status status;
	const struct ofs_storage *before;

	begin(&scene, CHUNKS);
	before = scene.world.device->storage;
	world_put_all(&scene.session, 0, 0);
	world_put_all(&scene.session, 1, 0);
	assert(move(&scene) == 0);
	assert(move(&scene) == -EBUSY);
	status = wait_for_end(&scene);
	assert(status.state == OFS_MOVE_DONE && status.switched && !status.unrecorded);
	assert(status.blocks_copied == 2 * CHUNKS && status.blocks_lost == 0);
	assert(scene.world.device->storage != before);
	assert(world_status(&scene.world).store.blocks == 2 * CHUNKS);
	expect_blocks(&scene, 0, 0, CHUNKS, 0);
	expect_blocks(&scene, 1, 0, CHUNKS, 0);
	end(&scene);
}

/* Puts and deletes at every stage of a move: acknowledged blocks are there, deleted ones are
 * not. */
static void
test_hosts_go_on(void)
{
	for (uint64_t after_ns = 0; after_ns < 3000000; after_ns += 100000) {
		struct world_session other;
		struct scene scene;
		int32_t rcs[CHUNKS];

		begin(&scene, CHUNKS);
		world_join(&scene.host, &other, 900, 4);
		world_put_all(&scene.session, 0, 0);
		world_put_all(&other, 0, 0);
		assert(move(&scene) == 0);
		world_pass(&scene.world, after_ns);
		assert(world_put(&scene.session, 1, 0, 8, SECOND_NS, rcs) == 0);
		world_expect_puts(rcs, 8, 0);
		assert(ofs_device_session_close(scene.world.device, other.number, 0) == 0);
		assert(world_put(&scene.session, 1, 8, CHUNKS - 8, SECOND_NS, rcs) == 0);
		assert(wait_for_end(&scene).switched);
		assert(world_status(&scene.world).store.blocks == 2 * CHUNKS);
		expect_blocks(&scene, 0, 0, CHUNKS, 0);
		expect_blocks(&scene, 1, 0, CHUNKS, 0);
		end(&scene);
	}
}

/* Dirty blocks are flushed to whichever store it is by then. */
static void
test_write_back(void)
{
	struct scene scene;
	int32_t rcs[8];

	world_config(&scene.config);
	begin(&scene, CHUNKS);
	world_put_all(&scene.session, 1, 0);
	scene.world.device->config.write_mode = OFS_WRITE_BACK;
	assert(move(&scene) == 0);
	for (uint32_t i = 0; i < CHUNKS; i++) {
		assert(world_put(&scene.session, 0, i, 1, SECOND_NS, rcs) == 0);
		world_pass(&scene.world, 50000);
	}
	assert(wait_for_end(&scene).switched);
	assert(ofs_device_drain(scene.world.device, SECOND_NS) == 0);
	expect_blocks(&scene, 0, 0, CHUNKS, 0);
	expect_blocks(&scene, 1, 0, CHUNKS, 0);
	end(&scene);
}

/* One line, and nothing has changed. */
static void
test_refused(void)
{
	struct scene scene;

	begin(&scene, CHUNKS);
	world_put_all(&scene.session, 0, 0);
	scene.target.size_bytes = 131072 + 4 * 65536;
	assert(move(&scene) == -ENOSPC);
	scene.target = scene.config.storage;
	scene.target.lba_size_bytes = 4096;
	assert(move(&scene) == -EINVAL);
	scene.target = scene.config.storage;
	scene.target.fault_eio_per_million = 1000000;
	assert(move(&scene) == -EIO);
	assert(status_of(&scene).state == OFS_MOVE_NONE);
	expect_blocks(&scene, 0, 0, CHUNKS, 0);
	end(&scene);
}

/* Faults of the target that begin once it is open: the move ends, the device goes on as it was. */
static void
test_a_target_that_fails(void)
{
	static const struct {
		bool reads, writes, syncs, lies, hangs;
		int rc;
	} rows[] = {
		{.reads = true, .rc = -EIO},
		{.writes = true, .rc = -EIO},
		{.syncs = true, .rc = -EIO},
		{.lies = true, .rc = -EBADMSG},
		{.hangs = true, .rc = -ETIMEDOUT},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct ofs_storage *target, *before;
		struct ofs_move_status status;
		struct scene scene;
		int32_t rcs[4];

		begin(&scene, CHUNKS);
		before = scene.world.device->storage;
		world_put_all(&scene.session, 0, 0);
		assert(move(&scene) == 0);
		target = scene.world.device->move.storage;
		make_bad(target);
		bad.fail[OFS_STORAGE_READ] = rows[i].reads;
		bad.fail[OFS_STORAGE_WRITE] = rows[i].writes;
		bad.fail[OFS_STORAGE_SYNC] = rows[i].syncs;
		bad.corrupt = rows[i].lies;
		if (rows[i].hangs)
			ofs_storage_hang(target);
		world_pass(&scene.world, 100000000);
		assert(world_put(&scene.session, 1, 0, 4, SECOND_NS, rcs) == 0);
		if (rows[i].hangs) {
			/* Its storage is kept until it is released; meanwhile no other move. */
			assert(status_of(&scene).state == OFS_MOVE_RUNNING && move(&scene) == -EBUSY);
			ofs_storage_unhang(target);
		}
		status = wait_for_end(&scene);
		assert(status.state == OFS_MOVE_FAILED && !status.switched && status.rc == rows[i].rc);
		assert(status.error[0] != '\0' && scene.world.device->storage == before);
		expect_blocks(&scene, 0, 0, CHUNKS, 0);
		expect_blocks(&scene, 1, 0, 4, 0);
		scene.target.seed = 3;
		assert(move(&scene) == 0 && wait_for_end(&scene).switched); /* and another one is taken */
		expect_blocks(&scene, 0, 0, CHUNKS, 0);
		end(&scene);
	}
}

/* The target fills up while hosts write on: it is given up, and every put went to the old store. */
static void
test_a_target_that_is_full(void)
{
	struct ofs_move_status status;
	struct scene scene;
	int32_t rcs[WORLD_CHUNKS_MAX];

	begin(&scene, WORLD_CHUNKS_MAX);
	assert(world_put(&scene.session, 0, 0, 4, SECOND_NS, rcs) == 0);
	scene.target.size_bytes = 131072 + 5 * 65536; /* two segments of 14 blocks and the reserve */
	assert(move(&scene) == 0);
	ofs_storage_hang(scene.world.device->move.storage); /* so that the puts are first */
	assert(world_put(&scene.session, 0, 0, WORLD_CHUNKS_MAX, SECOND_NS, rcs) == 0);
	world_expect_puts(rcs, WORLD_CHUNKS_MAX, 0);
	assert(status_of(&scene).state == OFS_MOVE_RUNNING && status_of(&scene).rc == 0);
	ofs_storage_unhang(scene.world.device->move.storage);
	status = wait_for_end(&scene);
	assert(status.state == OFS_MOVE_FAILED && status.rc == -ENOSPC);
	expect_blocks(&scene, 0, 0, WORLD_CHUNKS_MAX, 0);
	end(&scene);
}

/* The old device fails in its last duties: reading, or recording where the blocks went. */
static void
test_an_old_device_that_fails(void)
{
	for (int row = 0; row < 2; row++) {
		struct ofs_move_status status;
		struct scene scene;

		begin(&scene, CHUNKS);
		world_put_all(&scene.session, 0, 0);
		assert(move(&scene) == 0);
		while (row == 1 && scene.world.device->move.step < OFS_STEP_SYNC)
			world_pass(&scene.world, 1000);
		make_bad(scene.world.device->storage);
		bad.fail[row == 0 ? OFS_STORAGE_READ : OFS_STORAGE_WRITE] = true;
		if (row == 0) {
			status = wait_for_end(&scene);
			assert(status.state == OFS_MOVE_FAILED && status.rc == -EIO);
			bad.fail[OFS_STORAGE_READ] = false;
		} else {
			/* It can neither record the move nor take it back: all is in the new store. */
			status = wait_for_end(&scene);
			assert(status.switched && status.unrecorded);
			assert(strstr(ofs_device_warning(scene.world.device), "could not record") != NULL);
		}
		expect_blocks(&scene, 0, 0, CHUNKS, 0);
		end(&scene);
	}
}

static uint32_t
writes_sent(struct scene *scene)
{
	const struct ofs_device *device = scene->world.device;
	uint32_t sent = 0;

	for (uint32_t i = 0; i < device->writes.count; i++)
		sent += device->writes.entries[i].state == OFS_WRITE_SENT;
	return sent;
}

/* One that came in the last pass would be missed by it: from there on none goes to a store. */
static void
test_the_last_pass_holds_writes(void)
{
	struct world_flight before, within;
	struct ofs_move_status status;
	struct scene scene;

	begin(&scene, OFS_MOVE_COPIES);
	world_put_all(&scene.session, 0, 0);
	assert(move(&scene) == 0);
	ofs_storage_hang(scene.world.device->move.storage);
	world_pass(&scene.world, 1000000); /* every copy is read, and waits for the target */
	ofs_storage_hang(scene.world.device->storage);
	assert(world_put_begin(&scene.session, 1, 0, SECOND_NS, &before) == 0);
	world_pass(&scene.world, 1000000);
	assert(scene.world.device->move.step == OFS_STEP_COPY && writes_sent(&scene) == 1);
	ofs_storage_unhang(scene.world.device->move.storage);
	for (int i = 0; i < 100 && scene.world.device->move.step != OFS_STEP_LAST; i++)
		world_pass(&scene.world, 100000);
	assert(world_put_begin(&scene.session, 1, 1, SECOND_NS, &within) == 0);
	world_pass(&scene.world, 1000000);
	assert(scene.world.device->move.step == OFS_STEP_LAST && writes_sent(&scene) == 1);
	ofs_storage_unhang(scene.world.device->storage);
	(void)world_put_end(&before); /* hung requests fail */
	assert(world_put_end(&within) == 0 && within.out.rcs[0] == 0);
	status = wait_for_end(&scene);
	assert(status.switched && status.blocks_copied == OFS_MOVE_COPIES);
	expect_blocks(&scene, 0, 0, OFS_MOVE_COPIES, 0);
	expect_blocks(&scene, 1, 1, 1, 0);
	end(&scene);
}

/*
 * Each write of the record is said to have failed, and stands there all the same: a start would
 * follow it to a store that is not kept up any more. So it is taken back before the move fails.
 */
static void
test_a_record_that_failed_is_taken_back(void)
{
	struct ofs_store_forward record;
	struct ofs_move_status status;
	struct scene scene;

	begin(&scene, CHUNKS);
	world_put_all(&scene.session, 0, 0);
	assert(move(&scene) == 0);
	while (scene.world.device->move.step < OFS_STEP_SYNC)
		world_pass(&scene.world, 1000);
	make_bad(scene.world.device->storage);
	bad.fail[OFS_STORAGE_WRITE] = true;
	while (scene.world.device->move.step < OFS_STEP_ERASE)
		world_pass(&scene.world, 1000);
	bad.fail[OFS_STORAGE_WRITE] = false;
	status = wait_for_end(&scene);
	assert(status.state == OFS_MOVE_FAILED && !status.switched && status.rc == -EIO);
	assert(ofs_store_forwarded(scene.world.device->store, &record) == 0);
	expect_blocks(&scene, 0, 0, CHUNKS, 0);
	end(&scene);
}

int
main(void)
{
	test_all_comes_over();
	test_hosts_go_on();
	test_the_last_pass_holds_writes();
	test_a_record_that_failed_is_taken_back();
	test_write_back();
	test_refused();
	test_a_target_that_fails();
	test_a_target_that_is_full();
	test_an_old_device_that_fails();
	printf("move ok\n");
	return 0;
}
