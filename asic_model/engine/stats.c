/*
 * stats.c: the chip's counters and their readers: bins over time, visits of sampled requests, the
 * figures of units and routes, and the cause of a deadlock.
 *
 * Model: the bins of all units have one width; when a time lies behind the last bin, the width
 * doubles and neighbouring bins are added. Nothing here can fail.
 */
#include <errno.h>
#include <string.h>

#include "internal.h"

/* Widens the bins until until_ps lies in one of them. */
static void
fold(struct ofs_chip *chip, uint64_t until_ps)
{
	while (until_ps >= chip->bins_end_ps) {
		for (uint32_t i = 0; i < chip->config.unit_count; i++) {
			uint64_t *kinds[] = {chip->units[i].stats.area_bins, chip->units[i].stats.busy_bins};

			for (uint32_t kind = 0; kind < 2; kind++) {
				uint64_t *bins = kinds[kind];

				for (uint32_t bin = 0; bin < OFS_CHIP_BINS / 2; bin++)
					bins[bin] = bins[2 * bin] + bins[2 * bin + 1];
				memset(bins + OFS_CHIP_BINS / 2, 0, OFS_CHIP_BINS / 2 * sizeof(*bins));
			}
		}
		chip->bin_shift++;
		chip->bins_end_ps *= 2;
	}
}

void
ofs_chip_bins_add(struct ofs_chip *chip, uint64_t *bins, uint64_t from_ps, uint64_t to_ps,
	uint64_t weight)
{
	fold(chip, to_ps);
	while (from_ps < to_ps) {
		uint64_t bin = from_ps >> chip->bin_shift;
		uint64_t end_ps = (bin + 1) << chip->bin_shift;

		end_ps = end_ps < to_ps ? end_ps : to_ps;
		bins[bin] += (end_ps - from_ps) * weight;
		from_ps = end_ps;
	}
}

/* A sampled flight leaves the unit or, with OFS_NONE, the queue outside. */
void
ofs_chip_log_visit(struct ofs_chip *chip, const struct chip_flight *flight, uint32_t unit)
{
	uint32_t slot;

	if (chip->visit_count == chip->config.visit_max) {
		chip->figures.visits_lost++;
		return;
	}
	slot = (chip->visit_head + chip->visit_count++) % chip->config.visit_max;
	chip->visits[slot] = (struct ofs_chip_visit){flight->tag, flight->enter_ps, flight->begin_ps,
		flight->done_ps, chip->now_ps, unit, flight->stage};
	if (unit == OFS_NONE) {
		chip->visits[slot].enter_ps = flight->at_ps;
		chip->visits[slot].begin_ps = chip->visits[slot].done_ps = chip->now_ps;
	}
}

int
ofs_chip_poll(struct ofs_chip *chip, struct ofs_chip_done *ends, int max)
{
	int count = 0;

	for (; count < max && chip->end_count; count++, chip->end_count--) {
		ends[count] = chip->ends[chip->end_head];
		chip->end_head = chip->end_head + 1 == chip->config.end_max ? 0 : chip->end_head + 1;
	}
	return count;
}

int
ofs_chip_poll_visits(struct ofs_chip *chip, struct ofs_chip_visit *visits, int max)
{
	int count = 0;

	for (; count < max && chip->visit_count; count++, chip->visit_count--) {
		visits[count] = chip->visits[chip->visit_head];
		chip->visit_head =
			chip->visit_head + 1 == chip->config.visit_max ? 0 : chip->visit_head + 1;
	}
	return count;
}

void
ofs_chip_figures(const struct ofs_chip *chip, struct ofs_chip_figures *figures)
{
	*figures = chip->figures;
	figures->now_ps = chip->now_ps;
	figures->bin_ps = 1ull << chip->bin_shift;
}

void
ofs_chip_unit_stats(struct ofs_chip *chip, uint32_t number, struct ofs_chip_unit_stats *stats)
{
	struct chip_unit *unit = &chip->units[number];

	unsigned __int128 area = 0;

	fold(chip, chip->now_ps);
	chip_count(chip, unit);
	*stats = unit->stats;
	for (uint32_t i = 0; i < OFS_CHIP_BINS; i++)
		area += stats->area_bins[i];
	stats->waiting = unit->waiting;
	stats->area_lo = (uint64_t)area;
	stats->area_hi = (uint64_t)(area >> 64);
	if (unit->hold == CHIP_HOLD_NOTHING && unit->in_flight) {
		stats->busy_ps += chip->now_ps - unit->begun_ps;
		ofs_chip_bins_add(chip, stats->busy_bins, unit->begun_ps, chip->now_ps, 1);
	}
}

int
ofs_chip_tenant_stats(const struct ofs_chip *chip, uint32_t unit, uint32_t tenant,
	struct ofs_qos_stats *stats)
{
	const struct chip_unit *of = &chip->units[unit];

	if (of->qos == NULL || tenant >= of->qos_config.tenant_count)
		return -EINVAL;
	ofs_qos_stats(of->qos, tenant, stats);
	return 0;
}

int
ofs_chip_session_stats(const struct ofs_chip *chip, uint32_t unit, uint32_t entry,
	struct ofs_qos_session_stats *stats)
{
	const struct chip_unit *of = &chip->units[unit];

	return of->qos == NULL ? -EINVAL : ofs_qos_session_stats(of->qos, entry, stats);
}

void
ofs_chip_route_stats(const struct ofs_chip *chip, uint32_t route,
	struct ofs_chip_route_stats *stats)
{
	*stats = chip->route_stats[route];
}

/* A unit that `unit` waits for, because one of its flights is in front of it; or OFS_NONE. */
static uint32_t
waits_for(const struct ofs_chip *chip, uint32_t unit)
{
	for (uint32_t i = 0; i < chip->config.unit_count; i++)
		for (uint32_t at = chip->units[i].blocked.head; at != OFS_NONE; at = chip->flights[at].link)
			if (chip->flights[at].stage != OFS_NONE
				&& chip->stages[chip->flights[at].stage].unit == unit)
				return i;
	return OFS_NONE;
}

int
ofs_chip_stuck(const struct ofs_chip *chip, uint32_t units[OFS_CHIP_UNITS_MAX], int *cycle)
{
	uint64_t seen;
	uint32_t at;
	int count = 0;

	for (uint32_t first = 0; first < chip->config.unit_count; first++) {
		/* The walk has returned to a unit, so it is in a cycle: walk it once more from there. */
		seen = 0;
		for (at = first; at != OFS_NONE && !(seen >> at & 1); at = waits_for(chip, at))
			seen |= 1ull << at;
		if (at == OFS_NONE)
			continue;
		*cycle = 1;
		for (first = at; count == 0 || at != first; at = waits_for(chip, at))
			units[count++] = at;
		return count;
	}
	*cycle = 0;
	for (at = 0; at < chip->config.unit_count; at++)
		if (chip->units[at].waiting || chip->units[at].blocked.head != OFS_NONE)
			units[count++] = at;
	return count;
}
