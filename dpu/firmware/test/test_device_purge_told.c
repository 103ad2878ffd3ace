/*
 * All of a tenant goes while some of it is on its way to the store or from it, and its host is
 * gone: when the purge says that it has ended, does anything of it come back later? Does a purge
 * end for a tenant that goes on working? In virtual time.
 */
#include "support_device.h"

#include <stdio.h>
#include <stdlib.h>

#define CONTENT 100
#define BLOCKS 4
#define CALLS_MAX 100000
#define LOOK_NS 10000

static const uint32_t FIRST_FOUR[] = {0, 1, 2, 3};

static void
begin(struct world *world, struct world_host *host, struct world_session *session,
	uint32_t write_mode, uint32_t io_max)
{
	struct ofs_device_config config;

	world_config(&config);
	config.write_mode = write_mode;
	config.store.io_max = io_max;
	config.policy.prefetchers |= OFS_PREFETCH_SHARED; /* else no other session finds the rest */
	world_begin(world, host, &config);
	world_join(host, session, CONTENT, BLOCKS);
}

static uint32_t
writes_in(const struct world *world, uint32_t state)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < world->device->writes.count; i++)
		count += world->device->writes.entries[i].state == state;
	return count;
}

static struct ofs_purged
purge(struct world *world, uint32_t again)
{
	struct ofs_purged purged;

	assert(ofs_device_tenant_purge(world->device, 0, 0, again, &purged) == 0);
	return purged;
}

static bool
has_ended(const struct ofs_purged *purged)
{
	return purged->chunks == 0 && !purged->more && purged->marking == 0 && purged->writing == 0;
}

/* How many calls it took until the purge had ended. */
static uint32_t
purge_all(struct world *world)
{
	struct ofs_purged purged = purge(world, 0);
	uint32_t calls = 1;

	assert(purged.named == 0);
	for (; !has_ended(&purged); calls++) {
		assert(calls < CALLS_MAX);
		world_pass(world, LOOK_NS);
		purged = purge(world, 0);
	}
	return calls;
}

/* Nothing of it is staged or stored, now and later, and demands for it fail. */
static void
expect_gone(struct world *world)
{
	struct world_session session;
	struct world_host host;

	for (int later = 0; later < 2; later++) {
		assert(writes_in(world, OFS_WRITE_FREE) == world->device->writes.count);
		assert(world_check_directory(world) == 0);
		world_attach(world, &host, 0, NULL);
		world_join(&host, &session, CONTENT, BLOCKS);
		for (uint32_t i = 0; i < BLOCKS; i++)
			assert(session.chunks[i].stored_layers == 0);
		world_detach(&host);
		world_verify(world);
		world_pass(world, SECOND_NS);
	}
	assert(world_status(world).store.blocks == 0);
	world_close(world, 0);
}

/* A put at the drive whose host has exited: it is not waited for, and it succeeds. */
static void
test_put_at_the_drive(void)
{
	struct world_flight flights[BLOCKS];
	struct world_session session;
	struct world_host host;
	struct world world;

	begin(&world, &host, &session, OFS_WRITE_THROUGH, 12);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert(world_put_begin(&session, 0, i, SECOND_NS, &flights[i]) == 0);
	while (writes_in(&world, OFS_WRITE_SENT) < BLOCKS)
		world_pass(&world, 100);
	world_detach(&host);
	for (uint32_t i = 0; i < BLOCKS; i++)
		free(flights[i].bytes);
	printf("a put at the drive: %u calls\n", purge_all(&world));
	expect_gone(&world);
}

/* Write-back: acknowledged and not written. `wanted` is where the flushes are by then. */
static void
test_flushes(uint32_t wanted)
{
	struct world_session session;
	struct world_host host;
	struct world world;

	begin(&world, &host, &session, OFS_WRITE_BACK, wanted == OFS_WRITE_PENDING ? 1 : 12);
	ofs_storage_hang(world.device->storage);
	world_put_all(&session, 0, 0);
	world_pass(&world, 1000000);
	if (wanted == OFS_WRITE_PARKED) {
		ofs_storage_unhang(world.device->storage); /* what fell due meanwhile ends with an error */
		world_pass(&world, 1000000);
	}
	assert(writes_in(&world, wanted) > 0);
	world_detach(&host);
	assert(purge(&world, 0).writing == writes_in(&world, OFS_WRITE_SENT));
	ofs_storage_unhang(world.device->storage);
	printf("flushes in state %u: %u calls\n", wanted, purge_all(&world));
	expect_gone(&world);
}

/* A read into a slot that is no longer waited for. */
static void
test_read_under_way(void)
{
	struct world_session session;
	struct world_flight flight;
	struct world_host host;
	struct world world;

	begin(&world, &host, &session, OFS_WRITE_THROUGH, 12);
	world_put_all(&session, 0, 0);
	assert(ofs_device_reset(world.device) == 0); /* nothing is staged */
	assert(world_fetch_begin(&session, 0, BLOCKS, FIRST_FOUR, NULL, SECOND_NS, &flight) == 0);
	while (world.device->reads.flying < BLOCKS)
		world_pass(&world, 100);
	assert(ofs_device_detach(world.device, host.port) == 0);
	assert(purge(&world, 0).writing == BLOCKS);
	printf("reads under way: %u calls\n", purge_all(&world));
	free(flight.bytes);
	world_abandon(&host);
	expect_gone(&world);
}

/* As `has_ended` but for `marking`, where a segment counts whose first writes the drive has. */
static bool
waits_for_nobody(const struct ofs_purged *purged)
{
	return purged->chunks == 0 && !purged->more && purged->writing == 0;
}

/* Chunks in use stay, and so do those that come into use after the purge began. */
static void
test_tenant_that_works(void)
{
	struct world_session session, other;
	struct ofs_purged purged;
	struct world_host host;
	struct world world;

	begin(&world, &host, &session, OFS_WRITE_BACK, 12);
	ofs_storage_hang(world.device->storage);
	world_put_all(&session, 0, 0);
	world_join(&host, &other, CONTENT, 1);
	world_pass(&world, LOOK_NS);
	assert(writes_in(&world, OFS_WRITE_SENT) == BLOCKS);
	purged = purge(&world, 0);
	assert(waits_for_nobody(&purged) && purged.named == BLOCKS);
	assert(ofs_device_tenant_purge(world.device, 0, 1, 0, &purged) == 0);
	assert(waits_for_nobody(&purged) && purged.named == BLOCKS);
	assert(ofs_device_session_close(world.device, session.number, 1) == 0);
	assert(ofs_device_tenant_purge(world.device, 0, 1, 0, &purged) == 0);
	assert(waits_for_nobody(&purged) && purged.named == 1); /* some are to be kept: these may be */
	purged = purge(&world, 1);
	assert(waits_for_nobody(&purged)); /* of a later time */
	purged = purge(&world, 0);
	assert(purged.writing == BLOCKS - 1 && purged.named == 1);
	ofs_storage_unhang(world.device->storage);
	world_pass(&world, SECOND_NS);
	purged = purge(&world, 1);
	assert(has_ended(&purged) && world_status(&world).store.blocks == 1);
	world_end(&host, 0);
}

int
main(void)
{
	test_put_at_the_drive();
	test_flushes(OFS_WRITE_SENT);
	test_flushes(OFS_WRITE_PENDING);
	test_flushes(OFS_WRITE_PARKED);
	test_read_under_way();
	test_tenant_that_works();
	printf("device_purge_told ok\n");
	return 0;
}
