/*
 * A tenant at its own bound, with room elsewhere: does it lose its own coldest chunks, or get
 * -EDQUOT, and do other tenants lose nothing? In virtual time; with daemons, and after a restart:
 * tests/integration/test_quotas.py.
 */
#include "support_two.h"

#include <errno.h>
#include <stdio.h>

#define COLDEST(text) (1000ull * (text))

static void
bound(const struct two_tenants *two, uint32_t tenant, uint64_t chunks, uint64_t blocks,
	uint64_t dirty)
{
	struct ofs_tenant_quota quota = {.chunks_max = chunks,
		.stored_bytes_max = blocks * two->world.device->record_size_bytes,
		.dirty_blocks_max = dirty};

	assert(ofs_device_tenant_quota(two->world.device, tenant, &quota) == 0);
	assert(ofs_device_tenant_quota(two->world.device, 2, &quota) == -EINVAL);
}

static void
open_two(struct two_tenants *two, uint32_t write_mode)
{
	struct ofs_device_config config;

	world_config(&config);
	config.core.chunk_max = 512;
	config.policy.prefetchers = OFS_PREFETCH_SHARED;
	config.write_mode = write_mode;
	two_open(two, &config);
	two_keep(&two->hosts[1], 90000);
}

/* The other tenant keeps its blocks and continues. */
static void
close_two(struct two_tenants *two)
{
	struct ofs_tenant_status status = two_status(two, 1);

	assert(status.purged == 0 && status.quota_refused == 0);
	assert(two_kept(&two->hosts[1], 90000) == TWO_TEXT);
	two_keep(&two->hosts[1], 91000);
	two_close(two);
}

/* Chunks that sessions name are never evicted: then the append is refused, whole, and nothing is
 * lost. */
static void
test_chunks(void)
{
	struct world_session sessions[4];
	struct ofs_tenant_status status;
	struct two_tenants two;

	open_two(&two, OFS_WRITE_THROUGH);
	bound(&two, 0, 48, 0, 0);
	for (uint32_t i = 0; i < 3; i++)
		two_keep(&two.hosts[0], COLDEST(i));
	assert(two_status(&two, 0).purged == 0);
	assert(two_kept(&two.hosts[0], COLDEST(0)) == TWO_TEXT); /* named again: warm */
	two_keep(&two.hosts[0], COLDEST(3));
	status = two_status(&two, 0);
	printf("chunks %llu, purged %llu\n", (unsigned long long)status.chunks,
		(unsigned long long)status.purged);
	assert(status.chunks <= 48 && status.purged >= 16 && status.purged <= 16 + 48 / 16);
	assert(two_kept(&two.hosts[0], COLDEST(0)) == TWO_TEXT);
	for (uint32_t i = 0; i < 3; i++)
		world_join(&two.hosts[0], &sessions[i], 50000 + 1000 * i, TWO_TEXT);
	assert(world_session(&two.hosts[0], &sessions[3], 4) == 0);
	assert(world_append(&sessions[3], 60000, 1) == -EDQUOT);
	assert(world_append(&sessions[3], 50000, TWO_TEXT) == 0); /* it exists: no new chunk */
	status = two_status(&two, 0);
	assert(status.chunks == 48 && status.kept_chunks == 0 && status.quota_refused == 1);
	assert(ofs_device_session_close(two.world.device, sessions[2].number, 1) == 0);
	assert(world_append(&sessions[3], 60000, TWO_TEXT) == 0);
	close_two(&two);
}

/* An append that can never be: not one kept chunk goes for it. */
static void
test_too_long(void)
{
	struct world_session session;
	struct two_tenants two;

	open_two(&two, OFS_WRITE_THROUGH);
	bound(&two, 0, 20, 0, 0);
	two_keep(&two.hosts[0], COLDEST(0));
	assert(world_session(&two.hosts[0], &session, 4) == 0);
	assert(world_append(&session, 50000, 21) == -EDQUOT);
	assert(two_status(&two, 0).purged == 0 && two_kept(&two.hosts[0], COLDEST(0)) == TWO_TEXT);
	/* Kept chunks that the append names again are not evicted for its new ones. */
	assert(world_append(&session, COLDEST(0), 21) == -EDQUOT);
	assert(world_append(&session, COLDEST(0), 20) == 0);
	assert(two_status(&two, 0).chunks == 20 && two_status(&two, 0).purged == 0);
	close_two(&two);
}

/* An append that needs room, at its bound or in a full table, keeps what it names, though that is
 * the coldest. */
