/*
 * Does every back end keep the contract under the sanitizers: many I/Os in flight at random, each
 * ended once, the bytes those of a plain array, and nothing leaked by open, failed open or close?
 * And does a write that is to be durable, or a sync, ask the kernel for that?
 */
#include "dma.h"
#include "drive.h"
#include "storage_tools.h"

#include <assert.h>
#include <errno.h>
#ifdef OFS_HAVE_URING
#include "uring_submits.h"
#endif
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 64, DEPTH = 8, IOS = 400 };

/* The calls of the library, in its place: counted, and refused where a test says so. */
static _Atomic uint32_t writes_dsync;
static _Atomic uint32_t syncs;
static _Atomic int write_errno;
static _Atomic int sync_errno;

ssize_t
pwritev2(int fd, const struct iovec *vectors, int count, off_t offset, int flags)
{
	ssize_t moved_bytes = -1;

	errno = write_errno;
	if (write_errno == 0)
		moved_bytes = syscall(SYS_pwritev2, fd, vectors, (long)count, (long)offset, 0L, flags);
	writes_dsync += moved_bytes >= 0 && (flags & RWF_DSYNC) != 0; /* an emulator may know none */
	return moved_bytes;
}

int
fdatasync(int fd)
{
	syncs++;
	errno = sync_errno;
	return sync_errno != 0 ? -1 : (int)syscall(SYS_fdatasync, fd);
}

#ifdef OFS_HAVE_URING
static void
note_entry(const struct io_uring_sqe *sqe)
{
	syncs += sqe->opcode == IORING_OP_FSYNC;
	writes_dsync += (sqe->opcode == IORING_OP_WRITE || sqe->opcode == IORING_OP_WRITE_FIXED)
		&& (sqe->rw_flags & RWF_DSYNC) != 0;
}
#endif

static uint64_t random_state = 88172645463325252ull;

static uint32_t
random_below(uint32_t limit)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state % limit);
}

static struct ofs_storage_config
config_of(const char *backend, const char *inner, const char *path, uint32_t direct)
{
	struct ofs_storage_config config = {
		.size_bytes = BLOCK * BLOCKS,
		.queue_depth_max = DEPTH,
		.direct = direct,
		.seed = 3,
	};

	snprintf(config.backend, sizeof(config.backend), "%s", backend);
	snprintf(config.inner, sizeof(config.inner), "%s", inner);
	snprintf(config.path, sizeof(config.path), "%s", path);
	config.nvme = test_drive;
	return config;
}

/* One I/O per slot of the queue and per block at a time: the seam orders nothing else. */
struct storage_world {
	struct ofs_storage *storage;
	struct ofs_clock clock;
	uint8_t *buffer;
	uint8_t model[BLOCKS];
	struct ofs_io flying[DEPTH];
	int used[DEPTH];
	int busy[BLOCKS];
	uint64_t submitted;
	uint64_t completed;
};

static void
world_submit(struct storage_world *world)
{
	uint32_t slot = random_below(DEPTH);
	uint32_t block = random_below(BLOCKS);
	uint8_t *buffer = world->buffer + (size_t)slot * BLOCK;
	struct ofs_io io = {
		.user = slot,
		.offset = (uint64_t)block * BLOCK,
		.buffer = buffer,
		.size_bytes = BLOCK,
		.op = (uint16_t)random_below(2),
		.flags = random_below(8) == 0 ? OFS_STORAGE_DURABLE : 0,
	};

	if (world->used[slot] || world->busy[block])
		return;
	if (random_below(50) == 0)
		io = (struct ofs_io){.user = slot, .op = OFS_STORAGE_SYNC};
	if (io.op == OFS_STORAGE_WRITE) {
		world->model[block] = (uint8_t)(1 + random_below(255));
		memset(buffer, world->model[block], BLOCK);
	} else {
		memset(buffer, 0xee, BLOCK);
	}
	assert(ofs_storage_submit(world->storage, &io) == 0);
	world->flying[slot] = io;
	world->used[slot] = 1;
	world->busy[block] += io.op != OFS_STORAGE_SYNC;
	world->submitted++;
}

