/*
 * Fetches of random parts of blocks in a world whose device has granules, and the check that their
 * bytes are right. A granule is at the same place in the target as in its block.
 */
#include "support_device.h"

#include "granules.h"

#include <string.h>

static uint32_t
count_of(const struct world *world)
{
	return world->config.store.granule_count;
}

/* One fetch in four is of whole blocks, as those of every host that knows no granules. */
void
world_parts_ask(struct world_flight *flight)
{
	const struct world_host *host = flight->session->host;
	uint32_t count = count_of(host->world), number = 0;
	uint64_t drawn = (host->local_ns ^ flight->session->step) * 0x9e3779b97f4a7c15ull;

	if (count < 2 || (drawn >> 60 & 3) == 0)
		return;
	flight->fetch.granules = flight->granules;
	flight->fetch.granule_first = flight->granule_first;
	flight->fetch.checksums = flight->sums;
	flight->fetch.target_stride_bytes = host->world->config.store.payload_size_bytes / count;
	flight->fetch.target_index = flight->rows;
	for (uint32_t i = 0; i < flight->out.count; i++) {
		drawn = (drawn ^ drawn >> 29) * 0xbf58476d1ce4e5b9ull;
		flight->granules[i] = 1 + (uint32_t)((drawn >> 33) % ((1u << count) - 1));
		flight->granule_first[i] = number;
		for (uint32_t granule = 0; granule < count; granule++)
			if (flight->granules[i] >> granule & 1)
				flight->rows[number++] = i * count + granule;
	}
}

bool
world_part_is_right(const struct world *world, uint32_t granules, const uint8_t *got,
	const uint8_t *expected)
{
	uint32_t size_bytes = world->config.store.payload_size_bytes / count_of(world);

	for (uint32_t i = 0; i < count_of(world); i++)
		if ((granules >> i & 1) != 0
			&& memcmp(got + i * size_bytes, expected + i * size_bytes, size_bytes) != 0)
			return false;
	return true;
}

bool
world_slot_is_right(const struct world *world, const uint8_t *slot,
	const struct ofs_trailer *trailer)
{
	const struct ofs_granule_table *table = ofs_granules_behind(trailer);

	/* A short piece of a value is not cut: it comes whole, whatever was asked for. */
	if (trailer->granules == 0
		|| ofs_granule_size_bytes(trailer->length, count_of(world),
			   world->config.storage.lba_size_bytes)
			== 0)
		return ofs_checksum(slot, trailer->length) == trailer->checksum;
	return ofs_granules_agree(table, trailer, count_of(world))
		&& ofs_granules_match(table, slot, trailer->granules);
}
