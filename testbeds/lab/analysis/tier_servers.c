/*
 * tier_servers.c: how long one tier takes.
 *
 * Model: a request waits for its turn where so many are under way, then for the drive, and crosses
 * the link, which serves one block after another and in each direction by itself. The link and the
 * drive work at the same time: the slower of them decides. All of it is reserved when it is asked
 * for, in that order, so every end is known; a drive whose channels have schedulers is refused.
 */
#include <stdlib.h>

#include "tiers.h"

static uint64_t
later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t
serve(struct tiers *t, uint32_t number, uint64_t now_ps, uint32_t block, int write)
{
	struct tier *tier = &t->tiers[number];
	const struct ofs_tier *config = &tier->config;
	uint64_t *free_ps = write ? &tier->write_free_ps : &tier->read_free_ps;
	uint64_t begin_ps = now_ps, end_ps;
	uint32_t drives = config->drive_count;

	if (config->concurrency)
		begin_ps = later(begin_ps, tier->ends_ps[tier->turn]);
	end_ps = begin_ps;
	if (drives)
		end_ps = ofs_nvme_model_submit(tier->drives[block % drives], begin_ps, write, 0,
			(uint64_t)(block / drives) * t->config.block_size_bytes, t->config.block_size_bytes);
	*free_ps = later(*free_ps, begin_ps + config->latency_ps)
		+ (write ? config->write_ps : config->read_ps);
	end_ps = later(end_ps + config->latency_ps, *free_ps);
	if (config->concurrency) {
		tier->ends_ps[tier->turn] = end_ps;
		tier->turn = (tier->turn + 1) % config->concurrency;
	}
	return end_ps;
}

uint64_t
tier_read(struct tiers *t, uint32_t tier, uint64_t now_ps, uint32_t block)
{
	return serve(t, tier, now_ps, block, 0);
}

uint64_t
tier_write(struct tiers *t, uint32_t tier, uint64_t now_ps, uint32_t block)
{
	return serve(t, tier, now_ps, block, 1);
}

int
tier_servers_open(struct tiers *t, uint32_t number, const struct ofs_tier *config)
{
	struct tier *tier = &t->tiers[number];
	int rc = 0;

	tier->config = *config;
	tier->drives = calloc(config->drive_count + 1ull, sizeof(*tier->drives));
	tier->ends_ps = calloc(config->concurrency + 1ull, sizeof(*tier->ends_ps));
	if (tier->drives == NULL || tier->ends_ps == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; rc == 0 && i < config->drive_count; i++)
		rc = ofs_nvme_model_open(&tier->drives[i], &config->drive,
			t->config.seed + number * 1024ull + i);
	return rc;
}

void
tier_servers_reset(struct tier *tier)
{
	for (uint32_t i = 0; i < tier->config.drive_count; i++)
		ofs_nvme_model_reset(tier->drives[i]);
	memset(tier->ends_ps, 0, tier->config.concurrency * sizeof(*tier->ends_ps));
	memset(&tier->stats, 0, sizeof(tier->stats));
	tier->read_free_ps = tier->write_free_ps = tier->turn = 0;
}

void
tier_servers_close(struct tier *tier)
{
	for (uint32_t i = 0; tier->drives && i < tier->config.drive_count; i++)
		if (tier->drives[i])
			ofs_nvme_model_close(tier->drives[i]);
	free(tier->drives);
	free(tier->ends_ps);
}
