/*
 * Does the reactor's thread work with others running: hosts on their own threads, control calls
 * from another, sleep without a lost wake-up, a stop in the middle, and all data there after a
 * restart? Also run under ThreadSanitizer.
 */
#include "support_device.h"

#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum { HOSTS = 2, CHUNKS = 24, ROUNDS = 20 };

#define PATIENCE_NS (60 * SECOND_NS) /* a machine may be slow; nothing here waits for time */

static char path[64];

static void
live_open_spin(struct world *world, const char *backend, uint32_t write_mode, uint64_t spin_ns)
{
	struct ofs_device_config config;

	world_config(&config);
	config.sim_clock = 0;
	config.spin_ns = spin_ns;
	config.io_timeout_ns = PATIENCE_NS;
	config.write_mode = write_mode;
	config.policy.prefetchers = OFS_PREFETCH_WINDOW;
	snprintf(config.storage.backend, sizeof(config.storage.backend), "%s", backend);
	snprintf(config.storage.path, sizeof(config.storage.path), "%s", path);
	world_open(world, &config);
	for (uint32_t i = 0; i < HOSTS; i++)
		world_tenant(world, 16);
	assert(ofs_device_start(world->device) == 0);
	assert(ofs_device_poll(world->device) == -EINVAL);
}

static void
live_open(struct world *world, const char *backend, uint32_t write_mode)
{
	live_open_spin(world, backend, write_mode, 20000);
}

static void
live_attach(struct world *world, struct world_host *host, uint32_t tenant)
{
	char error[256] = "";
	int rc;

	*host = (struct world_host){.world = world, .tenant = tenant};
	rc = ofs_device_attach(world->device, tenant, "shm", &host->port, &host->attachment);
	assert(rc == 0);
	rc = ofs_driver_attach(&host->driver, &host->attachment, error, sizeof(error));
	assert(rc == 0);
}

/* One host: puts its blocks, then fetches them in changing order; in its pauses all sleep. */
static void *
host_run(void *argument)
{
	struct world_host *host = argument;
	struct timespec pause = {.tv_nsec = 300000};
	struct world_session session;
	struct world_fetch fetch;
	int32_t rcs[CHUNKS];
	uint32_t ordinals[4];

	world_join(host, &session, 50, CHUNKS);
	for (uint32_t i = 0; i < 2; i++)
		assert(world_put(&session, i, 0, CHUNKS, PATIENCE_NS, rcs) == 0);
	assert(ofs_device_session_set_generating(host->world->device, session.number, 1) == 0);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		session.step = round;
		for (uint32_t i = 0; i < 4; i++)
			ordinals[i] = (round * 7 + i * 5) % CHUNKS;
		assert(world_fetch(&session, round % 2, 4, ordinals, NULL, PATIENCE_NS, &fetch) == 0);
		assert(fetch.wrong_count == 0);
		for (uint32_t i = 0; i < 4; i++)
			assert(fetch.rcs[i] == 0);
		nanosleep(&pause, NULL);
	}
	assert(ofs_device_session_close(host->world->device, session.number, 1) == 0);
	return NULL;
}

/* Hosts and control at once; then a stop with or without a drain. */
static void
run_hosts(const char *backend, uint32_t write_mode)
{
	struct world_host hosts[HOSTS];
	pthread_t threads[HOSTS];
	struct ofs_policy policy;
	struct world world;

	live_open(&world, backend, write_mode);
	for (uint32_t i = 0; i < HOSTS; i++) {
		live_attach(&world, &hosts[i], i);
		assert(pthread_create(&threads[i], NULL, host_run, &hosts[i]) == 0);
	}
	policy = world.config.policy;
	for (uint32_t i = 0; i < 40; i++) {
		struct timespec pause = {.tv_nsec = 500000};

		policy.window_blocks = i % 8;
		assert(ofs_device_set_policy(world.device, &policy) == 0);
		(void)world_status(&world);
		(void)world_ledger(&world);
		nanosleep(&pause, NULL);
	}
	for (uint32_t i = 0; i < HOSTS; i++)
		assert(pthread_join(threads[i], NULL) == 0);
	assert(ofs_device_drain(world.device, PATIENCE_NS) == 0);
	assert(world_status(&world).dirty_blocks == 0);
	assert(world_status(&world).store.blocks == HOSTS * CHUNKS * 2);
	world_detach(&hosts[0]);
	world_close(&world, 1); /* the other is still attached: its port says that it is closed */
	world_abandon(&hosts[1]);
}

