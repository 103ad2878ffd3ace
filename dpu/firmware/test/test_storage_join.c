/*
 * Are writes through the page cache joined by io_uring where they follow each other, and does each
 * still have its own bytes and its own result: in any order, past a limit on the file, taken one by
 * one, and where the storage is closed meanwhile?
 */
#include "storage.h"

#include <assert.h>
#include <fcntl.h>
#ifdef OFS_HAVE_URING
#include "uring_submits.h"
#endif
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 64, DEPTH = 64 };

/* What the kernel was given: writes that have several, and those that are to be durable. */
static uint32_t joined, durable;

#ifdef OFS_HAVE_URING
static void
note_entry(const struct io_uring_sqe *sqe)
{
	joined += sqe->opcode == IORING_OP_WRITEV;
	durable += (sqe->rw_flags & RWF_DSYNC) != 0;
}
#endif

struct join_world {
	struct ofs_storage *storage;
	struct ofs_clock clock;
	uint8_t *memory;
	int64_t results[DEPTH];
	uint32_t ended;
};

static int
world_open(struct join_world *world, const char *path)
{
	struct ofs_storage_config config = {.backend = "io_uring",
		.size_bytes = BLOCK * BLOCKS,
		.queue_depth_max = DEPTH};

	memset(world, 0, sizeof(*world));
	snprintf(config.path, sizeof(config.path), "%s", path);
	ofs_clock_init_os(&world->clock);
	if (ofs_storage_open(&world->storage, &config, &world->clock, NULL, 0) != 0)
		return 0; /* this kernel has none: test_storage says so */
	world->memory = aligned_alloc(BLOCK, (size_t)BLOCK * DEPTH);
	assert(world->memory != NULL);
	return 1;
}

static void
world_close(struct join_world *world)
{
	ofs_storage_close(world->storage);
	free(world->memory);
}

static void
submit(struct join_world *world, uint32_t number, uint32_t block, uint8_t value, uint16_t flags)
{
	struct ofs_io io = {.user = number,
		.offset = (uint64_t)block * BLOCK,
		.buffer = world->memory + (size_t)number * BLOCK,
		.size_bytes = BLOCK,
		.op = OFS_STORAGE_WRITE,
		.flags = flags};

	memset(io.buffer, value, BLOCK);
	assert(ofs_storage_submit(world->storage, &io) == 0);
}

/* Polls for `max` at a time until nothing is in flight. */
static void
finish(struct join_world *world, int max)
{
	struct ofs_io_done done[DEPTH];

	while (world->storage->stats.in_flight > 0) {
		int count = ofs_storage_poll(world->storage, done, max);

		assert(count >= 0 && count <= max);
		for (int i = 0; i < count; i++)
			world->results[done[i].user] = done[i].result;
		world->ended += (uint32_t)count;
	}
}

static void
expect_block(const char *path, uint32_t block, uint8_t value)
{
	uint8_t got[BLOCK], want[BLOCK];
	int fd = open(path, O_RDONLY);

	assert(fd >= 0 && pread(fd, got, BLOCK, (off_t)block * BLOCK) == BLOCK);
	memset(want, value, BLOCK);
	assert(memcmp(got, want, BLOCK) == 0);
	close(fd);
}

/* Two streams by turns, a block that follows none, and one that follows but is to be durable. */
static void
try_order(const char *path, int max)
{
	struct join_world world;
	uint32_t number = 0;

	if (!world_open(&world, path))
		return;
	joined = durable = 0;
	for (uint32_t i = 0; i < 20; i++) {
		submit(&world, number, i, (uint8_t)(1 + number), 0);
		number++;
		submit(&world, number, 32 + i, (uint8_t)(1 + number), 0);
		number++;
	}
	submit(&world, number, 60, (uint8_t)(1 + number), 0);
	number++;
	submit(&world, number, 20, (uint8_t)(1 + number), OFS_STORAGE_DURABLE);
	number++;
	finish(&world, max);
	assert(joined > 1 && durable == 1);
	assert(world.ended == number && world.storage->stats.writes == number);
	assert(world.storage->stats.bytes_written == (uint64_t)number * BLOCK);
	for (uint32_t i = 0; i < number; i++)
		assert(world.results[i] == BLOCK);
	for (uint32_t i = 0; i < 20; i++) {
		expect_block(path, i, (uint8_t)(1 + 2 * i));
		expect_block(path, 32 + i, (uint8_t)(2 + 2 * i));
	}
	expect_block(path, 60, 41);
	expect_block(path, 20, 42);
	world_close(&world);
}

/* A write of many that is cut short in the middle: those before have ended, those behind fail. */
static void
try_limit(const char *path)
{
	struct rlimit before, limit;
	struct join_world world;

	if (!world_open(&world, path))
		return;
	assert(getrlimit(RLIMIT_FSIZE, &before) == 0);
	limit = before;
	limit.rlim_cur = 21 * BLOCK + BLOCK / 2;
	assert(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	for (uint32_t i = 0; i < 32; i++)
		submit(&world, i, i, 100, 0);
	finish(&world, DEPTH);
	assert(setrlimit(RLIMIT_FSIZE, &before) == 0);
	for (uint32_t i = 0; i < 32; i++)
		assert(i < 21 ? world.results[i] == BLOCK : world.results[i] < 0);
	assert(world.ended == 32 && world.storage->stats.errors == 11);
	for (uint32_t i = 0; i < 21; i++)
		expect_block(path, i, 100);
	submit(&world, 0, 22, 101, 0); /* and it goes on */
	finish(&world, 1);
	assert(world.results[0] == BLOCK);
	expect_block(path, 22, 101);
	world_close(&world);
}

static void
try_close(const char *path)
{
	struct join_world world;

	if (!world_open(&world, path))
		return;
	for (uint32_t i = 0; i < DEPTH; i++)
		submit(&world, i, i, 7, 0);
	world_close(&world); /* nothing reads the memory after this */
}

int
main(void)
{
	char path[] = "/tmp/ofs_test_storage_join_XXXXXX";
	int fd = mkstemp(path);

	assert(fd >= 0);
	close(fd);
	signal(SIGXFSZ, SIG_IGN);
	for (int max = 1; max <= DEPTH; max += DEPTH - 1)
		try_order(path, max);
	try_limit(path);
	try_close(path);
	unlink(path);
	return 0;
}
