/* Does every read end beside a stream, does the stream end, and is nonsense refused? */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "drive.h"
#include "ofs_stream.h"

#define BLOCK 4096
#define PIECE 16384
#define READS 3000
#define OWED 24

static uint32_t
draw(uint64_t *state, uint32_t below)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((*state >> 33) % below);
}

static struct ofs_stream_config
config_of(int scheduled)
{
	struct ofs_stream_config config = {.drive = test_drive,
		.bytes = 1000 * PIECE + 777,
		.begin_ps = 5000000,
		.floor_bytes_per_s = 100000000,
		.cap_bytes_per_s = 900000000,
		.in_flight_bytes = 2 * PIECE,
		.kv_weight = 3,
		.piece_bytes = PIECE,
		.in_flight_max = OWED};

	config.drive.scheduled = (uint32_t)scheduled;
	config.drive.read_command_ps = config.drive.program_command_ps = 300000;
	return config;
}

/* All ends up to now, each once and not before it was asked. */
static int
take(struct ofs_timing *timing, uint64_t now_ps, uint64_t *asked_ps)
{
	struct ofs_timing_end ends[OWED];
	int count = timing->ops->poll(timing, now_ps, ends, OWED);

	for (int i = 0; i < count; i++) {
		assert(asked_ps[ends[i].tag] != 0 && asked_ps[ends[i].tag] <= ends[i].end_ps);
		assert(ends[i].end_ps <= now_ps && (i == 0 || ends[i - 1].end_ps <= ends[i].end_ps));
		asked_ps[ends[i].tag] = 0;
	}
	return count;
}

static void
test_whatever_comes(int scheduled, uint64_t seed)
{
	struct ofs_stream_config config = config_of(scheduled);
	static uint64_t asked_ps[READS];
	struct ofs_stream_stats stats;
	struct ofs_timing *timing;
	uint64_t now_ps = 1;
	int owed = 0, rc = ofs_stream_open(&timing, &config);

	assert(rc == 0);
	for (uint64_t tag = 0; tag < READS;) {
		uint64_t next_ps = timing->ops->next_ps(timing);

		now_ps += draw(&seed, 3) * (uint64_t)draw(&seed, 3000000);
		if (next_ps != OFS_TIMING_LATER && next_ps > now_ps && owed == OWED)
			now_ps = next_ps;
		owed -= take(timing, now_ps, asked_ps);
		if (owed < OWED) {
			struct ofs_timing_request request = {.tag = tag,
				.offset_bytes = (uint64_t)draw(&seed, 4096) * BLOCK,
				.deadline_ps = draw(&seed, 2) ? 0 : now_ps + draw(&seed, 4000000),
				.size_bytes = BLOCK,
				.count = 1};

			asked_ps[tag++] = now_ps;
			owed++;
			assert(timing->ops->read(timing, now_ps, &request) == OFS_TIMING_LATER);
		}
	}
	while ((now_ps = timing->ops->next_ps(timing)) != OFS_TIMING_LATER)
		owed -= take(timing, now_ps, asked_ps);
	assert(owed == 0);
	ofs_stream_finish(timing);
	ofs_stream_stats(timing, &stats);
	assert(stats.read_bytes == config.bytes && stats.floor_bytes <= stats.read_bytes);
	timing->ops->reset(timing);
	ofs_stream_stats(timing, &stats);
	assert(stats.read_bytes == 0 && timing->ops->next_ps(timing) == OFS_TIMING_LATER);
	ofs_stream_close(timing);
}

static void
test_refusals(void)
{
	struct ofs_stream_config good = config_of(0), bad[6] = {good, good, good, good, good, good};
	struct ofs_timing *timing;

	bad[0].in_flight_bytes = PIECE - 1; /* no room for a piece */
	bad[1].piece_bytes = 0;
	bad[2].kv_weight = 0;
	bad[3].cap_bytes_per_s = good.floor_bytes_per_s - 1;
	bad[4].in_flight_max = 0;
	bad[5].drive.channel_count = 0;
	for (int i = 0; i < 6; i++)
		assert(ofs_stream_open(&timing, &bad[i]) == -EINVAL && timing == NULL);
}

int
main(void)
{
	test_refusals();
	for (uint64_t seed = 1; seed <= 4; seed++)
		test_whatever_comes(seed % 2 == 0, seed);
	return 0;
}
