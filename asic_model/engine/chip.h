/*
 * chip.h: a network of hardware units in virtual time, event by event.
 *
 * Model: a chip is units and routes. A request follows its route, stage after stage; each stage is
 * a visit to one unit. A visit waits for the unit (its queue is bounded), holds a server of it for
 * the occupancy (`fixed_ps`, plus `item_ps` and `mib_ps` times its size), and then passes the
 * pipelined `latency_ps`. A finished visit whose next unit is full stays in its unit and keeps its
 * server and credit (blocking after service), so that backpressure reaches the source. A stage may
 * cut a request into pieces, which proceed independently until a stage with `join` or the end of
 * the route. A unit of tags sends a miss to another stage. Nothing here knows what a KV block is.
 *
 * Kinds: a server, or several with one queue; a link, whose credits return `latency_ps` after the
 * receiver took the transfer; a pipe, which begins one visit per `fixed_ps` and delivers in order;
 * banks, each with a queue and all with one bound; tags, a pipe with a set-associative store of
 * keys (evicts the least recently used; those of scores are other keys than those of blocks); a
 * delay, which serves all visits concurrently; a drive, whose times are those of nvme_model.h.
 *
 * Time is integer picoseconds, rounded to nearest. Events are ordered by (time, class, sequence),
 * so the hash of the event log is the same on every run and every machine. Draws are a function of
 * (seed, unit, index). A chip allocates its memory at open and nothing later; a request that finds
 * no room outside waits in the caller's array. What can fail: a configuration that contradicts
 * itself (-EINVAL and one line with the reason), requests whose time goes backwards (-EINVAL), and
 * -EDEADLK where requests are inside and nothing is scheduled. One thread owns a chip.
 */
#ifndef OFS_CHIP_H
#define OFS_CHIP_H

#include "histogram.h"
#include "qos.h"
#include "timing.h"

/* cdef: order 20 */
/* cdef: begin */
#define OFS_CHIP_UNITS_MAX 64
#define OFS_CHIP_STAGES_MAX 512
#define OFS_CHIP_ROUTES_MAX 32
#define OFS_CHIP_SERVERS_MAX 65536
#define OFS_CHIP_BANKS_MAX 64
#define OFS_CHIP_PRIORITIES 8
#define OFS_CHIP_LOAD_ROWS 16
#define OFS_CHIP_KEYS_MAX 64
#define OFS_CHIP_COUNT_MAX 1048576 /* blocks of a request whose keys are looked up */
#define OFS_CHIP_CODED_MAX 128     /* rows, and parts of a row */
#define OFS_CHIP_BINS 256
#define OFS_CHIP_WHY 160
#define OFS_CHIP_END 0xffffffff /* the end of a route, as a stage's next or miss */
#define OFS_CHIP_NEVER 0xffffffffffffffff

enum ofs_chip_kind {
	OFS_CHIP_KIND_SERVER = 0,
	OFS_CHIP_KIND_LINK = 1,
	OFS_CHIP_KIND_PIPE = 2,
	OFS_CHIP_KIND_BANKS = 3,
	OFS_CHIP_KIND_TAGS = 4,
	OFS_CHIP_KIND_DELAY = 5,
	OFS_CHIP_KIND_DRIVE = 6,
	OFS_CHIP_KIND_COUNT = 7
};

/* The order in which a unit serves waiting visits. */
enum ofs_chip_queue {
	OFS_CHIP_QUEUE_FIFO = 0,
	OFS_CHIP_QUEUE_PRIORITY = 1, /* the lowest priority number first, each in order of arrival */
	OFS_CHIP_QUEUE_QOS = 2,      /* as in qos.h; a full tenant or session blocks only itself */
	OFS_CHIP_QUEUE_COUNT = 3
};

/* The number of items in a visit. */
enum ofs_chip_items {
	OFS_CHIP_ITEMS_NONE = 0,
	OFS_CHIP_ITEMS_BLOCKS = 1, /* the request's count */
	OFS_CHIP_ITEMS_SCORES = 2, /* its score_count */
	OFS_CHIP_ITEMS_MISSED = 3, /* keys that missed in its last visit to tags */
	OFS_CHIP_ITEMS_COUNT = 4
};

/* Quantiles of a memory's latency at one load; interpolated between rows and quantiles. */
struct ofs_chip_load {
	uint32_t load_permille; /* of the capacity of the unit's servers */
	uint32_t reserved;
	uint64_t min_ps, p50_ps, p90_ps, p99_ps, max_ps;
};

