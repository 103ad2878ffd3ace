/*
 * Is a hit right whatever happens between two reads of it, in how many round trips, and is nothing
 * believed that only looks right? Between the driver and its fabric stands a link that stops where
 * the test says.
 */
#include "support_dpu.h"

#include <assert.h>
#include <string.h>

#define BLOCKS 24
#define PAYLOAD 2048

static struct support_dpu dpu;
static struct ofs_driver *driver;
static const struct ofs_fabric_ops *inner;
static struct ofs_fabric_ops link_ops;
static uint32_t trip_count;
static void (*before_record)(void); /* once: the entry is known, the slot has not been read */
static void (*in_record)(void);     /* once: the trailer's second half was read, the rest not yet */
static uint32_t all[BLOCKS];

static int
link_flush(struct ofs_fabric *fabric, uint64_t timeout_ns)
{
	trip_count++;
	return inner->flush(fabric, timeout_ns);
}

static void
once(void (**hook)(void))
{
	void (*call)(void) = *hook;

	*hook = NULL;
	if (call != NULL)
		call();
}

static int
link_read(struct ofs_fabric *fabric, uint64_t offset, const struct ofs_span *spans, uint32_t count)
{
	struct ofs_span half;
	uint8_t kept[64];
	int rc;

	if (offset < fabric->region.slots_offset)
		return inner->read(fabric, offset, spans, count);
	once(&before_record);
	if (count != 2 || in_record == NULL)
		return inner->read(fabric, offset, spans, count);
	half = (struct ofs_span){kept, sizeof(kept)};
	rc = inner->read(fabric, offset + spans[0].size_bytes + 64, &half, 1);
	once(&in_record);
	rc = rc == 0 ? inner->read(fabric, offset, spans, count) : rc;
	memcpy((uint8_t *)spans[1].target + 64, kept, sizeof(kept));
	return rc;
}

/* `far`: as over a network, where a read travels; otherwise as on one machine. */
static void
set_up(uint32_t slot_count, bool far)
{
	struct support_config config = {.block_count = BLOCKS,
		.slot_count = slot_count,
		.payload_size_bytes = PAYLOAD,
		.entry_count = 4,
		.demand_max = BLOCKS,
		.score_max = 8,
		.put_slot_count = 2};
	struct ofs_fabric *fabric;

	for (uint32_t i = 0; i < BLOCKS; i++)
		all[i] = i;
	support_open(&dpu, &config);
	fabric = support_fabric(&dpu);
	inner = fabric->ops;
	link_ops = *inner;
	link_ops.read = link_read;
	link_ops.flush = link_flush;
	link_ops.copy = far ? NULL : inner->copy;
	fabric->ops = &link_ops;
	fabric->read_batch_max = far ? 16 : 1;
	trip_count = 0;
	assert(ofs_driver_open(&driver, fabric) == 0);
}

static void
tear_down(void)
{
	ofs_driver_close(driver);
	support_close(&dpu);
}

/* One fetch of `count` blocks, including the DPU's turns; results are in `hits` and `torn`. */
static void
fetch(uint32_t count, const uint32_t *ordinals, uint32_t *hits, uint32_t *torn)
{
	struct support_fetch *fetch = support_fetch_new(&dpu, count, ordinals);
	uint64_t ticket;

	assert(ofs_driver_fetch_begin(driver, &fetch->fetch, &ticket) == 0); /* and its hooks */
	support_start(&dpu);
	assert(ofs_driver_fetch_end(driver, ticket) == 0);
	support_stop(&dpu);
	assert(support_fetch_check(fetch) == count); /* every byte is the block's */
	*hits = fetch->fetch.hit_count;
	*torn = fetch->fetch.torn_count;
	support_fetch_free(fetch);
}

/* All blocks: some of them displace others that were staged before. */
static void
stage_all(void)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		support_stage(&dpu, i);
	for (uint32_t i = 0; i < BLOCKS; i++)
		if (dpu.slot_of[i] == OFS_NONE)
			support_stage(&dpu, i);
}

/* The bucket, then the record with its trailer: two trips, for one hit and for sixteen. */
static void
test_two_round_trips(void)
{
	uint32_t hits;
	uint32_t torn;

	set_up(4096, true);
	stage_all();
	fetch(1, &all[3], &hits, &torn);
	assert(hits == 1 && torn == 0 && trip_count == 2);
	trip_count = 0;
	fetch(16, all, &hits, &torn);
	assert(hits == 16 && torn == 0 && trip_count == 2);
	tear_down();
}

/* A third look at a block costs one trip; blocks that are not yet remembered, two. */
static void
test_one_round_trip_where_the_slot_is_remembered(void)
{
	struct ofs_driver_stats stats;
	uint32_t hits;
	uint32_t torn;

	set_up(4096, true);
	stage_all();
	fetch(8, all, &hits, &torn);
	assert(hits == 8 && trip_count == 2);
	trip_count = 0;
	fetch(8, all, &hits, &torn);
	assert(hits == 8 && torn == 0 && trip_count == 1);
	trip_count = 0;
	fetch(12, all, &hits, &torn);
	assert(hits == 12 && torn == 0 && trip_count == 2);
	assert(ofs_driver_stats_get(driver, &stats) == 0);
	assert(stats.remembered == 16 && stats.moved_on == 0);
	tear_down();
}

