/*
 * support_weather.h: the draws of one seed, before and during a simulation.
 *
 * Model: each seed draws every probability again (swarm testing, Groce et al. 2012): runs in which
 * some events never happen reach states that a run with all events does not. One run in three is
 * strict: nothing is injected, and so nothing may be lost.
 */
#ifndef OFS_SUPPORT_WEATHER_H
#define OFS_SUPPORT_WEATHER_H

#include "support_device.h"
#include "support_oracle.h"
#include "support_simulate.h"

#include <stdio.h>
#include <stdlib.h>

enum {
	HOSTS_MAX = 4,
	SESSIONS_MAX = 8,
	WEATHER_EVENTS = 15,
	LOG_PIECE = 262144,
	TENANTS_MAX = 3,
	VALUE_KEYS = 4
};

struct weather {
	uint64_t seed;
	uint64_t random;
	bool strict;
	bool hangs;
	int medium_fd; /* of the drive, which outlives the device */
	uint32_t opens;
	uint32_t weights[WEATHER_EVENTS];
	uint32_t weight_sum;
	struct ofs_fabric_sim_config fabric;
	struct ofs_tenant_quota quota; /* of every tenant; in half of the runs none */
};

/* What a key has: the store of `seed`, 0: nothing; `any`: or any store that began before. */
struct simulated_value {
	uint64_t seed;
	uint64_t begun; /* the last, whether it was committed or not */
	bool any;
	bool kept; /* `any`, but not nothing */
};

struct simulation {
	struct weather weather;
	struct world world;
	struct oracle oracle;
	struct world_host hosts[HOSTS_MAX];
	bool host_used[HOSTS_MAX];
	bool host_raw[HOSTS_MAX]; /* sends arbitrary data */
	bool host_mad[HOSTS_MAX]; /* and has written nonsense where its ring ends */
	uint32_t raw_flying[HOSTS_MAX];
	struct world_session sessions[SESSIONS_MAX];
	bool session_used[SESSIONS_MAX];
	uint32_t step;
	uint64_t hash;
	uint64_t read_errors;
	uint64_t losses; /* failed checks and expired blocks, of which each may be one that is missed */
	bool purged;     /* kept chunks went at a bound, or for want of room */
	bool hasty;      /* the call at hand has little time */
	bool was_dirty;  /* write-back had not flushed all when the fetch began */
	struct simulated_value values[TENANTS_MAX][VALUE_KEYS];
	uint64_t value_random;
	uint64_t value_seed;
	uint8_t *log;
	uint64_t log_size_bytes;
	uint64_t log_room_bytes;
	struct simulate_result result;
};

#define CHECK(condition)                                                                       \
	do {                                                                                       \
		if (!(condition)) {                                                                    \
			fprintf(stderr, "simulate: seed %llu step %u: %s (%s:%d)\n",                       \
				(unsigned long long)s->weather.seed, s->step, #condition, __FILE__, __LINE__); \
			abort();                                                                           \
		}                                                                                      \
	} while (0)

/* Into the hash of the run. */
static inline void
simulate_mix(struct simulation *s, uint64_t value)
{
	s->hash = (s->hash ^ value) * 0x9e3779b97f4a7c15ull;
	s->hash ^= s->hash >> 29;
}

/* Commands of a host that means no good, or has a bug, and the taking in of their answers. */
void simulate_raw(struct simulation *s);
void simulate_raw_collect(struct simulation *s, uint32_t host);

/* Several fetches and puts of one driver, on their way at once. */
void simulate_together(struct simulation *s);
/* Notes what went at a bound, or for want of room. */
void simulate_check_quotas(struct simulation *s);
/* A command on a value of some honest host; and what a power cut leaves of all values. */
void simulate_value(struct simulation *s);
void simulate_values_cut(struct simulation *s, bool forgive);
/* A session that some honest host has open, or NULL. */
struct world_session *simulate_any_session(struct simulation *s);
uint64_t simulate_patience_ns(struct simulation *s);
/* The permitted answers to one demand or put, given the oracle's state. */
void simulate_judge(struct simulation *s, const struct ofs_key *store_key, uint32_t layer,
	int32_t rc);
void simulate_judge_put(struct simulation *s, const struct ofs_key *store_key, uint32_t layer,
	int32_t rc);

/* Draws the weather and opens a device under it. */
void weather_open(struct weather *weather, uint64_t seed, struct world *world);
/* Opens it again, on the contents that the last one left. */
void weather_open_again(struct weather *weather, struct world *world);
void weather_close(struct weather *weather);
/* 0 .. limit - 1; 0 where limit is 0. */
uint32_t weather_below(struct weather *weather, uint32_t limit);
uint32_t weather_event(struct weather *weather);
void weather_policy(struct weather *weather, struct ofs_policy *policy);

#endif
