/*
 * A tenant has filled the tables with kept chunks: can another still append and put, and does
 * the first lose its coldest chunks first? What does a purge on request delete? In virtual time;
 * after a restart: tests/integration/test_quotas.py, test_purge.py.
 */
#include "support_two.h"

#include <stdio.h>

#define CHUNKS 128 /* that the core knows at once */

static void
small(struct ofs_device_config *config)
{
	world_config(config);
	config->core.chunk_max = CHUNKS;
	config->policy.prefetchers = OFS_PREFETCH_SHARED;
}

/* The table of chunks is full of one tenant's kept chunks: the other gets its share, 64. */
static void
test_full_table(void)
{
	struct world_session session;
	struct ofs_device_config config;
	struct ofs_tenant_status status;
	struct two_tenants two;

	small(&config);
	two_open(&two, &config);
	for (uint64_t i = 0; i < CHUNKS / 16; i++)
		two_keep(&two.hosts[0], 1000 * i);
	assert(two_kept(&two.hosts[0], 0) == 16); /* named again: warm */
	for (uint64_t i = 0; i < 4; i++) {
		world_join(&two.hosts[1], &session, 50000 + 1000 * i, 16);
		world_put_all(&session, 0, 0);
	}
	assert(ofs_device_tenant_status_get(two.world.device, 0, &status) == 0);
	printf("chunks left to the one: %llu\n", (unsigned long long)status.chunks);
	assert(status.chunks >= 32 && status.chunks <= 64 && status.purged >= 64);
	assert(two_kept(&two.hosts[0], 0) == 16);   /* chunks named twice are still there */
	assert(two_kept(&two.hosts[0], 1000) == 0); /* and the oldest is gone */
	/* The other's, which are in use, are not victims of the tenant over its share. */
	assert(ofs_device_tenant_status_get(two.world.device, 1, &status) == 0);
	assert(status.chunks == 64 && status.purged == 0);
	/* All of the other's share is in sessions now: only the first's own kept chunks are left. */
	for (uint64_t i = 0; i < 8; i++)
		two_keep(&two.hosts[0], 90000 + 1000 * i);
	assert(ofs_device_tenant_status_get(two.world.device, 1, &status) == 0);
	assert(status.chunks == 64 && status.purged == 0);
	two_close(&two);
}

/* The store is full of one tenant's kept chunks: the other's puts are written all the same. */
static void
test_full_store(void)
{
	struct world_session session;
	struct ofs_device_config config;
	struct ofs_tenant_status status;
	struct two_tenants two;

	small(&config);
	config.core.chunk_max = 2048;
	config.storage.size_bytes = 2 << 20;
	two_open(&two, &config);
	for (uint64_t i = 0; i < 40; i++)
		two_keep(&two.hosts[0], 1000 * i);
	assert(ofs_device_tenant_status_get(two.world.device, 0, &status) == 0);
	printf("purged of the one by its own puts: %llu\n", (unsigned long long)status.purged);
	assert(status.purged > 0);
	for (uint64_t i = 0; i < 6; i++) {
		world_join(&two.hosts[1], &session, 70000 + 1000 * i, 16);
		world_put_all(&session, 0, 0);
	}
	assert(ofs_device_tenant_status_get(two.world.device, 1, &status) == 0);
	assert(status.purged == 0 && status.stored_blocks == 96);
	two_close(&two);
}

/* A store that keeps room loses its coldest before it is full, so that the cleaner moves nothing
 * that the next purge would have emptied; sessions lose nothing for it, and no put fails. */
