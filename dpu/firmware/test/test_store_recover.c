/*
 * What does an open accept from a device that did more than lose power: a torn record in the newest
 * segment, trailers at the wrong place, superblocks of an earlier run, records of an earlier store?
 * And does a delete complete during a write?
 */
#include "store/internal.h"
#include "store_small.h"
#include "value_tag.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { FIRST = 131072, COPY = 65536, PAYLOAD = 2048, POLLS = 20 };

static _Alignas(4096) uint8_t record[2][4096];

/* A place of the first segment: that of the first lane that is written to. */
static uint8_t *
place(uint32_t number)
{
	return small_device.bytes + FIRST + SMALL_LBA + number * (PAYLOAD + SMALL_LBA);
}

/* A new store of that many blocks, all of one session's first layer and of one lane. */
static struct ofs_store *
begin_with(uint32_t count)
{
	struct ofs_store *store = small_begin(&small_config, 16);

	for (uint32_t i = 0; i < count; i++)
		assert(store_put_now(store, &small_config, i, 0, record[0], 0) == 0);
	return store;
}

static void
settle(struct ofs_store *store)
{
	for (uint32_t i = 0; i < POLLS; i++)
		(void)ofs_store_poll(store, NULL, 0);
}

static void
delete_now(struct ofs_store *store, uint32_t number)
{
	uint64_t ticket = 0;
	struct ofs_key key;

	block_name(number, &key);
	assert(ofs_store_delete(store, &key, 0) == 0);
	for (uint32_t i = 0; i < POLLS && ofs_store_wiped(store, 0, &ticket) != 0; i++)
		(void)ofs_store_poll(store, NULL, 0);
	assert(ofs_store_wiped(store, 0, &ticket) == 0);
}

static uint64_t
openings_of(uint32_t copy)
{
	struct ofs_superblock super;

	memcpy(&super, small_device.bytes + copy, sizeof(super));
	return super.openings;
}

/* The last write into a segment that it fills was torn, its trailer came and its payload did not:
 * is it no block, whose key another put may have? */
static void
test_torn_in_the_newest(void)
{
	struct ofs_store *store = small_begin(&small_config, 16);
	struct ofs_key key;

	for (uint32_t i = 0; i < 4; i++)
		assert(store_put_now(store, &small_config, i, 0, record[0], 0) == 0);
	memset(place(3), 0, PAYLOAD);
	store = small_reopen(store, &small_config, 0);
	assert(small_stats(store).recovered == 3 && small_stats(store).recovery_torn == 1);
	assert(store_get_now(store, &small_config, 3, 0, record[0], 0) == -ENOENT);
	block_name(3, &key);
	block_fill(&small_config, 7, 0, record[0]); /* other bytes */
	assert(ofs_store_put(store, 0, &key, 0, record[0], 1, 0) == 0 && store_finish(store, 1) == 0);
	small_end(store);
}

/* The same in a segment that still has room, next to a newer one. */
static void
test_torn_in_an_older(void)
{
	struct ofs_store *store = begin_with(2);

	assert(store_put_now(store, &small_config, 2, 1, record[0], 0) == 0);
	memset(place(1), 0, PAYLOAD);
	store = small_reopen(store, &small_config, 0);
	assert(small_stats(store).recovered == 2 && small_stats(store).recovery_torn == 1);
	assert(store_get_now(store, &small_config, 1, 0, record[0], 0) == -ENOENT);
	small_end(store);
}

/* A piece of a value: of this store of the one key there is. */
static void
put_piece(struct ofs_store *store, uint32_t number, uint32_t generation)
{
	struct ofs_trailer *trailer = small_trailer(record[0]);
	struct ofs_value_tag *tag = ofs_value_tag_behind(trailer);
	struct ofs_key key;

	block_name(number, &key);
	block_fill(&small_config, number, 0, record[0]);
	*tag = (struct ofs_value_tag){.magic = OFS_VALUE_MAGIC,
		.generation = generation,
		.length = PAYLOAD,
		.key = {7, 7}};
	tag->check = ofs_value_tag_check(tag, trailer, &key);
	assert(ofs_store_put(store, 0, &key, 0, record[0], 1, 0) == 0 && store_finish(store, 1) == 0);
	memset(tag, 0, sizeof(*tag));
}

