/*
 * Does a store keep its promises one at a time: order of writes, one copy per key, refusals with
 * a text, failing writes, a full device, and whole superblocks out of torn ones?
 */
#include "codec.h"
#include "store/internal.h"
#include "store_small.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Alignas(4096) uint8_t record[8][4096];
static char text[512];

static void
test_round_trip(void)
{
	struct ofs_store *store = small_begin(&small_config, 16);
	struct ofs_key key;

	for (uint32_t i = 0; i < 10; i++)
		assert(store_put_now(store, &small_config, i, i % 2, record[0], 0) == 0);
	for (uint32_t i = 0; i < 10; i++) {
		assert(store_get_now(store, &small_config, i, i % 2, record[0], 0) == 0);
		assert(store_get_now(store, &small_config, i, !(i % 2), record[0], 0) == -ENOENT);
	}
	/* Blocks of one layer written one after another are neighbours: 0, 2, 4, 6 fill a segment. */
	block_name(0, &key);
	for (uint32_t i = 1; i < 4; i++) {
		struct ofs_key next;

		block_name(2 * i, &next);
		assert(ofs_store_position(store, &next, 0) == ofs_store_position(store, &key, 0) + i);
	}
	block_name(99, &key);
	assert(ofs_store_position(store, &key, 0) == UINT64_MAX);
	assert(small_stats(store).blocks == 10 && small_device.not_durable == 0);
	store = small_reopen(store, &small_config, 0);
	assert(small_stats(store).recovered == 10 && small_stats(store).recovery_torn == 0);
	for (uint32_t i = 0; i < 10; i++)
		assert(store_get_now(store, &small_config, i, i % 2, record[0], 0) == 0);
	/* A slot that is written out keeps its words of the directory; one that is read has none. */
	block_name(11, &key);
	block_fill(&small_config, 11, 0, record[6]);
	small_trailer(record[6])->generation = 7;
	small_trailer(record[6])->cause = OFS_CAUSE_WRITE;
	assert(ofs_store_put(store, 0, &key, 0, record[6], 1, 0) == 0 && store_finish(store, 1) == 0);
	assert(store_get_now(store, &small_config, 11, 0, record[7], 0) == 0);
	assert(small_trailer(record[7])->generation == 0 && small_trailer(record[7])->cause == 0);
	small_end(store);
}

/* Is a put acknowledged only when its segment's header stands, and never before its own write? */
static void
test_order(void)
{
	struct ofs_store *store = small_begin(&small_config, 16);
	struct ofs_store_done done[4];
	struct ofs_key key;

	small_device.hold_from = 131072;
	small_device.hold_to = 131072 + 1;
	block_name(1, &key);
	block_fill(&small_config, 1, 0, record[0]);
	assert(ofs_store_put(store, 0, &key, 0, record[0], 5, 0) == 0);
	assert(ofs_store_put(store, 0, &key, 0, record[1], 6, 0) == -EINVAL); /* no length */
	block_fill(&small_config, 1, 0, record[1]);
	assert(ofs_store_put(store, 0, &key, 0, record[1], 6, 0) == 0);       /* joins */
	assert(ofs_store_put(store, 0, &key, 0, record[1], 16, 0) == 0);      /* as well */
	assert(ofs_store_put(store, 1, &key, 0, record[1], 7, 0) == -EINVAL); /* not its own */
	assert(store_finish(store, 5) == -ETIMEDOUT);
	assert(ofs_store_get(store, &key, 0, record[2], 8, 0) == -EAGAIN);
	small_device.hold_to = small_device.hold_from;
	assert(ofs_store_poll(store, done, 4) == 3);
	assert(done[0].rc == 0 && done[1].rc == 0 && done[2].rc == 0);
	assert(done[0].user + done[1].user + done[2].user == 5 + 6 + 16);
	assert(store_get_now(store, &small_config, 1, 0, record[2], 0) == 0);
	/* Deleted while it is written: the write ends well, and the block is gone. */
	block_name(2, &key);
	block_fill(&small_config, 2, 0, record[0]);
	assert(ofs_store_put(store, 0, &key, 0, record[0], 9, 0) == 0);
	assert(ofs_store_delete(store, &key, 0) == 0);
	assert(ofs_store_delete(store, &key, 0) == -ENOENT);
	assert(store_finish(store, 9) == 0);
	assert(store_get_now(store, &small_config, 2, 0, record[2], 0) == -ENOENT);
	assert(store_put_now(store, &small_config, 2, 0, record[0], 0) == 0);
	assert(store_get_now(store, &small_config, 2, 0, record[2], 0) == 0);
	small_end(store);
}

