/*
 * scenario.h: a small chip that exercises every feature, and requests for it.
 *
 * Model: for tests. A front end of one priority queue, tags with a miss stage, memories by banks
 * and by load, a shared link of credits with two tenants, a drive, and a codec that takes pieces.
 * Queues are short, so that units block each other. Requests are drawn from (seed, index) alone.
 */
#ifndef OFS_CHIP_SCENARIO_H
#define OFS_CHIP_SCENARIO_H

#include <assert.h>
#include <string.h>

#include "chip.h"
#include "drive.h"

#define SCENARIO_REQUESTS 20000u
#define KIB 1024u

enum { FRONT, TAGS, SPILL, MEMORY, BANKS, LINK, DRIVE, CODEC, GUESSES, WIRE, SCENARIO_UNITS };

static const struct ofs_qos_config scenario_qos = {.tenant_count = 2,
	.session_count = 4,
	.queue_max = 8,
	.session_max = 4,
	.quantum_bytes = 64 * KIB,
	.ahead_ps_max = 1000000000};
static const struct ofs_qos_tenant scenario_tenants[] = {{.weight = 3},
	{.weight = 1, .rate_bytes_per_s = 4000000000, .burst_bytes = 256 * KIB}};

static const struct ofs_chip_unit scenario_units[SCENARIO_UNITS] = {
	[FRONT] = {.name = "front",
		.kind = OFS_CHIP_KIND_PIPE,
		.queue = OFS_CHIP_QUEUE_PRIORITY,
		.servers = 1,
		.queue_max = 16,
		.fixed_ps = 2000,
		.item_ps = 150,
		.latency_ps = 90000},
	[TAGS] = {.name = "tags",
		.kind = OFS_CHIP_KIND_TAGS,
		.servers = 1,
		.queue_max = 4,
		.set_count = 64,
		.way_count = 4,
		.fixed_ps = 1000,
		.latency_ps = 3000},
	[SPILL] = {.name = "spill",
		.servers = 2,
		.queue_max = 2,
		.in_flight_max = 8,
		.fixed_ps = 4000,
		.load_span_ps = 1000000,
		.load_row_count = 2,
		.load_rows = {{100, 0, 40000, 45000, 60000, 90000, 120000},
			{900, 0, 80000, 120000, 300000, 700000, 900000}}},
	[MEMORY] = {.name = "memory",
		.servers = 4,
		.queue_max = 8,
		.mib_ps = 60000000,
		.load_span_ps = 100000000,
		.load_row_count = 1,
		.load_rows = {{0, 0, 50000, 60000, 90000, 200000, 200000}}},
	[BANKS] = {.name = "banks",
		.kind = OFS_CHIP_KIND_BANKS,
		.queue = OFS_CHIP_QUEUE_PRIORITY,
		.servers = 16,
		.queue_max = 12,
		.fixed_ps = 30000,
		.mib_ps = 200000000,
		.latency_ps = 15000},
	[LINK] = {.name = "link",
		.kind = OFS_CHIP_KIND_LINK,
		.queue = OFS_CHIP_QUEUE_QOS,
		.servers = 1,
		.queue_max = 12,
		.in_flight_max = 6,
		.mib_ps = 20000000,
		.latency_ps = 400000,
		.qos = &scenario_qos,
		.tenants = scenario_tenants},
	[DRIVE] = {.name = "drive", .kind = OFS_CHIP_KIND_DRIVE, .queue_max = 4, .in_flight_max = 32},
	[CODEC] =
		{.name = "codec", .servers = 3, .queue_max = 3, .fixed_ps = 20000, .mib_ps = 15000000},
	[GUESSES] = {.name = "guesses", .servers = 1, .queue_max = 4, .drops = 1, .fixed_ps = 700000},
	[WIRE] = {.name = "wire",
		.kind = OFS_CHIP_KIND_DELAY,
		.in_flight_max = 64,
		.queue_max = 8,
		.latency_ps = 250000},
};

