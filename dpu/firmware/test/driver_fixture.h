/*
 * driver_fixture.h: what the tests of the driver share: a DPU of 64 blocks with a port of eight
 * entries, one driver of it, and a daemon that is killed under its calls.
 */
#ifndef OFS_DRIVER_FIXTURE_H
#define OFS_DRIVER_FIXTURE_H

#include "support_dpu.h"

#include <assert.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS 64
#define PAYLOAD 8192
#define ENTRIES 8
#define LONG_NS 20000000000ull

static const struct support_config config = {.block_count = BLOCKS,
	.slot_count = 96,
	.payload_size_bytes = PAYLOAD,
	.entry_count = ENTRIES,
	.demand_max = 16,
	.score_max = 64,
	.put_slot_count = 4};
static struct support_dpu dpu;
static struct ofs_driver *driver;
static uint32_t all[BLOCKS];

static void
set_up(void)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		all[i] = i;
	support_open(&dpu, &config);
	support_open_driver(&dpu, &driver);
}

static void
tear_down(void)
{
	ofs_driver_close(driver);
	support_close(&dpu);
}

/* A child holds the daemon's end of the pair alone, and is killed. */
static void
kill_daemon(void)
{
	pid_t child = fork();

	assert(child >= 0);
	if (child == 0)
		for (;;)
			pause();
	close(ofs_port_wake_fd(dpu.port));
	assert(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

#endif