/* The result of fetching a block whose slot is remembered, after `change`. */
static void
after(void (*change)(void), uint32_t slot_count, uint32_t *hits, uint32_t *trips)
{
	struct ofs_driver_stats stats;
	uint32_t torn;

	set_up(slot_count, true);
	support_stage(&dpu, 0);
	fetch(1, all, hits, &torn);
	assert(*hits == 1);
	change();
	trip_count = 0;
	fetch(1, all, hits, &torn);
	*trips = trip_count;
	assert(torn == 0 && ofs_driver_stats_get(driver, &stats) == 0);
	assert(stats.remembered == 0 && stats.moved_on == 1);
	tear_down();
}

static void
publish_again(void)
{
	struct ofs_key key = support_key(0);

	assert(
		ofs_region_publish(dpu.region, &key, dpu.slot_of[0], ++dpu.generation, OFS_CAUSE_WINDOW, 0)
		== 0);
}

/* The same key in the same slot, but in another generation: not the entry's block. */
static void
test_another_generation_is_no_hit(bool far)
{
	uint32_t hits;
	uint32_t torn;

	set_up(8, far);
	support_stage(&dpu, 0);
	before_record = publish_again;
	fetch(1, all, &hits, &torn);
	assert(before_record == NULL && hits == 0 && torn == 1);
	fetch(1, all, &hits, &torn);
	assert(hits == 1 && torn == 0);
	tear_down();
}

static void
retract(void)
{
	struct ofs_key key = support_key(0);

	ofs_region_retract(dpu.region, &key, dpu.slot_of[0]);
	dpu.block_in[dpu.slot_of[0]] = OFS_NONE;
	dpu.slot_of[0] = OFS_NONE;
}

/* Its bytes are still there, and will be written over at any moment. */
static void
test_a_retracted_slot_is_no_hit(bool far)
{
	uint32_t hits;
	uint32_t torn;

	set_up(8, far);
	support_stage(&dpu, 0);
	before_record = retract;
	fetch(1, all, &hits, &torn);
	assert(before_record == NULL && hits == 0 && torn == 1);
	tear_down();
}

static void
stage_another(void)
{
	support_stage(&dpu, 1);
}

/* A key seen before the slot was rewritten does not validate bytes seen after. */
static void
test_halves_of_two_ages_are_no_hit(void)
{
	uint32_t hits;
	uint32_t torn;

	set_up(1, true);
	support_stage(&dpu, 0);
	in_record = stage_another;
	fetch(1, all, &hits, &torn);
	assert(in_record == NULL && hits == 0 && torn == 1);
	tear_down();
}

static void
stage_elsewhere(void)
{
	uint32_t was = dpu.slot_of[0];

	do
		support_stage(&dpu, 0);
	while (dpu.slot_of[0] == was);
}

/*
 * A remembered slot was rewritten, emptied, or holds another block: does the directory's entry
 * decide? fetch() compares every byte.
 */
static void
test_a_remembered_slot_that_moved_on_is_an_ordinary_miss(void)
{
	uint32_t hits;
	uint32_t trips;

	after(stage_elsewhere, 64, &hits, &trips);
	assert(hits == 1 && trips == 3);
	after(publish_again, 8, &hits, &trips);
	assert(hits == 1 && trips == 3);
	after(retract, 8, &hits, &trips);
	assert(hits == 0 && trips == 2 + 1); /* and the record that the STEP's answer names */
	after(stage_another, 1, &hits, &trips);
	assert(hits == 0 && trips == 2 + 1);
}

/* The same while it is being written: a key from before for a payload from after. */
static void
test_a_remembered_slot_that_is_being_written_is_no_hit(void)
{
	uint32_t hits;
	uint32_t torn;

	set_up(1, true);
	support_stage(&dpu, 0);
	fetch(1, all, &hits, &torn);
	assert(hits == 1);
	in_record = stage_another;
	fetch(1, all, &hits, &torn);
	assert(in_record == NULL && hits == 0);
	tear_down();
}

int
main(void)
{
	test_two_round_trips();
	test_another_generation_is_no_hit(false);
	test_another_generation_is_no_hit(true);
	test_a_retracted_slot_is_no_hit(false);
	test_a_retracted_slot_is_no_hit(true);
	test_halves_of_two_ages_are_no_hit();
	test_one_round_trip_where_the_slot_is_remembered();
	test_a_remembered_slot_that_moved_on_is_an_ordinary_miss();
	test_a_remembered_slot_that_is_being_written_is_no_hit();
	return 0;
}
