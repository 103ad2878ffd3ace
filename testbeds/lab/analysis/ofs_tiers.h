/*
 * ofs_tiers.h: several tiers below the staging arena, as one side of timing.h.
 *
 * Model: the side keeps which tier holds each block, (chunk, layer), and asks that tier's own
 * servers when a read ends: a latency that overlaps, a link that one block at a time crosses, and
 * either requests that wait for their turn or NVMe drives (nvme_model.h). A block that is read
 * again sooner than a tier's `promote_ns` belongs there: it is copied to the first such tier above
 * the one that has it. What is full gives up what was read longest ago. Inclusive: what a tier
 * holds, all below it hold too, and what leaves a tier leaves those above. Exclusive: each block
 * is in one tier, and what leaves it goes one down. The last tier holds all that is given to it:
 * the caller that opens the side sizes it so. A copy counts as present, and takes its share of the
 * links and drives, from when it is requested; no request waits for it. Integers decide. Every end
 * is known immediately. One thread owns a side. What can fail: opening it, with -EINVAL or -ENOMEM.
 */
#ifndef OFS_TIERS_H
#define OFS_TIERS_H

#include "timing.h"

/* cdef: order 8 */
/* cdef: begin */
struct ofs_timing;
#define OFS_TIERS_MAX 8
#define OFS_TIERS_DRIVES_MAX 1024 /* of one tier */
#define OFS_TIERS_NOWHERE 0xff

struct ofs_tier {
	uint64_t capacity_blocks; /* of the last it is not looked at */
	uint64_t promote_ns;      /* what is read again sooner belongs here, or above */
	uint64_t latency_ps;      /* of a read or write, beside the drives' */
	uint64_t read_ps;         /* one block on the link; 0: the link takes no time */
	uint64_t write_ps;
	uint32_t concurrency; /* of memory: requests at once, the others wait in turn; 0: any number */
	uint32_t drive_count; /* of `drive`, blocks dealt in turn; 0: memory */
	struct ofs_nvme_params drive;
};

struct ofs_tiers_config {
	uint32_t tier_count;
	uint32_t chunk_max; /* blocks are numbered layer * chunk_max + chunk */
	uint32_t layer_count;
	uint32_t session_max;
	uint32_t in_flight_max; /* reads of which it is remembered which tier they are of */
	uint32_t block_size_bytes;
	uint32_t exclusive;
	uint32_t place_last; /* what is written goes to the last tier; 0: the first */
	uint64_t hit_ps;     /* constants of what no tier does */
	uint64_t command_ps;
	uint64_t seed;
};

/* Counts of blocks and reads, since open or reset. */
struct ofs_tier_stats {
	uint64_t reads; /* served */
	uint64_t demand_reads;
	uint64_t placed;   /* came as they were written */
	uint64_t promoted; /* came from below */
	uint64_t demoted;  /* came from above */
	uint64_t gone;     /* left */
	uint64_t resident;
	uint64_t moves;   /* reads for a tier below, beside those that were served */
	uint64_t writes;  /* blocks written */
	uint64_t read_ns; /* reads together, from asked to ended */
	uint64_t read_ns_max;
	uint64_t stall_ns; /* of layers whose last block came from here */
};

/* `tiers` [tier_count], the fastest first. */
int ofs_tiers_open(struct ofs_timing **out, const struct ofs_tiers_config *config,
	const struct ofs_tier *tiers);
/* Prefill wrote all layers of these chunks [count]; those that are known stay where they are, and
 * nothing takes time. -EINVAL: a chunk out of range; those before it were written. */
int ofs_tiers_fill(struct ofs_timing *timing, uint64_t now_ns, uint32_t count,
	const uint32_t *chunks);
/* The first tier that has the block; OFS_TIERS_NOWHERE: none, it was never written. */
uint32_t ofs_tiers_where(const struct ofs_timing *timing, uint32_t chunk, uint32_t layer);
/* `tier` == tier_count: what is no tier's, its stall_ns alone: waits that no read ended. */
void ofs_tiers_stats(const struct ofs_timing *timing, uint32_t tier, struct ofs_tier_stats *stats);
/* The side's own close. */
void ofs_tiers_close(struct ofs_timing *timing);
/* cdef: end */

#endif