static void
refused(struct ofs_store_config config, int rc, const char *part)
{
	struct ofs_store *store;

	assert(
		ofs_store_open(&store, &small_device.storage, NULL, &config, 0, text, sizeof(text)) == rc);
	assert(store == NULL);
	if (strstr(text, part) == NULL) {
		fprintf(stderr, "'%s' is not in '%s'\n", part, text);
		abort();
	}
}

static void
test_refusals(void)
{
	struct ofs_store_config config = small_config;
	struct ofs_store *store = small_begin(&config, 16);
	uint8_t *copy = malloc(small_device.storage.size_bytes);

	assert(copy != NULL);
	assert(store_put_now(store, &config, 3, 0, record[0], 0) == 0);
	ofs_store_close(store);
	memcpy(copy, small_device.bytes, small_device.storage.size_bytes);
	config.payload_size_bytes = 1024;
	refused(config, -EINVAL, "blocks of 2048 B, not 1024 B");
	config = small_config;
	config.segment_size_bytes += SMALL_LBA;
	refused(config, -EINVAL, "segments of");
	config = small_config;
	config.layer_count = 3;
	refused(config, -EINVAL, "2 layers, not 3");
	config = small_config;
	config.payload_size_bytes = 100;
	refused(config, -EINVAL, "not a multiple");
	config.payload_size_bytes = 65536;
	refused(config, -EINVAL, "holds no block");
	config = small_config;
	config.room_percent = 51;
	refused(config, -EINVAL, "51 % of a store");
	config = small_config;
	config.layer_count = 40;
	refused(config, -ENOSPC, "40 layers need 42");
	small_device.storage.size_bytes -= SMALL_LBA;
	refused(small_config, -EINVAL, "a size of");
	small_device.storage.size_bytes += SMALL_LBA;
	/* Nothing was lost by being refused. */
	assert(memcmp(copy, small_device.bytes, small_device.storage.size_bytes) == 0);
	small_device.bytes[8] ^= 2;
	small_device.bytes[65536 + 8] ^= 2;
	refused(small_config, -EINVAL, "format version 3");
	small_device.bytes[8] ^= 2;
	small_device.bytes[65536 + 8] ^= 2;
	small_device.bytes[40] ^= 1;
	small_device.bytes[65536 + 40] ^= 1;
	refused(small_config, -EINVAL, "both superblocks");
	/* A seal proves the author, not that the content is sane: tables are sized by this
	 * number. */
	for (uint32_t at = 0; at <= 65536; at += 65536) {
		small_device.bytes[at + 40] ^= 1;
		((struct ofs_superblock *)(small_device.bytes + at))->tenant_max = 1 << 22;
		ofs_superblock_seal((struct ofs_superblock *)(small_device.bytes + at));
	}
	refused(small_config, -EINVAL, "contradicts itself");
	memset(small_device.bytes, 'x', 131072);
	refused(small_config, -EINVAL, "no store and not empty");
	memset(small_device.bytes, 0, 131072);
	refused(small_config, -EINVAL, "not empty"); /* the first segment has a header */
	memset(small_device.bytes, 0, 131072 + SMALL_LBA);
	config = small_config;
	config.format = 0;
	refused(config, -EINVAL, "no store here");
	free(copy);
	memory_close(&small_device);
}

/* Either superblock may be torn, and a first format too: no block is lost, the pair is whole
 * again. */
static void
test_torn_superblock(void)
{
	struct ofs_store *store = small_begin(&small_config, 16);
	uint64_t at[2] = {0, 65536};

	assert(store_put_now(store, &small_config, 3, 0, record[0], 0) == 0);
	for (int i = 0; i < 6; i++) {
		ofs_store_close(store);
		memset(small_device.bytes + at[i % 2] + (i < 4 ? 0 : 32), 0, 64);
		assert(ofs_store_open(&store, &small_device.storage, NULL, &small_config, 0, text,
				   sizeof(text))
			== 0);
		assert(memcmp(small_device.bytes, small_device.bytes + 65536, 128) == 0);
		assert(store_get_now(store, &small_config, 3, 0, record[0], 0) == 0);
	}
	small_end(store);
	memory_open(&small_device, 131072 + 16 * SMALL_SEGMENT, SMALL_LBA, 1);
	memcpy(small_device.bytes + 65536, "OFSTORE1 torn", 13);
	assert(ofs_store_open(&store, &small_device.storage, NULL, &small_config, 0, text, sizeof(text))
		== 0);
	small_end(store);
}

