/*
 * ofs_sim.h: the decision core in virtual time.
 *
 * Model: the engine takes the place of a daemon's reactor. It owns the clock and the NVMe timing
 * model, carries out the core's actions, and never waits: the same inputs and seed give the same
 * events in the same order and, with a log, the same log byte for byte. Sessions decode in
 * parallel, each layer by layer: a step's demands are passed to the core, and when the last has
 * arrived the layer computes for compute_ns and the next layer follows. A session takes a batch
 * slot; its selections are fed in slabs of consecutive steps, and the cut into slabs does not
 * change the result. The caller opens the core, its tenant and its sessions, and may call the core
 * between two runs. What can fail: input that the core refuses, and memory. After an error the
 * engine can only be closed.
 */
#ifndef OFS_SIM_H
#define OFS_SIM_H

#include "ofs_core.h"
#include "timing.h"

/* cdef: order 8 */
/* cdef: begin */
struct ofs_engine;

struct ofs_engine_config {
	uint32_t batch_slot_max;
	uint32_t append_steps;     /* a session writes a new chunk every append_steps steps; 0: never */
	uint64_t compute_ns;       /* one layer, with its blocks at hand */
	uint64_t retry_ns;         /* wait after -EAGAIN */
	struct ofs_timing *timing; /* of the device; the caller's, until the engine is closed */
};

/* Consecutive steps of one session; its arrays are the caller's, until the next slab is asked. */
struct ofs_slab {
	uint32_t step_count;      /* 0 with `last`: there is no further step */
	uint32_t last;            /* the session ends with it */
	uint32_t width;           /* ordinals of a row of `selected` */
	uint32_t score_stride;    /* from one row of scores to the next */
	uint32_t score_count;     /* scores of a row that mean something; more than blocks are cut */
	uint32_t selected_count;  /* what the ledger counts; 0: as many as the row has */
	const uint32_t *selected; /* [step_count * layer_count][width], OFS_NONE behind the last */
	const uint8_t *served;    /* the same shape: the HBM pool has it; NULL: it has none */
	const uint64_t *units;    /* the same shape: bit i, the block's i-th unit is read; or NULL */
	const uint16_t *scores;   /* [step_count * layer_count][score_stride], or NULL */
	const uint64_t *guess_offsets;   /* [step_count * layer_count + 1] into guesses, or NULL */
	const struct ofs_guess *guesses; /* passed when the row's demands have gone in */
	uint64_t *stall_ns; /* [step_count] sums over the layers are written here; or NULL */
};

/* What one layer of one step did. Counts stop at their type's highest value. */
struct ofs_row {
	uint32_t session; /* its batch slot */
	uint32_t step;    /* since it started */
	uint16_t layer;
	uint16_t flags; /* OFS_ROW_* */
	uint16_t selected;
	uint16_t pool_hits;  /* of the selected: served by the HBM pool */
	uint16_t demands;    /* the rest */
	uint16_t nontrivial; /* of the demands */
	uint16_t nontrivial_selected;
	uint16_t nontrivial_pool_hits;
	uint16_t ends[9]; /* of the demands, by enum ofs_end */
	uint16_t nontrivial_ends[9];
	uint16_t shadow_misses;
	uint16_t pollution;
	uint32_t demand_reads; /* of the layer's blocks for the session, in this step */
	uint32_t prefetch_reads;
	uint32_t stall_ns; /* waited beyond compute and hit */
};
#define OFS_ROW_RETRIED 0x1 /* a demand was retried after -EAGAIN */
#define OFS_ROW_FAILED 0x2  /* a demand ended without its block */

/* Why a run returned. */
#define OFS_ENGINE_IDLE 0  /* nothing is left to do */
#define OFS_ENGINE_ROWS 1  /* the batch slot needs its next slab */
#define OFS_ENGINE_ENDED 2 /* the batch slot has computed its last layer */

#define OFS_ENGINE_UNITS_MAX 64 /* units of a block that a slab can tell apart */

struct ofs_engine_state {
	uint64_t now_ns;
	uint64_t reads;
	uint64_t failed; /* demands that ended with another error than -EAGAIN */
};

int ofs_engine_open(struct ofs_engine **out, struct ofs_core *core,
	const struct ofs_engine_config *config);
void ofs_engine_close(struct ofs_engine *engine);
/*
 * The session begins: `guesses`, the caller's until the first slab is asked, are passed at at_ns,
 * its first layer demands lead_ns later. -EBUSY: another session has it; -EINVAL: in the past.
 */
