/*
 * Checks that every request ends exactly once despite blocking, drops, joins and waits, and that
 * the counters agree; that batches, polls and a reset change nothing; and that contradictory
 * configurations are refused.
 */
#include "scenario.h"
#include <errno.h>

static struct ofs_chip_request requests[SCENARIO_REQUESTS];

/* Invariants of every unit and route when nothing is inside. */
static void
check_empty(struct ofs_chip *chip, uint64_t fed)
{
	static struct ofs_chip_unit_stats stats;
	static struct ofs_chip_route_stats route;
	struct ofs_chip_figures figures;
	uint64_t ended = 0, area, busy;

	ofs_chip_figures(chip, &figures);
	assert(figures.inside == 0 && figures.taken == fed && figures.ended == fed);
	for (uint32_t i = 0; i < SCENARIO_UNITS; i++) {
		ofs_chip_unit_stats(chip, i, &stats);
		assert(stats.present == 0 && stats.waiting == 0);
		assert(stats.arrivals == stats.departures && stats.time.count == stats.arrivals);
		assert(stats.wait.count == stats.arrivals && stats.wait.sum <= stats.time.sum);
		/* Little's law, exactly: the integral of occupancy is the sum of the visits' times. */
		assert(stats.area_hi == 0 && stats.area_lo == stats.time.sum);
		area = busy = 0;
		for (uint32_t bin = 0; bin < OFS_CHIP_BINS; bin++) {
			area += stats.area_bins[bin];
			busy += stats.busy_bins[bin];
		}
		assert(area == stats.area_lo && busy == stats.busy_ps);
		if (scenario_units[i].servers)
			assert(stats.busy_ps <= figures.now_ps * scenario_units[i].servers);
		assert(stats.waiting_max <= scenario_units[i].queue_max);
		assert(stats.dropped == 0 || scenario_units[i].drops);
	}
	for (uint32_t i = 0; i < 4; i++) {
		ofs_chip_route_stats(chip, i, &route);
		assert(route.ended == route.latency.count + route.dropped);
		ended += route.ended;
	}
	assert(ended == fed);
}

static uint64_t
run_whole(struct ofs_chip *chip)
{
	struct ofs_chip_figures figures;

	assert(ofs_chip_feed(chip, requests, SCENARIO_REQUESTS) == 0);
	assert(ofs_chip_run(chip, OFS_CHIP_NEVER) == 0);
	check_empty(chip, SCENARIO_REQUESTS);
	ofs_chip_figures(chip, &figures);
	return figures.hash;
}

static void
test_all_end_once_and_alike(uint64_t seed)
{
	struct ofs_chip *chip = scenario_open(seed);
	struct ofs_chip_visit visits[64];
	struct ofs_chip_figures figures;
	uint64_t hash, batch = 0, sampled = 0;
	int count;

	scenario_requests(requests, seed);
	hash = run_whole(chip);
	while ((count = ofs_chip_poll_visits(chip, visits, 64)) > 0)
		for (int i = 0; i < count; i++, sampled++)
			assert(visits[i].tag % 100 == 0 && visits[i].enter_ps <= visits[i].begin_ps
				&& visits[i].begin_ps <= visits[i].done_ps
				&& visits[i].done_ps <= visits[i].leave_ps);
	assert(sampled > SCENARIO_REQUESTS / 100);

	/* After a reset, in batches; in between, time is half way to the next request. */
	ofs_chip_reset(chip);
	for (uint64_t i = 0; i < SCENARIO_REQUESTS; i += batch) {
		uint64_t last_ps, next_ps;

		batch = 1 + scenario_draw(seed, i) % 700;
		batch = batch < SCENARIO_REQUESTS - i ? batch : SCENARIO_REQUESTS - i;
		last_ps = next_ps = requests[i + batch - 1].at_ps;
		if (i + batch < SCENARIO_REQUESTS)
			next_ps = requests[i + batch].at_ps;
		assert(ofs_chip_feed(chip, requests + i, batch) == 0);
		assert(ofs_chip_run(chip, last_ps + (next_ps - last_ps) / 2) == 0);
		while (ofs_chip_fed(chip)) /* those that found no room inside */
			assert(ofs_chip_run(chip, next_ps += 100000) == 0);
	}
	assert(ofs_chip_run(chip, OFS_CHIP_NEVER) == 0);
	ofs_chip_figures(chip, &figures);
	assert(figures.hash == hash && figures.ended == SCENARIO_REQUESTS);
	ofs_chip_close(chip);
}

