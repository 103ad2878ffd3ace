/* Does each eviction policy choose the victim that its definition names? */
#include "core_fixture.h"

static uint32_t
victim_of(struct fixture *f, uint32_t ordinal)
{
	uint32_t victim = OFS_NONE;

	assert(fixture_demand(f, 1, ordinal) >= OFS_END_COLD);
	for (int i = 0; i < f->action_count; i++)
		if (f->actions[i].type == OFS_ACTION_RETRACT)
			victim = f->actions[i].chunk;
	fixture_answer(f, 1, 0);
	return victim;
}

static void
fill(struct fixture *f, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		assert(victim_of(f, i) == OFS_NONE);
}

static void
test_lru_and_fifo(void)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy lru = fixture_policy(OFS_EVICT_LRU), fifo = fixture_policy(OFS_EVICT_FIFO);
	struct fixture f;

	fixture_open(&f, &config, &lru, 16);
	fill(&f, 4);
	assert(fixture_demand(&f, 1, 0) == OFS_END_RETAINED);
	assert(victim_of(&f, 5) == f.infos[1].chunk); /* 0 was used again */
	ofs_core_close(f.core);
	fixture_open(&f, &config, &fifo, 16);
	fill(&f, 4);
	assert(fixture_demand(&f, 1, 0) == OFS_END_RETAINED);
	assert(victim_of(&f, 5) == f.infos[0].chunk); /* its use counts for nothing */
	assert(victim_of(&f, 6) == f.infos[1].chunk);
	ofs_core_close(f.core);
}

static void
test_s3fifo_keeps_what_was_used_twice(void)
{
	struct ofs_core_config config = fixture_config(10);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_S3FIFO);
	struct fixture f;

	fixture_open(&f, &config, &policy, 64);
	fill(&f, 10);
	fixture_demand(&f, 1, 0);
	fixture_demand(&f, 1, 0);
	for (uint32_t i = 10; i < 30; i++)
		assert(victim_of(&f, i) != f.infos[0].chunk); /* a scan does not wash it out */
	assert(fixture_demand(&f, 1, 0) == OFS_END_RETAINED);
	ofs_core_close(f.core);
}

static void
test_s3fifo_remembers_what_left_small(void)
{
	struct ofs_core_config config = fixture_config(10);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_S3FIFO);
	struct fixture f;

	fixture_open(&f, &config, &policy, 64);
	fill(&f, 10); /* the small queue has room for one: 0; the others enter main */
	assert(victim_of(&f, 10) == f.infos[0].chunk);
	assert(victim_of(&f, 0) == f.infos[10].chunk); /* 0 returns, to main */
	assert(victim_of(&f, 11) == f.infos[1].chunk); /* main is over its share now */
	for (uint32_t i = 12; i < 20; i++)
		assert(victim_of(&f, i) == f.infos[i - 1].chunk); /* a scan passes through small */
	assert(fixture_demand(&f, 1, 0) == OFS_END_RETAINED);
	ofs_core_close(f.core);
}

static void
test_sieve_spares_what_was_used(void)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_SIEVE);
	struct fixture f;

	fixture_open(&f, &config, &policy, 16);
	fill(&f, 4);
	fixture_demand(&f, 1, 0);
	fixture_demand(&f, 1, 2);
	assert(victim_of(&f, 4) == f.infos[1].chunk); /* 0 loses its mark and stays where it is */
	assert(victim_of(&f, 5) == f.infos[3].chunk); /* the hand went on: 2 loses its mark */
	assert(victim_of(&f, 6) == f.infos[4].chunk); /* new blocks stand behind it: no mark */
	fixture_demand(&f, 1, 5);
	assert(victim_of(&f, 7) == f.infos[6].chunk);
	assert(victim_of(&f, 8) == f.infos[0].chunk); /* it was at the newest: around again */
	ofs_core_close(f.core);
}

static void
test_lru_k_looks_at_the_last_use_but_one(void)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU_K);
	struct fixture f;

	fixture_open(&f, &config, &policy, 16);
	fill(&f, 4);
	fixture_demand(&f, 1, 0);
	fixture_demand(&f, 1, 0);
	fixture_demand(&f, 1, 2);
	fixture_demand(&f, 1, 3);
	assert(victim_of(&f, 4) == f.infos[1].chunk); /* the only one that was used once */
	fixture_demand(&f, 1, 4);
	assert(victim_of(&f, 5) == f.infos[2].chunk); /* 0 was used last before it, but twice then */
	assert(victim_of(&f, 6) == f.infos[5].chunk);
	ofs_core_close(f.core);
}

