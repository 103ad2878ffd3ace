/* The checksums of a block's parts; see granules.h. */
#include "granules.h"

#include <string.h>

static uint64_t
check_of(const struct ofs_granule_table *table, const struct ofs_trailer *trailer)
{
	struct {
		uint64_t checksum;
		uint32_t length, count, granule_bytes, zero;
		uint64_t sums[32];
	} told = {.checksum = trailer->checksum,
		.length = trailer->length,
		.count = table->count,
		.granule_bytes = table->granule_bytes};

	memcpy(told.sums, table->sums, table->count * sizeof(told.sums[0]));
	return ofs_checksum(&told, sizeof(told));
}

uint32_t
ofs_granule_size_bytes(uint32_t length, uint32_t count, uint32_t lba_size_bytes)
{
	return length % (count * lba_size_bytes) == 0 ? length / count : 0;
}

void
ofs_granules_void(struct ofs_trailer *trailer)
{
	memset(ofs_granules_behind(trailer), 0, sizeof(struct ofs_granule_table));
}

void
ofs_granules_fill(struct ofs_trailer *trailer, const void *payload, uint32_t count,
	uint32_t lba_size_bytes)
{
	struct ofs_granule_table *table = ofs_granules_behind(trailer);
	uint32_t granule_bytes = ofs_granule_size_bytes(trailer->length, count, lba_size_bytes);

	ofs_granules_void(trailer);
	if (granule_bytes == 0)
		return;
	table->magic = OFS_GRANULE_MAGIC;
	table->count = count;
	table->granule_bytes = granule_bytes;
	for (uint32_t i = 0; i < count; i++) {
		table->sums[i] =
			ofs_checksum((const uint8_t *)payload + (size_t)i * granule_bytes, granule_bytes);
	}
	table->check = check_of(table, trailer);
}

int
ofs_granules_agree(const struct ofs_granule_table *table, const struct ofs_trailer *trailer,
	uint32_t count)
{
	return table->magic == OFS_GRANULE_MAGIC && table->count == count && count <= 32
		&& (uint64_t)table->granule_bytes * count == trailer->length
		&& table->check == check_of(table, trailer);
}

int
ofs_granules_match(const struct ofs_granule_table *table, const void *payload, uint32_t granules)
{
	for (uint32_t i = 0; i < table->count; i++) {
		const uint8_t *granule = (const uint8_t *)payload + (size_t)i * table->granule_bytes;

		if ((granules >> i & 1) != 0
			&& ofs_checksum(granule, table->granule_bytes) != table->sums[i])
			return 0;
	}
	return 1;
}
