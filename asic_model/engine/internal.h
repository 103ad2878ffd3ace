/*
 * internal.h: the types and helpers that the engine's files share.
 *
 * Model: a `flight` is a request inside the chip, or one of its pieces. Flights are in one array,
 * requests first and pieces after them, and are chained by index: free, waiting in a queue, or
 * blocked in front of a full unit. A unit counts its used servers and credits; scheduled events are
 * in the heap. Files call downward only: timing.c, chip.c, run.c, unit.c, stats.c.
 */
#ifndef OFS_CHIP_INTERNAL_H
#define OFS_CHIP_INTERNAL_H

#include <assert.h>

#include "chip.h"
#include "heap4.h"

#define CHIP_CACHE_LINE 64
#define CHIP_NO_ROW 0xff /* coded as its request said */
#define CHIP_HOT static inline __attribute__((always_inline))

/* The kind of an event; at one time in this order, and arrivals last. */
enum chip_what {
	CHIP_FREE = 0, /* a server or bank becomes free; index: unit, and the bank above it */
	CHIP_WAKE = 1, /* a unit may begin another; index: the unit */
	CHIP_DONE = 2, /* a flight's service and latency are over; index: the flight */
};

/* When a unit releases its servers. */
enum chip_hold {
	CHIP_HOLD_LEAVE,   /* when the next unit has taken the visit: there is no latency to pass */
	CHIP_HOLD_SERVED,  /* when the service ends, by an event: banks */
	CHIP_HOLD_FREE_PS, /* the same by times, with an event only if a visit waits */
	CHIP_HOLD_NOTHING, /* it has none: delay, drive */
};

/* How a flight enters a unit. */
enum chip_entry {
	CHIP_ENTRY_FULL = 0,
	CHIP_ENTRY_QUEUE,
	CHIP_ENTRY_QOS,   /* the scheduler has it already */
	CHIP_ENTRY_BEGIN, /* none waits and a server is free */
};

struct chip_list {
	uint32_t head, tail;
};

struct chip_flight {
	uint32_t link;  /* the next in its list */
	uint32_t stage; /* of the visit; OFS_NONE: in no unit */
	uint32_t want;  /* its next stage */
	uint32_t parent;
	uint32_t piece_count; /* of the request, while it is being cut */
	uint32_t pieces_begun;
	uint32_t pieces_open; /* not yet joined */
	uint32_t bank;
	uint32_t dropped;
	uint8_t priority, sampled, coded_row, reserved;
	uint64_t number; /* in the order of arrival and of cutting */
	uint64_t enter_ps, begin_ps, done_ps;
	uint64_t size_bytes, coded_bytes, offset_bytes, key, tag;
	uint64_t at_ps, deadline_ps;
	uint32_t count, score_count, route, tenant, session;
	uint32_t missed; /* keys, by its last visit to tags */
	uint32_t looked; /* as in its request */
};

struct chip_tag {
	uint64_t key;
	uint64_t used; /* the lookup that used it last; 0: empty */
};

struct chip_unit {
	struct ofs_chip_unit config;
	enum chip_hold hold;
	uint32_t number;
	uint32_t queue_count; /* banks, or 1 */
	uint32_t level_count; /* priorities, or 1 */
	uint32_t waiting;
	uint32_t in_flight;
	uint32_t busy; /* servers */
	uint64_t busy_banks;
	uint64_t waiting_banks;
	/* CHIP_HOLD_FREE_PS: when each server is free, [servers + 1], a binary heap; the last: never. */
	uint64_t *free_ps;
	uint64_t begun_ps;        /* CHIP_HOLD_NOTHING: since when the unit is occupied */
	uint64_t wake_ps;         /* scheduled; OFS_CHIP_NEVER: not */
	struct chip_list *queues; /* [queue_count][level_count] */
	uint8_t *levels;          /* [queue_count]: bit mask of non-empty levels */
	struct chip_list blocked; /* in front of it, in other units or outside */
	uint64_t *returns;        /* link: when credits come back, a ring [in_flight_max] */
	uint32_t return_head, return_count;
	uint8_t listed;          /* in the list of units to settle */
	uint8_t short_of_pieces; /* a flight in front of it waits for a free piece */
	struct chip_tag *tags;   /* [set_count][way_count] */
	uint64_t lookups;
	uint64_t draws;
	uint64_t load_last_ps, load_sum_ps; /* occupied over the last load_span_ps, decayed */
	uint32_t load_shift;
	struct ofs_nvme_model *drive;
	struct ofs_qos *qos;
	struct ofs_qos_config qos_config;
	uint64_t count_last_ps; /* time up to which `present` is in its bins */
	struct ofs_chip_unit_stats stats;
};

