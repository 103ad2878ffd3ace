/*
 * run.c: the event loop, and the movement of requests between units.
 *
 * Model: an event changes one unit; `settle` then visits every unit that may proceed because of it,
 * until none can: a unit begins a waiting visit and takes in one that is blocked in front of it,
 * which frees a place in the unit before. Arrivals come from the caller's array, not from the heap,
 * after every event of the same time. A request that is cut keeps its server and credit until its
 * last piece is in the next unit; the last piece to arrive at the join gives its place to the
 * request. So every step can wait, and none needs more memory than open allocated. Pieces have
 * separate flights, so requests cannot use them up.
 */
#include <errno.h>
#include <string.h>

#include "internal.h"

#define FREE_BANK_SHIFT 8

static void
flight_give(struct chip_flight *flight, struct ofs_chip *chip, uint32_t *chain)
{
	flight->link = *chain;
	*chain = chip_flight_index(chip, flight);
}

/* A piece has ended: units that are short of pieces may proceed. */
static void
piece_give(struct ofs_chip *chip, struct chip_flight *piece)
{
	flight_give(piece, chip, &chip->free_piece);
	for (uint32_t i = 0; chip->short_count && i < chip->config.unit_count; i++) {
		if (!chip->units[i].short_of_pieces)
			continue;
		chip->units[i].short_of_pieces = 0;
		chip->short_count--;
		chip_settle_later(chip, &chip->units[i]);
	}
}

static void
finish(struct ofs_chip *chip, struct chip_flight *flight)
{
	struct ofs_chip_route_stats *route = &chip->route_stats[flight->route];
	uint32_t slot;

	ofs_chip_unit_leave(chip, flight);
	chip_log(chip, OFS_CHIP_UNITS_MAX, flight->number, 3);
	route->ended++;
	if (flight->dropped == OFS_NONE)
		ofs_histogram_add(&route->latency, chip->now_ps - flight->at_ps);
	else
		route->dropped++;
	if (chip->config.end_max) {
		assert(chip->end_count < chip->config.end_max);
		slot = (chip->end_head + chip->end_count++) % chip->config.end_max;
		chip->ends[slot] = (struct ofs_chip_done){flight->tag, flight->at_ps, chip->now_ps,
			flight->route, flight->dropped};
	}
	chip->figures.ended++;
	chip->figures.inside--;
	flight_give(flight, chip, &chip->free_request);
}

/*
 * Which flight proceeds when this one ends or joins: itself; NULL, while other pieces of its
 * request are in flight; or the request, which takes the place of its last piece.
 */
static struct chip_flight *
joined(struct ofs_chip *chip, struct chip_flight *flight)
{
	struct chip_flight *parent;

	if (flight->parent == OFS_NONE
		|| (flight->want != OFS_CHIP_END && !chip->stages[flight->want].join))
		return flight;
	parent = &chip->flights[flight->parent];
	if (flight->dropped != OFS_NONE)
		parent->dropped = flight->dropped;
	if (--parent->pieces_open > 0) {
		ofs_chip_unit_leave(chip, flight);
		piece_give(chip, flight);
		return NULL;
	}
	parent->piece_count = 0;
	parent->stage = flight->stage;
	parent->bank = flight->bank;
	parent->enter_ps = flight->enter_ps;
	parent->begin_ps = flight->begin_ps;
	parent->done_ps = flight->done_ps;
	parent->want = parent->dropped == OFS_NONE ? flight->want : OFS_CHIP_END;
	piece_give(chip, flight);
	return parent;
}

/* Puts the next piece of a request in front of the unit; NULL: no piece is free. */
static struct chip_flight *
piece_take(struct ofs_chip *chip, const struct chip_flight *whole, uint64_t piece_bytes)
{
	uint64_t from = whole->pieces_begun * piece_bytes, left = whole->size_bytes - from;
	uint64_t size = left < piece_bytes ? left : piece_bytes;
	struct chip_flight *piece;

	if (chip->free_piece == OFS_NONE)
		return NULL;
	piece = &chip->flights[chip->free_piece];
	chip->free_piece = piece->link;
	*piece = *whole;
	piece->parent = chip_flight_index(chip, whole);
	piece->stage = OFS_NONE;
	piece->piece_count = 0;
	piece->number = chip->numbers;
	piece->offset_bytes = whole->offset_bytes + from;
	piece->size_bytes = size;
	piece->coded_bytes = whole->coded_row == CHIP_NO_ROW
		? (uint64_t)((unsigned __int128)whole->coded_bytes * size / whole->size_bytes)
		: chip_coded(chip, whole->coded_row, whole->size_bytes, from + size)
			- chip_coded(chip, whole->coded_row, whole->size_bytes, from);
	return piece;
}