/* A later store of a value's key was torn, in a full segment that is not the newest: is it no
 * block, so that the earlier one is still the value? One that stands alone is found by reading. */
static void
test_a_torn_value_hides_no_earlier_one(void)
{
	for (uint32_t generations = 1; generations <= 2; generations++) {
		struct ofs_store *store = small_begin(&small_config, 16);

		put_piece(store, 0, 1);
		for (uint32_t i = 1; i < 3; i++)
			assert(store_put_now(store, &small_config, i, 0, record[0], 0) == 0);
		put_piece(store, 3, generations);
		for (uint32_t i = 4; i < 9; i++)
			assert(store_put_now(store, &small_config, i, 0, record[0], 0) == 0);
		memset(place(3), 0, PAYLOAD);
		store = small_reopen(store, &small_config, 0);
		assert(small_stats(store).recovery_torn == generations - 1);
		assert(store_get_now(store, &small_config, 0, 0, record[0], 0) == 0);
		assert(store_get_now(store, &small_config, 3, 0, record[0], 0)
			== (generations == 1 ? -EBADMSG : -ENOENT));
		small_end(store);
	}
}

/* A store was cleared as the refusals say, and another made there: is nothing found of the former,
 * whose first sequences and places are those of the new one? */
static void
test_a_store_of_before(void)
{
	struct ofs_store *store = begin_with(4);

	ofs_store_close(store);
	memset(small_device.bytes, 0, FIRST + SMALL_LBA);
	store = small_reopen(NULL, &small_config, 0);
	assert(store_put_now(store, &small_config, 9, 0, record[0], 0) == 0);
	store = small_reopen(store, &small_config, 0);
	assert(small_stats(store).recovered == 1);
	for (uint32_t i = 0; i < 4; i++)
		assert(store_get_now(store, &small_config, i, 0, record[0], 0) == -ENOENT);
	assert(store_get_now(store, &small_config, 9, 0, record[0], 0) == 0);
	small_end(store);
}

/* The device wrote a record to the next place too: does it stay away once it is deleted? */
static void
test_a_record_astray(void)
{
	struct ofs_store *store = begin_with(3);

	memcpy(place(3), place(2), PAYLOAD + SMALL_LBA);
	delete_now(store, 2);
	store = small_reopen(store, &small_config, 0);
	assert(store_get_now(store, &small_config, 2, 0, record[0], 0) == -ENOENT);
	assert(small_stats(store).recovered == 2);
	assert(store_put_now(store, &small_config, 4, 0, record[0], 0) == 0); /* there: it was free */
	store = small_reopen(store, &small_config, 0);
	assert(store_get_now(store, &small_config, 4, 0, record[0], 0) == 0);
	small_end(store);
}

/* The device wrote the trailer of a deleted record over that of the next one: with `erase`, is the
 * payload next to it taken for one that was overwritten? */
static void
test_a_wipe_astray(void)
{
	struct ofs_store_config config = small_config;
	struct ofs_store *store;

	config.erase = 1;
	store = small_begin(&config, 16);
	assert(store_put_now(store, &config, 0, 0, record[0], 0) == 0);
	assert(store_put_now(store, &config, 1, 0, record[0], 0) == 0);
	delete_now(store, 0);
	memcpy(place(1) + PAYLOAD, place(0) + PAYLOAD, SMALL_LBA);
	store = small_reopen(store, &config, 0);
	settle(store);
	assert(small_stats(store).blocks == 0 && small_stats(store).segments_free == 16);
	for (uint32_t i = 0; i < PAYLOAD; i++)
		assert(place(1)[i] == 0);
	small_end(store);
}

/*
 * Both superblocks are those of an earlier run, from a copy or a device that lost its writes: are
 * new sequences above all existing ones, so that the next open finds new records? Those runs wrote
 * at least a record into an older segment, or a header alone.
 */
