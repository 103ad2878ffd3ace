/*
 * granules.h: the checksums of a block's parts, in memory and on NVMe.
 *
 * Model: a block is cut into `count` granules of equal size, each contiguous and of whole logical
 * blocks, so that one can be read without the others. Their checksums follow the trailer in the
 * record's last logical block, under a checksum that ties them to the trailer's checksum and
 * length: a granule is checked as strictly as the whole block. A record with no table, or with one
 * that does not match, is only read whole. Nothing here can fail.
 */
#ifndef OFS_GRANULES_H
#define OFS_GRANULES_H

#include "region.h"

#define OFS_GRANULE_MAGIC 0x4752464fu /* "OFRG" */

/* After the trailer; the same on NVMe and in a slot. */
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

/* For a block of `length` bytes in `count` granules; 0: not a cut into whole logical blocks. */
uint32_t ofs_granule_size_bytes(uint32_t length, uint32_t count, uint32_t lba_size_bytes);
/* Invalidates the table after the trailer. */
void ofs_granules_void(struct ofs_trailer *trailer);
/* Writes the table of a block whose payload was seen to match its trailer; or voids it. */
void ofs_granules_fill(struct ofs_trailer *trailer, const void *payload, uint32_t count,
	uint32_t lba_size_bytes);
/* Whether it is the table of that trailer's block, with `count` granules. */
int ofs_granules_agree(const struct ofs_granule_table *table, const struct ofs_trailer *trailer,
	uint32_t count);
/* Whether `granules`, in their places in `payload`, match their checksums. */
int ofs_granules_match(const struct ofs_granule_table *table, const void *payload,
	uint32_t granules);

#endif