/* Cuts as many pieces as the unit takes; 1 when it has the last. */
static int
cut(struct ofs_chip *chip, struct chip_flight *flight, struct chip_unit *unit, uint64_t piece_bytes)
{
	struct chip_flight *piece;
	enum chip_entry entry;

	if (flight->piece_count == 0) {
		flight->piece_count = (uint32_t)((flight->size_bytes + piece_bytes - 1) / piece_bytes);
		flight->pieces_begun = 0;
		flight->pieces_open = flight->piece_count;
	}
	for (; flight->pieces_begun < flight->piece_count; flight->pieces_begun++) {
		piece = piece_take(chip, flight, piece_bytes);
		if (piece == NULL) {
			chip->short_count += !unit->short_of_pieces;
			unit->short_of_pieces = 1;
			return 0;
		}
		entry = ofs_chip_unit_accepts(chip, unit, piece);
		if (entry == CHIP_ENTRY_FULL) {
			flight_give(piece, chip, &chip->free_piece);
			return 0;
		}
		chip->numbers++;
		ofs_chip_unit_enter(chip, unit, piece, entry);
	}
	return 1;
}

/* Moves a flight to its next stage; 0 if that is full. */
static int
move(struct ofs_chip *chip, struct chip_flight *flight)
{
	const struct ofs_chip_stage *stage = &chip->stages[flight->want];
	struct chip_unit *unit = &chip->units[stage->unit];
	int cutting =
		stage->piece_bytes && flight->parent == OFS_NONE && flight->size_bytes > stage->piece_bytes;
	enum chip_entry entry = CHIP_ENTRY_FULL;

	if (cutting ? !cut(chip, flight, unit, stage->piece_bytes)
				: (entry = ofs_chip_unit_accepts(chip, unit, flight)) == CHIP_ENTRY_FULL)
		return 0;
	if (flight->sampled && flight->stage == OFS_NONE && flight->parent == OFS_NONE
		&& chip->now_ps > flight->at_ps)
		ofs_chip_log_visit(chip, flight, OFS_NONE);
	ofs_chip_unit_leave(chip, flight);
	if (!cutting)
		ofs_chip_unit_enter(chip, unit, flight, entry);
	return 1;
}

/* Moves a finished flight to its next stage, or blocks it in front of that. */
static void
go_on(struct ofs_chip *chip, struct chip_flight *flight)
{
	struct chip_unit *unit;

	while ((flight = joined(chip, flight)) != NULL) {
		if (flight->want == OFS_CHIP_END) {
			finish(chip, flight);
			return;
		}
		unit = &chip->units[chip->stages[flight->want].unit];
		if ((unit->blocked.head == OFS_NONE || unit->qos) && move(chip, flight))
			return;
		if (!unit->config.drops) {
			chip_list_append(chip, &unit->blocked, chip_flight_index(chip, flight));
			chip_settle_later(chip, unit);
			if (flight->stage != OFS_NONE)
				chip->units[chip->stages[flight->stage].unit].stats.blocked++;
			return;
		}
		unit->stats.dropped++;
		flight->dropped = unit->number;
		flight->want = OFS_CHIP_END;
	}
}

/*
 * Takes in one of the flights in front of the unit; 0 if none fits. In order, the first; with a
 * queue per tenant any, so that a full tenant blocks no other.
 */
static int
take_in(struct ofs_chip *chip, struct chip_unit *unit)
{
	uint32_t at = unit->blocked.head, before = OFS_NONE, next;

	for (; at != OFS_NONE; before = at, at = next) {
		next = chip->flights[at].link;
		if (move(chip, &chip->flights[at])) {
			if (before == OFS_NONE)
				unit->blocked.head = next;
			else
				chip->flights[before].link = next;
			if (next == OFS_NONE)
				unit->blocked.tail = before;
			return 1;
		}
		if (!unit->qos)
			return 0;
	}
	return 0;
}

static void
settle(struct ofs_chip *chip)
{
	while (chip->settle_count) {
		struct chip_unit *unit = &chip->units[chip->settle[chip->settle_head]];

		chip->settle_head = (chip->settle_head + 1) % OFS_CHIP_UNITS_MAX;
		chip->settle_count--;
		unit->listed = 0;
		while ((unit->waiting && ofs_chip_unit_next(chip, unit)) || take_in(chip, unit))
			;
		if (unit->waiting || unit->blocked.head != OFS_NONE)
			ofs_chip_unit_wake(chip, unit);
	}
}

void
ofs_chip_arrive(struct ofs_chip *chip, const struct ofs_chip_request *request)
{
	struct chip_flight *flight = &chip->flights[chip->free_request];
	uint32_t every = chip->config.sample_every;

	assert(chip->free_request != OFS_NONE);
	chip->free_request = flight->link;
	*flight = (struct chip_flight){.stage = OFS_NONE,
		.want = chip->routes[request->route],
		.parent = OFS_NONE,
		.dropped = OFS_NONE,
		.priority = (uint8_t)request->priority,
		.sampled = every && chip->figures.taken % every == 0,
		.number = chip->numbers++,
		.size_bytes = request->size_bytes,
		.coded_bytes = request->coded_bytes,
		.offset_bytes = request->offset_bytes,
		.key = request->key,
		.tag = request->tag,
		.at_ps = request->at_ps,
		.deadline_ps = request->deadline_ps,
		.count = request->count,
		.score_count = request->score_count,
		.route = request->route,
		.tenant = request->tenant,
		.session = request->session,
		.looked = request->looked,
		.coded_row = CHIP_NO_ROW};
	if (chip->coded_sums && request->coded_bytes == 0) {
		flight->coded_row = (uint8_t)(request->layer % chip->config.coded_rows);
		flight->coded_bytes =
			chip_coded(chip, flight->coded_row, request->size_bytes, request->size_bytes);
	}
	chip->figures.taken++;
	chip->figures.inside++;
	go_on(chip, flight);
	settle(chip);
}

