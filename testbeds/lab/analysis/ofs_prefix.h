/*
 * ofs_prefix.h: prefix caching across requests, in virtual time.
 *
 * Model: a trace is requests in order of arrival, each a list of blocks given as runs of
 * consecutive block numbers. ofs_prefix_run puts them through a decision core: what is resident is
 * a demand of one step, what is not and is admitted is written into the arena as a host writes what
 * it has just prefilled, and what has been idle for the TTL is dropped. The core alone chooses the
 * victims. The two calls before it need no core: they walk the trace once. What can fail: memory at
 * the start, a trace that does not fit its own counts (-EINVAL), what the core refuses, and a core
 * of another build (-EPROTO).
 */
#ifndef OFS_PREFIX_H
#define OFS_PREFIX_H

#include "core_calls.h"

/* cdef: order 9 */
/* cdef: begin */
struct ofs_prefix_trace {
	uint32_t request_count;
	uint32_t block_count;      /* blocks are numbered below it, without gaps */
	const uint64_t *offsets;   /* [request_count + 1] into runs */
	const uint32_t *run_first; /* first block of a run */
	const uint32_t *run_count; /* blocks of a run */
};

struct ofs_prefix_row {
	uint32_t hits;   /* blocks that were there when their turn came */
	uint32_t prefix; /* blocks from the front that were all there on arrival */
	uint32_t last;   /* the last block was there when its turn came */
};

struct ofs_prefix_reuse {
	uint32_t request;
	uint32_t previous; /* the request that used the same blocks last */
	uint32_t count;    /* consecutive blocks with these two */
};

/* distances[d], d < block_count: re-accesses that d other blocks were touched before, since. */
int ofs_prefix_distances(const struct ofs_prefix_trace *trace, uint64_t *distances);
/*
 * An endless cache: `rows` [request_count], `uses` [block_count] accesses of each block, and up to
 * reuse_max reuses in order. Returns how many reuses there are, or -errno; any of the outputs may
 * be NULL.
 */
int64_t ofs_prefix_ideal(const struct ofs_prefix_trace *trace, struct ofs_prefix_row *rows,
	uint32_t *uses, struct ofs_prefix_reuse *reuses, uint64_t reuse_max);

enum ofs_prefix_admission {
	OFS_PREFIX_ADMIT_ALL = 0,
	OFS_PREFIX_ADMIT_SECOND_TOUCH = 1, /* asked before, within window_ns */
	OFS_PREFIX_ADMIT_TURNS = 2,        /* not a session's first turn, or another session asked */
	OFS_PREFIX_ADMIT_COUNT = 3
};

struct ofs_prefix_plan {
	const struct ofs_prefix_trace *trace;
	const uint64_t *arrival_ns;  /* [request_count], not falling */
	const uint32_t *sessions;    /* [request_count], for ADMIT_TURNS only */
	const uint32_t *turns;       /* [request_count] from 0, for ADMIT_TURNS only */
	uint64_t ttl_ns;             /* idle blocks go; 0: never */
	uint64_t window_ns;          /* of ADMIT_SECOND_TOUCH; UINT64_MAX: any time before */
	uint32_t admission;          /* enum ofs_prefix_admission */
	uint32_t tail_first;         /* touch a request's blocks from its end */
	struct ofs_prefix_row *rows; /* [request_count] out */
	uint64_t admitted;           /* out: blocks written into the arena */
	uint64_t refused;            /* out: misses that were not admitted */
	uint64_t evicted;            /* out: victims */
	uint64_t expired;            /* out: dropped after ttl_ns */
};

/* `session` is open and empty; the core knows block_count chunks and has one layer. */
int ofs_prefix_run(const struct ofs_core_calls *calls, struct ofs_core *core, uint32_t session,
	struct ofs_prefix_plan *plan);
/* cdef: end */

#endif