/* Is a place left alone while it is still being read? */
static void
test_pins(void)
{
	struct ofs_store *store = small_begin(&small_config, 16);
	struct ofs_store_done done;
	struct ofs_key key;

	assert(store_put_now(store, &small_config, 1, 0, record[0], 0) == 0);
	block_name(1, &key);
	small_device.end_percent = 0;
	assert(ofs_store_get(store, &key, 0, record[1], 4, 0) == 0);
	assert(ofs_store_delete(store, &key, 0) == 0);
	assert(ofs_store_poll(store, &done, 1) == 0);
	assert(ofs_store_in_flight(store) == 1 && small_device.flying_count == 1);
	small_device.end_percent = 100;
	assert(ofs_store_poll(store, &done, 1) == 1 && done.rc == 0);
	assert(block_matches(&small_config, 1, 0, record[1], done.length));
	assert(ofs_store_poll(store, &done, 1) == 0 && small_stats(store).segments_free == 16);
	small_end(store);
}

/* Failed writes: the put hears of it, the next one goes elsewhere, nothing else is harmed. */
static void
test_write_errors(void)
{
	struct ofs_store *store = small_begin(&small_config, 16);

	assert(store_put_now(store, &small_config, 0, 0, record[0], 0) == 0);
	small_device.write_rc = -EIO;
	for (uint32_t i = 1; i < 9; i++) {
		assert(store_put_now(store, &small_config, i, 0, record[0], 0) == -EIO);
		assert(store_get_now(store, &small_config, i, 0, record[0], 0) == -ENOENT);
		assert(ofs_store_verify(store) == 0);
	}
	small_device.write_rc = -ENOSPC;
	assert(store_put_now(store, &small_config, 9, 0, record[0], 0) == -ENOSPC);
	small_device.write_rc = 512; /* short */
	assert(store_put_now(store, &small_config, 9, 1, record[0], 0) == -EIO);
	small_device.write_rc = 0;
	for (uint32_t i = 1; i < 9; i++)
		assert(store_put_now(store, &small_config, i, 0, record[0], 0) == 0);
	store = small_reopen(store, &small_config, 0);
	for (uint32_t i = 0; i < 9; i++)
		assert(store_get_now(store, &small_config, i, 0, record[0], 0) == 0);
	small_end(store);
}

/* A record that fails its check is a miss and is counted once. */
static void
test_corrupt(void)
{
	struct ofs_store *store = small_begin(&small_config, 16);

	for (uint32_t i = 0; i < 4; i++)
		assert(store_put_now(store, &small_config, i, 0, record[0], 0) == 0);
	small_device.bytes[131072 + SMALL_LBA + 100] ^= 1;              /* payload of 0 */
	small_device.bytes[131072 + SMALL_LBA + 2560 + 2048 + 40] ^= 1; /* trailer of 1 */
	memcpy(small_device.bytes + 131072 + SMALL_LBA + 2 * 2560,
		small_device.bytes + 131072 + SMALL_LBA + 3 * 2560, 2560); /* 3 in the place of 2 */
	for (uint32_t i = 0; i < 3; i++) {
		assert(store_get_now(store, &small_config, i, 0, record[0], 0) == -EBADMSG);
		assert(store_get_now(store, &small_config, i, 0, record[0], 0) == -ENOENT);
	}
	assert(store_get_now(store, &small_config, 3, 0, record[0], 0) == 0);
	assert(small_stats(store).checks_failed == 3 && small_stats(store).blocks == 1);
	store = small_reopen(store, &small_config, 0);
	assert(small_stats(store).recovered == 1);
	assert(store_get_now(store, &small_config, 2, 0, record[0], 0) == -ENOENT);
	small_end(store);
}

/* A trailer that flipped before anybody read it is not believed at the next open. */
static void
test_flipped_trailer(void)
{
	struct ofs_store *store = small_begin(&small_config, 16);

	for (uint32_t i = 0; i < 2; i++)
		assert(store_put_now(store, &small_config, i, 0, record[0], 0) == 0);
	small_device.bytes[131072 + SMALL_LBA + 2560 + 2048 + 40] ^= 1; /* of 1 */
	store = small_reopen(store, &small_config, 0);
	assert(small_stats(store).recovered == 1);
	assert(store_get_now(store, &small_config, 0, 0, record[0], 0) == 0);
	assert(store_get_now(store, &small_config, 1, 0, record[0], 0) == -ENOENT);
	small_end(store);
}

/* Blocks in turns of the layers fit as many as it says, with and without a segment that is left. */
static void
test_blocks_max(void)
{
	for (uint32_t layers = 1; layers <= 4; layers++) {
		struct ofs_store_config config = small_config;
		struct ofs_store *store;
		uint32_t count = 0;

		config.layer_count = layers;
		store = small_begin(&config, 16);
		while (store_put_now(store, &config, count / layers, count % layers, record[0], 0) == 0)
			count++;
		assert(count == ofs_store_blocks_max(store));
		small_end(store);
	}
}

