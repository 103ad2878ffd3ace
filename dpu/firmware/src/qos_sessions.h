/*
 * qos_sessions.h: the waiting items of each tenant, by sessions and their rounds; see qos.h.
 *
 * Model: each session has a leftist heap of its waiting items, by (deadline, order of put), with
 * nodes from its tenant's pool. Each tenant has two heaps of its sessions with waiting items, by
 * their first items: those in the current round, and those that are ahead, in the next. When the
 * first is empty, taking an item swaps the two. Belongs to one scheduler and its thread; the caller
 * has checked every number. Only open can fail: -ENOMEM.
 */
#ifndef OFS_QOS_SESSIONS_H
#define OFS_QOS_SESSIONS_H

#include "heap.h"
#include "qos.h"

struct ofs_qos_waiter {
	struct ofs_heap_key key; /* deadline, sequence */
	struct ofs_qos_item item;
	uint32_t entry;
	uint32_t left, right; /* in its session's heap; of a free one, left is the next */
	uint32_t rank;        /* length of the right spine */
};

/* A session in the heap of a round. */
struct ofs_qos_member {
	struct ofs_heap_key key; /* of its first waiter */
	uint32_t entry;
	uint32_t reserved;
};

struct ofs_qos_session {
	uint64_t round;
	uint64_t used_bytes; /* in this round */
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
/* Drops all waiters; rounds and counters stay. */
void ofs_qos_sessions_clear(struct ofs_qos_sessions *sessions);
/* The session's entry, or the one that it shares; an idle entry belongs to the next session that
 * puts. */
uint32_t ofs_qos_sessions_entry(struct ofs_qos_sessions *sessions, const struct ofs_qos_item *item);
/* 1: it is now its tenant's first. The tenant must have room. */
int ofs_qos_sessions_put(struct ofs_qos_sessions *sessions, uint32_t entry,
	const struct ofs_heap_key *key, const struct ofs_qos_item *item);
/* The item that the tenant would be served next. The tenant must have one. */
const struct ofs_qos_item *ofs_qos_sessions_first(const struct ofs_qos_sessions *sessions,
	uint32_t tenant);
/* The same, and removes it. */
void ofs_qos_sessions_take(struct ofs_qos_sessions *sessions, uint32_t tenant, uint64_t now_ps,
	struct ofs_qos_item *item);

#endif