/* A chip of one unit as the test changed it. */
static int
open_one(struct ofs_chip **chip, const struct ofs_chip_unit *unit, char why[OFS_CHIP_WHY])
{
	static const struct ofs_chip_stage stage = {.next = OFS_CHIP_END, .miss = OFS_CHIP_END};
	static const uint32_t route;
	struct ofs_chip_config config = {.units = unit,
		.stages = &stage,
		.routes = &route,
		.unit_count = 1,
		.stage_count = 1,
		.route_count = 1,
		.in_flight_max = 4,
		.end_max = 2,
		.bin_ps = 1};

	return ofs_chip_open(chip, &config, why);
}

static void
test_what_open_refuses(void)
{
	static const struct {
		struct ofs_chip_unit unit;
		const char *says;
	} wrong[] = {
		{{.name = "u"}, "servers"},
		{{.name = "", .servers = 1}, "name"},
		{{.name = "u", .servers = 1, .kind = OFS_CHIP_KIND_COUNT}, "kind"},
		{{.name = "u", .servers = 1, .queue = OFS_CHIP_QUEUE_COUNT}, "queue"},
		{{.name = "u", .servers = 1, .queue = OFS_CHIP_QUEUE_QOS}, "tenants"},
		{{.name = "u", .servers = 1, .way_count = 2}, "sets"},
		{{.name = "u", .servers = 1, .kind = OFS_CHIP_KIND_TAGS, .set_count = 3, .way_count = 1},
			"power of two"},
		{{.name = "u", .servers = 65, .kind = OFS_CHIP_KIND_BANKS}, "banks"},
		{{.name = "u", .kind = OFS_CHIP_KIND_DRIVE}, "drive"},
		{{.name = "u", .servers = 1, .mib_ps = UINT64_MAX}, "range"},
		{{.name = "u", .servers = 1, .load_row_count = 1}, "span"},
		{{.name = "u",
			 .servers = 1,
			 .load_row_count = 1,
			 .load_span_ps = 100000,
			 .load_rows = {{0, 0, 5, 4, 6, 7, 8}}},
			"rise"},
	};
	struct ofs_chip *chip;
	char why[OFS_CHIP_WHY];

	for (uint32_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert(open_one(&chip, &wrong[i].unit, why) == -EINVAL && chip == NULL);
		assert(strstr(why, wrong[i].says) != NULL);
	}
}

/* A bounded ring of ends stops the run until they are polled; requests are checked when fed. */
static void
test_ends_are_polled_and_requests_checked(void)
{
	static const struct ofs_chip_unit unit = {.name = "u", .servers = 1, .fixed_ps = 7};
	struct ofs_chip_request some[5] = {{.tag = 9}};
	struct ofs_chip_done ends[4];
	struct ofs_chip *chip;
	char why[OFS_CHIP_WHY];

	assert(open_one(&chip, &unit, why) == 0);
	assert(ofs_chip_feed(chip, some, 5) == 0 && ofs_chip_feed(chip, some, 1) == -EBUSY);
	assert(ofs_chip_run(chip, OFS_CHIP_NEVER) == 1 && ofs_chip_fed(chip) == 0);
	assert(ofs_chip_poll(chip, ends, 4) == 2 && ends[0].tag == 9 && ends[1].end_ps == 14);
	assert(ofs_chip_run(chip, OFS_CHIP_NEVER) == 1 && ofs_chip_poll(chip, ends, 4) == 2);
	assert(ofs_chip_run(chip, OFS_CHIP_NEVER) == 0 && ofs_chip_poll(chip, ends, 4) == 1);
	assert(ends[0].end_ps == 35 && ends[0].dropped == OFS_NONE);
	assert(ofs_chip_feed(chip, some, 1) == -EINVAL); /* before now */
	some[0].at_ps = 35;
	some[0].route = 1;
	assert(ofs_chip_feed(chip, some, 1) == -EINVAL);
	ofs_chip_close(chip);
}

int
main(void)
{
	test_what_open_refuses();
	test_ends_are_polled_and_requests_checked();
	for (uint64_t seed = 1; seed <= 3; seed++)
		test_all_end_once_and_alike(seed);
	return 0;
}
