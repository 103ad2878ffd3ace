/* Do guesses wait in the right order, take turns by weight, keep to the cap, and go when stale? */
#include "core_fixture.h"

#define CHUNKS 64

struct pair {
	struct ofs_core *core;
	struct ofs_policy policy;
	uint32_t sessions[2];
	struct ofs_action actions[512];
	int action_count;
};

/* Two tenants of weight 1 and 3 with a session each; next-N makes guesses of known ordinals. */
static void
pair_open(struct pair *p, uint64_t bytes_per_s)
{
	struct ofs_core_config config = fixture_config(2 * CHUNKS);
	struct ofs_key contents[CHUNKS];
	struct ofs_chunk_info infos[CHUNKS];

	p->policy = fixture_policy(OFS_EVICT_LRU);
	p->policy.prefetchers = OFS_PREFETCH_NEXT_N;
	p->policy.next_n = p->policy.degree_max = 40;
	p->policy.prefetch_in_flight_max = 0;
	p->policy.prefetch_bytes_per_s_max = bytes_per_s;
	assert(ofs_core_open(&p->core, &config, &p->policy) == 0);
	for (uint32_t i = 0; i < CHUNKS; i++)
		contents[i] = (struct ofs_key){i, 3};
	for (uint32_t tenant = 0; tenant < 2; tenant++) {
		struct ofs_tenant_config owner = {{tenant, 1}, CHUNKS, 1 + 2 * tenant};
		struct ofs_session_config session = {.step_ns = 1000000};

		assert(ofs_core_tenant_add(p->core, 0, &owner, &session.tenant) == 0);
		assert(ofs_core_session_open(p->core, 0, &session, &p->sessions[tenant]) == 0);
		assert(
			ofs_core_session_append(p->core, 0, p->sessions[tenant], CHUNKS, contents, infos) == 0);
		for (uint32_t i = 0; i < CHUNKS; i++)
			assert(ofs_core_block_stored(p->core, 0, infos[i].chunk, 0) == 0);
	}
}

static void
pair_demand(struct pair *p, uint64_t now_ns, uint32_t session, uint32_t ordinal)
{
	struct ofs_step step = {.session = p->sessions[session],
		.demand_count = 1,
		.demands = &ordinal};

	assert(ofs_core_step(p->core, now_ns, &step, NULL) == 0);
	p->action_count = ofs_core_actions(p->core, p->actions, 512);
}

/* Let guesses be issued; the reads that come out are kept. */
static void
pair_allow(struct pair *p, uint64_t now_ns, uint32_t in_flight, uint64_t *next_ns)
{
	p->policy.prefetch_in_flight_max = in_flight;
	assert(ofs_core_set_policy(p->core, now_ns, &p->policy) == 0);
	assert(ofs_core_tick(p->core, now_ns, next_ns) == 0);
	p->action_count = ofs_core_actions(p->core, p->actions, 512);
	assert(ofs_core_verify(p->core) == 0);
}

static void
test_deadline_first_and_the_step_order_within(void)
{
	struct pair p;
	uint64_t next_ns;

	pair_open(&p, 0);
	pair_demand(&p, 100, 1, 0); /* needed at 100 + step */
	pair_allow(&p, 100, 6, &next_ns);
	assert(p.action_count == 6 && next_ns == UINT64_MAX);
	for (int i = 0; i < 6; i++) {
		assert(p.actions[i].type == OFS_ACTION_READ);
		assert(p.actions[i].cause == OFS_CAUSE_BASELINE);
		assert(p.actions[i].deadline_ns == 100 + 1000000);
		assert(i == 0 || p.actions[i].chunk != p.actions[i - 1].chunk);
	}
	ofs_core_close(p.core);
}

static void
test_turns_by_weight(void)
{
	uint32_t reads[2] = {0, 0};
	struct pair p;
	uint64_t next_ns;

	pair_open(&p, 0);
	pair_demand(&p, 1, 0, 0);
	pair_demand(&p, 1, 1, 0);
	pair_allow(&p, 2, 24, &next_ns);
	for (int i = 0; i < p.action_count; i++)
		reads[p.actions[i].tenant] += p.actions[i].type == OFS_ACTION_READ;
	assert(reads[0] == 6 && reads[1] == 18); /* 1 : 3 */
	ofs_core_close(p.core);
}

static void
test_the_cap_spreads_reads_and_names_the_next(void)
{
	struct pair p;
	uint64_t next_ns;
	int first;

	pair_open(&p, 4096ull * 1000000); /* a block every microsecond */
	pair_demand(&p, 0, 0, 0);
	pair_allow(&p, 0, 64, &next_ns);
	first = p.action_count;
	assert(first == 17 && next_ns == 1000); /* the burst, then one a microsecond */
	assert(ofs_core_tick(p.core, 3000, &next_ns) == 0);
	assert(ofs_core_actions(p.core, p.actions, 512) == 3);
	ofs_core_close(p.core);
}

static void
test_stale_guesses_are_dropped(void)
{
	struct ofs_ledger ledger;
	struct pair p;
	uint64_t next_ns;

	pair_open(&p, 0);
	pair_demand(&p, 1, 0, 0);
	assert(ofs_core_ledger(p.core, OFS_NONE, &ledger) == 0);
	assert(ledger.fates[OFS_CAUSE_BASELINE][OFS_FATE_DROPPED] == 0);
	pair_demand(&p, 2, 0, 50); /* the layer stepped on: 1 .. 40 mean nothing, 51 .. 63 do */
	pair_allow(&p, 3, 64, &next_ns);
	assert(p.action_count == 13);
	assert(ofs_core_ledger(p.core, OFS_NONE, &ledger) == 0);
	assert(ledger.fates[OFS_CAUSE_BASELINE][OFS_FATE_DROPPED] == 40);
	pair_allow(&p, 4, 0, &next_ns);
	pair_demand(&p, 5, 0, 20);
	pair_allow(&p, 20000000, 64, &next_ns); /* long after they were needed */
	assert(p.action_count == 0);
	ofs_core_close(p.core);
}

int
main(void)
{
	test_deadline_first_and_the_step_order_within();
	test_turns_by_weight();
	test_the_cap_spreads_reads_and_names_the_next();
	test_stale_guesses_are_dropped();
	return 0;
}
