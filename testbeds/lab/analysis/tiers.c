/*
 * tiers.c: the side of timing.h, and whose wait it was.
 *
 * Model: a layer waits from its command to the hit that hands its blocks over. The hit comes when
 * the last block has; so the wait is that of the tier whose read ended then. A wait that no read
 * ended, for a free slot say, is no tier's.
 */
#include <stdlib.h>

#include "tiers.h"

#define PS_PER_NS 1000
#define NONE UINT64_MAX
#define CONCURRENCY_MAX (1u << 20)
#define TIME_MAX_PS 1000000000000000ull /* 1000 s: no sum of them wraps */

static uint64_t
up_to_ns(uint64_t time_ps)
{
	return (time_ps + PS_PER_NS - 1) / PS_PER_NS;
}

static uint32_t
block_of(const struct tiers *t, const struct ofs_timing_request *request)
{
	uint64_t block = (uint64_t)request->layer * t->config.chunk_max + request->chunk;

	return block < t->block_count ? (uint32_t)block : t->block_count - 1;
}

/* Reads that have ended by now. */
static void
arrive(struct tiers *t, uint64_t now_ns)
{
	while (t->arrival_count && t->arrivals[0].key.first <= now_ns) {
		struct tier_arrival moved = t->arrivals[--t->arrival_count];

		t->arrived_ns = t->arrivals[0].key.first;
		t->arrived_tier = t->arrivals[0].tier;
		if (t->arrival_count)
			ofs_heap_down(t->arrivals, sizeof(moved), t->arrival_count, 0, &moved, NULL, NULL);
	}
}

static void
expect(struct tiers *t, uint64_t end_ns, uint32_t tier)
{
	struct tier_arrival arrival = {{end_ns, t->sequence++}, tier, 0};

	if (t->arrival_count < t->config.in_flight_max)
		ofs_heap_up(t->arrivals, sizeof(arrival), t->arrival_count++, &arrival, NULL, NULL);
}

static uint64_t
tiers_read(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	struct tiers *t = (struct tiers *)timing;
	uint32_t block = block_of(t, request), tier = tier_found(t, block);
	uint64_t end_ps = tier_read(t, tier, now_ps, block), now_ns = now_ps / PS_PER_NS;
	struct ofs_tier_stats *stats = &t->tiers[tier].stats;
	uint64_t took_ns = up_to_ns(end_ps) - now_ns;

	stats->reads++;
	stats->demand_reads += request->cause == OFS_CAUSE_DEMAND;
	stats->read_ns += took_ns;
	if (took_ns > stats->read_ns_max)
		stats->read_ns_max = took_ns;
	arrive(t, now_ns);
	expect(t, up_to_ns(end_ps), tier);
	tier_used(t, now_ps, now_ns, block);
	return end_ps;
}

static uint64_t
tiers_write(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	struct tiers *t = (struct tiers *)timing;

	return tier_place(t, now_ps, now_ps / PS_PER_NS, block_of(t, request));
}

static uint64_t
tiers_hit(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	struct tiers *t = (struct tiers *)timing;
	uint64_t now_ns = now_ps / PS_PER_NS, stall_ns = 0;

	arrive(t, now_ns);
	if (request->session < t->config.session_max && t->need_ns[request->session] != NONE) {
		stall_ns = now_ns - t->need_ns[request->session];
		t->need_ns[request->session] = NONE;
	}
	if (stall_ns && t->arrived_ns == now_ns)
		t->tiers[t->arrived_tier].stats.stall_ns += stall_ns;
	else
		t->stall_ns += stall_ns;
	return now_ps + t->config.hit_ps;
}

static uint64_t
tiers_command(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	struct tiers *t = (struct tiers *)timing;

	arrive(t, now_ps / PS_PER_NS);
	/* One that is asked again waits since it was first; one without demands waits for nothing. */
	if (request->session < t->config.session_max && request->count
		&& t->need_ns[request->session] == NONE)
		t->need_ns[request->session] = now_ps / PS_PER_NS;
	return now_ps + t->config.command_ps;
}

static uint64_t
tiers_next_ps(const struct ofs_timing *timing)
{
	(void)timing;
	return OFS_TIMING_LATER;
}

static int
tiers_poll(struct ofs_timing *timing, uint64_t now_ps, struct ofs_timing_end *ends, int max)
{
	(void)timing;
	(void)now_ps;
	(void)ends;
	(void)max;
	return 0;
}

static void
tiers_reset(struct ofs_timing *timing)
{
	struct tiers *t = (struct tiers *)timing;

	for (uint32_t tier = 0; tier < t->config.tier_count; tier++)
		tier_servers_reset(&t->tiers[tier]);
	tier_blocks_reset(t);
	for (uint32_t session = 0; session < t->config.session_max; session++)
		t->need_ns[session] = NONE;
	t->arrival_count = 0;
	t->sequence = t->stall_ns = 0;
	t->arrived_ns = NONE;
}