static void
test_named(uint64_t bound_chunks, uint32_t chunk_max)
{
	struct ofs_device_config config;
	struct world_session session;
	struct two_tenants two;

	world_config(&config);
	config.core.chunk_max = chunk_max;
	config.policy.prefetchers = OFS_PREFETCH_SHARED;
	two_open(&two, &config);
	two_keep(&two.hosts[1], 90000);
	bound(&two, 0, bound_chunks, 0, 0);
	two_keep(&two.hosts[0], COLDEST(0));
	two_keep(&two.hosts[0], COLDEST(1));
	for (uint32_t i = 0; i < 3; i++)
		assert(two_kept(&two.hosts[0], COLDEST(1)) == TWO_TEXT);
	assert(world_session(&two.hosts[0], &session, 4) == 0);
	assert(world_append(&session, COLDEST(0), TWO_TEXT + 8) == 0);
	assert(two_status(&two, 0).purged >= 8);
	assert(ofs_device_session_close(two.world.device, session.number, 1) == 0);
	assert(two_kept(&two.hosts[0], COLDEST(0)) == TWO_TEXT);
	close_two(&two);
}

static void
test_store(void)
{
	struct world_session session;
	struct ofs_tenant_status status;
	struct two_tenants two;
	int32_t rcs[48];

	open_two(&two, OFS_WRITE_THROUGH);
	bound(&two, 0, 0, 40, 0);
	for (uint32_t i = 0; i < 6; i++) {
		two_keep(&two.hosts[0], COLDEST(i));
		assert(two_status(&two, 0).stored_blocks <= 40);
	}
	assert(two_status(&two, 0).purged >= 56);
	assert(two_kept(&two.hosts[0], COLDEST(5)) == TWO_TEXT);
	assert(two_kept(&two.hosts[0], COLDEST(0)) == 0);
	/* All of it in use: blocks beyond the limit are refused, existing ones are put again. */
	world_join(&two.hosts[0], &session, 50000, 48);
	assert(world_put(&session, 0, 0, 40, SECOND_NS, rcs) == 0);
	world_expect_puts(rcs, 40, 0);
	(void)world_put(&session, 0, 40, 8, SECOND_NS, rcs);
	world_expect_puts(rcs, 8, -EDQUOT);
	assert(world_put(&session, 0, 0, 8, SECOND_NS, rcs) == 0);
	world_expect_puts(rcs, 8, 0);
	status = two_status(&two, 0);
	assert(status.stored_blocks == 40 && status.quota_refused == 8);
	assert(status.stored_bytes == 40ull * two.world.device->record_size_bytes);
	assert(ofs_device_session_close(two.world.device, session.number, 0) == 0);
	two_keep(&two.hosts[0], COLDEST(7));
	/* A lower bound takes effect at the next put. */
	bound(&two, 0, 0, 4, 0);
	world_join(&two.hosts[0], &session, 70000, 4);
	world_put_all(&session, 0, 0);
	assert(two_status(&two, 0).stored_blocks == 4);
	close_two(&two);
}

/* Staged blocks count before they are written: the store never has more, and none is lost. */
static void
test_staged(void)
{
	struct world_session sessions[2];
	struct ofs_tenant_status status;
	struct two_tenants two;
	int32_t rcs[TWO_TEXT];

	open_two(&two, OFS_WRITE_BACK);
	world_pass(&two.world, SECOND_NS);
	bound(&two, 0, 0, 6, 3);
	for (uint32_t i = 0; i < 2; i++)
		world_join(&two.hosts[i], &sessions[i], 50000, TWO_TEXT);
	ofs_storage_hang(two.world.device->storage);
	assert(world_put(&sessions[0], 0, 0, 3, 5000000, rcs) == 0);
	(void)world_put(&sessions[0], 0, 3, 1, 5000000, rcs);
	assert(rcs[0] != 0); /* it goes through, and hangs */
	assert(two_status(&two, 0).dirty_blocks == 3 && two_status(&two, 0).dirty_blocks_max == 3);
	assert(world_put(&sessions[1], 0, 0, 4, 5000000, rcs) == 0); /* the other stages */
	assert(two_status(&two, 1).dirty_blocks == 4);
	ofs_storage_unhang(two.world.device->storage);
	world_pass(&two.world, SECOND_NS);
	assert(world_put(&sessions[0], 0, 0, 6, SECOND_NS, rcs) == 0);
	world_expect_puts(rcs, 6, 0);
	(void)world_put(&sessions[0], 0, 6, 2, SECOND_NS, rcs);
	world_expect_puts(rcs, 2, -EDQUOT);
	world_pass(&two.world, SECOND_NS);
	status = two_status(&two, 0);
	assert(status.dirty_blocks == 0 && status.stored_blocks == 6 && status.quota_refused == 2);
	assert(world_status(&two.world).dirty_blocks == 0);
	/* One flush is at the drive and the others wait: acknowledged writes count all the same. */
	bound(&two, 0, 0, 9, 8);
	assert(ofs_device_tenant_share(two.world.device, 0,
			   &(struct ofs_tenant_share){.weight = 1, .in_flight_bytes_max = 1})
		== 0);
	ofs_storage_hang(two.world.device->storage);
	assert(world_put(&sessions[0], 0, 6, 3, 5000000, rcs) == 0);
	world_expect_puts(rcs, 3, 0);
	(void)world_put(&sessions[0], 0, 9, 1, 5000000, rcs);
	assert(rcs[0] != 0 && two_status(&two, 0).dirty_blocks == 3);
	ofs_storage_unhang(two.world.device->storage);
	world_pass(&two.world, SECOND_NS);
	assert(two_status(&two, 0).stored_blocks == 9);
	close_two(&two);
}

