/*
 * check.c: validates a configuration before a chip is opened. Every refusal is one line that names
 * the unit or the stage and what to change.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define PS_MAX (1ull << 50)      /* 1126 s: no sum of a visit's times wraps */
#define RATE_PS_MAX (1ull << 30) /* per item: times a 32-bit count */
#define MIB_PS_MAX (1ull << 40)  /* 1 MiB/s */
#define TAGS_MAX (1ull << 26)
#define FLIGHTS_MAX (1u << 24)
#define SPAN_MIN (1ull << 10)
#define SPAN_MAX (1ull << 44)

/* Returns -EINVAL, with the reason. */
__attribute__((format(printf, 2, 3))) static int
refuse(char why[OFS_CHIP_WHY], const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(why, OFS_CHIP_WHY, format, arguments);
	va_end(arguments);
	return -EINVAL;
}

static int
check_memory(const struct ofs_chip_unit *unit, char why[OFS_CHIP_WHY])
{
	uint32_t count = unit->load_row_count, load = 0;

	if (count == 0)
		return 0;
	if (count > OFS_CHIP_LOAD_ROWS)
		return refuse(why, "unit %s: %u load rows; at most %u", unit->name, count,
			OFS_CHIP_LOAD_ROWS);
	if (unit->kind != OFS_CHIP_KIND_SERVER && unit->kind != OFS_CHIP_KIND_BANKS)
		return refuse(why, "unit %s: load rows are for a server or banks", unit->name);
	if (unit->load_span_ps < SPAN_MIN || unit->load_span_ps > SPAN_MAX)
		return refuse(why, "unit %s: load_span_ps %llu; 1 ns to 17 s", unit->name,
			(unsigned long long)unit->load_span_ps);
	for (uint32_t i = 0; i < count; i++) {
		const struct ofs_chip_load *row = &unit->load_rows[i];

		if (i > 0 && row->load_permille <= load)
			return refuse(why, "unit %s: load row %u: the load must rise", unit->name, i);
		if (row->min_ps > row->p50_ps || row->p50_ps > row->p90_ps || row->p90_ps > row->p99_ps
			|| row->p99_ps > row->max_ps || row->max_ps > PS_MAX)
			return refuse(why, "unit %s: load row %u: its quantiles must rise", unit->name, i);
		load = row->load_permille;
	}
	return 0;
}

/* The fields that a kind needs, and those that it must not set. */
static int
check_kind(const struct ofs_chip_unit *unit, char why[OFS_CHIP_WHY])
{
	int drive = unit->kind == OFS_CHIP_KIND_DRIVE, tags = unit->kind == OFS_CHIP_KIND_TAGS;
	int endless = drive || unit->kind == OFS_CHIP_KIND_DELAY;

	if (!endless && (unit->servers == 0 || unit->servers > OFS_CHIP_SERVERS_MAX))
		return refuse(why, "unit %s: %u servers; 1 to %u", unit->name, unit->servers,
			OFS_CHIP_SERVERS_MAX);
	if (unit->kind == OFS_CHIP_KIND_BANKS && unit->servers > OFS_CHIP_BANKS_MAX)
		return refuse(why, "unit %s: %u banks; at most %u", unit->name, unit->servers,
			OFS_CHIP_BANKS_MAX);
	if (tags
		&& (unit->way_count == 0 || unit->set_count == 0
			|| (unit->set_count & (unit->set_count - 1)) != 0
			|| (uint64_t)unit->set_count * unit->way_count > TAGS_MAX))
		return refuse(why, "unit %s: %u sets of %u ways; a power of two of sets, a way or more",
			unit->name, unit->set_count, unit->way_count);
	if (!tags && (unit->set_count || unit->way_count))
		return refuse(why, "unit %s: sets and ways are for tags", unit->name);
	if (drive != (unit->drive != NULL))
		return refuse(why, "unit %s: a drive, and only that, has drive parameters", unit->name);
	if (drive && (unit->in_flight_max == 0 || unit->in_flight_max > unit->drive->queue_depth_max))
		return refuse(why, "unit %s: in_flight_max %u; 1 to the drive's queue_depth_max %u",
			unit->name, unit->in_flight_max, unit->drive->queue_depth_max);
	if ((unit->queue == OFS_CHIP_QUEUE_QOS) != (unit->qos != NULL && unit->tenants != NULL))
		return refuse(why, "unit %s: a qos queue, and only that, has tenants", unit->name);
	if (unit->qos && unit->kind == OFS_CHIP_KIND_BANKS)
		return refuse(why, "unit %s: banks have queues of their own; qos in front of them",
			unit->name);
	return check_memory(unit, why);
}

