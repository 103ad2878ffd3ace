/*
 * qos.c: deficit round robin with token buckets; see qos.h.
 *
 * Model: qos_sessions.h keeps a tenant's waiting items and knows the first of them. A ready tenant
 * has its bit set; one whose bucket does not cover its first item is in the heap of the throttled,
 * by the time when it will, and a held one is in neither. This changes only with the first item of
 * a tenant, or when the caller says so: otherwise tokens only grow, so a computed time stays right.
 * Tenants with a floor are looked at one by one, before all turns.
 */
#include "qos.h"
#include "heap.h"
#include "qos_floor.h"
#include "qos_ready.h"
#include "qos_sessions.h"

#include <assert.h>
#include <stdlib.h>

#define TOKEN_BITS 32 /* a token is 2^-32 bytes */
#define WEIGHT_MAX UINT16_MAX

struct ofs_qos_throttled {
	struct ofs_heap_key key; /* when the bucket covers it, tenant */
};

struct ofs_qos_share {
	uint64_t turn_bytes;    /* weight * quantum */
	uint64_t deficit_bytes; /* the rest of its turn, or of its last one */
	uint64_t rate;          /* tokens per ps; 0: no limit */
	uint64_t burst;         /* tokens */
	uint64_t tokens;        /* as of filled_ps */
	uint64_t filled_ps;
	uint64_t throttled_from_ps;
	uint64_t covers_ps; /* when the bucket covers the first item; unset: none waits */
	struct ofs_qos_floor floor;
	uint32_t throttled; /* position in the heap of the throttled, or OFS_NONE */
	uint32_t waiting;
	int held;
	struct ofs_qos_stats stats;
};

struct ofs_qos {
	struct ofs_qos_config config;
	uint64_t now_ps;
	uint64_t sequence;
	struct ofs_qos_ready ready;
	uint32_t turn; /* the tenant whose turn it is */
	uint32_t throttled_count;
	uint32_t waiting;
	uint32_t floor_count;
	uint32_t *floors; /* [floor_count] tenants with a floor */
	struct ofs_qos_share *shares;
	struct ofs_qos_throttled *throttled;
	struct ofs_qos_sessions sessions;
};

static void
throttled_moved(void *owner, const void *item, uint32_t position)
{
	const struct ofs_qos_throttled *entry = (const struct ofs_qos_throttled *)item;

	((struct ofs_qos *)owner)->shares[entry->key.second].throttled = position;
}

/* Writes the entry to the position, a hole, then sifts it into place. */
static void
throttled_sift(struct ofs_qos *qos, uint32_t position, const struct ofs_qos_throttled *entry)
{
	position = ofs_heap_up(qos->throttled, sizeof(*entry), position, entry, throttled_moved, qos);
	ofs_heap_down(qos->throttled, sizeof(*entry), qos->throttled_count, position, entry,
		throttled_moved, qos);
}

static void
throttled_remove(struct ofs_qos *qos, struct ofs_qos_share *share, uint64_t until_ps)
{
	uint32_t position = share->throttled;
	uint32_t last = --qos->throttled_count;

	share->throttled = OFS_NONE;
	share->stats.throttled_ps += until_ps - share->throttled_from_ps;
	if (position != last) {
		struct ofs_qos_throttled moved = qos->throttled[last];

		throttled_sift(qos, position, &moved);
	}
}

/* Tenants whose bucket now covers their first item become ready. */
static void
time_advance(struct ofs_qos *qos, uint64_t now_ps)
{
	assert(now_ps >= qos->now_ps && now_ps >> 63 == 0);
	qos->now_ps = now_ps;
	while (qos->throttled_count > 0 && qos->throttled[0].key.first <= now_ps) {
		struct ofs_heap_key key = qos->throttled[0].key;

		throttled_remove(qos, &qos->shares[key.second], key.first);
		ofs_qos_ready_set(&qos->ready, (uint32_t)key.second, 1);
	}
}

static void
bucket_fill(struct ofs_qos_share *share, uint64_t now_ps)
{
	uint64_t gained;

	if (__builtin_mul_overflow(share->rate, now_ps - share->filled_ps, &gained)
		|| gained > share->burst - share->tokens)
		gained = share->burst - share->tokens;
	share->tokens += gained;
	share->filled_ps = now_ps;
}

/* The time at which the bucket covers the cost, not before now. */
static uint64_t
bucket_covers_ps(struct ofs_qos_share *share, uint64_t now_ps, uint32_t cost_bytes)
{
	uint64_t need = (uint64_t)cost_bytes << TOKEN_BITS;

	if (share->rate == 0)
		return now_ps;
	bucket_fill(share, now_ps);
	if (share->tokens >= need)
		return now_ps;
	return now_ps + (need - share->tokens + share->rate - 1) / share->rate;
}