struct ofs_chip_unit {
	char name[24];
	uint32_t kind;
	uint32_t queue;
	uint32_t servers;       /* servers, lanes or banks; a delay and a drive have none */
	uint32_t queue_max;     /* waiting visits; when full the unit before is blocked */
	uint32_t in_flight_max; /* begun and not yet with the next unit: credits, depth; 0: unlimited */
	uint32_t drops;         /* 1: a full unit drops the request, which ends here, and blocks none */
	uint32_t set_count;     /* tags: sets, a power of two */
	uint32_t way_count;     /* tags */
	uint64_t fixed_ps;      /* occupancy of a server per visit */
	uint64_t item_ps;       /* and for each item */
	uint64_t mib_ps;        /* and for each MiB */
	uint64_t latency_ps;    /* after that, pipelined */
	uint64_t pause_every_ps; /* servers pause at each multiple of this (refresh); 0: never */
	uint64_t pause_ps;       /* duration of a pause; banks pause in turn */
	uint64_t load_span_ps;   /* window over which the load is taken, rounded to a power of two */
	uint64_t draw_span_ps;   /* visits that begin in one such stretch draw alike; 0: each anew */
	uint32_t load_row_count; /* 0: latency_ps; else the latency is drawn by the present load */
	uint32_t reserved;
	struct ofs_chip_load load_rows[16]; /* OFS_CHIP_LOAD_ROWS, in order of load */
	const struct ofs_nvme_params *drive;
	const struct ofs_qos_config
		*qos; /* of a qos queue; the cost is the bytes moved, 1 to a quantum */
	const struct ofs_qos_tenant *tenants; /* [qos->tenant_count] */
};

/* `next` and `miss` are numbers of stages after this one, or OFS_CHIP_END. */
struct ofs_chip_stage {
	uint32_t unit;
	uint32_t next;
	uint32_t miss;           /* tags: the next stage after a miss */
	uint32_t bytes_permille; /* of the request's bytes that this visit moves */
	uint32_t coded;          /* 1: of its coded bytes, where it has any */
	uint32_t items;          /* enum ofs_chip_items */
	uint32_t piece_bytes;    /* cut into pieces of this size, from here on; 0: not */
	uint32_t join;           /* 1: the pieces join here */
	uint32_t write;          /* drive: 1: a write */
	uint32_t keys;           /* per item: tags look each up; 0: the request's own, once */
	uint32_t per_key;        /* items that share these keys, as one; 0: none do */
	uint32_t reserved;
	uint64_t fixed_ps; /* of this stage's visits, in addition to the unit's */
	uint64_t item_ps;
	uint64_t mib_ps;
};

struct ofs_chip_config {
	const struct ofs_chip_unit *units;
	const struct ofs_chip_stage *stages;
	const uint32_t *routes; /* [route_count] first stages */
	/* Coded over raw size, in permille, of each equal part of a block, a head's keys for one: a row
	 * for each layer, repeated for more layers. NULL: coded as the request says. */
	const uint16_t *coded_permille; /* [coded_rows][coded_parts] */
	uint32_t coded_rows;
	uint32_t coded_parts;
	uint32_t unit_count;
	uint32_t stage_count;
	uint32_t route_count;
	uint32_t in_flight_max; /* requests inside */
	uint32_t piece_max;     /* pieces inside; 0 where nothing is cut */
	uint32_t end_max;       /* ends that wait for a poll; 0: none are kept */
	uint32_t visit_max;     /* visits that wait for a poll; more are lost and counted */
	uint32_t sample_every;  /* one in this many requests is sampled; 0: none */
	uint64_t seed;
	uint64_t bin_ps; /* initial width of a bin, rounded up to a power of two */
};

struct ofs_chip_request {
	uint64_t tag;
	uint64_t at_ps;
	uint64_t key;          /* for tags and banks; tags: the first of its keys */
	uint64_t offset_bytes; /* on a drive; where banks interleave */
	uint64_t size_bytes;
	uint64_t coded_bytes; /* after the codec; 0: as the chip's rows say, or size_bytes */
	uint64_t deadline_ps;
	uint32_t count;
	uint32_t score_count;
	uint32_t route;
	uint32_t priority; /* below OFS_CHIP_PRIORITIES; 0 is the most urgent */
	uint32_t tenant;
	uint32_t session; /* or OFS_QOS_NO_SESSION */
	uint32_t layer;
	uint32_t looked; /* 1 + the keys of its blocks that missed, looked up on arrival; 0: not yet */
};

struct ofs_chip_done {
	uint64_t tag;
	uint64_t at_ps;
	uint64_t end_ps;
	uint32_t route;
	uint32_t dropped; /* the unit that dropped it, or OFS_NONE */
};

/* One visit of a sampled request or of one of its pieces. Unit OFS_NONE: it waited outside. */
struct ofs_chip_visit {
	uint64_t tag;
	uint64_t enter_ps; /* into the unit's queue */
	uint64_t begin_ps; /* of its service */
	uint64_t done_ps;  /* service and latency are over */
	uint64_t leave_ps; /* the next unit took it */
	uint32_t unit;
	uint32_t stage;
};