static int
check_unit(const struct ofs_chip_unit *unit, uint32_t number, char why[OFS_CHIP_WHY])
{
	if (unit->name[0] == 0 || memchr(unit->name, 0, sizeof(unit->name)) == NULL)
		return refuse(why, "unit %u: a name has 1 to %zu bytes", number, sizeof(unit->name) - 1);
	if (unit->kind >= OFS_CHIP_KIND_COUNT)
		return refuse(why, "unit %s: no kind %u", unit->name, unit->kind);
	if (unit->queue >= OFS_CHIP_QUEUE_COUNT)
		return refuse(why, "unit %s: no queue %u", unit->name, unit->queue);
	if (unit->in_flight_max > FLIGHTS_MAX)
		return refuse(why, "unit %s: in_flight_max %u; at most %u", unit->name, unit->in_flight_max,
			FLIGHTS_MAX);
	if (unit->fixed_ps > PS_MAX || unit->latency_ps > PS_MAX || unit->item_ps > RATE_PS_MAX
		|| unit->mib_ps > MIB_PS_MAX)
		return refuse(why,
			"unit %s: a time is out of range; at most 1126 s for a visit, 1 ms for "
			"an item, 1 s for a MiB",
			unit->name);
	if (unit->pause_every_ps == 0 ? unit->pause_ps != 0
								  : unit->pause_ps == 0 || unit->pause_ps >= unit->pause_every_ps)
		return refuse(why, "unit %s: pause_ps %llu; more than 0 and less than pause_every_ps",
			unit->name, (unsigned long long)unit->pause_ps);
	if (unit->pause_every_ps > PS_MAX
		|| (unit->pause_ps && unit->kind != OFS_CHIP_KIND_SERVER
			&& unit->kind != OFS_CHIP_KIND_BANKS))
		return refuse(why, "unit %s: a pause is for a server or banks, within 1126 s", unit->name);
	return check_kind(unit, why);
}

static int
check_stage(const struct ofs_chip_config *config, uint32_t number, char why[OFS_CHIP_WHY])
{
	const struct ofs_chip_stage *stage = &config->stages[number];
	const uint32_t ways[] = {stage->next, stage->miss};

	if (stage->unit >= config->unit_count)
		return refuse(why, "stage %u: no unit %u", number, stage->unit);
	for (uint32_t i = 0; i < 2; i++)
		if (ways[i] != OFS_CHIP_END && (ways[i] <= number || ways[i] >= config->stage_count))
			return refuse(why, "stage %u: goes to %u; a stage behind it, or the end", number,
				ways[i]);
	if (stage->items >= OFS_CHIP_ITEMS_COUNT)
		return refuse(why, "stage %u: no items %u", number, stage->items);
	if (stage->keys > OFS_CHIP_KEYS_MAX)
		return refuse(why, "stage %u: %u keys of an item; at most %u", number, stage->keys,
			OFS_CHIP_KEYS_MAX);
	if (stage->bytes_permille > 1000000)
		return refuse(why, "stage %u: bytes_permille %u; at most 1000000", number,
			stage->bytes_permille);
	if (stage->fixed_ps > PS_MAX || stage->item_ps > RATE_PS_MAX || stage->mib_ps > MIB_PS_MAX)
		return refuse(why,
			"stage %u: a time is out of range; at most 1126 s for a visit, 1 ms for an item, "
			"1 s for a MiB",
			number);
	if (stage->piece_bytes && config->piece_max == 0)
		return refuse(why, "stage %u: cuts into pieces, but piece_max is 0", number);
	if (stage->piece_bytes && config->units[stage->unit].drops)
		return refuse(why, "stage %u: cuts in front of %s, which drops: one or the other", number,
			config->units[stage->unit].name);
	return 0;
}

int
ofs_chip_check(const struct ofs_chip_config *config, char why[OFS_CHIP_WHY])
{
	int rc = 0;

	if (config->unit_count == 0 || config->unit_count > OFS_CHIP_UNITS_MAX)
		return refuse(why, "%u units; 1 to %u", config->unit_count, OFS_CHIP_UNITS_MAX);
	if (config->stage_count == 0 || config->stage_count > OFS_CHIP_STAGES_MAX)
		return refuse(why, "%u stages; 1 to %u", config->stage_count, OFS_CHIP_STAGES_MAX);
	if (config->route_count == 0 || config->route_count > OFS_CHIP_ROUTES_MAX)
		return refuse(why, "%u routes; 1 to %u", config->route_count, OFS_CHIP_ROUTES_MAX);
	if (config->in_flight_max == 0 || config->in_flight_max > FLIGHTS_MAX
		|| config->piece_max > FLIGHTS_MAX || config->end_max > FLIGHTS_MAX
		|| config->visit_max > FLIGHTS_MAX)
		return refuse(why,
			"in_flight_max %u, piece_max %u, end_max %u, visit_max %u; at most %u, "
			"and one in flight",
			config->in_flight_max, config->piece_max, config->end_max, config->visit_max,
			FLIGHTS_MAX);
	if ((config->coded_rows == 0) != (config->coded_permille == NULL)
		|| config->coded_rows > OFS_CHIP_CODED_MAX
		|| (config->coded_rows && config->coded_parts - 1 >= OFS_CHIP_CODED_MAX))
		return refuse(why, "coded sizes of %u rows with %u parts; at most %u of either",
			config->coded_rows, config->coded_parts, OFS_CHIP_CODED_MAX);
	if (config->sample_every && config->visit_max == 0)
		return refuse(why, "samples need a visit_max; 1 or more");
	if (config->bin_ps == 0 || config->bin_ps > PS_MAX)
		return refuse(why, "bin_ps %llu; 1 ps to 1126 s", (unsigned long long)config->bin_ps);
	for (uint32_t i = 0; i < config->unit_count && rc == 0; i++)
		rc = check_unit(&config->units[i], i, why);
	for (uint32_t i = 0; i < config->stage_count && rc == 0; i++)
		rc = check_stage(config, i, why);
	for (uint32_t i = 0; i < config->route_count && rc == 0; i++)
		if (config->routes[i] >= config->stage_count)
			rc = refuse(why, "route %u: no stage %u", i, config->routes[i]);
	return rc;
}
