/*
 * qos.h: who is served next, where tenants share a device.
 *
 * Model: a scheduler of items that wait, told the time. Between tenants it is deficit round robin
 * (Shreedhar, Varghese 1995): tenants have turns in the order of their numbers, a turn gives a
 * tenant `weight` quanta of bytes, and what is too little for its first item stays for its next
 * turn. A tenant has a turn while it is ready: something waits, and its token bucket covers the
 * first item. Whoever is taken from is charged; nobody ready waits while nobody is served.
 * A tenant that is not ready when its turn ends keeps nothing of it.
 *
 * Within a tenant the most urgent item is first: the earliest deadline, then the first put. A
 * deadline that has passed counts as now, and one farther ahead than ahead_ps_max as that far: so
 * what waits is overtaken by nothing that is put after its deadline. A session may fill no more
 * than session_max entries of its tenant's queue: a flood is refused, its neighbours are not.
 *
 * A bucket is full at open, and no window of time sees more than burst + rate * window leave it.
 * Tokens are 2^-32 bytes and exact; a rate is kept in steps of 2^-32 bytes/ps (233 bytes/s),
 * rounded down. Times are integer picoseconds below 2^63 and do not go back from call to call
 * (assert). Every operation is O(log n) in items and in tenants. Nothing is allocated after open,
 * which says -ENOMEM, or -EINVAL for a number out of range; one thread owns a scheduler.
 */
#ifndef OFS_QOS_H
#define OFS_QOS_H

#include "ofs_base.h"

/* cdef: order 8 */
/* cdef: begin */
#define OFS_QOS_TENANTS_MAX 4096
#define OFS_QOS_BYTES_MAX 0x40000000
#define OFS_QOS_RATE_MAX 0xfffffffffff
#define OFS_QOS_NEVER 0xffffffffffffffff

struct ofs_qos_tenant {
	uint32_t weight; /* from 1 to 65535 */
	uint32_t reserved;
	uint64_t rate_bytes_per_s; /* of its token bucket, from 256 to OFS_QOS_RATE_MAX; 0: no limit */
	uint64_t burst_bytes;      /* from quantum_bytes to OFS_QOS_BYTES_MAX; without a rate unused */
};

struct ofs_qos_config {
	uint32_t tenant_count;
	uint32_t session_count; /* of all tenants; each is of one of them */
	uint32_t queue_max;     /* items of one tenant that wait */
	uint32_t session_max;   /* of them, those of one session */
	uint64_t quantum_bytes; /* what a weight of 1 gets in a turn, and the most an item may cost */
	uint64_t ahead_ps_max;  /* a deadline farther ahead counts as this far */
};

struct ofs_qos_item {
	uint64_t tag; /* the caller's */
	uint64_t deadline_ps;
	uint64_t put_ps; /* set by put */
	uint32_t tenant;
	uint32_t session;
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
	uint64_t throttled_ps;    /* something waited, and the bucket did not cover it */
	uint64_t wait_ps_sum;
	uint64_t wait_ps_max; /* of what was taken */
	uint32_t waiting;
	uint32_t waiting_max;
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
 * When a take gives something, if nothing more is put: at once where that time has come, and
 * OFS_QOS_NEVER where nothing waits.
 */
uint64_t ofs_qos_next_ps(const struct ofs_qos *qos);
/* Items that wait, of all tenants. */
uint32_t ofs_qos_waiting(const struct ofs_qos *qos);
void ofs_qos_stats(const struct ofs_qos *qos, uint32_t tenant, struct ofs_qos_stats *stats);
/* cdef: end */

#endif
