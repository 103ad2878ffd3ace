/*
 * Is a dead segment given back to a device that takes it: not before its mark is on the medium,
 * whole but for its header, and not at all by a store that is not durable? And does each write say
 * which lifetime it belongs to?
 */
#include "store_memory.h"

#include "store_format.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { LBA = 512, PLACES = 4, PAYLOAD = 2048, SEGMENTS = 8, FIRST = 131072 };

static struct ofs_store_config config = {
	.payload_size_bytes = PAYLOAD,
	.layer_count = 1,
	.tenant_max = 2,
	.segment_size_bytes = LBA + PLACES * (PAYLOAD + LBA),
	.io_max = 8,
	.durable = 1,
	.reserve_segments = 1,
	.format = 1,
};
static _Alignas(4096) uint8_t record[8192];
static struct memory device;

static struct ofs_store *
begin(uint32_t durable)
{
	struct ofs_store *store;
	char text[256];

	config.durable = durable;
	memory_open(&device, FIRST + SEGMENTS * (uint64_t)config.segment_size_bytes, LBA, 1);
	device.storage.discards = 1;
	assert(ofs_store_open(&store, &device.storage, NULL, &config, 0, text, sizeof(text)) == 0);
	for (uint32_t i = 0; i < PLACES; i++)
		assert(store_put_now(store, &config, i, 0, record, 0) == 0);
	return store;
}

/* Its segment dies, and its mark goes out. */
static void
delete_all(struct ofs_store *store)
{
	struct ofs_key key;

	for (uint32_t i = 0; i < PLACES; i++) {
		block_name(i, &key);
		assert(ofs_store_delete(store, &key, 0) == 0);
	}
	for (uint32_t i = 0; i < 10; i++)
		(void)ofs_store_poll(store, NULL, 0);
}

static uint64_t
free_segments(const struct ofs_store *store)
{
	struct ofs_store_stats stats;

	ofs_store_stats_get(store, &stats);
	assert(stats.segments_discarded == device.discarded_bytes / (PLACES * (PAYLOAD + LBA)));
	return stats.segments_free;
}

int
main(void)
{
	struct ofs_store *store = begin(1);

	device.hold_from = FIRST;
	device.hold_to = FIRST + LBA; /* the mark */
	delete_all(store);
	assert(device.discarded_bytes == 0 && free_segments(store) == SEGMENTS - 1);
	device.hold_to = device.hold_from;
	for (uint32_t i = 0; i < 10; i++)
		(void)ofs_store_poll(store, NULL, 0);
	assert(device.discarded_bytes == PLACES * (PAYLOAD + LBA));
	assert(free_segments(store) == SEGMENTS);
	assert(((struct ofs_segment_header *)(device.bytes + FIRST))->state == OFS_HEADER_FREE);
	assert(device.lifetimes == 0x3); /* its replacement, and tenant 0 */
	ofs_store_close(store);
	memory_close(&device);
	store = begin(0);
	delete_all(store);
	assert(device.discarded_bytes == 0 && free_segments(store) == SEGMENTS);
	ofs_store_close(store);
	memory_close(&device);
	puts("store discard ok");
	return 0;
}
