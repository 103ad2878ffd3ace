/*
 * What of one key is there, and how long: expiry and its renewal, other bytes under a known key,
 * and which of two whole records counts?
 */
#include "codec.h"
#include "store_format.h"
#include "store_memory.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LBA 512u
#define SEGMENT (LBA + 4 * (2048 + LBA))

static const struct ofs_store_config base_config = {
	.payload_size_bytes = 2048,
	.layer_count = 2,
	.tenant_max = 2,
	.segment_size_bytes = SEGMENT,
	.io_max = 8,
	.durable = 1,
	.reserve_segments = 1,
	.format = 1,
};

static _Alignas(4096) uint8_t record[8][4096];
static struct memory device;
static char text[512];

static struct ofs_store *
begin_with(const struct ofs_store_config *config, uint32_t segments)
{
	struct ofs_store *store;

	memory_open(&device, 131072 + (uint64_t)segments * SEGMENT, LBA, 1);
	assert(ofs_store_open(&store, &device.storage, NULL, config, 0, text, sizeof(text)) == 0);
	return store;
}

static struct ofs_store *
reopen(struct ofs_store *store, const struct ofs_store_config *config, uint64_t now_s)
{
	ofs_store_close(store);
	assert(ofs_store_open(&store, &device.storage, NULL, config, now_s, text, sizeof(text)) == 0);
	return store;
}

static void
end(struct ofs_store *store)
{
	assert(ofs_store_verify(store) == 0);
	ofs_store_close(store);
	memory_close(&device);
}

static struct ofs_store_stats
stats_of(const struct ofs_store *store)
{
	struct ofs_store_stats stats;

	ofs_store_stats_get(store, &stats);
	return stats;
}

static struct ofs_trailer *
trailer_of(uint8_t *bytes)
{
	return (struct ofs_trailer *)(bytes + base_config.payload_size_bytes);
}

/* Does a block live as long as was said, and no longer? */
static void
test_expiry(void)
{
	struct ofs_store_config config = base_config;
	struct ofs_store_entry entries[8];
	struct ofs_store *store;
	struct ofs_key key;

	config.ttl_s = 100;
	store = begin_with(&config, 16);
	for (uint32_t i = 0; i < 6; i++)
		assert(store_put_now(store, &config, i, 0, record[0], 1000 + i) == 0);
	assert(store_put_now(store, &config, 0, 0, record[0], 1050) == 0); /* renewed */
	assert(ofs_store_tick(store, 1100, entries, 8) == 0);
	assert(store_get_now(store, &config, 1, 0, record[0], 1101) == -ENOENT);
	assert(ofs_store_tick(store, 1103, entries, 2) == 2);
	assert(ofs_store_tick(store, 1103, entries, 8) == 1);
	block_name(3, &key);
	assert(ofs_key_equal(&entries[0].store_key, &key) && entries[0].layer == 0);
	assert(store_get_now(store, &config, 0, 0, record[0], 1103) == 0);
	assert(stats_of(store).expired == 3);
	store = reopen(store, &config, 1118); /* an eighth of its time longer on the device */
	assert(stats_of(store).recovered == 1);
	assert(store_get_now(store, &config, 0, 0, record[0], 1118) == 0);
	assert(ofs_store_tick(store, 2000, entries, 8) == 1);
	assert(ofs_store_poll(store, NULL, 0) == 0); /* the mark of the freed segment */
	assert(stats_of(store).segments_free == 16 && stats_of(store).bytes_live == 0);
	end(store);
}

/* Is a renewal that was acknowledged there for whoever opens the store again, and is not each of
 * them written? */