struct ofs_chip_unit_stats {
	uint64_t arrivals; /* visits that entered */
	uint64_t departures;
	uint64_t dropped;
	uint64_t busy_ps;    /* of all servers together; delay and drive: while occupied */
	uint64_t blocked;    /* visits that found the next unit full */
	uint64_t blocked_ps; /* how long they held this one for it */
	uint64_t bytes;
	uint64_t items;
	uint64_t hits; /* tags */
	uint64_t misses;
	uint64_t evictions;
	uint64_t present; /* inside now, including waiting ones */
	uint64_t waiting;
	uint64_t waiting_max;
	uint64_t area_lo; /* the integral of `present` over time, in ps: 128 bits */
	uint64_t area_hi;
	struct ofs_histogram wait; /* enter to begin, in ps */
	struct ofs_histogram time; /* enter to leave, in ps */
	uint64_t area_bins[256];   /* OFS_CHIP_BINS: the same integral, bin by bin */
	uint64_t busy_bins[256];
};

struct ofs_chip_route_stats {
	uint64_t ended; /* including dropped ones */
	uint64_t dropped;
	struct ofs_histogram latency; /* in ps, from at_ps to the end; without dropped ones */
};

struct ofs_chip_figures {
	uint64_t now_ps;
	uint64_t events; /* taken from the heap, and arrivals */
	uint64_t taken;  /* requests */
	uint64_t ended;
	uint64_t inside; /* requests */
	uint64_t bin_ps;
	uint64_t visits_lost;
	uint64_t memory_bytes; /* the chip's total allocation */
	uint64_t hash;         /* of the event log so far: time, unit, request, what */
};

struct ofs_chip;

/* -EINVAL: `why` has the reason. */
int ofs_chip_open(struct ofs_chip **out, const struct ofs_chip_config *config, char why[160]);
void ofs_chip_close(struct ofs_chip *chip);
/* Returns to the state after open: empty, at time 0, with its draws from the beginning. */
void ofs_chip_reset(struct ofs_chip *chip);
/*
 * Feeds requests for later runs, in order of time, none before now. The caller keeps the array
 * until it is taken. -EBUSY: the last is not; -EINVAL: one is out of order or out of range.
 */
int ofs_chip_feed(struct ofs_chip *chip, const struct ofs_chip_request *requests, uint64_t count);
/* Requests fed and not taken yet. */
uint64_t ofs_chip_fed(const struct ofs_chip *chip);
/*
 * Runs all events up to until_ps; OFS_CHIP_NEVER: until every request has ended. Returns 0 when
 * that is reached, 1 when ends must be polled first, -EDEADLK when no request inside can proceed:
 * ofs_chip_stuck says where.
 */
int ofs_chip_run(struct ofs_chip *chip, uint64_t until_ps);
/* As ofs_chip_run, but returns 1 at the first end, for callers whose next request depends on it. */
int ofs_chip_run_to_end(struct ofs_chip *chip, uint64_t until_ps);
int ofs_chip_poll(struct ofs_chip *chip, struct ofs_chip_done *ends, int max);
int ofs_chip_poll_visits(struct ofs_chip *chip, struct ofs_chip_visit *visits, int max);
/* After -EDEADLK: the units of one cycle in order, each waiting for the next and the last for the
 * first; or, without a cycle, those where requests wait (`cycle` 0). Returns how many. */
int ofs_chip_stuck(const struct ofs_chip *chip, uint32_t units[64], int *cycle);
void ofs_chip_figures(const struct ofs_chip *chip, struct ofs_chip_figures *figures);
void ofs_chip_unit_stats(struct ofs_chip *chip, uint32_t unit, struct ofs_chip_unit_stats *stats);
/* Figures of a unit with a qos queue; -EINVAL: it has none, or not this tenant. */
int ofs_chip_tenant_stats(const struct ofs_chip *chip, uint32_t unit, uint32_t tenant,
	struct ofs_qos_stats *stats);
/* Figures of an entry of its session table, as in ofs_qos_session_stats; -EINVAL: no such entry. */
int ofs_chip_session_stats(const struct ofs_chip *chip, uint32_t unit, uint32_t entry,
	struct ofs_qos_session_stats *stats);
void ofs_chip_route_stats(const struct ofs_chip *chip, uint32_t route,
	struct ofs_chip_route_stats *stats);
/*
 * The chip as a side of timing.h: `routes` [4] are those of a read, a write, a hit and a command.
 * Every end is delivered later, by poll. The side is part of the chip, its close closes it; needs
 * end_max of at least in_flight_max (-EINVAL).
 */
int ofs_chip_timing(struct ofs_timing **out, struct ofs_chip *chip, const uint32_t routes[4]);
int ofs_chip_version(void);
/* cdef: end */

#endif
