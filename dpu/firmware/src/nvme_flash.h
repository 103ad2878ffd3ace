/*
 * nvme_flash.h: flash of an NVMe drive whose channels have a scheduler (nvme_model.h, `scheduled`).
 *
 * Model: a plane has one page register, so it is busy from the command of a read until its data
 * have left over the channel, and from the data of a write until they are programmed. A channel
 * carries one transfer at a time, to its end: first data that wait to leave, in the order they
 * were ready, and only with none waiting the next command, of its planes in turn; or commands
 * first (`commands_first`). Of a plane,
 * reads come first, then writes; a read suspends a program if the drive can. So what comes later
 * overtakes, and an end is known when it comes: events in a heap, in order of time and then of
 * cause. The data of a read cross the link when all of its pages are in the drive, or by pieces as
 * they leave the channel (`piece_bytes`). A long command
 * has its first pages on the way, and each that is done begins another. A write ends when its
 * pages are in the buffer or, without one, when they are programmed; a read never finds its data
 * there. With `program_pages` the buffer gathers what is written (nvme_flash_gather.h), and each
 * zone has a buffer of its own. Where planes have blocks, pages lie where nvme_blocks.h
 * says, and a plane that collects
 * moves one page after another out of the victim, over the channel and back, and erases it; reads
 * go first, and writes wait until it is done. So does each plane erase its blocks of a zone that
 * was reset; a page of a zone lies where its address says.
 *
 * A command lives from submit until its end is polled; one thread owns it. Memory is allocated at
 * open, for the commands and the pages of all of them; nothing can fail after that.
 */
#ifndef OFS_NVME_FLASH_H
#define OFS_NVME_FLASH_H

#include "nvme_model.h"

struct ofs_nvme_flash;

#pragma GCC visibility push(hidden)

/* -ENOMEM. The parameters are valid. */
int ofs_nvme_flash_open(struct ofs_nvme_flash **out, const struct ofs_nvme_params *params,
	uint64_t seed);
void ofs_nvme_flash_close(struct ofs_nvme_flash *flash);
void ofs_nvme_flash_reset(struct ofs_nvme_flash *flash);
/* The command reaches the flash at `at_ps`, not before the last event; one whose data are gathered
 * before firmware and link. `write` as the model's. */
void ofs_nvme_flash_submit(struct ofs_nvme_flash *flash, uint64_t at_ps, int write, uint64_t tag,
	uint64_t offset_bytes, uint32_t size_bytes);
uint64_t ofs_nvme_flash_next_ps(const struct ofs_nvme_flash *flash);
int ofs_nvme_flash_poll(struct ofs_nvme_flash *flash, uint64_t now_ps, struct ofs_nvme_end *ends,
	int max);
/* 1: it takes no writes any more. */
int ofs_nvme_flash_read_only(const struct ofs_nvme_flash *flash);
/* Zeros without blocks; valid pages of zones are not in it. */
void ofs_nvme_flash_wear(const struct ofs_nvme_flash *flash, struct ofs_nvme_wear *wear);

#pragma GCC visibility pop

/* Of a counter: the same draw on every machine. */
static inline uint64_t
ofs_nvme_mix(uint64_t x)
{
	return ofs_mix(x + 0x9e3779b97f4a7c15ull);
}

/* Whether the buffer makes programs of such a write. */
static inline int
ofs_nvme_gathers(const struct ofs_nvme_params *params, int write)
{
	return params->program_pages > 0 && write > 0
		&& (write == OFS_NVME_ZONE_WRITE || params->blocks_per_plane == 0);
}

static inline uint64_t
ofs_nvme_write_firmware_ps(const struct ofs_nvme_params *params, uint64_t bytes)
{
	uint64_t units = (bytes + OFS_NVME_SMALL_BYTES - 1) / OFS_NVME_SMALL_BYTES;

	return params->write_firmware_ps + units * params->write_each_ps;
}

/* Rounded up, so that a server never exceeds its rate. bytes < 2^32. */
static inline uint64_t
ofs_nvme_transfer_ps(uint64_t bytes, uint64_t bytes_per_s)
{
	if (bytes >= 1 << 24)
		return (uint64_t)(((unsigned __int128)bytes * 1000000000000ull + bytes_per_s - 1)
			/ bytes_per_s);
	return (bytes * 1000000000000ull + bytes_per_s - 1) / bytes_per_s;
}

/* Rows are striped over channels, then planes, then dies; each round over all of them starts
 * elsewhere, as in a log-structured drive, so that no stride of addresses hits a single die, or,
 * with a fixed layout, at the first. */
static inline uint64_t
ofs_nvme_plane(const struct ofs_nvme_params *params, uint64_t plane_count, uint64_t page)
{
	uint64_t round = page / plane_count;
	uint64_t plane = page % plane_count;

	if (params->layout_fixed)
		return plane;
	return (plane + ofs_nvme_mix(round) % plane_count) % plane_count;
}

/* How many tR a read takes: with a retry where the draw says so. */
static inline uint64_t
ofs_nvme_reads(const struct ofs_nvme_params *params, uint64_t seed, uint64_t *counter)
{
	int retried = params->retry_per_million > 0
		&& ofs_nvme_mix(seed ^ (*counter)++) % 1000000u < params->retry_per_million;

	return retried ? params->retry_factor : 1;
}

/* tR of so many bytes of a page. */
static inline uint64_t
ofs_nvme_read_ps(const struct ofs_nvme_params *params, uint64_t bytes)
{
	return bytes <= OFS_NVME_SMALL_BYTES && params->small_read_ps > 0 ? params->small_read_ps
																	  : params->read_ps;
}

#endif