static void
test_room(void)
{
	struct world_session session;
	struct ofs_device_config config;
	struct ofs_device_status status[2];
	struct two_tenants two;

	small(&config);
	config.core.chunk_max = 2048;
	config.storage.size_bytes = 4 << 20;
	for (uint32_t i = 0; i < 2; i++) {
		config.store.room_percent = 20 * i;
		two_open(&two, &config);
		world_join(&two.hosts[1], &session, 70000, 64);
		world_put_all(&session, 0, 0);
		for (uint64_t text = 0; text < 120; text++)
			two_keep(&two.hosts[0], 1000 * text);
		status[i] = world_status(&two.world);
		printf("room %u %%: %llu blocks, %llu moved\n", 20 * i,
			(unsigned long long)status[i].store.blocks,
			(unsigned long long)status[i].store.blocks_moved);
		assert(two_kept(&two.hosts[1], 70000) == TWO_TEXT && two_status(&two, 1).purged == 0);
		assert(two_kept(&two.hosts[0], 119000) == TWO_TEXT);
		assert(two_kept(&two.hosts[0], 0) == 0);
		two_close(&two);
	}
	assert(status[0].store.blocks_moved > 0 && status[0].store.blocks_lacking == 0);
	assert(status[1].store.blocks_moved == 0);
	assert(status[1].store.blocks < status[0].store.blocks);
}

/* All that there is belongs to sessions: the room is written too, down to the last place. */
static void
test_room_in_use(void)
{
	struct world_session sessions[6];
	struct ofs_device_config config;
	struct two_tenants two;
	uint32_t count = 0;

	small(&config);
	config.core.chunk_max = 2048;
	config.storage.size_bytes = 131072 + 24 * 65536;
	config.store.room_percent = 50;
	two_open(&two, &config);
	for (; count < 4; count++) {
		world_join(&two.hosts[0], &sessions[count], 1000 * count, 64);
		world_put_all(&sessions[count], 0, 0);
	}
	assert(world_status(&two.world).store.blocks_lacking > 0);
	assert(two_status(&two, 0).purged == 0 && two_status(&two, 0).stored_blocks == 256);
	assert(ofs_device_session_close(two.world.device, sessions[0].number, 1) == 0);
	world_pass(&two.world, 1000000000);
	two_keep(&two.hosts[1], 90000);
	assert(two_status(&two, 0).purged == 64); /* now that it may */
	two_close(&two);
}

/* A purge of one tenant down to a number of blocks. */
static void
test_told(void)
{
	struct world_session session;
	struct ofs_device_config config;
	struct ofs_tenant_status status;
	struct ofs_purged purged, total = {0};
	struct two_tenants two;

	small(&config);
	config.core.chunk_max = 512;
	two_open(&two, &config);
	for (uint64_t i = 0; i < 12; i++)
		two_keep(&two.hosts[0], 1000 * i);
	two_keep(&two.hosts[1], 90000);
	assert(two_kept(&two.hosts[0], 0) == 16);      /* named again: warm */
	world_join(&two.hosts[0], &session, 2000, 16); /* in use: it stays, whatever is asked */
	assert(ofs_device_tenant_purge(two.world.device, 2, 0, 0, &purged) == -EINVAL);
	assert(ofs_device_tenant_purge(two.world.device, 0, 1000, 0, &purged) == 0);
	assert(purged.chunks == 0 && purged.blocks == 0 && purged.bytes == 0 && !purged.more);
	do {
		assert(ofs_device_tenant_purge(two.world.device, 0, 40, 0, &purged) == 0);
		assert(purged.bytes == purged.blocks * two.world.device->record_size_bytes);
		total.chunks += purged.chunks;
		total.blocks += purged.blocks;
	} while (purged.more);
	assert(total.chunks == 152 && total.blocks == 152);
	assert(two_kept(&two.hosts[0], 0) == 16 && two_kept(&two.hosts[0], 11000) == 8);
	assert(two_kept(&two.hosts[0], 1000) == 0 && two_kept(&two.hosts[0], 10000) == 0);
	do
		assert(ofs_device_tenant_purge(two.world.device, 0, 0, 0, &purged) == 0);
	while (purged.more);
	assert(ofs_device_tenant_status_get(two.world.device, 0, &status) == 0);
	assert(status.stored_blocks == 16 && status.kept_chunks == 0 && status.purged == 0);
	assert(two_kept(&two.hosts[0], 0) == 0 && two_kept(&two.hosts[0], 2000) == 16);
	assert(two_kept(&two.hosts[1], 90000) == 16);
	two_close(&two);
}

int
main(void)
{
	test_told();
	test_full_table();
	test_full_store();
	test_room();
	test_room_in_use();
	printf("device_purge ok\n");
	return 0;
}
