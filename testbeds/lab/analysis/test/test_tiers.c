/* Do the tiers stay in their tables, keep their books, and refuse nonsense? */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "drive.h"
#include "ofs_tiers.h"

#define CHUNKS 40
#define LAYERS 3
#define TIERS 4
#define ASKED 4000
#define PS_PER_NS 1000

static uint32_t
draw(uint64_t *state, uint32_t below)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((*state >> 33) % below);
}

static struct ofs_tiers_config
config_of(uint32_t exclusive, uint32_t place_last)
{
	return (struct ofs_tiers_config){.tier_count = TIERS,
		.chunk_max = CHUNKS,
		.layer_count = LAYERS,
		.session_max = 2,
		.in_flight_max = 8,
		.block_size_bytes = 4096,
		.exclusive = exclusive,
		.place_last = place_last};
}

static void
tiers_make(struct ofs_tier *tiers)
{
	memset(tiers, 0, TIERS * sizeof(*tiers));
	tiers[0] = (struct ofs_tier){.capacity_blocks = 3, .promote_ns = 500, .read_ps = 70};
	tiers[1] = (struct ofs_tier){.capacity_blocks = 9,
		.promote_ns = 5000,
		.concurrency = 2,
		.latency_ps = 90000};
	tiers[2] = (struct ofs_tier){.capacity_blocks = 20, .promote_ns = UINT64_MAX, .drive_count = 2};
	tiers[3] = (struct ofs_tier){.capacity_blocks = 20, .latency_ps = 1u << 30};
	tiers[2].drive = test_drive;
}

/* All that was asked of it, and the books at the end. */
static void
books_kept(struct ofs_timing *timing, uint64_t reads, int exclusive)
{
	uint64_t served = 0, resident = 0, known = 0;

	for (uint32_t tier = 0; tier < TIERS; tier++) {
		struct ofs_tier_stats stats;

		ofs_tiers_stats(timing, tier, &stats);
		assert(stats.resident + stats.gone == stats.placed + stats.promoted + stats.demoted);
		assert(stats.demand_reads <= stats.reads);
		if (tier < 2)
			assert(stats.resident <= (tier ? 9 : 3));
		served += stats.reads;
		resident += stats.resident;
	}
	for (uint32_t block = 0; block < CHUNKS * LAYERS; block++)
		known += ofs_tiers_where(timing, block % CHUNKS, block / CHUNKS) != OFS_TIERS_NOWHERE;
	assert(served == reads);
	assert(exclusive ? resident == known : resident >= known);
}

static void
ask_at_random(struct ofs_timing *timing, uint64_t seed, int exclusive)
{
	const uint32_t first[] = {0, 7, 39};
	uint64_t now_ns = 0, reads = 0;

	assert(ofs_tiers_fill(timing, 0, 3, first) == 0);
	for (uint32_t i = 0; i < ASKED; i++) {
		struct ofs_timing_request request = {.session = draw(&seed, 3),
			.count = draw(&seed, 3),
			.cause = draw(&seed, 3),
			.layer = draw(&seed, LAYERS),
			.chunk = draw(&seed, 2) ? draw(&seed, 6) : draw(&seed, CHUNKS)};
		uint64_t now_ps = (now_ns += draw(&seed, 900)) * PS_PER_NS, end_ps;

		switch (draw(&seed, 5)) {
		case 0:
			end_ps = timing->ops->command(timing, now_ps, &request);
			break;
		case 1:
			end_ps = timing->ops->hit(timing, now_ps, &request);
			break;
		case 2:
			end_ps = timing->ops->write(timing, now_ps, &request);
			break;
		default:
			end_ps = timing->ops->read(timing, now_ps, &request);
			reads++;
		}
		assert(end_ps >= now_ps && end_ps != OFS_TIMING_LATER);
	}
	books_kept(timing, reads, exclusive);
}

static void
test_every_tier_keeps_its_books(void)
{
	struct ofs_tier tiers[TIERS];

	tiers_make(tiers);
	for (uint32_t way = 0; way < 4; way++) {
		struct ofs_tiers_config config = config_of(way & 1, way >> 1);
		struct ofs_timing *timing;

		assert(ofs_tiers_open(&timing, &config, tiers) == 0);
		for (uint64_t seed = 1; seed <= 4; seed++) {
			ask_at_random(timing, seed, way & 1);
			timing->ops->reset(timing);
		}
		timing->ops->close(timing);
	}
}

static void
test_nonsense_is_refused(void)
{
	struct ofs_tier tiers[TIERS];
	struct ofs_tiers_config config = config_of(0, 0);
	struct ofs_timing *timing;
	const uint32_t beyond = CHUNKS;

	tiers_make(tiers);
	config.tier_count = OFS_TIERS_MAX + 1;
	assert(ofs_tiers_open(&timing, &config, tiers) == -EINVAL && timing == NULL);
	config = config_of(0, 0);
	config.chunk_max = UINT32_MAX;
	assert(ofs_tiers_open(&timing, &config, tiers) == -EINVAL);
	config = config_of(0, 0);
	tiers[1].capacity_blocks = 2;
	assert(ofs_tiers_open(&timing, &config, tiers) == -EINVAL);
	tiers_make(tiers);
	tiers[2].drive.channel_count = 0; /* refused by the drive, when others are open */
	assert(ofs_tiers_open(&timing, &config, tiers) == -EINVAL);
	tiers_make(tiers);
	assert(ofs_tiers_open(&timing, &config, tiers) == 0);
	assert(ofs_tiers_fill(timing, 0, 1, &beyond) == -EINVAL);
	timing->ops->close(timing);
}

int
main(void)
{
	test_every_tier_keeps_its_books();
	test_nonsense_is_refused();
	return 0;
}
