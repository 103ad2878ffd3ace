/*
 * support_dpu.h: a DPU for tests: the real region and port, and a reactor of a hundred lines
 * instead of the device, so that a test can say when a block is evicted, late, busy or torn.
 *
 * Model: one thread owns it: the test's, which calls support_turn, or the one support_start begins.
 * Blocks are ordinals 0 .. block_count-1 with known bytes; every failure is an assertion.
 */
#ifndef OFS_SUPPORT_DPU_H
#define OFS_SUPPORT_DPU_H

#include "driver.h"
#include "port.h"

#include <pthread.h>
#include <stdbool.h>

#define SUPPORT_BLOCKS_MAX 4096

struct support_config {
	const char *fabric; /* a side of port.h; NULL: shm */
	uint32_t block_count;
	uint32_t slot_count;
	uint32_t payload_size_bytes;
	uint32_t entry_count;
	uint32_t demand_max;
	uint32_t score_max;
	uint32_t put_slot_count;
};

struct support_dpu {
	struct support_config config;
	struct ofs_region *region;
	struct ofs_share *share;
	struct ofs_port *port;
	struct ofs_command command;
	struct ofs_result *results;
	struct ofs_cqe rest; /* of the step that has been answered in part; count 0: none */
	uint32_t slot_of[SUPPORT_BLOCKS_MAX];   /* OFS_NONE: not staged */
	uint32_t length_of[SUPPORT_BLOCKS_MAX]; /* 0: the store does not have it */
	uint32_t *block_in;                     /* [slot_count] */
	uint32_t generation;
	uint64_t random;
	/* Inputs of the test; set before support_start, or between turns. */
	uint32_t busy_answers; /* this many demands are answered -EAGAIN first */
	uint32_t busy_puts;    /* this many puts are answered -EBUSY first */
	int put_rc;            /* every put ends so */
	uint32_t land_first;   /* this many results of a step come before the rest, the last first */
	bool mute;             /* takes commands and never answers */
	bool churn;            /* every turn evicts a block and stages another in its slot */
	bool flip;             /* every staged block gets a flipped bit after its checksum */
	/* Observations. */
	uint32_t step_count;
	uint32_t retry_count;
	uint32_t seen_count[256];
	uint64_t score_sum;
	uint32_t guess_count;
	uint64_t selected_count;
	uint32_t bad_count;
	pthread_t thread;
	uint32_t stop;  /* atomic */
	uint32_t turns; /* atomic */
};

void support_open(struct support_dpu *dpu, const struct support_config *config);
void support_close(struct support_dpu *dpu);
/* One look at the port, and one eviction when `churn`. */
void support_turn(struct support_dpu *dpu);
/* support_turn on a thread of its own until support_stop; it sleeps when nothing comes. */
void support_start(struct support_dpu *dpu);
void support_stop(struct support_dpu *dpu);
/* Into any slot, evicting its block. */
void support_stage(struct support_dpu *dpu, uint32_t ordinal);
void support_evict(struct support_dpu *dpu, uint32_t ordinal);
struct ofs_key support_key(uint32_t ordinal);
void support_fill(uint32_t ordinal, void *payload, uint32_t length);
/* Whether these are the bytes of the block. */
bool support_matches(uint32_t ordinal, const void *payload, uint32_t length);
/* The host's end of its port. */
struct ofs_fabric *support_fabric(struct support_dpu *dpu);
/* The same in virtual time; `pump` turns the DPU. */
struct ofs_fabric *support_fabric_sim(const struct support_dpu *dpu,
	const struct ofs_fabric_sim_config *config, void (*pump)(void *context, uint64_t now_ns),
	void *context, uint64_t now_ns);
void support_open_driver(struct support_dpu *dpu, struct ofs_driver **driver);
/*
 * Adds the sides that are separate extensions, where this machine has their devices; otherwise
 * prints to standard error which are left out and why.
 */
void support_add_sides(void);
/* Whether a write of one end takes time to reach the other. */
bool support_travels(const char *side);
void support_rest(long rest_ns);
/* ofs_port_poll; where commands travel, until one is there or ten seconds are over. */
int support_take(struct support_dpu *dpu);
/* Of a blob that was changed. */
void support_set_checksum(struct ofs_attachment *attachment);
void support_close_fds(const struct ofs_attachment *attachment);

/* A fetch of `count` ordinals with arrays of its own. */
struct support_fetch {
	struct ofs_fetch fetch;
	uint32_t ordinals[SUPPORT_BLOCKS_MAX];
	struct ofs_key keys[SUPPORT_BLOCKS_MAX];
	uint32_t target_index[SUPPORT_BLOCKS_MAX];
	uint8_t ends[SUPPORT_BLOCKS_MAX];
	int32_t rcs[SUPPORT_BLOCKS_MAX];
	uint32_t lengths[SUPPORT_BLOCKS_MAX];
	uint64_t checksums[SUPPORT_BLOCKS_MAX];
	uint8_t *target;
};
struct support_fetch *support_fetch_new(const struct support_dpu *dpu, uint32_t count,
	const uint32_t *ordinals);
void support_fetch_free(struct support_fetch *fetch);
/* Every block that came is the one asked for, byte for byte. Returns how many came. */
uint32_t support_fetch_check(const struct support_fetch *fetch);

#endif