/* Called when the tenant's first item has changed, none is left, or its terms have changed. */
static void
tenant_settle(struct ofs_qos *qos, uint32_t tenant)
{
	struct ofs_qos_share *share = &qos->shares[tenant];
	struct ofs_qos_throttled entry = {{qos->now_ps, tenant}};

	if (share->waiting > 0)
		share->covers_ps = bucket_covers_ps(share, qos->now_ps,
			ofs_qos_sessions_first(&qos->sessions, tenant)->cost_bytes);
	if (share->waiting > 0 && !share->held)
		entry.key.first = share->covers_ps;
	ofs_qos_ready_set(&qos->ready, tenant,
		share->waiting > 0 && !share->held && entry.key.first == qos->now_ps);
	if (entry.key.first == qos->now_ps) {
		if (share->throttled != OFS_NONE)
			throttled_remove(qos, share, qos->now_ps);
	} else if (share->throttled != OFS_NONE) {
		throttled_sift(qos, share->throttled, &entry);
	} else {
		share->throttled_from_ps = qos->now_ps;
		throttled_sift(qos, qos->throttled_count++, &entry);
	}
}

/* The tenant whose turn it is. At least one must be ready. */
static uint32_t
turn_find(struct ofs_qos *qos)
{
	struct ofs_qos_share *share = &qos->shares[qos->turn];

	if (!ofs_qos_ready_has(&qos->ready, qos->turn))
		share->deficit_bytes = 0;
	else if (ofs_qos_sessions_first(&qos->sessions, qos->turn)->cost_bytes <= share->deficit_bytes)
		return qos->turn;
	qos->turn = ofs_qos_ready_after(&qos->ready, qos->turn);
	qos->shares[qos->turn].deficit_bytes += qos->shares[qos->turn].turn_bytes;
	return qos->turn;
}

/* The tenant whose floor has been owed something longest, even if it is held, or OFS_NONE; and when
 * the next one's is. */
static uint32_t
floor_owed(const struct ofs_qos *qos, uint64_t *next_ps)
{
	uint32_t owed = OFS_NONE;

	*next_ps = OFS_QOS_NEVER;
	for (uint32_t i = 0; i < qos->floor_count; i++) {
		const struct ofs_qos_share *share = &qos->shares[qos->floors[i]];
		uint64_t due_ps = share->floor.due_ps, at_ps = share->covers_ps;

		at_ps = at_ps < due_ps ? due_ps : at_ps;
		if (share->waiting == 0)
			continue;
		*next_ps = at_ps < *next_ps ? at_ps : *next_ps;
		if (at_ps <= qos->now_ps && (owed == OFS_NONE || due_ps < qos->shares[owed].floor.due_ps))
			owed = qos->floors[i];
	}
	return owed;
}

static uint64_t
deadline_of(const struct ofs_qos *qos, const struct ofs_qos_item *item)
{
	uint64_t now_ps = qos->now_ps, deadline_ps = item->deadline_ps;

	if (deadline_ps <= now_ps)
		return now_ps;
	return deadline_ps - now_ps > qos->config.ahead_ps_max ? now_ps + qos->config.ahead_ps_max
														   : deadline_ps;
}

static int
item_admit(struct ofs_qos *qos, const struct ofs_qos_item *item, uint32_t *entry)
{
	struct ofs_qos_share *share;

	if (item->tenant >= qos->config.tenant_count
		|| (item->session >= qos->config.session_count && item->session != OFS_QOS_NO_SESSION)
		|| item->cost_bytes == 0 || item->cost_bytes > qos->config.quantum_bytes)
		return -EINVAL;
	share = &qos->shares[item->tenant];
	if (share->waiting == qos->config.queue_max) {
		share->stats.refused_full++;
		return -EAGAIN;
	}
	*entry = ofs_qos_sessions_entry(&qos->sessions, item);
	if (qos->sessions.entries[*entry].stats.waiting == qos->config.session_max) {
		share->stats.refused_session++;
		qos->sessions.entries[*entry].stats.refused++;
		return -EDQUOT;
	}
	return 0;
}

int
ofs_qos_put(struct ofs_qos *qos, uint64_t now_ps, const struct ofs_qos_item *item)
{
	struct ofs_qos_item waits = *item;
	struct ofs_qos_share *share;
	struct ofs_heap_key key;
	uint32_t entry;
	int rc;

	time_advance(qos, now_ps);
	rc = item_admit(qos, item, &entry);
	if (rc < 0)
		return rc;
	share = &qos->shares[item->tenant];
	key = (struct ofs_heap_key){deadline_of(qos, item), qos->sequence++};
	waits.put_ps = now_ps;
	qos->waiting++;
	share->stats.put++;
	share->stats.put_bytes += item->cost_bytes;
	share->stats.shared += entry >= qos->config.session_count;
	if (share->waiting == 0)
		ofs_qos_floor_begin(&share->floor, now_ps);
	if (++share->waiting > share->stats.waiting_max)
		share->stats.waiting_max = share->waiting;
	if (ofs_qos_sessions_put(&qos->sessions, entry, &key, &waits))
		tenant_settle(qos, item->tenant);
	return 0;
}