#define NEXT(unit_, next_) .unit = (unit_), .next = (next_), .miss = (next_)
#define ALL .bytes_permille = 1000

static const struct ofs_chip_stage scenario_stages[] = {
	/* 0: a hit */
	{NEXT(FRONT, 1), .items = OFS_CHIP_ITEMS_BLOCKS},
	{.unit = TAGS, .next = 3, .miss = 2},
	{NEXT(SPILL, 3)},
	{NEXT(MEMORY, 4), ALL, .piece_bytes = 16 * KIB},
	{NEXT(CODEC, 5), ALL},
	{NEXT(LINK, 6), ALL, .join = 1},
	{NEXT(WIRE, OFS_CHIP_END)},
	/* 7: a read */
	{NEXT(FRONT, 8), .items = OFS_CHIP_ITEMS_SCORES},
	{NEXT(DRIVE, 9), ALL, .coded = 1},
	{NEXT(CODEC, 10), ALL, .coded = 1, .piece_bytes = 8 * KIB},
	{NEXT(BANKS, OFS_CHIP_END), ALL},
	/* 11: a write */
	{NEXT(LINK, 12), ALL},
	{NEXT(BANKS, 13), ALL, .piece_bytes = 32 * KIB},
	{NEXT(DRIVE, OFS_CHIP_END), .join = 1, .bytes_permille = 530, .write = 1},
	/* 14: a guess */
	{NEXT(GUESSES, 15)},
	{NEXT(TAGS, OFS_CHIP_END)},
};
static const uint32_t scenario_routes[] = {0, 7, 11, 14};

static inline uint64_t
scenario_draw(uint64_t seed, uint64_t index)
{
	return ofs_mix((seed << 32) + (index + 1) * 0x9e3779b97f4a7c15ull);
}

static inline void
scenario_requests(struct ofs_chip_request *requests, uint64_t seed)
{
	uint64_t at_ps = 0;

	for (uint32_t i = 0; i < SCENARIO_REQUESTS; i++) {
		uint64_t draw = scenario_draw(seed, i);
		uint32_t session = (uint32_t)(draw >> 8 & 3);

		at_ps += draw % 4 ? draw % 9000000 : 0;
		requests[i] = (struct ofs_chip_request){.tag = i,
			.at_ps = at_ps,
			.key = draw >> 16 & 1023,
			.offset_bytes = (draw >> 20 & 0xffff) * 64 * KIB,
			.size_bytes = ((draw >> 40 & 7) + 1) * 8 * KIB + (draw >> 43 & 1023),
			.coded_bytes = ((draw >> 40 & 7) + 1) * 5 * KIB,
			.deadline_ps = at_ps + (draw >> 33 & 0xffffff),
			.count = (uint32_t)(draw >> 50 & 15),
			.score_count = (uint32_t)(draw >> 54 & 255),
			.route = (uint32_t)(draw >> 62),
			.priority = (uint32_t)(draw >> 59 & 7),
			.tenant = session >> 1,
			.session = session};
	}
}

static inline struct ofs_chip *
scenario_open(uint64_t seed)
{
	struct ofs_chip_unit units[SCENARIO_UNITS];
	struct ofs_chip_config config = {.units = units,
		.stages = scenario_stages,
		.routes = scenario_routes,
		.unit_count = SCENARIO_UNITS,
		.stage_count = sizeof(scenario_stages) / sizeof(scenario_stages[0]),
		.route_count = 4,
		.in_flight_max = 256,
		.piece_max = 96,
		.visit_max = 4096,
		.sample_every = 100,
		.seed = seed,
		.bin_ps = 1000};
	struct ofs_chip *chip;
	char why[OFS_CHIP_WHY];

	memcpy(units, scenario_units, sizeof(units));
	units[DRIVE].drive = &test_drive;
	assert(ofs_chip_open(&chip, &config, why) == 0);
	return chip;
}

#endif