struct ofs_chip {
	struct ofs_timing base; /* first: the chip is a side of timing.h */
	uint32_t timing_routes[4];
	uint32_t timing_look; /* the stage in which a command looks up its blocks; OFS_NONE: none */
	struct ofs_chip_config config; /* its pointers are the chip's copies */
	struct ofs_chip_stage *stages;
	uint32_t *routes;
	uint32_t *coded_sums; /* [coded_rows][coded_parts + 1]: permille of all parts before */
	struct chip_unit *units;
	struct ofs_chip_route_stats *route_stats;
	struct chip_heap heap;
	struct chip_flight *flights;         /* [in_flight_max], then [piece_max] */
	uint32_t free_request, free_piece;   /* heads of the chains of unused flights */
	uint32_t settle[OFS_CHIP_UNITS_MAX]; /* units to look at, a ring */
	uint32_t settle_head, settle_count;
	uint32_t short_count;               /* units that are short of pieces */
	uint32_t tags_unit;                 /* one with tags; OFS_NONE: there is none */
	uint32_t later[OFS_CHIP_UNITS_MAX]; /* units whose drives say later when a read ends */
	uint32_t later_count;
	uint32_t count_max; /* of a request */
	const struct ofs_chip_request *fed;
	uint64_t fed_count, fed_taken, fed_last_ps;
	struct ofs_chip_done *ends; /* a ring */
	uint32_t end_head, end_count;
	struct ofs_chip_visit *visits; /* a ring */
	uint32_t visit_head, visit_count;
	uint64_t now_ps;
	uint64_t sequence, numbers;
	uint32_t tenant_count, session_count; /* of the smallest qos queue; OFS_NONE: there is none */
	uint64_t bins_end_ps;                 /* times from here on need wider bins */
	uint32_t bin_shift;
	struct ofs_chip_figures figures;
};

#pragma GCC visibility push(hidden)

/* check.c */
int ofs_chip_check(const struct ofs_chip_config *config, char why[OFS_CHIP_WHY]);
/* stats.c */
void ofs_chip_bins_add(struct ofs_chip *chip, uint64_t *bins, uint64_t from_ps, uint64_t to_ps,
	uint64_t weight);
void ofs_chip_log_visit(struct ofs_chip *chip, const struct chip_flight *flight, uint32_t unit);
/* unit.c */
uint32_t ofs_chip_unit_look(struct chip_unit *unit, const struct ofs_chip_stage *stage,
	uint64_t key, const uint32_t *blocks, uint32_t count);
enum chip_entry ofs_chip_unit_accepts(struct ofs_chip *chip, struct chip_unit *unit,
	struct chip_flight *flight);
void ofs_chip_unit_enter(struct ofs_chip *chip, struct chip_unit *unit, struct chip_flight *flight,
	enum chip_entry entry);
void ofs_chip_unit_leave(struct ofs_chip *chip, struct chip_flight *flight);
int ofs_chip_unit_next(struct ofs_chip *chip, struct chip_unit *unit);
void ofs_chip_unit_wake(struct ofs_chip *chip, struct chip_unit *unit);
void ofs_chip_unit_free(struct chip_unit *unit, uint32_t bank);
/* run.c */
void ofs_chip_arrive(struct ofs_chip *chip, const struct ofs_chip_request *request);
uint64_t ofs_chip_next_ps(const struct ofs_chip *chip);

#pragma GCC visibility pop

/* A number determined by (seed, stream, index). */
CHIP_HOT uint64_t
chip_draw(uint64_t seed, uint64_t stream, uint64_t index)
{
	return ofs_mix(seed + stream * 0xd1342543de82ef95ull + index * 0x9e3779b97f4a7c15ull);
}