static void
world_poll(struct storage_world *world)
{
	struct ofs_io_done done[3];
	uint64_t due_ns = ofs_storage_due_ns(world->storage);
	int count;

	if (strcmp(ofs_storage_name(world->storage), "sim") == 0 && due_ns != UINT64_MAX
		&& due_ns > ofs_clock_now_ns(&world->clock))
		ofs_clock_advance_to(&world->clock, due_ns);
	count = ofs_storage_poll(world->storage, done, 3);
	assert(count >= 0 && count <= 3);
	for (int i = 0; i < count; i++) {
		struct ofs_io *io = &world->flying[done[i].user];
		uint32_t block = (uint32_t)(io->offset / BLOCK);
		uint8_t *buffer = io->buffer;
		int at;

		assert(done[i].user < DEPTH && world->used[done[i].user]);
		world->used[done[i].user] = 0;
		world->completed++;
		assert(done[i].result == (int64_t)io->size_bytes);
		if (io->op == OFS_STORAGE_SYNC)
			continue;
		world->busy[block] = 0;
		for (at = 0; io->op == OFS_STORAGE_READ && at < BLOCK; at++)
			assert(buffer[at] == world->model[block]);
	}
}

static void
try_side(const char *backend, const char *inner, const char *path, uint32_t direct)
{
	struct ofs_storage_config config = config_of(backend, inner, path, direct);
	struct storage_world world = {0};
	char error[256];
	struct ofs_dma memory;
	void *buffer;
	int rc;

	if (path[0] != 0)
		unlink(path);
	if (strcmp(backend, "sim") == 0)
		ofs_clock_init_sim(&world.clock, 0);
	else
		ofs_clock_init_os(&world.clock);
	rc = ofs_storage_open(&world.storage, &config, &world.clock, error, sizeof(error));
	if (rc == -EPERM || rc == -ENOSYS) {
		printf("%s left out: %s\n", backend, error);
		return;
	}
	assert(rc == 0 && error[0] == 0);
	assert(ofs_dma_alloc(&memory, &(struct ofs_dma_config){0}, DEPTH * BLOCK, NULL) == 0);
	buffer = memory.base;
	world.buffer = buffer;
	if (direct == 0)
		assert(ofs_storage_register_memory(world.storage, buffer, DEPTH * BLOCK) == 0);
	while (world.submitted < IOS) {
		world_submit(&world);
		world_submit(&world);
		world_poll(&world);
	}
	while (world.completed < world.submitted)
		world_poll(&world);
	assert(world.storage->stats.in_flight == 0 && world.storage->stats.errors == 0);
	assert(ofs_storage_unregister_memory(world.storage, buffer, DEPTH * BLOCK) == 0);
	ofs_storage_close(world.storage);
	ofs_dma_free(&memory);
	printf("%s%s%s%s ok\n", backend, inner[0] != 0 ? " over " : "", inner,
		direct ? " O_DIRECT" : "");
}

/* Half-open storages must free their resources, and close must wait for requests in flight. */
static void
try_ends(const char *path)
{
	static const char *backends[] = {"posix", "io_uring", "emulated", "sim", "skeleton", "auto"};
	struct ofs_clock clock;
	struct ofs_storage *storage;
	char error[256];
	struct ofs_dma memory;
	void *buffer;

	ofs_clock_init_os(&clock);
	for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
		struct ofs_storage_config config = config_of(backends[i], "posix", "/nowhere/file", 0);

		if (strcmp(backends[i], "sim") == 0)
			config.nvme.channel_count = 0;
		if (strcmp(backends[i], "skeleton") == 0)
			config.size_bytes = 0;
		assert(ofs_storage_open(&storage, &config, &clock, error, sizeof(error)) < 0);
		assert(storage == NULL && strlen(error) > 20);
	}
	assert(ofs_dma_alloc(&memory, &(struct ofs_dma_config){0}, DEPTH * BLOCK, NULL) == 0);
	buffer = memory.base;
	for (size_t i = 0; i < 20; i++) {
		struct ofs_storage_config config = config_of(i % 2 ? "posix" : "auto", "", path, 1);
		uint64_t slot;

		assert(ofs_storage_open(&storage, &config, &clock, error, sizeof(error)) == 0);
		for (slot = 0; slot < DEPTH; slot++) {
			struct ofs_io io = {
				.user = slot,
				.offset = slot * BLOCK,
				.buffer = (uint8_t *)buffer + slot * BLOCK,
				.size_bytes = BLOCK,
				.op = OFS_STORAGE_READ,
			};

			assert(ofs_storage_submit(storage, &io) == 0);
		}
		ofs_storage_close(storage);
	}
	ofs_dma_free(&memory);
}

static int64_t
end_of(struct ofs_storage *storage, void *buffer, uint32_t op, uint32_t flags)
{
	struct ofs_io io = {.op = op, .flags = flags};
	struct ofs_io_done done;

	if (op != OFS_STORAGE_SYNC) {
		io.buffer = buffer;
		io.size_bytes = BLOCK;
	}
	assert(ofs_storage_submit(storage, &io) == 0);
	assert(ofs_storage_poll_wait(storage, &done, 1, 10000000000ull) == 1);
	return done.result;
}