static void
handle(struct ofs_chip *chip, struct chip_event event)
{
	if (event.what == CHIP_DONE) {
		struct chip_flight *flight = &chip->flights[event.index];
		const struct ofs_chip_stage *stage = &chip->stages[flight->stage];

		flight->done_ps = chip->now_ps;
		flight->want = flight->missed && chip->units[stage->unit].tags ? stage->miss : stage->next;
		go_on(chip, flight);
	} else {
		struct chip_unit *unit = &chip->units[event.index & ((1 << FREE_BANK_SHIFT) - 1)];

		if (event.what == CHIP_FREE)
			ofs_chip_unit_free(unit, event.index >> FREE_BANK_SHIFT);
		else if (unit->wake_ps == event.at_ps)
			unit->wake_ps = OFS_CHIP_NEVER;
		chip_settle_later(chip, unit);
	}
	settle(chip);
}

/* Prefetches the memory that the next arrival looks up, while other visits are served. */
static void
look_ahead(const struct ofs_chip *chip)
{
	const struct chip_unit *unit;
	const struct chip_tag *tags;

	if (chip->tags_unit == OFS_NONE || chip->fed_taken == chip->fed_count)
		return;
	unit = &chip->units[chip->tags_unit];
	tags = chip_tags(unit, chip->fed[chip->fed_taken].key);
	for (uint32_t i = 0; i < unit->config.way_count; i += CHIP_CACHE_LINE / sizeof(*tags))
		__builtin_prefetch(&tags[i], 1);
}

/* The time of the next event, of the heap or in a drive. */
uint64_t
ofs_chip_next_ps(const struct ofs_chip *chip)
{
	uint64_t next_ps = chip_heap_next_ps(&chip->heap);

	for (uint32_t i = 0; i < chip->later_count; i++) {
		uint64_t drive_ps = ofs_nvme_model_next_ps(chip->units[chip->later[i]].drive);

		if (drive_ps < next_ps)
			next_ps = drive_ps;
	}
	return next_ps;
}

/* Visits that have ended by now in drives that could not say it before. */
static void
take_later(struct ofs_chip *chip)
{
	struct ofs_nvme_end end;

	for (uint32_t i = 0; i < chip->later_count; i++)
		while (ofs_nvme_model_poll(chip->units[chip->later[i]].drive, chip->now_ps, &end, 1))
			chip_schedule(chip, chip->now_ps, CHIP_DONE, (uint32_t)end.tag);
}

/* Runs until end_count ends wait for a poll; 0: without that limit. */
static int
run(struct ofs_chip *chip, uint64_t until_ps, uint32_t end_count)
{
	uint64_t arrival_ps, event_ps;

	for (;;) {
		if (end_count && chip->end_count >= end_count)
			return 1;
		arrival_ps = OFS_CHIP_NEVER;
		event_ps = ofs_chip_next_ps(chip);
		if (event_ps == OFS_CHIP_NEVER && chip->figures.inside)
			return -EDEADLK;
		if (chip->fed_taken < chip->fed_count && chip->free_request != OFS_NONE) {
			arrival_ps = chip->fed[chip->fed_taken].at_ps;
			if (arrival_ps < chip->now_ps)
				arrival_ps = chip->now_ps;
		}
		if (event_ps <= arrival_ps) {
			if (event_ps > until_ps || event_ps == OFS_CHIP_NEVER)
				break;
			chip->now_ps = event_ps;
			chip->figures.events++;
			take_later(chip);
			if (chip_heap_next_ps(&chip->heap) <= event_ps)
				handle(chip, chip_heap_pop(&chip->heap));
		} else {
			if (arrival_ps > until_ps)
				break;
			chip->now_ps = arrival_ps;
			chip->figures.events++;
			ofs_chip_arrive(chip, &chip->fed[chip->fed_taken++]);
			look_ahead(chip);
		}
	}
	if (until_ps != OFS_CHIP_NEVER && until_ps > chip->now_ps)
		chip->now_ps = until_ps;
	return 0;
}

int
ofs_chip_run(struct ofs_chip *chip, uint64_t until_ps)
{
	return run(chip, until_ps, chip->config.end_max);
}

int
ofs_chip_run_to_end(struct ofs_chip *chip, uint64_t until_ps)
{
	return run(chip, until_ps, 1);
}
