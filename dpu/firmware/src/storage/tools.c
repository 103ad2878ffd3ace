/* Implements storage_tools.h. */
#include "clock.h"
#include "storage_tools.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { POLL_MAX = 256, SLEEP_NS_MAX = 1000000 };

#define STALL_NS 10000000000ull

uint64_t
ofs_storage_size_bytes(const struct ofs_storage *storage)
{
	return storage->size_bytes;
}

uint32_t
ofs_storage_lba_size_bytes(const struct ofs_storage *storage)
{
	return storage->lba_size_bytes;
}

uint32_t
ofs_storage_queue_depth_max(const struct ofs_storage *storage)
{
	return storage->queue_depth_max;
}

uint32_t
ofs_storage_direct(const struct ofs_storage *storage)
{
	return storage->direct;
}

void
ofs_storage_stats_read(const struct ofs_storage *storage, struct ofs_storage_stats *out)
{
	*out = storage->stats;
}

int
ofs_storage_submit_batch(struct ofs_storage *storage, const struct ofs_io *ios, int count)
{
	for (int i = 0; i < count; i++) {
		int rc = ofs_storage_submit(storage, &ios[i]);

		if (rc != 0)
			return i > 0 ? i : rc;
	}
	return count;
}

int
ofs_storage_poll_batch(struct ofs_storage *storage, struct ofs_io_done *done, int max)
{
	return ofs_storage_poll(storage, done, max);
}

int
ofs_storage_poll_wait(struct ofs_storage *storage, struct ofs_io_done *done, int max,
	uint64_t timeout_ns)
{
	uint64_t end_ns = ofs_machine_now_ns() + timeout_ns;
	int fd = storage->ops->wait_fd(storage);
	int count = ofs_storage_poll(storage, done, max);

	while (count == 0) {
		uint64_t now_ns = ofs_machine_now_ns();
		struct timespec sleep = {0};
		struct pollfd wait = {.fd = fd, .events = POLLIN};
		uint64_t left_ns;

		if (now_ns >= end_ns)
			break;
		left_ns = end_ns - now_ns < SLEEP_NS_MAX ? end_ns - now_ns : SLEEP_NS_MAX;
		sleep.tv_nsec = (long)left_ns;
		ppoll(&wait, fd >= 0 ? 1 : 0, &sleep, NULL);
		count = ofs_storage_poll(storage, done, max);
	}
	return count;
}

struct bench {
	struct ofs_storage *storage;
	uint8_t *buffer;
	uint32_t block_size;
	uint32_t other_size; /* of every second read; 0: of none */
	uint32_t count;
	uint32_t submitted;
	uint32_t completed;
	uint64_t random;
	uint64_t spin_ns;
	uint64_t *started_ns; /* by index in the queue */
	uint64_t *latency_ns;
};

/* xorshift64 (Marsaglia 2003): good enough for addresses. */
static uint64_t
bench_random(struct bench *bench)
{
	bench->random ^= bench->random << 13;
	bench->random ^= bench->random >> 7;
	bench->random ^= bench->random << 17;
	return bench->random;
}

static int
bench_submit(struct bench *bench, uint32_t index)
{
	uint32_t size =
		bench->submitted % 2 != 0 && bench->other_size != 0 ? bench->other_size : bench->block_size;
	/* Both sizes start at a multiple of the smaller. */
	uint32_t unit = bench->other_size != 0 ? bench->other_size : bench->block_size;
	uint64_t places = (bench->storage->size_bytes - bench->block_size) / unit + 1;
	struct ofs_io io = {
		.user = index,
		.offset = bench_random(bench) % places * unit,
		.buffer = bench->buffer + (uint64_t)index * bench->block_size,
		.size_bytes = size,
		.op = OFS_STORAGE_READ,
	};

	bench->started_ns[index] = ofs_machine_now_ns();
	bench->submitted++;
	return ofs_storage_submit(bench->storage, &io);
}

/* Returns 0, or the error of the first read that failed. */
static int64_t
bench_turn(struct bench *bench, const struct ofs_io_done *done, int count)
{
	uint64_t now_ns = ofs_machine_now_ns();

	for (int i = 0; i < count; i++) {
		uint32_t index = (uint32_t)done[i].user;
		int rc;

		if (done[i].result < 0)
			return done[i].result;
		if (bench->latency_ns != NULL)
			bench->latency_ns[bench->completed] = now_ns - bench->started_ns[index];
		bench->completed++;
		rc = bench->submitted < bench->count ? bench_submit(bench, index) : 0;
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* Nothing completed for idle_ns: keep spinning, sleep a bounded time, or give up (-ETIMEDOUT). */
static int
bench_idle(struct bench *bench, uint64_t idle_ns)
{
	struct timespec sleep = {.tv_nsec = SLEEP_NS_MAX};
	struct pollfd wait = {.fd = bench->storage->ops->wait_fd(bench->storage), .events = POLLIN};

	if (idle_ns > STALL_NS)
		return -ETIMEDOUT;
	if (idle_ns >= bench->spin_ns && wait.fd >= 0)
		ppoll(&wait, 1, &sleep, NULL);
	return 0;
}

static int64_t
bench_run(struct bench *bench, uint32_t queue_depth)
{
	struct ofs_io_done done[POLL_MAX];
	uint64_t begin_ns = ofs_machine_now_ns();
	uint64_t progress_ns = begin_ns;

	for (uint32_t index = 0; index < queue_depth && index < bench->count; index++) {
		int rc = bench_submit(bench, index);

		if (rc != 0)
			return rc;
	}
	while (bench->completed < bench->count) {
		int count = ofs_storage_poll(bench->storage, done, POLL_MAX);
		int64_t rc = bench_turn(bench, done, count);

		if (rc != 0)
			return rc;
		if (count > 0)
			progress_ns = ofs_machine_now_ns();
		else if (bench_idle(bench, ofs_machine_now_ns() - progress_ns) != 0)
			return -ETIMEDOUT;
	}
	return (int64_t)(ofs_machine_now_ns() - begin_ns);
}

/* The caller may free its buffer after a failure: wait for what is in flight, a bounded time. */
static void
bench_drain(struct bench *bench)
{
	struct ofs_io_done done[POLL_MAX];
	uint64_t end_ns = ofs_machine_now_ns() + STALL_NS;

	while (bench->storage->stats.in_flight > 0 && ofs_machine_now_ns() < end_ns)
		ofs_storage_poll(bench->storage, done, POLL_MAX);
}

int64_t
ofs_storage_bench_read(struct ofs_storage *storage, void *buffer, uint32_t block_size,
	uint32_t other_size, uint32_t queue_depth, uint32_t count, uint64_t seed, uint64_t spin_ns,
	uint64_t *latency_ns)
{
	struct bench bench = {
		.storage = storage,
		.buffer = buffer,
		.block_size = block_size,
		.other_size = other_size,
		.count = count,
		.random = seed * 0x9e3779b97f4a7c15ull | 1,
		.spin_ns = spin_ns,
		.latency_ns = latency_ns,
	};
	int64_t elapsed_ns;

	if (block_size == 0 || other_size > block_size || block_size > storage->size_bytes
		|| queue_depth == 0 || count == 0 || queue_depth > storage->queue_depth_max
		|| storage->stats.in_flight > 0)
		return -EINVAL;
	bench.started_ns = calloc(queue_depth, sizeof(bench.started_ns[0]));
	if (bench.started_ns == NULL)
		return -ENOMEM;
	elapsed_ns = bench_run(&bench, queue_depth);
	if (elapsed_ns < 0)
		bench_drain(&bench);
	free(bench.started_ns);
	return elapsed_ns;
}
