/*
 * For any puts and takes in any order: is nothing lost, is a tenant served whenever one is ready,
 * is next_ps exact to the picosecond, and is a bucket never exceeded? With enough tenants that
 * their ready bits fill several words.
 */
#include "qos.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define TENANTS 200
#define SESSIONS 600
#define QUEUE_MAX 12
#define SESSION_MAX 5
#define QUANTUM 4096
#define STEPS 30000
#define PS_PER_S 1000000000000

/* The expected state of each tenant and session. */
struct outside {
	uint32_t waiting[TENANTS];
	uint32_t session_waiting[SESSIONS];
	uint64_t put[TENANTS], taken[TENANTS], taken_bytes[TENANTS];
	struct ofs_qos_tenant tenants[TENANTS];
	uint64_t sum; /* of the tags that wait */
	uint32_t count;
};

static struct ofs_qos_config
config_make(int rounds)
{
	return (struct ofs_qos_config){TENANTS, SESSIONS, QUEUE_MAX, SESSION_MAX, QUANTUM, PS_PER_S,
		.session_quantum_bytes = rounds ? 2 * QUANTUM : 0};
}

static void
put_one(struct ofs_qos *qos, struct outside *outside, uint64_t now_ps, uint64_t *seed)
{
	uint32_t tenant = (uint32_t)(ofs_draw(seed) % TENANTS);
	struct ofs_qos_item item = {
		.tag = ofs_draw(seed) >> 16,
		.deadline_ps = now_ps + ofs_draw(seed) % PS_PER_S / 2,
		.tenant = tenant,
		.session = tenant + TENANTS * (uint32_t)(ofs_draw(seed) % (SESSIONS / TENANTS)),
		.cost_bytes = 1 + (uint32_t)(ofs_draw(seed) % QUANTUM),
	};
	int rc = ofs_qos_put(qos, now_ps, &item);

	if (outside->waiting[tenant] == QUEUE_MAX) {
		assert(rc == -EAGAIN);
	} else if (outside->session_waiting[item.session] == SESSION_MAX) {
		assert(rc == -EDQUOT);
	} else {
		assert(rc == 0);
		outside->waiting[tenant]++;
		outside->session_waiting[item.session]++;
		outside->put[tenant]++;
		outside->sum += item.tag;
		outside->count++;
	}
}

/* From open on: all windows are in tests/unit/core/test_qos.py. */
static void
check_bucket(const struct outside *outside, uint32_t tenant, uint64_t now_ps)
{
	const struct ofs_qos_tenant *limit = &outside->tenants[tenant];
	unsigned __int128 flowed = (unsigned __int128)limit->rate_bytes_per_s * now_ps;
	unsigned __int128 taken = (unsigned __int128)outside->taken_bytes[tenant] * PS_PER_S;
	unsigned __int128 burst = (unsigned __int128)limit->burst_bytes * PS_PER_S;

	assert(limit->rate_bytes_per_s == 0 || taken <= burst + flowed);
}

static int
take_one(struct ofs_qos *qos, struct outside *outside, uint64_t now_ps)
{
	struct ofs_qos_item item;
	uint64_t next_ps = ofs_qos_next_ps(qos);
	int rc = ofs_qos_take(qos, now_ps, &item);

	assert(rc == (next_ps <= now_ps) && (next_ps != OFS_QOS_NEVER || outside->count == 0));
	if (rc == 0)
		return 0;
	assert(outside->waiting[item.tenant] > 0 && outside->session_waiting[item.session] > 0);
	assert(item.put_ps <= now_ps);
	outside->waiting[item.tenant]--;
	outside->session_waiting[item.session]--;
	outside->taken[item.tenant]++;
	outside->taken_bytes[item.tenant] += item.cost_bytes;
	outside->sum -= item.tag;
	outside->count--;
	check_bucket(outside, item.tenant, now_ps);
	return 1;
}

/* At the time that next_ps names something is taken, and a picosecond before nothing is. */
static uint64_t
drain(struct ofs_qos *qos, struct outside *outside, uint64_t now_ps)
{
	while (outside->count > 0) {
		uint64_t next_ps = ofs_qos_next_ps(qos);

		if (next_ps > now_ps + 1)
			assert(take_one(qos, outside, next_ps - 1) == 0);
		now_ps = next_ps > now_ps ? next_ps : now_ps;
		assert(take_one(qos, outside, now_ps) == 1);
	}
	assert(outside->sum == 0 && ofs_qos_waiting(qos) == 0);
	assert(ofs_qos_next_ps(qos) == OFS_QOS_NEVER);
	return now_ps;
}

