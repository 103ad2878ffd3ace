/*
 * Which version of a key is there, and how long: expiry and its renewal, other bytes under a known
 * key, and the choice between two whole records?
 */
#include "codec.h"
#include "store_format.h"
#include "store_small.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Alignas(4096) uint8_t record[8][4096];

/* Does a block live as long as was said, and no longer? */
static void
test_expiry(void)
{
	struct ofs_store_config config = small_config;
	struct ofs_store_entry entries[8];
	struct ofs_store *store;
	struct ofs_key key;

	config.ttl_s = 100;
	store = small_begin(&config, 16);
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
	assert(small_stats(store).expired == 3);
	store = small_reopen(store, &config, 1118); /* an eighth of its time longer on the device */
	assert(small_stats(store).recovered == 1);
	assert(store_get_now(store, &config, 0, 0, record[0], 1118) == 0);
	assert(ofs_store_tick(store, 2000, entries, 8) == 1);
	assert(ofs_store_poll(store, NULL, 0) == 0); /* the wipes of the expired blocks, */
	assert(ofs_store_poll(store, NULL, 0) == 0); /* and the mark of the freed segment */
	assert(small_stats(store).segments_free == 16 && small_stats(store).bytes_live == 0);
	small_end(store);
}

/* Does the next open see an acknowledged renewal, and is not every renewal written? */
static void
test_renewal(void)
{
	struct ofs_store_config config = small_config;
	struct ofs_store *store;
	uint64_t writes;

	config.ttl_s = 800;
	store = small_begin(&config, 16);
	assert(store_put_now(store, &config, 0, 0, record[0], 1000) == 0); /* on the device to 1900 */
	writes = small_device.writes;
	for (uint64_t now_s = 1010; now_s <= 1100; now_s += 10)
		assert(store_put_now(store, &config, 0, 0, record[0], now_s) == 0);
	assert(small_device.writes == writes);
	store = small_reopen(store, &config, 1899);
	assert(store_get_now(store, &config, 0, 0, record[0], 1899) == 0);
	assert(store_put_now(store, &config, 0, 0, record[0], 1899) == 0); /* is written again */
	store = small_reopen(store, &config, 2698);
	assert(store_get_now(store, &config, 0, 0, record[0], 2698) == 0);
	store = small_reopen(store, &config, 2799);
	assert(store_get_now(store, &config, 0, 0, record[0], 2799) == -ENOENT);
	/* One that shall never expire, and is there with an end. */
	assert(store_put_now(store, &config, 1, 0, record[0], 3000) == 0);
	config.ttl_s = 0;
	store = small_reopen(store, &config, 3001);
	assert(store_put_now(store, &config, 1, 0, record[0], 3001) == 0);
	store = small_reopen(store, &config, 1000000);
	assert(store_get_now(store, &config, 1, 0, record[0], 1000000) == 0);
	small_end(store);
}

/* Are other bytes under a key that is stored, or on its way, refused, and the first ones kept? */
static void
test_conflict(void)
{
	struct ofs_store_config config = small_config;
	struct ofs_store *store;
	struct ofs_key key;

	config.ttl_s = 100;
	store = small_begin(&config, 16);
	block_name(1, &key);
	block_fill(&config, 1, 0, record[0]);
	assert(ofs_store_put(store, 0, &key, 0, record[0], 5, 1000) == 0);
	block_fill(&config, 2, 0, record[1]);
	assert(ofs_store_put(store, 0, &key, 0, record[1], 6, 1000) == -EEXIST);
	assert(store_finish(store, 5) == 0);
	assert(ofs_store_put(store, 0, &key, 0, record[1], 6, 1000) == -EEXIST);
	assert(ofs_store_conflicts(store, &key, 0, small_trailer(record[1])->checksum, 1000));
	assert(!ofs_store_conflicts(store, &key, 0, small_trailer(record[0])->checksum, 1000));
	assert(!ofs_store_conflicts(store, &key, 1, small_trailer(record[1])->checksum, 1000));
	assert(store_get_now(store, &config, 1, 0, record[2], 1000) == 0);
	store = small_reopen(store, &config, 1001); /* its trailer says so too */
	assert(ofs_store_put(store, 0, &key, 0, record[1], 6, 1001) == -EEXIST);
	assert(ofs_store_put(store, 0, &key, 0, record[1], 6, 1200) == 0); /* the first have expired */
	assert(store_finish(store, 6) == 0);
	small_end(store);
}

/* Of two whole records of one block the later one counts, and a trailer's word is not enough to
 * say "stored". */
static void
test_rewrite(void)
{
	struct ofs_store_config config = small_config;
	struct ofs_store *store;

	config.ttl_s = 100;
	store = small_begin(&config, 16);
	for (uint32_t i = 0; i < 8; i++)
		assert(store_put_now(store, &config, i, 0, record[0], 1000) == 0);
	store = small_reopen(store, &config, 1050);
	/* Segment 0 is full and not the newest: only its trailers were read. Segment 1 was verified. */
	assert(store_put_now(store, &config, 1, 0, record[0], 1050) == 0);
	assert(store_put_now(store, &config, 5, 0, record[0], 1050) == 0);
	assert(small_stats(store).segments_free == 13 && small_stats(store).blocks == 8);
	store = small_reopen(store, &config, 1113);
	assert(small_stats(store).recovered == 2);
	assert(store_get_now(store, &config, 1, 0, record[0], 1113) == 0);
	small_end(store);
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
