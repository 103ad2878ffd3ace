/*
 * qos.h: who is served next, where tenants share a device.
 *
 * Model: a scheduler of waiting items; the caller passes the time. Between tenants it is deficit
 * round robin (Shreedhar, Varghese 1995): tenants take turns in the order of their numbers, a turn
 * credits a tenant with `weight` quanta of bytes, and credit too small for its first item is kept
 * for its next turn. A tenant has a turn while it is ready: an item waits, and the token bucket
 * covers the first item. The tenant served is charged; the scheduler is work-conserving: while any
 * tenant is ready, one is served. A tenant that is not ready when its turn ends loses its credit.
 * The caller may hold a tenant, such as one with enough in flight: it is not ready until released.
 *
 * A tenant may have a floor, a rate below which it does not fall while something of it waits: an
 * item that its floor is owed is served before all turns, at no cost to its credit, and also while
 * the tenant is held, if its bucket covers it. Several floors are served in the order in which they
 * were owed. What the line could not serve in time is made up for ahead_ps_max at most, so the rate
 * holds where takes are no farther apart than that and the line moves more than all floors ask for.
 *
 * Within a tenant, sessions have rounds: in one round a session is served session_quantum bytes,
 * an excess of its last item is charged to its next round, and no session begins its next round
 * while another waits in this one. A session that had nothing waiting joins the current round
 * without credit. Of the sessions in the round the most urgent item is first: the earliest
 * deadline, then the first put. A deadline that has passed counts as now, and one more than
 * ahead_ps_max ahead as that far. Without rounds (session_quantum 0) urgency alone decides, and no
 * item put after a waiting item's deadline overtakes it. A session may fill no more than
 * session_max entries of its tenant's queue: a flood is refused, its neighbours are not.
 *
 * A session has an entry in a table of session_count, with its round and its counters. Items
 * without a session (OFS_QOS_NO_SESSION: the caller's table is full, or there is none), or whose
 * session's entry has waiting items of another tenant, share one extra entry per tenant, as if they
 * were one session, and are counted. An entry with no waiting items passes to the tenant that puts
 * next; its counters restart when the tenant changes.
 *
 * A bucket is full at open, and no window of time sees more than burst + rate * window leave it.
 * Tokens are 2^-32 bytes and exact; a rate is kept in steps of 2^-32 bytes/ps (233 bytes/s),
 * rounded down. Times are integer picoseconds below 2^63 and do not go back from call to call
 * (assert). Every operation is O(log n) in items and in tenants, linear in floors. Nothing is
 * allocated after open, which says -ENOMEM, or -EINVAL for a number out of range; one thread owns a
 * scheduler.
 */
#ifndef OFS_QOS_H
#define OFS_QOS_H

#include "ofs_base.h"

/* cdef: order 8 */
/* cdef: begin */
#define OFS_QOS_TENANTS_MAX 4096
#define OFS_QOS_SESSIONS_MAX 0x1000000
#define OFS_QOS_BYTES_MAX 0x40000000
#define OFS_QOS_RATE_MAX 0xfffffffffff
#define OFS_QOS_FLOOR_MIN 256
#define OFS_QOS_NEVER 0xffffffffffffffff
#define OFS_QOS_NO_SESSION 0xffffffff

struct ofs_qos_tenant {
	uint32_t weight; /* from 1 to 65535 */
	uint32_t reserved;
	uint64_t rate_bytes_per_s; /* of its token bucket, from 256 to OFS_QOS_RATE_MAX; 0: no limit */
	uint64_t burst_bytes;      /* from quantum_bytes to OFS_QOS_BYTES_MAX; without a rate unused */
	uint64_t
		floor_bytes_per_s; /* from OFS_QOS_FLOOR_MIN to its rate or OFS_QOS_RATE_MAX; 0: none */
};

