/* Do the walks over request traces stay in their tables, agree, and refuse nonsense? */
#include <stdlib.h>

#include "core_fixture.h"
#include "ofs_prefix.h"

#define REQUESTS 200
#define BLOCKS 60
#define RUNS (4 * REQUESTS)
#define SLOTS 9

struct made {
	struct ofs_prefix_trace trace;
	uint64_t offsets[REQUESTS + 1], arrival_ns[REQUESTS];
	uint32_t first[RUNS], count[RUNS], sessions[REQUESTS], turns[REQUESTS];
	uint64_t access_count;
};

static uint32_t
draw(uint64_t *state, uint32_t below)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((*state >> 33) % below);
}

static void
make(struct made *m, uint64_t seed)
{
	uint32_t seen[4] = {0}, runs = 0;

	memset(m, 0, sizeof(*m));
	for (uint32_t r = 0; r < REQUESTS; r++) {
		m->arrival_ns[r] = (r ? m->arrival_ns[r - 1] : 0) + draw(&seed, 4);
		m->sessions[r] = draw(&seed, 4);
		m->turns[r] = seen[m->sessions[r]]++;
		for (uint32_t i = draw(&seed, 5); i > 0; i--, runs++) {
			m->first[runs] = draw(&seed, BLOCKS - 8);
			m->count[runs] = 1 + draw(&seed, 8);
			m->access_count += m->count[runs];
		}
		m->offsets[r + 1] = runs;
	}
	m->trace = (struct ofs_prefix_trace){REQUESTS, BLOCKS, m->offsets, m->first, m->count};
}

static uint64_t
run(struct made *m, struct ofs_prefix_plan *plan, uint32_t eviction)
{
	struct ofs_core_config config = fixture_config(SLOTS);
	struct ofs_policy policy = fixture_policy(eviction);
	struct ofs_prefix_row rows[REQUESTS];
	struct ofs_ledger ledger;
	struct fixture f;
	uint64_t hits = 0;

	policy.prefetchers = OFS_PREFETCH_SHARED; /* one number for a chunk: 60 fit */
	config.demand_max = 4;
	fixture_open(&f, &config, &policy, 0);
	plan->trace = &m->trace;
	plan->arrival_ns = m->arrival_ns;
	plan->rows = rows;
	assert(ofs_prefix_run(ofs_core_calls(), f.core, f.session, plan) == 0);
	assert(ofs_core_verify(f.core) == 0);
	for (uint32_t r = 0; r < REQUESTS; r++) {
		assert(rows[r].prefix <= rows[r].hits || plan->tail_first);
		hits += rows[r].hits;
	}
	assert(plan->admitted + plan->refused + hits == m->access_count);
	assert(ofs_core_ledger(f.core, OFS_NONE, &ledger) == 0);
	assert(ledger.resident_slots == plan->admitted - plan->evicted - plan->expired);
	ofs_core_close(f.core);
	return hits;
}

static void
test_every_cache_keeps_its_books(void)
{
	static struct made m;

	for (uint64_t seed = 1; seed <= 5; seed++) {
		make(&m, seed);
		for (uint32_t i = 0; i < 2 * OFS_PREFIX_ADMIT_COUNT * OFS_EVICT_COUNT; i++) {
			struct ofs_prefix_plan plan = {
				.sessions = m.sessions,
				.turns = m.turns,
				.tail_first = i & 1,
				.admission = i / 2 % OFS_PREFIX_ADMIT_COUNT,
				.window_ns = 20,
				.ttl_ns = i % 3 ? 0 : 11,
			};

			run(&m, &plan, i / 2 / OFS_PREFIX_ADMIT_COUNT);
		}
	}
}

static void
test_lru_is_what_the_distances_say(void)
{
	static struct made m;
	struct ofs_prefix_plan plan = {0};
	uint64_t distances[BLOCKS] = {0}, below = 0, again = 0;
	struct ofs_prefix_reuse reuses[2];
	uint32_t uses[BLOCKS] = {0};
	int64_t count;

	make(&m, 7);
	assert(ofs_prefix_distances(&m.trace, distances) == 0);
	for (uint32_t d = 0; d < BLOCKS; d++) {
		below += d < SLOTS ? distances[d] : 0;
		again += distances[d];
	}
	assert(run(&m, &plan, OFS_EVICT_LRU) == below);
	count = ofs_prefix_ideal(&m.trace, NULL, uses, reuses, 2);
	assert(count > 2 && reuses[1].count > 0); /* more than there was room for */
	for (uint32_t b = 0; b < BLOCKS; b++)
		again -= uses[b] ? uses[b] - 1 : 0;
	assert(again == 0);
}

static void
test_nonsense_is_refused(void)
{
	struct ofs_core_config config = fixture_config(SLOTS);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	static struct made m;
	struct ofs_prefix_row rows[REQUESTS];
	struct ofs_prefix_plan plan = {.trace = &m.trace, .arrival_ns = m.arrival_ns, .rows = rows};
	uint64_t distances[BLOCKS];
	struct fixture f;

	make(&m, 3);
	fixture_open(&f, &config, &policy, 0);
	plan.admission = OFS_PREFIX_ADMIT_COUNT;
	assert(ofs_prefix_run(ofs_core_calls(), f.core, f.session, &plan) == -EINVAL);
	plan.admission = OFS_PREFIX_ADMIT_TURNS; /* no sessions */
	assert(ofs_prefix_run(ofs_core_calls(), f.core, f.session, &plan) == -EINVAL);
	plan.admission = OFS_PREFIX_ADMIT_ALL;
	m.arrival_ns[0] = UINT64_MAX;
	assert(ofs_prefix_run(ofs_core_calls(), f.core, f.session, &plan) == -EINVAL);
	m.arrival_ns[0] = 0;
	m.first[5] = UINT32_MAX;
	assert(ofs_prefix_run(ofs_core_calls(), f.core, f.session, &plan) == -EINVAL);
	assert(ofs_prefix_distances(&m.trace, distances) == -EINVAL);
	assert(ofs_prefix_ideal(&m.trace, NULL, NULL, NULL, 0) == -EINVAL);
	make(&m, 3);
	m.offsets[4] = m.offsets[5] + 1;
	assert(ofs_prefix_run(ofs_core_calls(), f.core, f.session, &plan) == -EINVAL);
	ofs_core_close(f.core);
}

int
main(void)
{
	test_every_cache_keeps_its_books();
	test_lru_is_what_the_distances_say();
	test_nonsense_is_refused();
	return 0;
}
