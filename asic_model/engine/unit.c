/*
 * unit.c: one unit: admission, start, cost and release of visits.
 *
 * Model: a visit is present from enter to leave; in between it waits, is begun, is done. The kinds
 * differ in three places: what may begin (`can_begin`), what a visit costs (`serve`), and what is
 * released when (`chip_hold`). A unit never calls another: run.c moves requests between them.
 * Nothing here can fail.
 */
#include "internal.h"
#include "nvme_model.h"

#define DRAW_BITS 32
#define PERMILLE(share) ((uint64_t)(share) * ((1ull << DRAW_BITS) / 1000))

static uint64_t
interpolate(uint64_t low, uint64_t high, uint64_t part, uint64_t whole)
{
	uint64_t apart = high < low ? low - high : high - low, product;

	/* A 128-bit division is a library call; most values fit in 64 bits. */
	apart = __builtin_mul_overflow(apart, part, &product)
		? (uint64_t)((unsigned __int128)apart * part / whole)
		: product / whole;
	return high < low ? low - apart : low + apart;
}

/* The quantile `share` (of 2^32) of one row, linear between the given quantiles. */
static uint64_t
row_quantile(const struct ofs_chip_load *row, uint64_t share)
{
	const uint64_t shares[] = {0, PERMILLE(500), PERMILLE(900), PERMILLE(990), 1ull << DRAW_BITS};
	const uint64_t times[] = {row->min_ps, row->p50_ps, row->p90_ps, row->p99_ps, row->max_ps};
	uint32_t i = 1;

	while (share > shares[i])
		i++;
	return interpolate(times[i - 1], times[i], share - shares[i - 1], shares[i] - shares[i - 1]);
}

/* A latency drawn from the two rows around the present load. */
static uint64_t
latency_draw(struct ofs_chip *chip, struct chip_unit *unit, uint64_t occupied_ps)
{
	const struct ofs_chip_unit *config = &unit->config;
	uint64_t span_ps = 1ull << unit->load_shift, passed_ps = chip->now_ps - unit->load_last_ps;
	uint64_t index = config->draw_span_ps ? chip->now_ps / config->draw_span_ps : unit->draws++;
	uint64_t share = chip_draw(chip->config.seed, unit->number, index) >> DRAW_BITS;
	uint64_t load, low, high;
	uint32_t i = 0;

	if (passed_ps >= span_ps)
		unit->load_sum_ps = 0;
	else
		unit->load_sum_ps -=
			(uint64_t)((unsigned __int128)unit->load_sum_ps * passed_ps >> unit->load_shift);
	unit->load_last_ps = chip->now_ps;
	unit->load_sum_ps += occupied_ps / config->servers;
	load = (uint64_t)((unsigned __int128)unit->load_sum_ps * 1000 >> unit->load_shift);

	while (i < config->load_row_count && config->load_rows[i].load_permille < load)
		i++;
	if (i == 0 || i == config->load_row_count)
		return row_quantile(&config->load_rows[i ? i - 1 : 0], share);
	low = config->load_rows[i - 1].load_permille;
	high = config->load_rows[i].load_permille;
	return interpolate(row_quantile(&config->load_rows[i - 1], share),
		row_quantile(&config->load_rows[i], share), load - low, high - low);
}

/* Looks up a key; a missing one replaces the least recently used of its set. */
static int
tags_look(struct chip_unit *unit, uint64_t key)
{
	struct chip_tag *tags = chip_tags(unit, key), *oldest = tags;

	unit->lookups++;
	for (uint32_t i = 0; i < unit->config.way_count; i++) {
		if (tags[i].used && tags[i].key == key) {
			tags[i].used = unit->lookups;
			unit->stats.hits++;
			return 1;
		}
		if (tags[i].used < oldest->used)
			oldest = &tags[i];
	}
	unit->stats.misses++;
	unit->stats.evictions += oldest->used != 0;
	*oldest = (struct chip_tag){key, unit->lookups};
	return 0;
}

/* Looks up the keys of blocks by their ordinals; how many are missing. */
uint32_t
ofs_chip_unit_look(struct chip_unit *unit, const struct ofs_chip_stage *stage, uint64_t key,
	const uint32_t *blocks, uint32_t count)
{
	uint32_t missed = 0;

	for (uint32_t i = 0; i < count; i++)
		for (uint32_t k = 0; k < stage->keys; k++)
			missed += !tags_look(unit, key + (uint64_t)blocks[i] * stage->keys + k);
	return missed;
}

