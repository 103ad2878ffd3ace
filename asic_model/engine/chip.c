/* chip.c: opens, resets, feeds and closes a chip. See chip.h. */
#include "chip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "internal.h"
#include "nvme_model.h"

#define HUGE_PAGE (2u << 20)
#define SIZE_BYTES_MAX (1ull << 36)
#define AT_PS_MAX (1ull << 61)

/* Allocates zeroed memory, counted in `memory_bytes`. NULL: out of memory. */
static void *
take(struct ofs_chip *chip, uint64_t count, size_t size)
{
	void *memory = calloc(count ? count : 1, size);

	if (memory)
		chip->figures.memory_bytes += count * size;
	return memory;
}

/* Allocates a table with random lookups, not zeroed. It starts on a cache line, as its sets do; a
 * large one uses large pages, so that a lookup needs no page walk. */
static void *
take_table(struct ofs_chip *chip, uint64_t count, size_t size)
{
	size_t bytes = count * size, line = bytes < HUGE_PAGE ? CHIP_CACHE_LINE : HUGE_PAGE;
	void *memory = aligned_alloc(line, (bytes + line - 1) / line * line);

	if (memory == NULL)
		return NULL;
	if (bytes >= HUGE_PAGE)
		(void)madvise(memory, bytes, MADV_HUGEPAGE); /* on failure it is only slower */
	chip->figures.memory_bytes += bytes;
	return memory;
}

static enum chip_hold
hold_of(const struct ofs_chip_unit *unit)
{
	if (unit->kind == OFS_CHIP_KIND_DELAY || unit->kind == OFS_CHIP_KIND_DRIVE)
		return CHIP_HOLD_NOTHING;
	if (unit->latency_ps == 0 && unit->load_row_count == 0)
		return CHIP_HOLD_LEAVE;
	return unit->kind == OFS_CHIP_KIND_BANKS ? CHIP_HOLD_SERVED : CHIP_HOLD_FREE_PS;
}

static int
unit_open(struct ofs_chip *chip, uint32_t number, const struct ofs_chip_unit *config)
{
	struct chip_unit *unit = &chip->units[number];
	uint64_t tag_count = (uint64_t)config->set_count * config->way_count;
	int rc = 0;

	unit->config = *config;
	unit->number = number;
	unit->hold = hold_of(config);
	unit->queue_count = config->kind == OFS_CHIP_KIND_BANKS ? config->servers : 1;
	unit->level_count = config->queue == OFS_CHIP_QUEUE_PRIORITY ? OFS_CHIP_PRIORITIES : 1;
	unit->queues = take(chip, unit->queue_count * unit->level_count, sizeof(*unit->queues));
	unit->levels = take(chip, unit->queue_count, sizeof(*unit->levels));
	while (config->load_row_count && 1ull << unit->load_shift < config->load_span_ps)
		unit->load_shift++;
	if (unit->queues == NULL || unit->levels == NULL)
		return -ENOMEM;
	if (config->kind == OFS_CHIP_KIND_LINK && config->in_flight_max && config->latency_ps) {
		unit->returns = take(chip, config->in_flight_max, sizeof(*unit->returns));
		if (unit->returns == NULL)
			return -ENOMEM;
	}
	if (unit->hold == CHIP_HOLD_FREE_PS) {
		unit->free_ps = take(chip, config->servers + 1ull, sizeof(*unit->free_ps));
		if (unit->free_ps == NULL)
			return -ENOMEM;
	}
	if (tag_count) {
		chip->tags_unit = number;
		unit->tags = take_table(chip, tag_count, sizeof(*unit->tags));
		if (unit->tags == NULL)
			return -ENOMEM;
	}
	if (config->drive && config->drive->scheduled)
		chip->later[chip->later_count++] = number;
	if (config->drive)
		rc = ofs_nvme_model_open(&unit->drive, config->drive,
			chip_draw(chip->config.seed, number, 0));
	if (config->qos && rc == 0) {
		rc = ofs_qos_open(&unit->qos, config->qos, config->tenants);
		unit->qos_config = *config->qos;
		unit->config.qos = &unit->qos_config;
		if (chip->tenant_count > config->qos->tenant_count)
			chip->tenant_count = config->qos->tenant_count;
		if (chip->session_count > config->qos->session_count)
			chip->session_count = config->qos->session_count;
	}
	unit->config.drive = NULL; /* owned by the caller, as are the tenants */
	unit->config.tenants = NULL;
	return rc;
}