/* Full: -ENOSPC, no sooner than the last place; deletions make room again, by the cleaner where
 * scattered. */
static void
test_full(void)
{
	struct ofs_store *store = small_begin(&small_config, 16);
	struct ofs_store_stats stats;
	struct ofs_key key;
	uint32_t count = 0;
	int rc;

	while ((rc = store_put_now(store, &small_config, count, 0, record[0], 0)) == 0)
		count++;
	assert(rc == -ENOSPC && count == 15 * 4);
	for (uint32_t round = 0; round < 40; round++) {
		block_name((round * 7) % count, &key);
		assert(ofs_store_delete(store, &key, 0) == 0);
		assert(store_put_now(store, &small_config, count + round, 0, record[0], 0) == 0);
		assert(store_put_now(store, &small_config, 9999, 0, record[0], 0) == -ENOSPC);
		assert(ofs_store_verify(store) == 0);
	}
	stats = small_stats(store);
	assert(stats.blocks == count && stats.blocks_moved > 0 && stats.segments_free >= 1);
	store = small_reopen(store, &small_config, 0);
	for (uint32_t i = 0; i < 40; i++)
		assert(store_get_now(store, &small_config, count + i, 0, record[0], 0) == 0);
	for (uint32_t i = 0; i < count + 40; i++) {
		block_name(i, &key);
		(void)ofs_store_delete(store, &key, 0);
	}
	for (uint32_t i = 0; i < 10; i++)
		assert(ofs_store_poll(store, NULL, 0) == 0);
	assert(small_stats(store).segments_free == 16 && small_stats(store).blocks == 0);
	small_end(store);
}

/* What the cleaner moves of chunks that go in the order in which they came, with all of their
 * layers: `batch` at a time when the store is full, or as many as its room lacks. */
static uint64_t
moved(uint32_t layers, uint32_t room_percent, uint32_t batch)
{
	struct ofs_store_config config = small_config;
	struct ofs_store *store;
	uint32_t oldest = 0, count = 0;
	uint64_t blocks_moved;

	config.layer_count = layers;
	config.tenant_max = 1;
	config.room_percent = room_percent;
	store = small_begin(&config, 100);
	while (count < 1600) {
		uint64_t goes = (ofs_store_lacks(store) + layers - 1) / layers;
		int rc = goes > 0
			? 0
			: store_put_now(store, &config, count / layers, count % layers, record[0], 0);

		count += rc == 0 && goes == 0;
		assert(rc == 0 || rc == -ENOSPC);
		for (goes = rc == -ENOSPC ? batch : goes; goes > 0; goes--) {
			struct ofs_key key;

			block_name(oldest++, &key);
			for (uint32_t layer = 0; layer < layers; layer++)
				assert(ofs_store_delete(store, &key, layer) == 0);
		}
	}
	blocks_moved = small_stats(store).blocks_moved;
	small_end(store);
	return blocks_moved;
}

/* Is room what the places are above live blocks, the rest of open segments and the reserve, and
 * does the cleaner move nothing in a store that has it? */
static void
test_room(void)
{
	struct ofs_store_config config = small_config;
	struct ofs_store *store;
	struct ofs_key key;
	uint64_t full;

	config.room_percent = 25; /* 16 of 64 places; 4 are the reserve */
	store = small_begin(&config, 16);
	for (uint32_t i = 0; i < 44; i++) {
		assert(ofs_store_lacks(store) == 0);
		assert(store_put_now(store, &config, i, 0, record[0], 0) == 0);
	}
	assert(ofs_store_lacks(store) == 0);
	/* It opens a segment, whose other three places are of no use to another lane. */
	assert(store_put_now(store, &config, 44, 0, record[0], 0) == 0);
	assert(ofs_store_lacks(store) == 4 + 4); /* and the segment once more */
	store = small_reopen(store, &config, 0);
	assert(ofs_store_lacks(store) == 8 && small_stats(store).blocks_lacking == 8);
	for (uint32_t i = 0; i < 4; i++) {
		block_name(i, &key);
		assert(ofs_store_delete(store, &key, 0) == 0);
	}
	assert(ofs_store_lacks(store) == 0);
	small_end(store);
	assert(moved(1, 0, 3) > 0 && moved(1, 5, 3) == 0);
	full = moved(8, 0, 9);
	assert(full > 0 && moved(8, 7, 9) == full && moved(8, 10, 9) == 0);
}