int
ofs_qos_take(struct ofs_qos *qos, uint64_t now_ps, struct ofs_qos_item *item)
{
	struct ofs_qos_share *share;
	uint64_t wait_ps, next_ps;
	uint32_t tenant;
	int owed;

	time_advance(qos, now_ps);
	tenant = floor_owed(qos, &next_ps);
	owed = tenant != OFS_NONE;
	if (!owed && qos->ready.summary == 0)
		return 0;
	if (!owed)
		tenant = turn_find(qos);
	share = &qos->shares[tenant];
	ofs_qos_sessions_take(&qos->sessions, tenant, now_ps, item);
	share->waiting--;
	qos->waiting--;
	share->deficit_bytes -= owed ? 0 : item->cost_bytes;
	share->stats.floor_bytes += owed ? item->cost_bytes : 0;
	ofs_qos_floor_served(&share->floor, now_ps, qos->config.ahead_ps_max, item->cost_bytes);
	if (share->rate > 0) {
		bucket_fill(share, now_ps);
		share->tokens -= (uint64_t)item->cost_bytes << TOKEN_BITS;
	}
	wait_ps = now_ps - item->put_ps;
	share->stats.taken++;
	share->stats.taken_bytes += item->cost_bytes;
	share->stats.wait_ps_sum += wait_ps;
	share->stats.wait_ps_max =
		wait_ps > share->stats.wait_ps_max ? wait_ps : share->stats.wait_ps_max;
	tenant_settle(qos, tenant);
	return 1;
}

uint64_t
ofs_qos_next_ps(const struct ofs_qos *qos)
{
	uint64_t covered_ps = OFS_QOS_NEVER, owed_ps;

	if (qos->ready.summary != 0)
		return qos->now_ps;
	if (qos->throttled_count > 0)
		covered_ps = qos->throttled[0].key.first;
	(void)floor_owed(qos, &owed_ps);
	return covered_ps < owed_ps ? covered_ps : owed_ps;
}

uint32_t
ofs_qos_waiting(const struct ofs_qos *qos)
{
	return qos->waiting;
}

void
ofs_qos_stats(const struct ofs_qos *qos, uint32_t tenant, struct ofs_qos_stats *stats)
{
	const struct ofs_qos_share *share = &qos->shares[tenant];

	assert(tenant < qos->config.tenant_count);
	*stats = share->stats;
	stats->waiting = share->waiting;
	if (share->throttled != OFS_NONE)
		stats->throttled_ps += qos->now_ps - share->throttled_from_ps;
}

int
ofs_qos_session_stats(const struct ofs_qos *qos, uint32_t entry,
	struct ofs_qos_session_stats *stats)
{
	if (entry >= qos->config.session_count + qos->config.tenant_count)
		return -EINVAL;
	*stats = qos->sessions.entries[entry].stats;
	return 0;
}

/* Tokens per ps, rounded down: rate * 2^32 / 10^12, both divided by 2^12. */
static uint64_t
rate_of(uint64_t bytes_per_s)
{
	return (bytes_per_s << 20) / 244140625;
}

static int
share_check(const struct ofs_qos_config *config, const struct ofs_qos_tenant *tenant)
{
	uint64_t floor = tenant->floor_bytes_per_s;

	if (tenant->weight == 0 || tenant->weight > WEIGHT_MAX
		|| (floor > 0 && (floor < OFS_QOS_FLOOR_MIN || floor > OFS_QOS_RATE_MAX)))
		return -EINVAL;
	if (tenant->rate_bytes_per_s == 0)
		return 0;
	if (floor > tenant->rate_bytes_per_s)
		return -EINVAL;
	if (tenant->rate_bytes_per_s > OFS_QOS_RATE_MAX || rate_of(tenant->rate_bytes_per_s) == 0
		|| tenant->burst_bytes < config->quantum_bytes || tenant->burst_bytes > OFS_QOS_BYTES_MAX)
		return -EINVAL;
	return 0;
}

static void
share_terms(const struct ofs_qos *qos, struct ofs_qos_share *share,
	const struct ofs_qos_tenant *tenant)
{
	share->turn_bytes = tenant->weight * qos->config.quantum_bytes;
	share->rate = rate_of(tenant->rate_bytes_per_s);
	share->burst = tenant->burst_bytes << TOKEN_BITS;
	share->floor = (struct ofs_qos_floor){tenant->floor_bytes_per_s, qos->now_ps};
}