static int
coded_open(struct ofs_chip *chip, const struct ofs_chip_config *config)
{
	uint32_t parts = config->coded_parts;

	chip->coded_sums = take(chip, config->coded_rows * (parts + 1), sizeof(*chip->coded_sums));
	if (chip->coded_sums == NULL)
		return -ENOMEM;
	for (uint32_t row = 0; row < config->coded_rows; row++)
		for (uint32_t part = 0; part < parts; part++)
			chip->coded_sums[row * (parts + 1) + part + 1] =
				chip->coded_sums[row * (parts + 1) + part]
				+ config->coded_permille[row * parts + part];
	chip->config.coded_permille = NULL; /* owned by the caller */
	return 0;
}

static int
chip_memory(struct ofs_chip *chip, const struct ofs_chip_config *config)
{
	uint64_t flight_count = (uint64_t)config->in_flight_max + config->piece_max;

	/* Each flight may have scheduled the end of its service, the release of a server and, from a
	 * qos queue, a wake that an earlier one superseded; each unit has one wake. */
	chip->heap.max = (uint32_t)(3 * flight_count + config->unit_count);
	chip->stages = take(chip, config->stage_count, sizeof(*chip->stages));
	chip->routes = take(chip, config->route_count, sizeof(*chip->routes));
	chip->units = take(chip, config->unit_count, sizeof(*chip->units));
	chip->route_stats = take(chip, config->route_count, sizeof(*chip->route_stats));
	chip->heap.events = take(chip, chip->heap.max, sizeof(*chip->heap.events));
	chip->flights = take(chip, flight_count, sizeof(*chip->flights));
	chip->ends = take(chip, config->end_max, sizeof(*chip->ends));
	chip->visits = take(chip, config->visit_max, sizeof(*chip->visits));
	if (!chip->stages || !chip->routes || !chip->units || !chip->route_stats || !chip->heap.events
		|| !chip->flights || !chip->ends || !chip->visits)
		return -ENOMEM;
	memcpy(chip->stages, config->stages, config->stage_count * sizeof(*chip->stages));
	memcpy(chip->routes, config->routes, config->route_count * sizeof(*chip->routes));
	return config->coded_rows ? coded_open(chip, config) : 0;
}

int
ofs_chip_open(struct ofs_chip **out, const struct ofs_chip_config *config, char why[OFS_CHIP_WHY])
{
	struct ofs_chip *chip;
	int rc;

	*out = NULL;
	why[0] = 0;
	rc = ofs_chip_check(config, why);
	if (rc)
		return rc;
	chip = calloc(1, sizeof(*chip));
	if (chip == NULL)
		return -ENOMEM;
	chip->config = *config;
	chip->tenant_count = chip->session_count = chip->tags_unit = OFS_NONE;
	chip->count_max = UINT32_MAX;
	for (uint32_t i = 0; i < config->stage_count; i++)
		if (config->stages[i].keys)
			chip->count_max = OFS_CHIP_COUNT_MAX;
	chip->figures.memory_bytes = sizeof(*chip);
	rc = chip_memory(chip, config);
	for (uint32_t i = 0; i < config->unit_count && rc == 0; i++) {
		rc = unit_open(chip, i, &config->units[i]);
		if (rc == -EINVAL)
			snprintf(why, OFS_CHIP_WHY,
				"unit %s: the parameters of its drive or of its tenants are out of range",
				config->units[i].name);
	}
	if (rc) {
		ofs_chip_close(chip);
		return rc;
	}
	ofs_chip_reset(chip);
	*out = chip;
	return 0;
}

void
ofs_chip_close(struct ofs_chip *chip)
{
	for (uint32_t i = 0; chip->units && i < chip->config.unit_count; i++) {
		free(chip->units[i].queues);
		free(chip->units[i].levels);
		free(chip->units[i].returns);
		free(chip->units[i].tags);
		free(chip->units[i].free_ps);
		if (chip->units[i].drive)
			ofs_nvme_model_close(chip->units[i].drive);
		if (chip->units[i].qos)
			ofs_qos_close(chip->units[i].qos);
	}
	free(chip->stages);
	free(chip->routes);
	free(chip->coded_sums);
	free(chip->units);
	free(chip->route_stats);
	free(chip->heap.events);
	free(chip->flights);
	free(chip->ends);
	free(chip->visits);
	free(chip);
}