/* How many of the visit's keys are missing. */
static uint32_t
tags_visit(struct chip_unit *unit, const struct ofs_chip_stage *stage,
	const struct chip_flight *flight, uint64_t items)
{
	uint64_t key = stage->items == OFS_CHIP_ITEMS_SCORES ? ~flight->key : flight->key;
	uint32_t missed = 0;

	if (stage->keys == 0)
		return !tags_look(unit, key);
	if (flight->looked && stage->items == OFS_CHIP_ITEMS_BLOCKS)
		return flight->looked - 1;
	for (uint64_t i = 0; i < items; i++)
		missed += !tags_look(unit, key + i);
	return missed;
}

static uint64_t
visit_bytes(const struct ofs_chip_stage *stage, const struct chip_flight *flight)
{
	uint64_t bytes = stage->coded && flight->coded_bytes ? flight->coded_bytes : flight->size_bytes;

	return (bytes * stage->bytes_permille + 999) / 1000;
}

static uint64_t
visit_items(const struct ofs_chip_stage *stage, const struct chip_flight *flight)
{
	uint64_t items = stage->items == OFS_CHIP_ITEMS_BLOCKS ? flight->count
		: stage->items == OFS_CHIP_ITEMS_SCORES            ? flight->score_count
		: stage->items == OFS_CHIP_ITEMS_MISSED            ? flight->missed
														   : 0;

	if (stage->per_key)
		items = (items + stage->per_key - 1) / stage->per_key;
	return stage->keys ? items * stage->keys : items;
}

static uint64_t
occupied_ps(const struct ofs_chip_unit *unit, const struct ofs_chip_stage *stage, uint64_t bytes,
	uint64_t items)
{
	uint64_t rest = bytes & ((1 << 20) - 1), mib_ps = unit->mib_ps + stage->mib_ps;

	return unit->fixed_ps + stage->fixed_ps + (unit->item_ps + stage->item_ps) * items
		+ (bytes >> 20) * mib_ps + ((rest * mib_ps + (1 << 19)) >> 20);
}

/* The delay that pauses add to a visit that begins now. Banks pause one after the other. */
static uint64_t
paused_ps(const struct ofs_chip_unit *config, uint64_t now_ps, uint32_t bank, uint64_t occupied_ps)
{
	uint64_t every_ps = config->pause_every_ps, added_ps = 0, passed_ps, room_ps, usable_ps;

	if (every_ps == 0)
		return 0;
	passed_ps = (now_ps + every_ps / config->servers * bank) % every_ps;
	if (passed_ps < config->pause_ps) {
		added_ps = config->pause_ps - passed_ps;
		passed_ps = config->pause_ps;
	}
	room_ps = every_ps - passed_ps;
	usable_ps = every_ps - config->pause_ps;
	if (occupied_ps > room_ps)
		added_ps += (occupied_ps - room_ps + usable_ps - 1) / usable_ps * config->pause_ps;
	return added_ps;
}

/* Whether a credit is free, after collecting those that have returned by now. */
static int
credit_free(const struct ofs_chip *chip, struct chip_unit *unit)
{
	uint32_t max = unit->config.in_flight_max;

	while (unit->return_count && unit->returns[unit->return_head] <= chip->now_ps) {
		unit->return_head = unit->return_head + 1 == max ? 0 : unit->return_head + 1;
		unit->return_count--;
		unit->in_flight--;
	}
	return unit->in_flight < max;
}

CHIP_HOT int
can_begin(const struct ofs_chip *chip, struct chip_unit *unit, uint32_t bank)
{
	if (unit->config.in_flight_max && !credit_free(chip, unit))
		return 0;
	if (unit->hold == CHIP_HOLD_FREE_PS)
		return unit->free_ps[0] <= chip->now_ps;
	if (unit->hold == CHIP_HOLD_NOTHING)
		return 1;
	if (unit->config.kind == OFS_CHIP_KIND_BANKS)
		return !(unit->busy_banks >> bank & 1);
	return unit->busy < unit->config.servers;
}

/* How long the visit occupies a server, and when it is done; OFS_NVME_LATER: its drive will say. */
static uint64_t
serve(struct ofs_chip *chip, struct chip_unit *unit, struct chip_flight *flight, uint64_t *done_ps)
{
	const struct ofs_chip_stage *stage = &chip->stages[flight->stage];
	uint64_t bytes = visit_bytes(stage, flight), items = visit_items(stage, flight);
	uint64_t work = occupied_ps(&unit->config, stage, bytes, items), occupied;

	unit->stats.bytes += bytes;
	unit->stats.items += items;
	if (unit->config.kind == OFS_CHIP_KIND_DRIVE) {
		*done_ps = ofs_nvme_model_submit(unit->drive, chip->now_ps, (int)stage->write,
			chip_flight_index(chip, flight), flight->offset_bytes, (uint32_t)bytes);
		return 0;
	}
	if (unit->config.kind == OFS_CHIP_KIND_TAGS)
		flight->missed = tags_visit(unit, stage, flight, items);
	occupied = work + paused_ps(&unit->config, chip->now_ps, flight->bank, work);
	*done_ps = chip->now_ps + occupied
		+ (unit->config.load_row_count ? latency_draw(chip, unit, work) : unit->config.latency_ps);
	return occupied;
}