static void
check_stats(const struct ofs_qos *qos, const struct outside *outside)
{
	for (uint32_t i = 0; i < TENANTS; i++) {
		struct ofs_qos_stats stats;

		ofs_qos_stats(qos, i, &stats);
		assert(stats.put == outside->put[i] && stats.taken == outside->taken[i]);
		assert(stats.taken_bytes == outside->taken_bytes[i]);
		assert(stats.waiting == outside->waiting[i] && stats.waiting_max <= QUEUE_MAX);
		assert(stats.waiting > 0 || stats.put_bytes == stats.taken_bytes);
		assert(stats.throttled_ps == 0 || outside->tenants[i].rate_bytes_per_s > 0);
	}
}

static void
test_whatever_comes(uint64_t seed, int rounds)
{
	static struct outside outside;
	struct ofs_qos_config config = config_make(rounds);
	uint64_t now_ps = 0, again = seed;
	struct ofs_qos *qos;

	outside = (struct outside){0};
	for (uint32_t i = 0; i < TENANTS; i++) {
		outside.tenants[i].weight = 1 + (uint32_t)(ofs_draw(&seed) % 8);
		outside.tenants[i].rate_bytes_per_s =
			ofs_draw(&seed) % 2 ? 1000 + ofs_draw(&seed) % 1000000 : 0;
		outside.tenants[i].burst_bytes = QUANTUM + ofs_draw(&seed) % QUANTUM;
	}
	assert(ofs_qos_open(&qos, &config, outside.tenants) == 0);
	for (uint32_t step = 0; step < STEPS; step++) {
		now_ps += ofs_draw(&seed) % 4 ? 0 : ofs_draw(&seed) % (PS_PER_S / 1000);
		if (ofs_draw(&seed) % 2)
			put_one(qos, &outside, now_ps, &seed);
		else
			take_one(qos, &outside, now_ps);
	}
	check_stats(qos, &outside);
	drain(qos, &outside, now_ps);
	check_stats(qos, &outside);
	ofs_qos_reset(qos);
	outside = (struct outside){0};
	for (uint32_t step = 0; step < 100; step++)
		put_one(qos, &outside, 0, &again);
	drain(qos, &outside, 0);
	ofs_qos_close(qos);
}

static void
test_refusals(void)
{
	struct ofs_qos_config good = config_make(0);
	struct ofs_qos_tenant tenants[TENANTS] = {{.weight = 0}};
	struct ofs_qos_config bad[8] = {good, good, good, good, good, good, good, good};
	struct ofs_qos *qos = NULL;

	assert(ofs_qos_open(&qos, &good, tenants) == -EINVAL); /* no weight */
	for (uint32_t i = 0; i < TENANTS; i++)
		tenants[i].weight = 1;
	bad[0].queue_max = 0;
	bad[1].session_max = QUEUE_MAX + 1;
	bad[2].tenant_count = OFS_QOS_TENANTS_MAX + 1;
	bad[3].quantum_bytes = OFS_QOS_BYTES_MAX + 1ull;
	bad[4].session_count = 0;
	bad[5].tenant_count = 0;
	bad[6].session_quantum_bytes = QUANTUM - 1; /* a round that an item does not fit into */
	bad[7].session_quantum_bytes = OFS_QOS_BYTES_MAX + 1ull;
	for (uint32_t i = 0; i < 8; i++)
		assert(ofs_qos_open(&qos, &bad[i], tenants) == -EINVAL);
	tenants[7] = (struct ofs_qos_tenant){1, 0, 1000, QUANTUM - 1, 0}; /* would wait for ever */
	assert(ofs_qos_open(&qos, &good, tenants) == -EINVAL);
	tenants[7] = (struct ofs_qos_tenant){1, 0, 200, QUANTUM, 0}; /* rounds to no rate at all */
	assert(ofs_qos_open(&qos, &good, tenants) == -EINVAL);
	tenants[7] = (struct ofs_qos_tenant){1, 0, 1000, QUANTUM, 1001}; /* a cap below the floor */
	assert(ofs_qos_open(&qos, &good, tenants) == -EINVAL);
	tenants[7] = (struct ofs_qos_tenant){1, 0, 0, 0, OFS_QOS_FLOOR_MIN - 1};
	assert(ofs_qos_open(&qos, &good, tenants) == -EINVAL);
	assert(qos == NULL);
}

int
main(void)
{
	test_refusals();
	for (uint64_t seed = 1; seed <= 8; seed++)
		test_whatever_comes(seed, seed % 2 == 0);
	puts("qos ok");
	return 0;
}