void
ofs_tiers_close(struct ofs_timing *timing)
{
	struct tiers *t = (struct tiers *)timing;

	for (uint32_t tier = 0; tier < OFS_TIERS_MAX; tier++)
		tier_servers_close(&t->tiers[tier]);
	free(t->links);
	free(t->top);
	free(t->last_ns);
	free(t->need_ns);
	free(t->arrivals);
	free(t);
}

static const struct ofs_timing_ops ops = {
	.name = "tiers",
	.version = OFS_TIMING_VERSION,
	.read = tiers_read,
	.write = tiers_write,
	.hit = tiers_hit,
	.command = tiers_command,
	.next_ps = tiers_next_ps,
	.poll = tiers_poll,
	.reset = tiers_reset,
	.close = ofs_tiers_close,
};

static int
is_in_range(const struct ofs_tiers_config *config, const struct ofs_tier *tiers)
{
	uint64_t blocks = (uint64_t)config->chunk_max * config->layer_count;

	if (config->tier_count == 0 || config->tier_count > OFS_TIERS_MAX || blocks == 0
		|| blocks >= UINT32_MAX - OFS_TIERS_MAX || config->session_max == 0
		|| config->in_flight_max == 0 || config->block_size_bytes == 0
		|| config->hit_ps > TIME_MAX_PS || config->command_ps > TIME_MAX_PS)
		return 0;
	for (uint32_t i = 0; i < config->tier_count; i++)
		if (tiers[i].capacity_blocks == 0 || tiers[i].concurrency > CONCURRENCY_MAX
			|| tiers[i].drive_count > OFS_TIERS_DRIVES_MAX
			|| (tiers[i].drive_count && (tiers[i].concurrency || tiers[i].drive.scheduled))
			|| tiers[i].latency_ps > TIME_MAX_PS || tiers[i].read_ps > TIME_MAX_PS
			|| tiers[i].write_ps > TIME_MAX_PS
			|| (i && tiers[i].capacity_blocks < tiers[i - 1].capacity_blocks))
			return 0;
	return 1;
}

int
ofs_tiers_open(struct ofs_timing **out, const struct ofs_tiers_config *config,
	const struct ofs_tier *tiers)
{
	struct tiers *t;
	int rc = 0;

	*out = NULL;
	if (!is_in_range(config, tiers))
		return -EINVAL;
	t = calloc(1, sizeof(*t));
	if (t == NULL)
		return -ENOMEM;
	t->base = (struct ofs_timing){.ops = &ops, .in_flight_max = UINT32_MAX};
	t->config = *config;
	t->last = config->tier_count - 1;
	t->block_count = config->chunk_max * config->layer_count;
	t->need_ns = malloc(config->session_max * sizeof(*t->need_ns));
	t->arrivals = malloc(config->in_flight_max * sizeof(*t->arrivals));
	if (t->need_ns == NULL || t->arrivals == NULL)
		rc = -ENOMEM;
	for (uint32_t i = 0; rc == 0 && i < config->tier_count; i++)
		rc = tier_servers_open(t, i, &tiers[i]);
	if (rc == 0)
		rc = tier_blocks_open(t);
	if (rc) {
		ofs_tiers_close(&t->base);
		return rc;
	}
	tiers_reset(&t->base);
	*out = &t->base;
	return 0;
}

int
ofs_tiers_fill(struct ofs_timing *timing, uint64_t now_ns, uint32_t count, const uint32_t *chunks)
{
	struct tiers *t = (struct tiers *)timing;

	for (uint32_t i = 0; i < count; i++) {
		if (chunks[i] >= t->config.chunk_max)
			return -EINVAL;
		for (uint32_t layer = 0; layer < t->config.layer_count; layer++) {
			uint32_t block = layer * t->config.chunk_max + chunks[i];

			if (t->top[block] == OFS_TIERS_NOWHERE)
				(void)tier_place(t, TIER_UNTIMED, now_ns, block);
		}
	}
	return 0;
}

uint32_t
ofs_tiers_where(const struct ofs_timing *timing, uint32_t chunk, uint32_t layer)
{
	const struct tiers *t = (const struct tiers *)timing;

	return t->top[layer * t->config.chunk_max + chunk];
}

void
ofs_tiers_stats(const struct ofs_timing *timing, uint32_t tier, struct ofs_tier_stats *stats)
{
	const struct tiers *t = (const struct tiers *)timing;

	if (tier < t->config.tier_count)
		*stats = t->tiers[tier].stats;
	else
		*stats = (struct ofs_tier_stats){.stall_ns = t->stall_ns};
}