/* Are acknowledged blocks there after the restart, for their own tenant? */
static void
check_restart(const char *backend)
{
	struct world_session session;
	struct world_fetch fetch;
	struct world_host host;
	struct world world;

	live_open(&world, backend, OFS_WRITE_THROUGH);
	for (uint32_t tenant = 0; tenant < HOSTS; tenant++) {
		live_attach(&world, &host, tenant);
		world_join(&host, &session, 50, CHUNKS);
		for (uint32_t i = 0; i < CHUNKS; i++) {
			assert(session.chunks[i].stored_layers == 2);
			session.step = i;
			assert(world_fetch(&session, i % 2, 1, &i, NULL, PATIENCE_NS, &fetch) == 0);
			assert(fetch.rcs[0] == 0 && fetch.wrong_count == 0);
		}
		world_detach(&host);
	}
	world_close(&world, 0);
}

/*
 * Waits until the reactor has slept 20 more times. Turns come only from sleeps and from our own
 * calls (each a busy turn and the spinning after it): a spinning reactor would take millions.
 * Sleeps must last: a wake descriptor that is never cleared would end each of them immediately.
 */
static void
check_sleeps(struct world *world)
{
	struct timespec pause = {.tv_nsec = 20000000};
	struct ofs_device_status before = world_status(world);
	struct ofs_device_status after = before;

	while (after.sleeps < before.sleeps + 20) {
		nanosleep(&pause, NULL);
		after = world_status(world);
	}
	assert(after.loops - before.loops < 1000 * (after.sleeps - before.sleeps));
	assert(after.sleep_ns - before.sleep_ns > 1000000 * (after.sleeps - before.sleeps));
}

/* An idle reactor sleeps: with a silent host, one that died, and one that shut its bell down. */
static void
check_idle(const char *backend)
{
	struct world_host silent, dead, rude;
	struct world world;

	live_open(&world, backend, OFS_WRITE_THROUGH);
	live_attach(&world, &silent, 0);
	live_attach(&world, &dead, 0);
	live_attach(&world, &rude, 1);
	world_abandon(&dead);
	(void)shutdown(rude.attachment.fds[2], SHUT_RDWR);
	check_sleeps(&world);
	assert(ofs_driver_bench_nop(silent.driver, 3, (uint64_t[3]){0}) == 0); /* awake when asked */
	check_sleeps(&world); /* the bell it rang is silent again */
	world_close(&world, 0);
	world_abandon(&silent);
	world_abandon(&rude);
}

/* A reactor that would look for work for an hour sleeps while all it waits for are writes of the
 * page cache, whose ends wake it. */
static void
check_writes(const char *backend)
{
	int32_t rcs[CHUNKS];
	struct world_session session;
	struct world_host host;
	struct statfs system;
	struct world world;

	assert(statfs(path, &system) == 0);
	if (system.f_type == TMPFS_MAGIC)
		return; /* which takes writes at once */
	live_open_spin(&world, backend, OFS_WRITE_THROUGH, 3600 * SECOND_NS);
	live_attach(&world, &host, 0);
	for (uint32_t round = 0; world_status(&world).sleeps == 0; round++) {
		assert(round < ROUNDS);
		world_join(&host, &session, 100 + round, CHUNKS);
		assert(world_put(&session, 0, 0, CHUNKS, PATIENCE_NS, rcs) == 0);
		assert(ofs_device_session_close(world.device, session.number, 1) == 0);
	}
	world_detach(&host);
	world_close(&world, 0);
}

static void
run(const char *backend, uint32_t write_mode)
{
	char error[256];
	struct ofs_storage_config config = {.size_bytes = 4 << 20, .queue_depth_max = 4};
	struct ofs_storage *storage;
	struct ofs_clock clock;

	ofs_clock_init_os(&clock);
	snprintf(config.backend, sizeof(config.backend), "%s", backend);
	snprintf(config.path, sizeof(config.path), "%s", path);
	if (ofs_storage_open(&storage, &config, &clock, error, sizeof(error)) != 0) {
		printf("skipped %s: %s\n", backend, error);
		return;
	}
	ofs_storage_close(storage);
	run_hosts(backend, write_mode);
	check_restart(backend);
	check_idle(backend);
	check_writes(backend);
	assert(unlink(path) == 0);
}

int
main(void)
{
	const char *folder = getenv("TMPDIR") == NULL ? "/tmp" : getenv("TMPDIR");

	assert(
		snprintf(path, sizeof(path), "%s/ofs-live-%d", folder, (int)getpid()) < (int)sizeof(path));
	for (uint32_t mode = OFS_WRITE_THROUGH; mode <= OFS_WRITE_BACK; mode++) {
		run("posix", mode);
		run("io_uring", mode);
	}
	return 0;
}
