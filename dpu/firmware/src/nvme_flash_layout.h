/*
 * nvme_flash_layout.h: which pages the bytes of a command lie in (nvme_flash.h).
 *
 * Model: pages are counted over the drive. `program_pages` of them in a row are on one plane, and
 * the next as many on the next one. Of a stripe, `stripe_pages` pages in a row, each on its plane,
 * are filled 4 KiB in turn; so a read of part of a stripe has a share of several pages.
 * Writes that are gathered are not cut so (nvme_flash_gather.h).
 */
#ifndef OFS_NVME_FLASH_LAYOUT_H
#define OFS_NVME_FLASH_LAYOUT_H

#include "nvme_flash_parts.h"

/* Bytes of one page. */
struct flash_part {
	uint64_t page;
	uint32_t bytes;
};

static inline uint64_t
plane_of(const struct ofs_nvme_flash *flash, uint64_t page)
{
	uint32_t each = flash->params.program_pages > 1 ? flash->params.program_pages : 1;

	return ofs_nvme_plane(&flash->params, flash->plane_count, page / each);
}

/* 4 KiB units that the range touches. */
static inline uint64_t
units_of(uint64_t at_bytes, uint64_t end_bytes)
{
	return (end_bytes - 1) / OFS_NVME_SMALL_BYTES - at_bytes / OFS_NVME_SMALL_BYTES + 1;
}

static inline uint64_t
stripe_of(const struct ofs_nvme_flash *flash, const struct flash_command *command)
{
	return command->write || flash->params.stripe_pages == 0 ? 1 : flash->params.stripe_pages;
}

/* How many parts the whole command has. */
static inline uint64_t
parts_count(const struct ofs_nvme_flash *flash, const struct flash_command *command)
{
	uint64_t stripe = stripe_of(flash, command), size = stripe * flash->params.page_size_bytes;
	uint64_t begin = command->at_bytes, end = command->end_bytes;
	uint64_t first = begin / size, last = (end - 1) / size, head, tail;

	if (stripe == 1)
		return last - first + 1;
	if (first == last)
		return units_of(begin, end) < stripe ? units_of(begin, end) : stripe;
	head = units_of(begin, (first + 1) * size);
	tail = units_of(last * size, end);
	return (head < stripe ? head : stripe) + (last - first - 1) * stripe
		+ (tail < stripe ? tail : stripe);
}

/* The part that the command begins with, which it then no longer has. */
static inline struct flash_part
part_take(const struct ofs_nvme_flash *flash, struct flash_command *command)
{
	uint64_t stripe = stripe_of(flash, command), size = stripe * flash->params.page_size_bytes;
	uint64_t begin = command->at_bytes, end = (begin / size + 1) * size, units, slots;
	struct flash_part part;

	if (end > command->end_bytes)
		end = command->end_bytes;
	units = units_of(begin, end);
	slots = units < stripe ? units : stripe;
	part.page = begin / size * stripe + (begin / OFS_NVME_SMALL_BYTES + command->slot) % stripe;
	part.bytes = (uint32_t)(end - begin);
	if (slots > 1) {
		part.bytes =
			(uint32_t)((units - command->slot + stripe - 1) / stripe) * OFS_NVME_SMALL_BYTES;
		if (command->slot == 0)
			part.bytes -= begin % OFS_NVME_SMALL_BYTES;
		if (command->slot == (units - 1) % stripe)
			part.bytes -=
				(OFS_NVME_SMALL_BYTES - end % OFS_NVME_SMALL_BYTES) % OFS_NVME_SMALL_BYTES;
	}
	if (++command->slot == slots) {
		command->slot = 0;
		command->at_bytes = end;
	}
	return part;
}

/* Voids the pages that lie in the range with all of their bytes, also those in the buffer. */
static inline void
pages_discard(struct ofs_nvme_flash *flash, const struct flash_command *command)
{
	uint64_t size = flash->params.page_size_bytes, end = command->end_bytes / size;

	for (uint64_t at = (command->at_bytes + size - 1) / size; at < end; at++) {
		uint32_t plane = (uint32_t)plane_of(flash, at);
		uint32_t number = (uint32_t)(at / flash->plane_count % flash->kept);

		ofs_nvme_blocks_discard(flash->blocks, plane, number);
		list_discard(flash, &flash->planes[plane].writes, number);
	}
}

#endif
