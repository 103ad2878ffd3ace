/*
 * granules.h: the checksums of a block's parts, in memory and on NVMe.
 *
 * Model: a block is cut into `count` granules of equal size, each contiguous and of whole logical
 * blocks, so that one is read without the others. Their checksums stand behind the trailer in the
 * record's last logical block, under one of their own that ties them to the trailer's checksum and
 * length: so a granule is as surely this block's as the whole is. A record without such a table, or
 * with one that does not agree, is one that is only read whole. Nothing here can fail.
 */
#ifndef OFS_GRANULES_H
#define OFS_GRANULES_H

#include "region.h"

#define OFS_GRANULE_MAGIC 0x4752464fu /* "OFRG" */

/* Behind the trailer; on NVMe as in a slot. */
struct ofs_granule_table {
	uint32_t magic;
	uint32_t count;
	uint32_t granule_bytes;
	uint32_t reserved;
	uint64_t check;    /* ofs_granule_check of the rest, and of whose it is */
	uint64_t sums[32]; /* XXH3-64 of each granule; those from `count` on are not written */
};
_Static_assert(sizeof(struct ofs_trailer) + sizeof(struct ofs_granule_table) <= 512,
	"both stand in the smallest logical block");

static inline struct ofs_granule_table *
ofs_granules_behind(const struct ofs_trailer *trailer)
{
	return (struct ofs_granule_table *)((uintptr_t)trailer + sizeof(*trailer));
}

/* Of a block of `length` bytes in so many granules; 0: it is not cut into whole logical blocks. */
uint32_t ofs_granule_size_bytes(uint32_t length, uint32_t count, uint32_t lba_size_bytes);
/* What stands behind the trailer is no table. */
void ofs_granules_void(struct ofs_trailer *trailer);
/* Writes the table of a block whose payload was seen to match its trailer; or voids it. */
void ofs_granules_fill(struct ofs_trailer *trailer, const void *payload, uint32_t count,
	uint32_t lba_size_bytes);
/* Whether it is the table of that trailer's block, in so many granules. */
int ofs_granules_agree(const struct ofs_granule_table *table, const struct ofs_trailer *trailer,
	uint32_t count);
/* Whether those of `granules` that lie in their places of `payload` are right. */
int ofs_granules_match(const struct ofs_granule_table *table, const void *payload,
	uint32_t granules);

#endif