/* Also where the file system knows no durable write: a sync follows it then, and its error is the
 * write's. */
static void
try_durable(const char *backend, const char *path)
{
	struct ofs_storage_config config = config_of(backend, "", path, 0);
	struct ofs_storage *storage;
	struct ofs_clock clock;
	struct ofs_dma memory;
	int rc;

	ofs_clock_init_os(&clock);
	rc = ofs_storage_open(&storage, &config, &clock, NULL, 0);
	if (rc == -EPERM || rc == -ENOSYS)
		return; /* try_side has said so */
	assert(rc == 0);
	assert(ofs_dma_alloc(&memory, &(struct ofs_dma_config){0}, BLOCK, NULL) == 0);
	for (int registered = 0; registered < 2; registered++) {
		writes_dsync = syncs = 0;
		assert(end_of(storage, memory.base, OFS_STORAGE_WRITE, 0) == BLOCK);
		assert(writes_dsync == 0 && syncs == 0);
		assert(end_of(storage, memory.base, OFS_STORAGE_WRITE, OFS_STORAGE_DURABLE) == BLOCK);
		assert(writes_dsync + syncs == 1);
		assert(end_of(storage, NULL, OFS_STORAGE_SYNC, 0) == 0);
		assert(writes_dsync + syncs == 2 && syncs > 0);
		if (!registered)
			assert(ofs_storage_register_memory(storage, memory.base, BLOCK) == 0);
	}
	assert(ofs_storage_unregister_memory(storage, memory.base, BLOCK) == 0);
	if (strcmp(backend, "posix") == 0) {
		write_errno = EOPNOTSUPP;
		assert(end_of(storage, memory.base, OFS_STORAGE_WRITE, OFS_STORAGE_DURABLE) == BLOCK);
		assert(writes_dsync + syncs == 3 && syncs > 1);
		sync_errno = EIO;
		assert(end_of(storage, memory.base, OFS_STORAGE_WRITE, OFS_STORAGE_DURABLE) == -EIO);
		assert(end_of(storage, NULL, OFS_STORAGE_SYNC, 0) == -EIO);
		write_errno = sync_errno = 0;
	}
	ofs_storage_close(storage);
	ofs_dma_free(&memory);
}

/* A range whose mapping was replaced and given again must not find its old pages. */
static void
try_remapped(const char *path)
{
	struct ofs_storage_config config = config_of("auto", "", path, 1);
	struct ofs_storage *storage;
	struct ofs_clock clock;
	struct ofs_io_done done;
	struct ofs_dma memory;
	void *buffer;

	ofs_clock_init_os(&clock);
	assert(ofs_storage_open(&storage, &config, &clock, NULL, 0) == 0);
	assert(ofs_dma_alloc(&memory, &(struct ofs_dma_config){0}, BLOCK, NULL) == 0);
	buffer = memory.base;
	for (int i = 0; i < 8; i++) {
		struct ofs_io io = {
			.buffer = buffer,
			.size_bytes = BLOCK,
			.offset = (uint64_t)i * BLOCK,
			.op = OFS_STORAGE_WRITE,
		};

		assert(mmap(buffer, BLOCK, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS,
				   -1, 0)
			== buffer);
		assert(ofs_storage_register_memory(storage, buffer, BLOCK) == 0);
		memset(buffer, i + 1, BLOCK);
		assert(ofs_storage_submit(storage, &io) == 0);
		assert(ofs_storage_poll_wait(storage, &done, 1, 10000000000ull) == 1);
		memset(buffer, 0, BLOCK);
		io.op = OFS_STORAGE_READ;
		assert(ofs_storage_submit(storage, &io) == 0);
		assert(ofs_storage_poll_wait(storage, &done, 1, 10000000000ull) == 1);
		assert(((uint8_t *)buffer)[0] == i + 1 && ((uint8_t *)buffer)[BLOCK - 1] == i + 1);
	}
	assert(ofs_storage_unregister_memory(storage, buffer, BLOCK) == 0);
	ofs_storage_close(storage);
	ofs_dma_free(&memory);
}

