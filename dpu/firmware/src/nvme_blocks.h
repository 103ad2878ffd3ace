/*
 * nvme_blocks.h: which page of a plane lies in which of its blocks (nvme_flash.h).
 *
 * Model: a plane has blocks of pages that are written in order and erased whole. A page that is
 * written goes to the open block of its handle and its former place is void; so blocks hold void
 * pages, and the drive has more blocks than pages to keep: its over-provisioning. With fewer than
 * `collect_blocks` free ones, the plane collects: the closed block with the fewest valid pages is
 * the victim (greedy), its valid pages move to the open block of the collector, and it is erased.
 * A write to a plane with a block older than `refresh_ps` and enough free ones makes the oldest a
 * victim, whatever it holds. A plane that collects takes no writes. The collector has an open block
 * for each handle, so pages of two handles never share one (FDP: persistently isolated); a reclaim
 * unit is a block of each plane.
 *
 * Erases of a block are counted. After a collection, if a block of the plane was erased
 * `level_erases` times more than the closed one that was erased least, that one is a victim, too,
 * and the least erased of the free blocks is taken first: the static and the dynamic wear
 * levelling of MQSim (Tavakkol et al., FAST'18). No levelling follows another without a collection
 * between, which bounds what they move. A block that was erased `erase_limit` times is retired;
 * only the last free one is used again. When one has to be retired and its plane would not have
 * the blocks left to collect, the drive is read-only, and what it has taken until then is still
 * programmed. Nothing here takes time: the flash says when each step is done. Memory is allocated
 * at open; nothing can fail after that. One thread owns it.
 */
#ifndef OFS_NVME_BLOCKS_H
#define OFS_NVME_BLOCKS_H

#include "nvme_model.h"

struct ofs_nvme_blocks;

#pragma GCC visibility push(hidden)

/* -ENOMEM. The parameters are valid and have blocks. */
int ofs_nvme_blocks_open(struct ofs_nvme_blocks **out, const struct ofs_nvme_params *params,
	uint32_t plane_count);
void ofs_nvme_blocks_close(struct ofs_nvme_blocks *blocks);
void ofs_nvme_blocks_reset(struct ofs_nvme_blocks *blocks);
/* Page `number` of the plane, modulo those it keeps, is written by the host. 1: now it collects. */
int ofs_nvme_blocks_write(struct ofs_nvme_blocks *blocks, uint32_t plane, uint64_t number,
	uint32_t handle, uint64_t now_ps);
/* Nobody wants that page any more. */
void ofs_nvme_blocks_discard(struct ofs_nvme_blocks *blocks, uint32_t plane, uint64_t number);
/* Whether the victim has a valid page left, which ofs_nvme_blocks_move then moves, unless it was
 * discarded meanwhile. */
int ofs_nvme_blocks_left(struct ofs_nvme_blocks *blocks, uint32_t plane);
void ofs_nvme_blocks_move(struct ofs_nvme_blocks *blocks, uint32_t plane, uint64_t now_ps);
/* The victim is erased. 1: there is another. */
int ofs_nvme_blocks_erase(struct ofs_nvme_blocks *blocks, uint32_t plane);
/* Since the first page of its block was written: of page `number`, 0 if it is not written, or of
 * the victim's (OFS_NONE). */
uint64_t ofs_nvme_blocks_age_ps(const struct ofs_nvme_blocks *blocks, uint32_t plane,
	uint32_t number, uint64_t now_ps);
/* 1: the drive is at its end, and takes no writes. */
int ofs_nvme_blocks_read_only(const struct ofs_nvme_blocks *blocks);
void ofs_nvme_blocks_wear(const struct ofs_nvme_blocks *blocks, struct ofs_nvme_wear *wear);

static inline uint32_t
ofs_nvme_handles(const struct ofs_nvme_params *params)
{
	return params->handle_count > 0 ? params->handle_count : 1;
}

/* Pages of a plane that the drive keeps: what its over-provisioning leaves of them. */
static inline uint64_t
ofs_nvme_blocks_kept(const struct ofs_nvme_params *params)
{
	return (uint64_t)params->blocks_per_plane * params->pages_per_block
		* (1000 - params->spare_permille) / 1000;
}

/* Blocks of a plane without which a collection might find no void page: those of the kept pages,
 * of every handle's open blocks, and those that a collection leaves free. */
static inline uint32_t
ofs_nvme_blocks_needed(const struct ofs_nvme_params *params)
{
	uint64_t each = params->pages_per_block;

	return params->collect_blocks + 2 * ofs_nvme_handles(params)
		+ (uint32_t)((ofs_nvme_blocks_kept(params) + each - 1) / each);
}

#pragma GCC visibility pop

#endif