static void
test_renewal(void)
{
	struct ofs_store_config config = base_config;
	struct ofs_store *store;
	uint64_t writes;

	config.ttl_s = 800;
	store = begin_with(&config, 16);
	assert(store_put_now(store, &config, 0, 0, record[0], 1000) == 0); /* on the device to 1900 */
	writes = device.writes;
	for (uint64_t now_s = 1010; now_s <= 1100; now_s += 10)
		assert(store_put_now(store, &config, 0, 0, record[0], now_s) == 0);
	assert(device.writes == writes);
	store = reopen(store, &config, 1899);
	assert(store_get_now(store, &config, 0, 0, record[0], 1899) == 0);
	assert(store_put_now(store, &config, 0, 0, record[0], 1899) == 0); /* is written again */
	store = reopen(store, &config, 2698);
	assert(store_get_now(store, &config, 0, 0, record[0], 2698) == 0);
	store = reopen(store, &config, 2799);
	assert(store_get_now(store, &config, 0, 0, record[0], 2799) == -ENOENT);
	/* One that shall never expire, and is there with an end. */
	assert(store_put_now(store, &config, 1, 0, record[0], 3000) == 0);
	config.ttl_s = 0;
	store = reopen(store, &config, 3001);
	assert(store_put_now(store, &config, 1, 0, record[0], 3001) == 0);
	store = reopen(store, &config, 1000000);
	assert(store_get_now(store, &config, 1, 0, record[0], 1000000) == 0);
	end(store);
}

/* Are other bytes under a key that is stored, or on its way, refused, and the first ones kept? */
static void
test_conflict(void)
{
	struct ofs_store_config config = base_config;
	struct ofs_store *store;
	struct ofs_key key;

	config.ttl_s = 100;
	store = begin_with(&config, 16);
	block_name(1, &key);
	block_fill(&config, 1, 0, record[0]);
	assert(ofs_store_put(store, 0, &key, 0, record[0], 5, 1000) == 0);
	block_fill(&config, 2, 0, record[1]);
	assert(ofs_store_put(store, 0, &key, 0, record[1], 6, 1000) == -EEXIST);
	assert(store_finish(store, 5) == 0);
	assert(ofs_store_put(store, 0, &key, 0, record[1], 6, 1000) == -EEXIST);
	assert(ofs_store_conflicts(store, &key, 0, trailer_of(record[1])->checksum, 1000));
	assert(!ofs_store_conflicts(store, &key, 0, trailer_of(record[0])->checksum, 1000));
	assert(!ofs_store_conflicts(store, &key, 1, trailer_of(record[1])->checksum, 1000));
	assert(store_get_now(store, &config, 1, 0, record[2], 1000) == 0);
	store = reopen(store, &config, 1001); /* its trailer says so too */
	assert(ofs_store_put(store, 0, &key, 0, record[1], 6, 1001) == -EEXIST);
	assert(ofs_store_put(store, 0, &key, 0, record[1], 6, 1200) == 0); /* the first have expired */
	assert(store_finish(store, 6) == 0);
	end(store);
}

/* Of two whole records of one block the later one counts, and a trailer's word is not enough to
 * say "stored". */
static void
test_rewrite(void)
{
	struct ofs_store_config config = base_config;
	struct ofs_store *store;

	config.ttl_s = 100;
	store = begin_with(&config, 16);
	for (uint32_t i = 0; i < 8; i++)
		assert(store_put_now(store, &config, i, 0, record[0], 1000) == 0);
	store = reopen(store, &config, 1050);
	/* Segment 0 is full and not the newest: only its trailers were read. Segment 1 was verified. */
	assert(store_put_now(store, &config, 1, 0, record[0], 1050) == 0);
	assert(store_put_now(store, &config, 5, 0, record[0], 1050) == 0);
	assert(stats_of(store).segments_free == 13 && stats_of(store).blocks == 8);
	store = reopen(store, &config, 1113);
	assert(stats_of(store).recovered == 2);
	assert(store_get_now(store, &config, 1, 0, record[0], 1113) == 0);
	end(store);
}

int
main(void)
{
	test_expiry();
	test_renewal();
	test_conflict();
	test_rewrite();
	puts("store keys ok");
	return 0;
}
