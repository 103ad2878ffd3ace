/*
 * qos_sessions.h: what waits of each tenant, by sessions and their rounds; see qos.h.
 *
 * Model: each session has a leftist heap of what waits, by (deadline, order of put), whose nodes
 * are of its tenant's pool. Each tenant has two heaps of the sessions in which something waits, by
 * their first items: those of the round that runs, and those that are ahead of it, in the next.
 * Where the first is empty, the two change places as something is taken. Belongs to one scheduler
 * and its thread; who asks has checked every number. Only open can fail: -ENOMEM.
 */
#ifndef OFS_QOS_SESSIONS_H
#define OFS_QOS_SESSIONS_H

#include "heap.h"
#include "qos.h"

struct ofs_qos_waiter {
	struct ofs_heap_key key; /* deadline, sequence */
	struct ofs_qos_item item;
	uint32_t entry;
	uint32_t left, right; /* of its session's heap; of a free one, left is the next */
	uint32_t rank;        /* steps to the end by the right */
};

/* A session in the heap of a round. */
struct ofs_qos_member {
	struct ofs_heap_key key; /* of its first waiter */
	uint32_t entry;
	uint32_t reserved;
};

struct ofs_qos_session {
	uint64_t round;
	uint64_t used_bytes; /* in it */
	uint32_t first;      /* its first waiter, or OFS_NONE */
	uint32_t position;   /* in the heap of its round */
	struct ofs_qos_session_stats stats;
};

struct ofs_qos_line {
	uint64_t round;
	uint32_t member_counts[2]; /* of the heaps of even and of odd rounds */
	uint32_t free;             /* waiter, or OFS_NONE */
	uint32_t reserved;
};

struct ofs_qos_sessions {
	struct ofs_qos_config config;
	struct ofs_qos_line *lines;     /* of each tenant */
	struct ofs_qos_waiter *waiters; /* queue_max for each tenant */
	struct ofs_qos_member *members; /* two times queue_max for each tenant: even rounds, odd ones */
	struct ofs_qos_session *entries; /* [session_count], then one for each tenant */
};

int ofs_qos_sessions_open(struct ofs_qos_sessions *sessions, const struct ofs_qos_config *config);
void ofs_qos_sessions_close(struct ofs_qos_sessions *sessions);
void ofs_qos_sessions_reset(struct ofs_qos_sessions *sessions);
/* Nothing waits; rounds and counters stay. */
void ofs_qos_sessions_clear(struct ofs_qos_sessions *sessions);
/* Its session's entry, or the one that it shares; an idle one is of who puts into it. */
uint32_t ofs_qos_sessions_entry(struct ofs_qos_sessions *sessions, const struct ofs_qos_item *item);
/* 1: it is its tenant's first now. The tenant has room. */
int ofs_qos_sessions_put(struct ofs_qos_sessions *sessions, uint32_t entry,
	const struct ofs_heap_key *key, const struct ofs_qos_item *item);
/* What the tenant would be served next. Something waits. */
const struct ofs_qos_item *ofs_qos_sessions_first(const struct ofs_qos_sessions *sessions,
	uint32_t tenant);
/* The same, and it waits no more. */
void ofs_qos_sessions_take(struct ofs_qos_sessions *sessions, uint32_t tenant, uint64_t now_ps,
	struct ofs_qos_item *item);

#endif
