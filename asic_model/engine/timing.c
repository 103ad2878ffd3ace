/*
 * timing.c: a chip as a side of timing.h.
 *
 * Model: a read, a write, a hit and a command are four routes. Every end is delivered later, by
 * poll, because a later request may overtake. A request enters at its submission time, after all
 * earlier events. A command looks up the blocks that it names, on arrival, since names are not kept
 * while it waits; one that names none looks up the first so many of its session and layer. A hit
 * follows its command, which has just looked its blocks up, so it finds them. A write looks up its
 * block. A session beyond a qos queue's table is passed without a number and
 * counted. The caller has at most in_flight_max requests outstanding, so neither flights nor ends
 * run out. A stuck chip has requests that never end; ofs_chip_run returns -EDEADLK.
 */
#include <errno.h>

#include "internal.h"

/* Overtaking order where a unit serves by priority: demand, prefetch, then writes. */
enum { URGENT = 0, GUESSED = 2, WRITTEN = 3 };
/* The request's route. */
enum { READ, WRITE, HIT, COMMAND };

static uint32_t
least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* The request's `looked`. */
static uint32_t
look(struct ofs_chip *chip, const struct ofs_timing_request *request, uint32_t kind, uint64_t key)
{
	const struct ofs_chip_stage *stage;
	struct chip_unit *unit;

	if (chip->timing_look == OFS_NONE)
		return 0;
	stage = &chip->stages[chip->timing_look];
	unit = &chip->units[stage->unit];
	if (kind == HIT) {
		unit->stats.hits += (uint64_t)request->count * stage->keys;
		return 1;
	}
	if (kind != COMMAND || request->blocks == NULL)
		return 0;
	return 1 + ofs_chip_unit_look(unit, stage, key, request->blocks, request->count);
}

static uint64_t
ask(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request,
	uint32_t kind, uint32_t priority)
{
	struct ofs_chip *chip = (struct ofs_chip *)timing;
	struct ofs_chip_request asked = {.tag = request->tag,
		.at_ps = now_ps,
		.key = kind == HIT || kind == COMMAND ? chip_draw(request->session, request->layer, 1)
											  : request->offset_bytes,
		.offset_bytes = request->offset_bytes,
		.size_bytes = (uint64_t)request->size_bytes * request->count,
		.deadline_ps = request->deadline_ps,
		.count = request->count,
		.score_count = request->score_count,
		.route = chip->timing_routes[kind],
		.priority = priority,
		.tenant = least(request->tenant, chip->tenant_count - 1),
		.session = request->session < chip->session_count ? request->session : OFS_QOS_NO_SESSION,
		.layer = request->layer};

	ofs_chip_run(chip, now_ps);
	asked.looked = look(chip, request, kind, asked.key);
	ofs_chip_arrive(chip, &asked);
	return OFS_TIMING_LATER;
}

static uint64_t
chip_read(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	int waits = request->cause == OFS_CAUSE_DEMAND || request->deadline_ps <= now_ps;

	return ask(timing, now_ps, request, READ, waits ? URGENT : GUESSED);
}

static uint64_t
chip_write(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	return ask(timing, now_ps, request, WRITE, WRITTEN);
}

static uint64_t
chip_hit(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	return ask(timing, now_ps, request, HIT, URGENT);
}

static uint64_t
chip_command(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	return ask(timing, now_ps, request, COMMAND, URGENT);
}

static uint64_t
chip_next_ps(const struct ofs_timing *timing)
{
	const struct ofs_chip *chip = (const struct ofs_chip *)timing;

	if (chip->end_count)
		return chip->ends[chip->end_head].end_ps;
	return ofs_chip_next_ps(chip);
}

static int
chip_poll(struct ofs_timing *timing, uint64_t now_ps, struct ofs_timing_end *ends, int max)
{
	struct ofs_chip *chip = (struct ofs_chip *)timing;
	struct ofs_chip_done done;
	int count = 0;

	ofs_chip_run(chip, now_ps);
	while (count < max && ofs_chip_poll(chip, &done, 1))
		ends[count++] = (struct ofs_timing_end){done.tag, done.end_ps};
	return count;
}

static void
chip_reset(struct ofs_timing *timing)
{
	ofs_chip_reset((struct ofs_chip *)timing);
}

static void
chip_close(struct ofs_timing *timing)
{
	ofs_chip_close((struct ofs_chip *)timing);
}

static const struct ofs_timing_ops ops = {
	.name = "chip",
	.version = OFS_TIMING_VERSION,
	.read = chip_read,
	.write = chip_write,
	.hit = chip_hit,
	.command = chip_command,
	.next_ps = chip_next_ps,
	.poll = chip_poll,
	.reset = chip_reset,
	.close = chip_close,
};

int
ofs_chip_timing(struct ofs_timing **out, struct ofs_chip *chip, const uint32_t routes[4])
{
	*out = NULL;
	if (chip->config.end_max < chip->config.in_flight_max)
		return -EINVAL;
	for (uint32_t i = 0; i < 4; i++) {
		if (routes[i] >= chip->config.route_count)
			return -EINVAL;
		chip->timing_routes[i] = routes[i];
	}
	chip->timing_look = OFS_NONE;
	for (uint32_t i = chip->routes[routes[COMMAND]]; i != OFS_CHIP_END; i = chip->stages[i].next)
		if (chip->units[chip->stages[i].unit].tags && chip->stages[i].keys
			&& chip->stages[i].items == OFS_CHIP_ITEMS_BLOCKS)
			chip->timing_look = i;
	chip->base = (struct ofs_timing){.ops = &ops, .in_flight_max = chip->config.in_flight_max};
	*out = &chip->base;
	return 0;
}