static void
unit_reset(struct chip_unit *unit)
{
	for (uint32_t i = 0; i < unit->queue_count * unit->level_count; i++)
		unit->queues[i] = (struct chip_list){OFS_NONE, OFS_NONE};
	memset(unit->levels, 0, unit->queue_count);
	if (unit->tags)
		memset(unit->tags, 0,
			(size_t)unit->config.set_count * unit->config.way_count * sizeof(*unit->tags));
	if (unit->drive)
		ofs_nvme_model_reset(unit->drive);
	if (unit->qos)
		ofs_qos_reset(unit->qos);
	unit->blocked = (struct chip_list){OFS_NONE, OFS_NONE};
	unit->waiting = unit->in_flight = unit->busy = 0;
	unit->busy_banks = unit->waiting_banks = 0;
	if (unit->free_ps) {
		memset(unit->free_ps, 0, unit->config.servers * sizeof(*unit->free_ps));
		unit->free_ps[unit->config.servers] = OFS_CHIP_NEVER;
	}
	unit->begun_ps = unit->count_last_ps = 0;
	unit->wake_ps = OFS_CHIP_NEVER;
	unit->return_head = unit->return_count = 0;
	unit->listed = unit->short_of_pieces = 0;
	unit->lookups = unit->draws = unit->load_last_ps = unit->load_sum_ps = 0;
	memset(&unit->stats, 0, sizeof(unit->stats));
}

/* Chains flights [from, to) as unused; returns the first. */
static uint32_t
chain(struct ofs_chip *chip, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		chip->flights[i].link = i + 1 < to ? i + 1 : OFS_NONE;
	return from < to ? from : OFS_NONE;
}

void
ofs_chip_reset(struct ofs_chip *chip)
{
	uint32_t requests = chip->config.in_flight_max;
	uint64_t memory_bytes = chip->figures.memory_bytes;

	for (uint32_t i = 0; i < chip->config.unit_count; i++)
		unit_reset(&chip->units[i]);
	memset(chip->route_stats, 0, chip->config.route_count * sizeof(*chip->route_stats));
	chip->free_request = chain(chip, 0, requests);
	chip->free_piece = chain(chip, requests, requests + chip->config.piece_max);
	chip->heap.count = chip->heap.front_count = 0;
	chip->settle_head = chip->settle_count = chip->short_count = 0;
	chip->fed = NULL;
	chip->fed_count = chip->fed_taken = chip->fed_last_ps = 0;
	chip->end_head = chip->end_count = chip->visit_head = chip->visit_count = 0;
	chip->now_ps = chip->sequence = chip->numbers = 0;
	chip->bin_shift = 0;
	while (1ull << chip->bin_shift < chip->config.bin_ps)
		chip->bin_shift++;
	chip->bins_end_ps = (uint64_t)OFS_CHIP_BINS << chip->bin_shift;
	chip->figures = (struct ofs_chip_figures){.memory_bytes = memory_bytes};
}

int
ofs_chip_feed(struct ofs_chip *chip, const struct ofs_chip_request *requests, uint64_t count)
{
	uint64_t last_ps = chip->fed_last_ps > chip->now_ps ? chip->fed_last_ps : chip->now_ps;

	if (chip->fed_taken < chip->fed_count)
		return -EBUSY;
	for (uint64_t i = 0; i < count; i++) {
		const struct ofs_chip_request *request = &requests[i];

		if (request->at_ps < last_ps || request->at_ps > AT_PS_MAX
			|| request->route >= chip->config.route_count
			|| request->priority >= OFS_CHIP_PRIORITIES || request->size_bytes > SIZE_BYTES_MAX
			|| request->coded_bytes > SIZE_BYTES_MAX || request->count > chip->count_max
			|| request->tenant >= chip->tenant_count
			|| (request->session >= chip->session_count && request->session != OFS_QOS_NO_SESSION))
			return -EINVAL;
		last_ps = request->at_ps;
	}
	chip->fed = requests;
	chip->fed_count = count;
	chip->fed_taken = 0;
	chip->fed_last_ps = last_ps;
	return 0;
}

uint64_t
ofs_chip_fed(const struct ofs_chip *chip)
{
	return chip->fed_count - chip->fed_taken;
}

int
ofs_chip_version(void)
{
	return OFS_ABI_VERSION;
}