/* Occupies the server that has been free longest until then. */
static void
server_take(struct chip_unit *unit, uint64_t until_ps)
{
	uint32_t count = unit->config.servers, hole = 0, child;

	while ((child = 2 * hole + 1) < count) {
		child += unit->free_ps[child + 1] < unit->free_ps[child];
		if (unit->free_ps[child] >= until_ps)
			break;
		unit->free_ps[hole] = unit->free_ps[child];
		hole = child;
	}
	unit->free_ps[hole] = until_ps;
}

static void
begin(struct ofs_chip *chip, struct chip_unit *unit, struct chip_flight *flight)
{
	uint64_t occupied, done_ps;

	flight->begin_ps = chip->now_ps;
	chip_log(chip, unit->number, flight->number, 1);
	ofs_histogram_add(&unit->stats.wait, chip->now_ps - flight->enter_ps);
	occupied = serve(chip, unit, flight, &done_ps);
	if (unit->hold == CHIP_HOLD_NOTHING) {
		if (unit->in_flight == 0)
			unit->begun_ps = chip->now_ps;
	} else {
		unit->stats.busy_ps += occupied;
		chip_bins_add(chip, unit->stats.busy_bins, chip->now_ps, chip->now_ps + occupied, 1);
		if (unit->hold == CHIP_HOLD_FREE_PS)
			server_take(unit, chip->now_ps + occupied);
		else if (unit->config.kind == OFS_CHIP_KIND_BANKS)
			unit->busy_banks |= 1ull << flight->bank;
		else
			unit->busy++;
		if (unit->hold == CHIP_HOLD_SERVED)
			chip_schedule(chip, chip->now_ps + occupied, CHIP_FREE,
				unit->number | flight->bank << 8);
	}
	unit->in_flight++;
	if (done_ps != OFS_NVME_LATER)
		chip_schedule(chip, done_ps, CHIP_DONE, chip_flight_index(chip, flight));
}

/* Gives the visit to the scheduler, or learns that its tenant's or session's queue is full. */
static enum chip_entry
qos_accepts(struct ofs_chip *chip, struct chip_unit *unit, const struct chip_flight *flight)
{
	uint64_t bytes = visit_bytes(&chip->stages[flight->want], flight);
	uint64_t quantum = unit->config.qos->quantum_bytes;
	struct ofs_qos_item item = {.tag = chip_flight_index(chip, flight),
		.deadline_ps = flight->deadline_ps,
		.tenant = flight->tenant,
		.session = flight->session,
		.cost_bytes = (uint32_t)(bytes == 0 ? 1
				: bytes > quantum           ? quantum
											: bytes)};

	if (unit->waiting >= unit->config.queue_max || ofs_qos_put(unit->qos, chip->now_ps, &item))
		return CHIP_ENTRY_FULL;
	return CHIP_ENTRY_QOS;
}

/* Whether the unit has room for a flight, and where. */
enum chip_entry
ofs_chip_unit_accepts(struct ofs_chip *chip, struct chip_unit *unit, struct chip_flight *flight)
{
	uint32_t bank = 0;

	if (unit->qos)
		return qos_accepts(chip, unit, flight);
	if (unit->config.kind == OFS_CHIP_KIND_BANKS)
		bank = (uint32_t)(chip_draw(0, flight->key, flight->offset_bytes) % unit->config.servers);
	if (!(unit->waiting_banks >> bank & 1) && can_begin(chip, unit, bank))
		return CHIP_ENTRY_BEGIN;
	return unit->waiting < unit->config.queue_max ? CHIP_ENTRY_QUEUE : CHIP_ENTRY_FULL;
}

/* A flight enters at its next stage, as `accepts` decided. */
void
ofs_chip_unit_enter(struct ofs_chip *chip, struct chip_unit *unit, struct chip_flight *flight,
	enum chip_entry entry)
{
	uint32_t level;

