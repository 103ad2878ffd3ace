/*
 * ofs_sim.h: the decision core in virtual time.
 *
 * Model: the simulator stands where the reactor stands in a daemon. It owns the clock and the NVMe
 * timing model, carries out what the core asks, and nothing here waits: the same inputs and seed
 * give the same events in the same order and, with a log, the same log byte for byte. Sessions
 * decode in parallel, each layer after layer: a step's demands go in, and when the last of them is
 * there the layer computes for compute_ns and the next layer follows. The caller opens the core,
 * its tenant and its sessions. What can fail: input that the core refuses, and memory at the start.
 */
#ifndef OFS_SIM_H
#define OFS_SIM_H

#include "nvme_model.h"
#include "ofs_core.h"

/* cdef: order 8 */
/* cdef: begin */
struct ofs_sim_decode {
	uint32_t session_count;
	uint32_t step_count;
	uint32_t score_count;      /* ordinals of one row of scores; 0: no hints */
	uint32_t selected_count;   /* blocks one layer selects, those of the HBM pool included */
	uint32_t append_steps;     /* a session writes a new chunk every so many steps; 0: never */
	uint32_t reserved;
	const uint32_t *sessions;  /* [session_count] numbers of open sessions */
	const uint64_t *offsets;   /* [session_count * step_count * layer_count + 1] into demands */
	const uint32_t *demands;   /* ordinals, no duplicates in one step of one layer */
	const uint16_t *scores;    /* [session_count * step_count * layer_count][score_count] or NULL */
	const uint32_t *score_counts; /* [session_count] of each, <= score_count; NULL: all */
	uint64_t compute_ns;       /* one layer, with its blocks at hand */
	uint64_t hit_ns;           /* the fabric's part of a layer that demands anything */
	uint64_t retry_ns;         /* wait after -EAGAIN */
	uint64_t stagger_ns;       /* session i begins at i * stagger_ns */
	uint64_t seed;             /* of the NVMe model */
	const struct ofs_nvme_params *nvme; /* NULL: a read takes no time */
	uint64_t *stall_ns;        /* [session_count][step_count] waited beyond compute and hit */
	uint64_t end_ns;           /* out: when the last session ended */
	uint64_t reads;            /* out */
	uint64_t failed;           /* out: demands that ended with another error than -EAGAIN */
};

/* Append `count` chunks of made-up contents to the session, stored in every layer. */
int ofs_sim_populate(struct ofs_core *core, uint32_t session, uint64_t content, uint32_t count);
/*
 * A flat trace through layer 0: one ordinal a step, demand only, reads take no time. *hits counts
 * what was resident. With LRU eviction this is the textbook LRU.
 */
int ofs_sim_flat(struct ofs_core *core, uint32_t session, const uint32_t *ordinals,
	uint64_t count, uint64_t *hits);
int ofs_sim_decode(struct ofs_core *core, struct ofs_sim_decode *plan);
/* cdef: end */

#endif