/* The coded size of the first bytes of a block; equal parts of it have separate ratios. */
CHIP_HOT uint64_t
chip_coded(const struct ofs_chip *chip, uint32_t row, uint64_t size_bytes, uint64_t first_bytes)
{
	uint32_t parts = chip->config.coded_parts;
	const uint32_t *sums = &chip->coded_sums[row * (parts + 1)];
	uint64_t part_bytes = size_bytes / parts, part = parts - 1;

	if (first_bytes < part * part_bytes)
		part = first_bytes / part_bytes;
	return (sums[part] * part_bytes
			   + (sums[part + 1] - sums[part]) * (first_bytes - part * part_bytes))
		/ 1000;
}

/* The set of a key. */
CHIP_HOT struct chip_tag *
chip_tags(const struct chip_unit *unit, uint64_t key)
{
	uint64_t set = chip_draw(0, 0, key) & (unit->config.set_count - 1);

	return &unit->tags[set * unit->config.way_count];
}

CHIP_HOT uint32_t
chip_flight_index(const struct ofs_chip *chip, const struct chip_flight *flight)
{
	return (uint32_t)(flight - chip->flights);
}

CHIP_HOT void
chip_schedule(struct ofs_chip *chip, uint64_t at_ps, enum chip_what what, uint32_t index)
{
	assert(at_ps >= chip->now_ps && chip->heap.count + chip->heap.front_count < chip->heap.max);
	chip_heap_push(&chip->heap,
		(struct chip_event){at_ps, (uint64_t)what << 56 | chip->sequence++, (uint32_t)what, index});
}

/* Hashes one entry of the event log: time, unit, request, event. */
CHIP_HOT void
chip_log(struct ofs_chip *chip, uint32_t unit, uint64_t number, uint32_t what)
{
	uint64_t word = chip->now_ps * 0x9e3779b97f4a7c15ull
		^ (number << 10 | (uint64_t)what << 7 | (unit & 127)) * 0xd1342543de82ef95ull;
	uint64_t hash = chip->figures.hash;

	chip->figures.hash = (hash << 27 | hash >> 37) * 0xbf58476d1ce4e5b9ull + word;
}

CHIP_HOT void
chip_list_append(struct ofs_chip *chip, struct chip_list *list, uint32_t index)
{
	chip->flights[index].link = OFS_NONE;
	if (list->head == OFS_NONE)
		list->head = index;
	else
		chip->flights[list->tail].link = index;
	list->tail = index;
}

CHIP_HOT uint32_t
chip_list_take(struct ofs_chip *chip, struct chip_list *list)
{
	uint32_t index = list->head;

	list->head = chip->flights[index].link;
	return index;
}

/* Adds `weight` for each ps of an interval, mostly within one bin. */
CHIP_HOT void
chip_bins_add(struct ofs_chip *chip, uint64_t *bins, uint64_t from_ps, uint64_t to_ps,
	uint64_t weight)
{
	if (to_ps < chip->bins_end_ps && from_ps >> chip->bin_shift == to_ps >> chip->bin_shift)
		bins[to_ps >> chip->bin_shift] += (to_ps - from_ps) * weight;
	else
		ofs_chip_bins_add(chip, bins, from_ps, to_ps, weight);
}

/* Brings the occupancy bins up to now. */
CHIP_HOT void
chip_count(struct ofs_chip *chip, struct chip_unit *unit)
{
	uint64_t passed_ps = chip->now_ps - unit->count_last_ps;

	if (passed_ps == 0)
		return;
	if (unit->stats.present)
		chip_bins_add(chip, unit->stats.area_bins, unit->count_last_ps, chip->now_ps,
			unit->stats.present);
	unit->count_last_ps = chip->now_ps;
}

/* Lists the unit for settling if a visit waits in it or in front of it. */
CHIP_HOT void
chip_settle_later(struct ofs_chip *chip, struct chip_unit *unit)
{
	if (unit->listed || (unit->waiting == 0 && unit->blocked.head == OFS_NONE))
		return;
	unit->listed = 1;
	chip->settle[(chip->settle_head + chip->settle_count++) % OFS_CHIP_UNITS_MAX] = unit->number;
}

#endif