static void
try_bench(void)
{
	struct ofs_storage_config config = config_of("emulated", "", "", 0);
	uint64_t latency_ns[200];
	struct ofs_storage *storage;
	struct ofs_clock clock;
	struct ofs_dma memory;
	void *buffer;

	ofs_clock_init_os(&clock);
	assert(ofs_storage_open(&storage, &config, &clock, NULL, 0) == 0);
	assert(ofs_dma_alloc(&memory, &(struct ofs_dma_config){0}, DEPTH * BLOCK, NULL) == 0);
	buffer = memory.base;
	assert(ofs_storage_bench_read(storage, buffer, BLOCK, 0, DEPTH, 200, 1, 1000, latency_ns) > 0);
	for (int i = 0; i < 200; i++)
		assert(latency_ns[i] >= 25000); /* firmware and tR of the modelled drive */
	assert(ofs_storage_bench_read(storage, buffer, BLOCK, 0, DEPTH + 1, 9, 1, 0, NULL) == -EINVAL);
	assert(ofs_storage_bench_read(storage, buffer, BLOCK, 512, DEPTH, 200, 1, 0, NULL) > 0);
	assert(ofs_storage_bench_read(storage, buffer, 512, BLOCK, 1, 9, 1, 0, NULL) == -EINVAL);
	assert(ofs_storage_bench_read(storage, buffer, 100, 0, 1, 9, 1, 0, NULL) == -EINVAL);
	ofs_storage_close(storage);
	ofs_dma_free(&memory);
}

/* A device must have the placement handles that it is asked for, or it is closed again. */
static void
try_handles(const char *path)
{
	static const char *const sides[] = {"posix", "io_uring", "auto", "sim"};
	struct ofs_clock clock;

	ofs_clock_init_sim(&clock, 0);
	for (size_t i = 0; i < sizeof(sides) / sizeof(sides[0]); i++) {
		struct ofs_storage_config config = config_of(sides[i], "", path, 0);
		struct ofs_storage *storage;
		char error[512] = "";
		int has = strcmp(sides[i], "sim") == 0 ? 3 : 0;

		if (has)
			config.path[0] = 0;
		config.nvme.handle_count = 3;
		config.handles_min = 3;
		if (ofs_storage_open(&storage, &config, &clock, error, sizeof(error)) == 0) {
			assert(has && storage->stats.handles == 3);
			ofs_storage_close(storage);
			config.handles_min = 4;
			assert(ofs_storage_open(&storage, &config, &clock, error, sizeof(error)) == -ENOTSUP);
		}
		assert(storage == NULL);
		if (strstr(error, "io_uring;") == NULL) /* this machine has it */
			assert(
				strstr(error, has ? "3 placement handles, not 4" : "0 placement handles, not 3"));
	}
}

/* A start is a system call that finds nothing in the kernel: one for a lone read, with the poll
 * that passes it on, and one for four that are submitted together. */
static void
try_starts(const char *path)
{
	struct ofs_storage_config config = config_of("io_uring", "", path, 0);
	struct ofs_storage *storage;
	struct ofs_clock clock;
	uint8_t *buffer;

	ofs_clock_init_os(&clock);
	if (ofs_storage_open(&storage, &config, &clock, NULL, 0) != 0)
		return;                                       /* try_side said so */
	buffer = aligned_alloc(BLOCK, 4 * (size_t)BLOCK); /* I/O takes aligned memory alone */
	assert(buffer != NULL);
	for (uint32_t count = 1; count <= 4; count += 3) {
		struct ofs_io_done done[4];
		uint64_t before = storage->starts;

		for (uint32_t i = 0; i < count; i++) {
			struct ofs_io io = {.user = i,
				.offset = (uint64_t)i * BLOCK,
				.buffer = buffer + (size_t)i * BLOCK,
				.size_bytes = BLOCK,
				.op = OFS_STORAGE_READ};

			assert(ofs_storage_submit(storage, &io) == 0);
		}
		assert(storage->starts == before + (count > 1));
		while (storage->stats.in_flight > 0)
			assert(ofs_storage_poll(storage, done, 4) >= 0);
		assert(storage->starts == before + 1 && storage->wakes == 1); /* after the open alone */
	}
	free(buffer);
	ofs_storage_close(storage);
}

int
main(void)
{
	char path[] = "/tmp/ofs_test_storage_XXXXXX";
	int fd = mkstemp(path);

	assert(fd >= 0);
	close(fd);
	try_side("posix", "", path, 0);
	try_side("posix", "", path, 1);
	try_side("io_uring", "", path, 0);
	try_side("io_uring", "", path, 1);
	try_side("emulated", "", "", 0);
	try_side("emulated", "posix", path, 0);
	try_side("emulated", "io_uring", path, 1);
	try_side("sim", "", "", 0);
	try_side("skeleton", "", "", 0);
	try_handles(path);
	try_ends(path);
	try_durable("posix", path);
	try_durable("io_uring", path);
	try_remapped(path);
	try_starts(path);
	try_bench();
	unlink(path);
	return 0;
}