static void
test_superblocks_of_before(int header_alone)
{
	struct ofs_store *store = small_begin(&small_config, 16);
	uint8_t super[SMALL_LBA];
	uint64_t before;

	assert(store_put_now(store, &small_config, 0, 0, record[0], 0) == 0);
	memcpy(super, small_device.bytes, sizeof(super));
	before = openings_of(0);
	for (uint32_t i = 0; i < 4; i++)
		store = small_reopen(store, &small_config, 0);
	assert(store_put_now(store, &small_config, 1, (uint32_t)header_alone, record[0], 0) == 0);
	ofs_store_close(store);
	if (header_alone)
		memset(small_device.bytes + FIRST + SMALL_SEGMENT + SMALL_LBA, 0, PAYLOAD + SMALL_LBA);
	memcpy(small_device.bytes, super, sizeof(super));
	memcpy(small_device.bytes + COPY, super, sizeof(super));
	store = small_reopen(NULL, &small_config, 0);
	assert(openings_of(0) == before + 5 && openings_of(COPY) == before + 5);
	for (uint32_t i = 2; i < 4; i++)
		assert(store_put_now(store, &small_config, i, 0, record[0], 0) == 0);
	store = small_reopen(store, &small_config, 0);
	for (uint32_t i = header_alone ? 2 : 1; i < 4; i++)
		assert(store_get_now(store, &small_config, i, 0, record[0], 0) == 0);
	assert(store_get_now(store, &small_config, 0, 0, record[0], 0) == 0);
	small_end(store);
}

/* One of the two superblocks comes back from an earlier run: does the other count? */
static void
test_one_superblock_of_before(uint32_t which)
{
	struct ofs_store *store = small_begin(&small_config, 16);
	uint8_t super[SMALL_LBA];
	uint64_t before = openings_of(0);

	memcpy(super, small_device.bytes, sizeof(super));
	for (uint32_t i = 0; i < 4; i++)
		store = small_reopen(store, &small_config, 0);
	memcpy(small_device.bytes + which, super, sizeof(super));
	store = small_reopen(store, &small_config, 0);
	assert(openings_of(0) == before + 5 && openings_of(COPY) == before + 5);
	small_end(store);
}

/* The only block of a segment is deleted while another is written there: is the delete done when
 * that has ended, and not when that block goes too? */
static void
test_a_delete_beside_a_write(void)
{
	struct ofs_store *store = small_begin(&small_config, 16);
	uint64_t ticket = 0;
	struct ofs_key key;

	assert(store_put_now(store, &small_config, 0, 0, record[0], 0) == 0);
	small_device.hold_from = (uint64_t)(place(1) - small_device.bytes);
	small_device.hold_to = small_device.hold_from + 1;
	block_name(1, &key);
	block_fill(&small_config, 1, 0, record[1]);
	assert(ofs_store_put(store, 0, &key, 0, record[1], 5, 0) == 0);
	block_name(0, &key);
	assert(ofs_store_delete(store, &key, 0) == 0);
	settle(store);
	small_device.hold_to = small_device.hold_from;
	assert(store_finish(store, 5) == 0);
	for (uint32_t i = 0; i < POLLS && ofs_store_wiped(store, 0, &ticket) != 0; i++)
		settle(store);
	assert(ofs_store_wiped(store, 0, &ticket) == 0 && ofs_store_wiping(store, 0) == 0);
	store = small_reopen(store, &small_config, 0);
	assert(store_get_now(store, &small_config, 0, 0, record[0], 0) == -ENOENT);
	assert(store_get_now(store, &small_config, 1, 0, record[0], 0) == 0);
	small_end(store);
}

int
main(void)
{
	test_torn_in_the_newest();
	test_torn_in_an_older();
	test_a_torn_value_hides_no_earlier_one();
	test_a_store_of_before();
	test_a_record_astray();
	test_a_wipe_astray();
	test_one_superblock_of_before(0);
	test_one_superblock_of_before(COPY);
	test_superblocks_of_before(0);
	test_superblocks_of_before(1);
	test_a_delete_beside_a_write();
	puts("store recover ok");
	return 0;
}
