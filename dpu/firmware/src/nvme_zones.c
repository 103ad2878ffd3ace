/* Implements nvme_zones.h. */
#include "nvme_zones.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct ofs_nvme_zones {
	struct ofs_nvme_params params;
	struct ofs_nvme_zone *zones;
	uint64_t openings;
	uint32_t open_count, active_count;
};

const char *
ofs_nvme_zones_wrong(const struct ofs_nvme_params *p)
{
	uint64_t planes = (uint64_t)p->channel_count * p->dies_per_channel * p->planes_per_die;
	uint64_t erased = planes * p->pages_per_block * p->page_size_bytes, blocks;

	if (p->zone_size_bytes == 0)
		return NULL;
	if (!p->scheduled || p->blocks_per_plane == 0 || erased == 0)
		return "zones are made of blocks, and this drive has none; give scheduled, "
			   "blocks_per_plane and pages_per_block, or leave the zones out";
	if (p->handle_count > 1 || p->retry_age_ps > 0 || p->refresh_ps > 0 || p->erase_limit > 0
		|| p->level_erases > 0)
		return "a zoned drive has no placement handles, and the model keeps neither age nor erases "
			   "of its blocks; leave handle_count, retry_age_ps, refresh_ps, erase_limit and "
			   "level_erases out, or the zones";
	if (p->zone_size_bytes % erased != 0)
		return "a zone is not a multiple of the erase block of every plane; make zone_size_bytes a "
			   "multiple of planes times pages_per_block times page_size_bytes";
	if (p->zone_capacity_bytes == 0 || p->zone_capacity_bytes > p->zone_size_bytes
		|| p->zone_capacity_bytes % p->page_size_bytes != 0)
		return "what can be written of a zone is not whole pages of it; give zone_capacity_bytes "
			   "up "
			   "to zone_size_bytes";
	if (p->zone_open_max == 0 || p->zone_active_max < p->zone_open_max)
		return "a zoned drive has at least one zone open, and what is open is active; raise "
			   "zone_open_max or zone_active_max";
	blocks = (uint64_t)p->zone_count * ofs_nvme_zone_blocks(p);
	if (p->zone_count == 0 || blocks + p->collect_blocks + 2 >= p->blocks_per_plane)
		return "the zones leave no blocks for a conventional namespace, or there are none; change "
			   "zone_count";
	return NULL;
}

/* Makes the zone open, if it may be: NULL. */
static const char *
zone_open(struct ofs_nvme_zones *z, struct ofs_nvme_zone *zone)
{
	struct ofs_nvme_zone *first = NULL;

	if (zone->state == OFS_ZONE_OPEN)
		return NULL;
	if (zone->state == OFS_ZONE_EMPTY && z->active_count == z->params.zone_active_max)
		return "as many zones are active as the drive can have; fill or reset one first";
	for (uint32_t i = 0; z->open_count == z->params.zone_open_max && i < z->params.zone_count;
		 i++) {
		struct ofs_nvme_zone *other = &z->zones[i];

		if (other->state == OFS_ZONE_OPEN && (first == NULL || other->opened < first->opened))
			first = other;
	}
	if (first != NULL) {
		first->state = OFS_ZONE_CLOSED;
		z->open_count--;
	}
	z->active_count += zone->state == OFS_ZONE_EMPTY;
	z->open_count++;
	zone->state = OFS_ZONE_OPEN;
	zone->opened = z->openings++;
	return NULL;
}

const char *
ofs_nvme_zones_write(struct ofs_nvme_zones *z, uint64_t offset_bytes, uint64_t size_bytes)
{
	const struct ofs_nvme_params *p = &z->params;
	uint64_t number = offset_bytes / p->zone_size_bytes, at = offset_bytes % p->zone_size_bytes;
	struct ofs_nvme_zone *zone = &z->zones[number];
	uint64_t unit = p->program_pages > 0 ? OFS_NVME_SMALL_BYTES : p->page_size_bytes;
	const char *refused;

	if (number >= p->zone_count)
		return "the drive has no such zone; write below zone_count times zone_size_bytes";
	if (zone->state == OFS_ZONE_FULL)
		return "the zone is full; reset it first";
	if (at != zone->written_bytes)
		return "a zone is written at its write pointer alone; write there, or reset the zone";
	if (size_bytes > p->zone_capacity_bytes - at || size_bytes % unit != 0)
		return "a write to a zone is whole pages within its capacity; cut it there";
	refused = zone_open(z, zone);
	if (refused != NULL)
		return refused;
	zone->written_bytes += size_bytes;
	if (zone->written_bytes == p->zone_capacity_bytes) {
		zone->state = OFS_ZONE_FULL;
		z->open_count--;
		z->active_count--;
	}
	return NULL;
}

const char *
ofs_nvme_zones_reset(struct ofs_nvme_zones *z, uint64_t offset_bytes, int *erase)
{
	uint64_t number = offset_bytes / z->params.zone_size_bytes;
	struct ofs_nvme_zone *zone = &z->zones[number];

	if (number >= z->params.zone_count || offset_bytes % z->params.zone_size_bytes != 0)
		return "a reset names the start of a zone; give a multiple of zone_size_bytes";
	z->open_count -= zone->state == OFS_ZONE_OPEN;
	z->active_count -= zone->state == OFS_ZONE_OPEN || zone->state == OFS_ZONE_CLOSED;
	*erase = zone->written_bytes > 0;
	*zone = (struct ofs_nvme_zone){0};
	return NULL;
}

const struct ofs_nvme_zone *
ofs_nvme_zones_get(const struct ofs_nvme_zones *z, uint32_t number)
{
	return z != NULL && number < z->params.zone_count ? &z->zones[number] : NULL;
}

void
ofs_nvme_zones_reset_all(struct ofs_nvme_zones *z)
{
	memset(z->zones, 0, z->params.zone_count * sizeof(*z->zones));
	z->openings = z->open_count = z->active_count = 0;
}

int
ofs_nvme_zones_open(struct ofs_nvme_zones **out, const struct ofs_nvme_params *params)
{
	struct ofs_nvme_zones *z = calloc(1, sizeof(*z));

	*out = z;
	if (z == NULL)
		return -ENOMEM;
	z->params = *params;
	z->zones = calloc(params->zone_count, sizeof(*z->zones));
	return z->zones == NULL ? -ENOMEM : 0;
}

void
ofs_nvme_zones_close(struct ofs_nvme_zones *z)
{
	if (z == NULL)
		return;
	free(z->zones);
	free(z);
}
