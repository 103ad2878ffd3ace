/*
 * tiers.h: what the files of the tiers share.
 *
 * Model: tiers.c is the side, tier_blocks.c says where blocks are, tier_servers.c how long one tier
 * takes. A tier's list holds its blocks, the one that was read longest ago first; the last tier
 * has none, as nothing leaves it.
 */
#ifndef TIERS_H
#define TIERS_H

#include "heap.h"
#include "ofs_tiers.h"

struct tier_link {
	uint32_t next, prev;
};

/* A read on its way. */
struct tier_arrival {
	struct ofs_heap_key key; /* when it ends, in ns, then in the order they were asked */
	uint32_t tier;
	uint32_t reserved;
};

struct tier {
	struct ofs_tier config;
	struct ofs_tier_stats stats;
	struct ofs_nvme_model **drives; /* [drive_count] */
	uint64_t *ends_ps;              /* [concurrency] of the last requests, in turn */
	uint64_t read_free_ps, write_free_ps;
	uint32_t turn;
};

struct tiers {
	struct ofs_timing base;
	struct ofs_tiers_config config;
	struct tier tiers[OFS_TIERS_MAX];
	struct tier_link *links;
	uint8_t *top;      /* [block_count] the first tier that has it */
	uint64_t *last_ns; /* [block_count] when it was asked for or written */
	uint64_t *need_ns; /* [session_max] when its layer demanded */
	struct tier_arrival *arrivals;
	uint64_t sequence;
	uint64_t arrived_ns; /* the last read that has ended */
	uint64_t stall_ns;   /* of layers that no read ended */
	uint32_t arrived_tier, arrival_count;
	uint32_t block_count, last;
};

#pragma GCC visibility push(hidden)

/* tier_servers.c */
int tier_servers_open(struct tiers *t, uint32_t tier, const struct ofs_tier *config);
void tier_servers_reset(struct tier *tier);
void tier_servers_close(struct tier *tier);
/* When the block is read, or written, in ps. */
uint64_t tier_read(struct tiers *t, uint32_t tier, uint64_t now_ps, uint32_t block);
uint64_t tier_write(struct tiers *t, uint32_t tier, uint64_t now_ps, uint32_t block);

/* tier_blocks.c */
int tier_blocks_open(struct tiers *t);
void tier_blocks_reset(struct tiers *t);
#define TIER_UNTIMED UINT64_MAX /* as now_ps: copies take no time */
/* A block is written: when, in ps. A new one goes where the configuration says. */
uint64_t tier_place(struct tiers *t, uint64_t now_ps, uint64_t now_ns, uint32_t block);
/* A block is read: the tier that serves it, from before it moves. */
uint32_t tier_found(struct tiers *t, uint32_t block);
/* What follows a read: it is the newest, and moves up. */
void tier_used(struct tiers *t, uint64_t now_ps, uint64_t now_ns, uint32_t block);

#pragma GCC visibility pop

#endif
