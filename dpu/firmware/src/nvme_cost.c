/*
 * The cost of a read on a drive that is never idle. Each resource of the drive serves one read
 * after another, so a mix of reads takes as long as the sum of the demands on the busiest resource:
 * the law of utilization (Denning and Buzen 1978, The operational analysis of queueing network
 * models), with the demands of nvme_model.h. A page is read whole, however few of its bytes are
 * wanted: tR does not depend on them. Only channel and link transfer just the requested bytes.
 */
#include "nvme_flash.h"

#define PS_PER_S 1000000000000ull

static uint64_t
share_of(uint64_t bytes, uint64_t bytes_per_s)
{
	/* A read has at most 2^32 bytes: in 64 bits, per million bytes, it would overflow. */
	return (uint64_t)((unsigned __int128)bytes * PS_PER_S / bytes_per_s);
}

int
ofs_nvme_cost(const struct ofs_nvme_params *params, uint64_t offset_bytes, uint32_t size_bytes,
	struct ofs_nvme_cost *cost)
{
	uint64_t planes =
		(uint64_t)params->channel_count * params->dies_per_channel * params->planes_per_die;
	uint64_t page = params->page_size_bytes;
	uint64_t retries_ppm = (uint64_t)params->retry_per_million
		* (params->retry_factor > 0 ? params->retry_factor - 1 : 0);
	uint64_t pages, read_ps;

	if (planes == 0 || page == 0 || size_bytes == 0 || params->channel_bytes_per_s == 0
		|| params->link_bytes_per_s == 0)
		return -EINVAL;
	pages = (offset_bytes + size_bytes - 1) / page - offset_bytes / page + 1;
	read_ps = ofs_nvme_read_ps(params, size_bytes);
	read_ps += read_ps / 1000000 * retries_ppm;
	*cost = (struct ofs_nvme_cost){
		.command_ps = params->command_interval_ps,
		.media_ps = pages * read_ps / planes,
		.channel_ps = share_of(size_bytes, params->channel_bytes_per_s) / params->channel_count,
		.link_ps = share_of(size_bytes, params->link_bytes_per_s),
	};
	return 0;
}