struct ofs_qos_config {
	uint32_t tenant_count;
	uint32_t session_count; /* of all tenants; each is of one of them */
	uint32_t queue_max;     /* items of one tenant that wait */
	uint32_t session_max;   /* of them, those of one session */
	uint64_t quantum_bytes; /* what a weight of 1 gets in a turn, and the most an item may cost */
	uint64_t ahead_ps_max;  /* a deadline farther ahead counts as this far */
	uint64_t session_quantum_bytes; /* of a session in a round, at least a quantum; 0: no rounds */
};

struct ofs_qos_item {
	uint64_t tag; /* the caller's */
	uint64_t deadline_ps;
	uint64_t put_ps; /* set by put */
	uint32_t tenant;
	uint32_t session;    /* below session_count, or OFS_QOS_NO_SESSION */
	uint32_t cost_bytes; /* from 1 to quantum_bytes */
	uint32_t reserved;
};

/* Of one tenant, since open. */
struct ofs_qos_stats {
	uint64_t put;
	uint64_t taken;
	uint64_t put_bytes;
	uint64_t taken_bytes;
	uint64_t refused_full;    /* by its full queue */
	uint64_t refused_session; /* because the session's part of it was full */
	uint64_t throttled_ps;    /* time in which an item waited for the bucket */
	uint64_t wait_ps_sum;
	uint64_t wait_ps_max; /* of what was taken */
	uint64_t shared;      /* put into the shared entry */
	uint64_t floor_bytes; /* of those taken, before all turns, because the floor was owed them */
	uint32_t waiting;
	uint32_t waiting_max;
};

/* Of one entry of the table of sessions, since its tenant first put into it. */
struct ofs_qos_session_stats {
	uint64_t put;
	uint64_t taken;
	uint64_t put_bytes;
	uint64_t taken_bytes;
	uint64_t refused; /* its part of the queue was full */
	uint64_t wait_ps_sum;
	uint64_t wait_ps_max;
	uint32_t tenant; /* its tenant; OFS_NONE: nothing was put yet */
	uint32_t waiting;
	uint32_t waiting_max;
	uint32_t reserved;
};

struct ofs_qos;

int ofs_qos_open(struct ofs_qos **out, const struct ofs_qos_config *config,
	const struct ofs_qos_tenant *tenants);
void ofs_qos_close(struct ofs_qos *qos);
/* As opened: empty, buckets full, time from 0. */
void ofs_qos_reset(struct ofs_qos *qos);
/* 0; -EAGAIN: the tenant's queue is full; -EDQUOT: the session's part is; -EINVAL: no such item. */
int ofs_qos_put(struct ofs_qos *qos, uint64_t now_ps, const struct ofs_qos_item *item);
/* 1: this one is served now; 0: nothing may be, before ofs_qos_next_ps. */
int ofs_qos_take(struct ofs_qos *qos, uint64_t now_ps, struct ofs_qos_item *item);
/*
 * When a take returns an item if nothing more is put; a time that has passed means now, and
 * OFS_QOS_NEVER that nothing waits.
 */
uint64_t ofs_qos_next_ps(const struct ofs_qos *qos);
/* The tenant is not ready while it is held (1). */
void ofs_qos_hold(struct ofs_qos *qos, uint64_t now_ps, uint32_t tenant, int held);
/*
 * Another weight and another bucket from now on; what is in the bucket stays, as much as fits, and
 * one that was without a rate is full. -EINVAL, nothing changed: a number out of range.
 */
int ofs_qos_set(struct ofs_qos *qos, uint64_t now_ps, uint32_t tenant,
	const struct ofs_qos_tenant *share);
/* Items that wait, of all tenants. */
uint32_t ofs_qos_waiting(const struct ofs_qos *qos);
void ofs_qos_stats(const struct ofs_qos *qos, uint32_t tenant, struct ofs_qos_stats *stats);
/* Entry session_count + tenant is that of the tenant's without one of their own. -EINVAL: none. */
int ofs_qos_session_stats(const struct ofs_qos *qos, uint32_t entry,
	struct ofs_qos_session_stats *stats);
/* cdef: end */

/* Nothing waits any more; counters, buckets and turns stay as they are. */
void ofs_qos_clear(struct ofs_qos *qos, uint64_t now_ps);

#endif