int ofs_engine_start(struct ofs_engine *engine, uint32_t batch_slot, uint32_t session,
	uint64_t at_ns, uint64_t lead_ns, const struct ofs_guess *guesses, uint32_t guess_count);
/* -EBUSY: the batch slot has not used up its slab. */
int ofs_engine_feed(struct ofs_engine *engine, uint32_t batch_slot, const struct ofs_slab *slab);
/* Runs until the caller is needed: OFS_ENGINE_* or -errno. */
int ofs_engine_run(struct ofs_engine *engine, uint32_t *batch_slot);
/*
 * Take at most `max` rows of whole steps that the batch slot has run, in order: returns their
 * number; `rows` NULL: how many there are. Reads that follow a session's end are in no row.
 */
int ofs_engine_rows(struct ofs_engine *engine, uint32_t batch_slot, struct ofs_row *rows, int max);
/*
 * Blocks staged, by how many of their units were demanded since they were staged: [0] of those
 * that have left the arena, [1] of those that are in it and were demanded. Slabs without units
 * count nothing.
 */
void ofs_engine_uses(const struct ofs_engine *engine, uint64_t uses[2][65]);
void ofs_engine_describe(const struct ofs_engine *engine, struct ofs_engine_state *state);

struct ofs_sim_decode {
	uint32_t session_count;
	uint32_t step_count;
	uint32_t score_count;    /* ordinals of one row of scores; 0: no hints */
	uint32_t selected_count; /* blocks one layer selects, those of the HBM pool included */
	uint32_t append_steps;   /* a session writes a new chunk every append_steps steps; 0: never */
	uint32_t reserved;
	const uint32_t *sessions; /* [session_count] numbers of open sessions */
	const uint64_t *offsets;  /* [session_count * step_count * layer_count + 1] into demands */
	const uint32_t *demands;  /* ordinals, no duplicates in one step of one layer */
	const uint16_t *scores;   /* [session_count * step_count * layer_count][score_count] or NULL */
	const uint32_t *score_counts;  /* [session_count] of each, <= score_count; NULL: all */
	uint64_t compute_ns;           /* one layer, with its blocks at hand */
	uint64_t retry_ns;             /* wait after -EAGAIN */
	uint64_t stagger_ns;           /* session i begins at i * stagger_ns */
	uint64_t lead_ns;              /* and demands this much later; guesses are passed in between */
	const uint64_t *guess_offsets; /* [session_count + 1] into guesses, or NULL */
	const struct ofs_guess *guesses; /* of the first step of each session */
	struct ofs_timing *timing;       /* of the device */
	uint64_t *stall_ns;              /* [session_count][step_count] waited beyond compute and hit */
	uint64_t end_ns;                 /* out: when the last session ended */
	uint64_t reads;                  /* out */
	uint64_t failed;                 /* out: demands that ended with another error than -EAGAIN */
};

/* A pool of HBM blocks, one part for each layer of one session. */
struct ofs_pool;

/* Room for pool_blocks of each layer's block_count ordinals; 0: it never has any. */
int ofs_pool_open(struct ofs_pool **out, uint32_t layer_count, uint32_t block_count,
	uint32_t pool_blocks);
void ofs_pool_close(struct ofs_pool *pool);
/*
 * Run selections [step_count][layer_count][width], OFS_NONE behind the last, through the pool:
 * `served`, the same shape, is 1 where it had the block. What was selected longest ago leaves
 * first, never what is selected. -EINVAL, nothing changed: an ordinal out of range, or a selection
 * larger than the pool.
 */
int ofs_pool_serve(struct ofs_pool *pool, uint32_t step_count, uint32_t width,
	const uint32_t *selected, uint8_t *served);
/* The ordinals that the pool holds now, [layer_count][pool_blocks], OFS_NONE behind the last. */
void ofs_pool_held(const struct ofs_pool *pool, uint32_t *ordinals);

/* Append `count` chunks by their contents, stored in every layer. `homes` [count], or NULL: the
 * chunks under whose store keys they are read. */
int ofs_sim_populate_contents(struct ofs_core *core, uint64_t now_ns, uint32_t session,
	uint32_t count, const struct ofs_key *contents, uint32_t *homes);
/* Append `count` chunks of made-up contents to the session, stored in every layer. */
int ofs_sim_populate(struct ofs_core *core, uint32_t session, uint64_t content, uint32_t count);
/* A whole plan at once, through an engine of its own. */
int ofs_sim_decode(struct ofs_core *core, struct ofs_sim_decode *plan);
/* cdef: end */

#endif
