/* See store_small.h. */
#include "store_small.h"

#include <assert.h>
#include <stddef.h>

const struct ofs_store_config small_config = {
	.payload_size_bytes = 2048,
	.layer_count = 2,
	.tenant_max = 2,
	.segment_size_bytes = SMALL_SEGMENT,
	.io_max = 8,
	.durable = 1,
	.reserve_segments = 1,
	.format = 1,
};

struct memory small_device;

static struct ofs_store *
open_at(const struct ofs_store_config *config, uint64_t now_s)
{
	struct ofs_store *store;
	char text[512];

	assert(ofs_store_open(&store, &small_device.storage, NULL, config, now_s, text, sizeof(text))
		== 0);
	return store;
}

struct ofs_store *
small_begin(const struct ofs_store_config *config, uint32_t segments)
{
	memory_open(&small_device, 131072 + (uint64_t)segments * SMALL_SEGMENT, SMALL_LBA, 1);
	return open_at(config, 0);
}

struct ofs_store *
small_reopen(struct ofs_store *store, const struct ofs_store_config *config, uint64_t now_s)
{
	ofs_store_close(store);
	return open_at(config, now_s);
}

void
small_end(struct ofs_store *store)
{
	assert(ofs_store_verify(store) == 0);
	ofs_store_close(store);
	memory_close(&small_device);
}

struct ofs_store_stats
small_stats(const struct ofs_store *store)
{
	struct ofs_store_stats stats;

	ofs_store_stats_get(store, &stats);
	return stats;
}

struct ofs_trailer *
small_trailer(uint8_t *record)
{
	return (struct ofs_trailer *)(record + small_config.payload_size_bytes);
}