	chip_count(chip, unit);
	unit->stats.present++;
	unit->stats.arrivals++;
	flight->stage = flight->want;
	flight->enter_ps = chip->now_ps;
	flight->bank = 0;
	if (unit->config.kind == OFS_CHIP_KIND_BANKS)
		flight->bank =
			(uint32_t)(chip_draw(0, flight->key, flight->offset_bytes) % unit->config.servers);
	chip_log(chip, unit->number, flight->number, 0);
	if (entry == CHIP_ENTRY_BEGIN) {
		begin(chip, unit, flight);
		return;
	}
	if (entry == CHIP_ENTRY_QUEUE) {
		level = unit->level_count > 1 ? flight->priority : 0;
		chip_list_append(chip, &unit->queues[flight->bank * unit->level_count + level],
			chip_flight_index(chip, flight));
		unit->levels[flight->bank] |= (uint8_t)(1u << level);
		unit->waiting_banks |= 1ull << flight->bank;
	}
	if (++unit->waiting > unit->stats.waiting_max)
		unit->stats.waiting_max = unit->waiting;
	if (unit->wake_ps == OFS_CHIP_NEVER || unit->qos)
		chip_settle_later(chip, unit);
}

/* Begins one waiting visit; 0 if none can begin. */
int
ofs_chip_unit_next(struct ofs_chip *chip, struct chip_unit *unit)
{
	uint64_t candidates = unit->waiting_banks & ~unit->busy_banks;
	uint32_t bank, level;
	struct chip_list *queue;
	struct ofs_qos_item item;

	if (unit->qos) {
		if (!can_begin(chip, unit, 0) || ofs_qos_take(unit->qos, chip->now_ps, &item) == 0)
			return 0;
		unit->waiting--;
		begin(chip, unit, &chip->flights[item.tag]);
		return 1;
	}
	if (candidates == 0)
		return 0;
	bank = (uint32_t)__builtin_ctzll(candidates);
	if (!can_begin(chip, unit, bank))
		return 0;
	level = (uint32_t)__builtin_ctz(unit->levels[bank]);
	queue = &unit->queues[bank * unit->level_count + level];
	unit->waiting--;
	begin(chip, unit, &chip->flights[chip_list_take(chip, queue)]);
	if (queue->head == OFS_NONE)
		unit->levels[bank] &= (uint8_t) ~(1u << level);
	if (unit->levels[bank] == 0)
		unit->waiting_banks &= ~(1ull << bank);
	return 1;
}

/* A flight leaves its unit, if any, and releases what it held there. */
void
ofs_chip_unit_leave(struct ofs_chip *chip, struct chip_flight *flight)
{
	struct chip_unit *unit;
	uint32_t slot;

	if (flight->stage == OFS_NONE)
		return;
	unit = &chip->units[chip->stages[flight->stage].unit];
	chip_count(chip, unit);
	unit->stats.present--;
	unit->stats.departures++;
	ofs_histogram_add(&unit->stats.time, chip->now_ps - flight->enter_ps);
	unit->stats.blocked_ps += chip->now_ps - flight->done_ps;
	chip_log(chip, unit->number, flight->number, 2);
	if (flight->sampled)
		ofs_chip_log_visit(chip, flight, unit->number);
	flight->stage = OFS_NONE;
	if (unit->returns) {
		slot = unit->return_head + unit->return_count++;
		unit->returns[slot % unit->config.in_flight_max] = chip->now_ps + unit->config.latency_ps;
	} else {
		unit->in_flight--;
	}
	if (unit->hold == CHIP_HOLD_LEAVE) {
		ofs_chip_unit_free(unit, flight->bank);
	} else if (unit->hold == CHIP_HOLD_NOTHING && unit->in_flight == 0) {
		unit->stats.busy_ps += chip->now_ps - unit->begun_ps;
		chip_bins_add(chip, unit->stats.busy_bins, unit->begun_ps, chip->now_ps, 1);
	}
	chip_settle_later(chip, unit);
}

/* A server, or this bank, is free. */
void
ofs_chip_unit_free(struct chip_unit *unit, uint32_t bank)
{
	if (unit->config.kind == OFS_CHIP_KIND_BANKS)
		unit->busy_banks &= ~(1ull << bank);
	else
		unit->busy--;
}

/* A visit cannot begin yet: schedule a wake, unless an event will come anyway. */
void
ofs_chip_unit_wake(struct ofs_chip *chip, struct chip_unit *unit)
{
	uint64_t at_ps = 0;

	if (unit->config.in_flight_max && !credit_free(chip, unit)) {
		if (unit->return_count == 0)
			return;
		at_ps = unit->returns[unit->return_head];
	}
	if (unit->hold == CHIP_HOLD_FREE_PS && unit->free_ps[0] > at_ps)
		at_ps = unit->free_ps[0];
	if (unit->qos && unit->waiting && can_begin(chip, unit, 0))
		at_ps = ofs_qos_next_ps(unit->qos);
	if (at_ps <= chip->now_ps || unit->wake_ps <= at_ps)
		return;
	unit->wake_ps = at_ps;
	chip_schedule(chip, at_ps, CHIP_WAKE, unit->number);
}