static void
floors_list(struct ofs_qos *qos)
{
	qos->floor_count = 0;
	for (uint32_t i = 0; i < qos->config.tenant_count; i++)
		if (qos->shares[i].floor.bytes_per_s > 0)
			qos->floors[qos->floor_count++] = i;
}

static int
config_check(const struct ofs_qos_config *config, const struct ofs_qos_tenant *tenants)
{
	if (config->tenant_count == 0 || config->tenant_count > OFS_QOS_TENANTS_MAX
		|| config->session_count == 0 || config->session_count > OFS_QOS_SESSIONS_MAX
		|| config->queue_max == 0 || config->session_max == 0
		|| config->session_max > config->queue_max || config->quantum_bytes == 0
		|| config->quantum_bytes > OFS_QOS_BYTES_MAX || config->ahead_ps_max >> 62 != 0
		|| config->session_quantum_bytes > OFS_QOS_BYTES_MAX
		|| (config->session_quantum_bytes > 0
			&& config->session_quantum_bytes < config->quantum_bytes))
		return -EINVAL;
	for (uint32_t i = 0; i < config->tenant_count; i++)
		if (share_check(config, &tenants[i]) != 0)
			return -EINVAL;
	return 0;
}

int
ofs_qos_open(struct ofs_qos **out, const struct ofs_qos_config *config,
	const struct ofs_qos_tenant *tenants)
{
	int rc = config_check(config, tenants);
	struct ofs_qos *qos;

	if (rc < 0)
		return rc;
	qos = calloc(1, sizeof(*qos));
	if (qos == NULL)
		return -ENOMEM;
	qos->config = *config;
	qos->shares = calloc(config->tenant_count, sizeof(*qos->shares));
	qos->throttled = calloc(config->tenant_count, sizeof(*qos->throttled));
	qos->floors = calloc(config->tenant_count, sizeof(*qos->floors));
	rc = ofs_qos_sessions_open(&qos->sessions, config);
	if (!qos->shares || !qos->throttled || !qos->floors || rc < 0) {
		ofs_qos_close(qos);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < config->tenant_count; i++)
		share_terms(qos, &qos->shares[i], &tenants[i]);
	floors_list(qos);
	ofs_qos_reset(qos);
	*out = qos;
	return 0;
}

void
ofs_qos_hold(struct ofs_qos *qos, uint64_t now_ps, uint32_t tenant, int held)
{
	assert(tenant < qos->config.tenant_count);
	time_advance(qos, now_ps);
	if (qos->shares[tenant].held != held) {
		qos->shares[tenant].held = held;
		tenant_settle(qos, tenant);
	}
}

void
ofs_qos_clear(struct ofs_qos *qos, uint64_t now_ps)
{
	time_advance(qos, now_ps);
	ofs_qos_sessions_clear(&qos->sessions);
	qos->waiting = 0;
	for (uint32_t i = 0; i < qos->config.tenant_count; i++) {
		qos->shares[i].waiting = 0;
		tenant_settle(qos, i);
	}
}

int
ofs_qos_set(struct ofs_qos *qos, uint64_t now_ps, uint32_t tenant,
	const struct ofs_qos_tenant *terms)
{
	struct ofs_qos_share *share = &qos->shares[tenant];

	if (tenant >= qos->config.tenant_count || share_check(&qos->config, terms) != 0)
		return -EINVAL;
	time_advance(qos, now_ps);
	if (share->rate > 0)
		bucket_fill(share, now_ps);
	else
		share->tokens = terms->burst_bytes << TOKEN_BITS;
	share->filled_ps = now_ps;
	share_terms(qos, share, terms);
	floors_list(qos);
	share->tokens = share->tokens < share->burst ? share->tokens : share->burst;
	tenant_settle(qos, tenant);
	return 0;
}

void
ofs_qos_reset(struct ofs_qos *qos)
{
	qos->now_ps = qos->sequence = 0;
	qos->throttled_count = qos->waiting = 0;
	qos->turn = qos->config.tenant_count - 1; /* the next is tenant 0 */
	memset(&qos->ready, 0, sizeof(qos->ready));
	ofs_qos_sessions_reset(&qos->sessions);
	for (uint32_t i = 0; i < qos->config.tenant_count; i++) {
		struct ofs_qos_share *share = &qos->shares[i];

		share->deficit_bytes = share->filled_ps = share->floor.due_ps = 0;
		share->tokens = share->burst;
		share->throttled = OFS_NONE;
		share->waiting = 0;
		share->held = 0;
		memset(&share->stats, 0, sizeof(share->stats));
	}
}

void
ofs_qos_close(struct ofs_qos *qos)
{
	free(qos->shares);
	free(qos->throttled);
	free(qos->floors);
	ofs_qos_sessions_close(&qos->sessions);
	free(qos);
}
