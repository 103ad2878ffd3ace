/*
 * nvme_zones.h: the zones of a drive (nvme_model.h), as NVMe's Zoned Namespace command set has
 * them.
 *
 * Model: a zone is whole erase blocks of every plane, so the drive erases it without moving a
 * page. It is written at its write pointer alone, up to its capacity, and then full; a reset makes
 * it empty. A write opens a zone that is not open; if as many are open as may be, the one opened
 * first is closed, and keeps what it has. A zone is active from its first byte until it is full or
 * reset, and if as many are active as may be, an empty one is refused. The blocks that are in no
 * zone are a conventional namespace, which collects. Commands are taken in the order of
 * submission, as a host keeps it that has one queue for a zone. Not modelled: zone append,
 * explicit open, close and finish, zones that go bad, and the namespace of a read. Memory is
 * allocated at open; one thread owns it.
 */
#ifndef OFS_NVME_ZONES_H
#define OFS_NVME_ZONES_H

#include "nvme_blocks.h"

struct ofs_nvme_zones;

#pragma GCC visibility push(hidden)

/* As ofs_nvme_params_wrong; the rest of the parameters is right. */
const char *ofs_nvme_zones_wrong(const struct ofs_nvme_params *params);
/* -ENOMEM. The parameters are valid and have zones. */
int ofs_nvme_zones_open(struct ofs_nvme_zones **out, const struct ofs_nvme_params *params);
void ofs_nvme_zones_close(struct ofs_nvme_zones *zones);
void ofs_nvme_zones_reset_all(struct ofs_nvme_zones *zones);
/* NULL: taken, and the write pointer moves; else why not, as "what; fix". */
const char *ofs_nvme_zones_write(struct ofs_nvme_zones *zones, uint64_t offset_bytes,
	uint64_t size_bytes);
/* The same; *erase: the zone has something to erase. */
const char *ofs_nvme_zones_reset(struct ofs_nvme_zones *zones, uint64_t offset_bytes, int *erase);
const struct ofs_nvme_zone *ofs_nvme_zones_get(const struct ofs_nvme_zones *zones, uint32_t number);

#pragma GCC visibility pop

/* Of each plane. */
static inline uint32_t
ofs_nvme_zone_blocks(const struct ofs_nvme_params *p)
{
	uint64_t planes = (uint64_t)p->channel_count * p->dies_per_channel * p->planes_per_die;

	return (uint32_t)(p->zone_size_bytes / (planes * p->pages_per_block * p->page_size_bytes));
}

/* The drive that the blocks in no zone are: it keeps all of them but what collection needs. */
static inline struct ofs_nvme_params
ofs_nvme_conventional(const struct ofs_nvme_params *params)
{
	struct ofs_nvme_params left = *params;
	uint32_t needs = params->collect_blocks + 2 * ofs_nvme_handles(params);

	if (params->zone_size_bytes == 0)
		return left;
	left.blocks_per_plane -= params->zone_count * ofs_nvme_zone_blocks(params);
	left.spare_permille = (needs * 1000 + left.blocks_per_plane - 1) / left.blocks_per_plane;
	return left;
}

#endif