static void
test_arc_learns_from_ghosts(void)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_ARC);
	struct fixture f;

	fixture_open(&f, &config, &policy, 16);
	fill(&f, 4);
	fixture_demand(&f, 1, 0);
	fixture_demand(&f, 1, 1);                     /* T2: 0, 1; T1: 2, 3 */
	assert(victim_of(&f, 4) == f.infos[2].chunk); /* T1: 3, 4; B1: 2 */
	assert(victim_of(&f, 2) == f.infos[3].chunk); /* target 1; T2: 0, 1, 2; T1: 4; B1: 3 */
	assert(victim_of(&f, 5) == f.infos[0].chunk); /* T1 is not above its target: T2 gives */
	assert(victim_of(&f, 0) == f.infos[4].chunk); /* a ghost of T2: T1 was too large */
	assert(fixture_demand(&f, 1, 1) == OFS_END_RETAINED);
	ofs_core_close(f.core);
}

static void
test_random_takes_unpinned_only(void)
{
	struct ofs_core_config config = fixture_config(2);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_RANDOM);
	uint32_t demands[2] = {0, 1};
	struct fixture f;
	struct ofs_step step = {.demand_count = 2, .demands = demands};

	fixture_open(&f, &config, &policy, 16);
	step.session = f.session;
	assert(ofs_core_step(f.core, 1, &step, NULL) == 0);
	fixture_take(&f);
	fixture_answer(&f, 1, 0);
	for (uint32_t i = 2; i < 16; i++)
		assert(victim_of(&f, i) != OFS_NONE);
	ofs_core_close(f.core);
}

static void
test_score_takes_the_lowest(void)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_SCORE);
	uint16_t scores[8] = {40000, 10000, 30000, 20000, 0, 0, 0, 0};
	struct fixture f;
	struct ofs_step step = {.score_count = 8, .scores = scores};

	fixture_open(&f, &config, &policy, 8);
	fill(&f, 4);
	step.session = f.session;
	assert(ofs_core_step(f.core, 1, &step, NULL) == 0);
	assert(ofs_core_verify(f.core) == 0);
	assert(victim_of(&f, 4) == f.infos[1].chunk);
	assert(victim_of(&f, 5) == f.infos[4].chunk); /* its score is 0 */
	ofs_core_close(f.core);
}

static void
test_generating_goes_last(void)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct ofs_session_config other = {.step_ns = 1};
	struct ofs_chunk_info infos[4];
	struct ofs_key contents[4] = {{91, 0}, {92, 0}, {93, 0}, {94, 0}};
	struct ofs_ledger ledger;
	struct fixture f;
	uint32_t first;

	fixture_open(&f, &config, &policy, 8);
	fill(&f, 2);
	assert(ofs_core_session_set_generating(f.core, 1, f.session, 1) == 0);
	first = f.session;
	other.tenant = f.tenant;
	assert(ofs_core_session_open(f.core, 1, &other, &f.session) == 0);
	assert(ofs_core_session_append(f.core, 1, f.session, 4, contents, infos) == 0);
	for (int i = 0; i < 4; i++)
		assert(ofs_core_block_stored(f.core, 1, infos[i].chunk, 0) == 0);
	assert(victim_of(&f, 0) == OFS_NONE && victim_of(&f, 1) == OFS_NONE);
	assert(victim_of(&f, 2) == infos[0].chunk); /* the generating session's are older, and stay */
	assert(victim_of(&f, 3) == infos[1].chunk);
	assert(ofs_core_session_set_generating(f.core, 1, first, 0) == 0);
	assert(ofs_core_verify(f.core) == 0);
	assert(ofs_core_ledger(f.core, OFS_NONE, &ledger) == 0);
	assert(ledger.evictions == 2 && ledger.evictions_generating == 0);
	ofs_core_close(f.core);
}

int
main(void)
{
	test_lru_and_fifo();
	test_s3fifo_keeps_what_was_used_twice();
	test_s3fifo_remembers_what_left_small();
	test_sieve_spares_what_was_used();
	test_lru_k_looks_at_the_last_use_but_one();
	test_arc_learns_from_ghosts();
	test_random_takes_unpinned_only();
	test_score_takes_the_lowest();
	test_generating_goes_last();
	return 0;
}