/* Is one layer of a chunk never taken for another, where their entries of the index collide? */
static void
test_layers(void)
{
	struct ofs_store_config config = small_config;
	struct ofs_store *store;

	config.layer_count = 25;
	store = small_begin(&config, 64);
	for (uint32_t layer = 0; layer < 24; layer++)
		for (uint32_t i = 0; i < 8; i++)
			assert(store_put_now(store, &config, i, layer, record[0], 0) == 0);
	for (uint32_t i = 0; i < 8; i++) {
		for (uint32_t layer = 0; layer < 24; layer++)
			assert(store_get_now(store, &config, i, layer, record[0], 0) == 0);
		assert(store_get_now(store, &config, i, 24, record[0], 0) == -ENOENT);
	}
	assert(small_stats(store).blocks == 8 * 24);
	small_end(store);
}

/* Are only the logical blocks written and read that a coded payload needs, and is that invisible
 * in the slot, after an open without the codec, and when the coded bytes are damaged? */
static void
test_coded(void)
{
	struct ofs_store_config config = small_config;
	struct ofs_trailer *trailer = (struct ofs_trailer *)(record[0] + config.payload_size_bytes);
	const uint8_t *first = NULL;
	struct ofs_store *store;
	size_t at;

	config.codec = OFS_CODEC_FP8_E4M3 + 2;
	memory_open(&small_device, 131072 + 8 * SMALL_SEGMENT, SMALL_LBA, 1);
	assert(ofs_store_open(&store, &small_device.storage, NULL, &config, 0, text, sizeof(text))
		== -EINVAL);
	memory_close(&small_device);
	config.codec = OFS_CODEC_FP8_E4M3;
	store = small_begin(&config, 8);
	assert(((struct ofs_superblock *)small_device.bytes)->version == OFS_STORE_VERSION_CODED);
	assert(store_put_now(store, &config, 3, 0, record[0], 0) == 0); /* one byte over and over */
	assert(
		small_stats(store).puts_coded == 1 && small_stats(store).put_bytes_spared == 3 * SMALL_LBA);
	for (uint32_t i = 0; i < 8 && first == NULL; i++)
		if (small_device.bytes[131072 + i * SMALL_SEGMENT + SMALL_LBA + 3 * SMALL_LBA] != 0)
			first = small_device.bytes + 131072 + i * SMALL_SEGMENT + SMALL_LBA;
	assert(first != NULL && first[0] == 0 && memcmp(first, first + 1, 3 * SMALL_LBA - 1) == 0);
	assert(store_put_now(store, &config, 1, 0, record[0], 0) == 0); /* as many bytes as there are */
	assert(small_stats(store).puts_coded == 1);
	assert(store_put_now(store, &config, 9, 0, record[0], 0) == 0);
	assert(store_get_now(store, &config, 3, 0, record[0], 0) == 0);
	assert(trailer->magic == OFS_TRAILER_MAGIC && trailer->reserved[2] >> 32 == 0);
	assert(store_get_now(store, &config, 1, 0, record[0], 0) == 0);
	config.codec = OFS_CODEC_OFF;
	store = small_reopen(store, &config, 0);
	assert(small_stats(store).recovered == 3);
	assert(((struct ofs_superblock *)small_device.bytes)->version == OFS_STORE_VERSION_CODED);
	assert(store_get_now(store, &config, 3, 0, record[0], 0) == 0);
	assert(store_put_now(store, &config, 6, 0, record[0], 0) == 0);
	assert(small_stats(store).puts_coded == 0);
	at = (size_t)(first - small_device.bytes) + 3 * SMALL_LBA;
	small_device.bytes[at + 12] ^= 1; /* the counts of its only piece: no code */
	assert(store_get_now(store, &config, 3, 0, record[0], 0) == -EBADMSG);
	/* its only exponent: another block */
	small_device.bytes[at + 2 * (2048 + SMALL_LBA) + 22] ^= 1;
	assert(store_get_now(store, &config, 9, 0, record[0], 0) == -EBADMSG);
	assert(small_stats(store).checks_failed == 2);
	small_end(store);
	store = small_begin(&config, 8); /* without a codec from the start */
	assert(((struct ofs_superblock *)small_device.bytes)->version == OFS_STORE_VERSION);
	small_end(store);
}

int
main(void)
{
	test_coded();
	test_round_trip();
	test_layers();
	test_order();
	test_refusals();
	test_torn_superblock();
	test_pins();
	test_write_errors();
	test_corrupt();
	test_flipped_trailer();
	test_blocks_max();
	test_full();
	test_room();
	puts("store ok");
	return 0;
}