/* Are blocks that only the core takes for stored forgotten with their chunks, so that an append
 * that needs the room gets it? They were the coldest for ever, and nothing went. */
static void
test_lost_unnoticed(void)
{
	struct world_session session;
	struct two_tenants two;

	open_two(&two, OFS_WRITE_THROUGH);
	world_join(&two.hosts[0], &session, COLDEST(0), TWO_TEXT);
	world_put_all(&session, 0, 0);
	assert(ofs_device_session_close(two.world.device, session.number, 1) == 0);
	for (uint32_t i = 0; i < TWO_TEXT; i++)
		assert(ofs_store_delete(two.world.device->store, &session.chunks[i].store_key, 0) == 0);
	two_keep(&two.hosts[0], COLDEST(1));
	bound(&two, 0, 2 * TWO_TEXT, 0, 0);
	two_keep(&two.hosts[0], COLDEST(2));
	assert(two_status(&two, 0).chunks <= 2 * TWO_TEXT && two_status(&two, 0).quota_refused == 0);
	assert(two_kept(&two.hosts[0], COLDEST(2)) == TWO_TEXT);
	close_two(&two);
}

/* Does every chunk of a text that comes again and again pass the admission, also those that share a
 * place of its table with another of the text? */
static void
test_admission(void)
{
	struct ofs_device_config config;
	struct world_session session;
	struct two_tenants two;
	int32_t rcs[WORLD_CHUNKS_MAX];
	uint32_t put = 0, layers;

	world_config(&config);
	config.core.chunk_max = 2 * WORLD_CHUNKS_MAX;
	config.policy.admit_named_min = 1;
	layers = config.core.layer_count;
	two_open(&two, &config);
	for (uint32_t round = 0; round < 12; round++) {
		world_join(&two.hosts[0], &session, 0, WORLD_CHUNKS_MAX);
		put = 0;
		for (uint32_t layer = 0; layer < layers; layer++) {
			(void)world_put(&session, layer, 0, WORLD_CHUNKS_MAX, UINT64_MAX, rcs);
			for (uint32_t i = 0; i < WORLD_CHUNKS_MAX; i++)
				put += rcs[i] == 0;
		}
		assert(round > 0 || put == 0);
		assert(ofs_device_session_close(two.world.device, session.number, 1) == 0);
	}
	assert(put == WORLD_CHUNKS_MAX * layers);
	two_close(&two);
}

/* Is a chunk dropped after `keep_minutes` unnamed, is one that is named or was named since kept,
 * and is nothing dropped without the policy? */
static void
test_keep(void)
{
	struct ofs_device_config config;
	struct world_session named;
	struct two_tenants two;
	uint32_t dropped;

	world_config(&config);
	config.core.chunk_max = 512;
	config.policy.prefetchers = OFS_PREFETCH_SHARED;
	two_open(&two, &config);
	for (uint32_t i = 0; i < 3; i++)
		two_keep(&two.hosts[0], COLDEST(i));
	world_join(&two.hosts[0], &named, COLDEST(2), TWO_TEXT);
	world_pass(&two.world, 50 * SECOND_NS);
	assert(two_kept(&two.hosts[0], COLDEST(1)) == TWO_TEXT);
	world_pass(&two.world, 20 * SECOND_NS);
	assert(ofs_device_drop_idle(two.world.device, &dropped) == 0 && dropped == 0);
	config.policy.keep_minutes = 1;
	assert(ofs_device_set_policy(two.world.device, &config.policy) == 0);
	assert(ofs_device_drop_idle(two.world.device, &dropped) == 0 && dropped == TWO_TEXT);
	assert(two_kept(&two.hosts[0], COLDEST(0)) == 0);
	assert(two_kept(&two.hosts[0], COLDEST(1)) == TWO_TEXT);
	assert(two_kept(&two.hosts[0], COLDEST(2)) == TWO_TEXT);
	assert(world_status(&two.world).chunks_idle == TWO_TEXT);
	two_close(&two);
}

int
main(void)
{
	test_lost_unnoticed();
	test_admission();
	test_keep();
	test_chunks();
	test_too_long();
	test_named(2 * TWO_TEXT, 512);
	test_named(0, 3 * TWO_TEXT);
	test_store();
	test_staged();
	printf("device_quota ok\n");
	return 0;
}
