/* Does every demand end under the name that its definition gives it? */
#include "core_fixture.h"

static uint8_t
demand(struct fixture *f, uint64_t now_ns, uint32_t ordinal)
{
	uint8_t end = fixture_demand(f, now_ns, ordinal);

	fixture_answer(f, now_ns, 0);
	return end;
}

static uint8_t
demand_seen(struct fixture *f, uint64_t now_ns, uint32_t ordinal, uint8_t seen)
{
	struct ofs_step step = {.session = f->session,
		.demand_count = 1,
		.demands = &ordinal,
		.seen = &seen};
	uint8_t end;

	assert(ofs_core_step(f->core, now_ns, &step, &end) == 0);
	fixture_take(f);
	return end;
}

static void
test_cold_capacity_policy_retained(void)
{
	struct ofs_core_config config = fixture_config(2);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_FIFO);
	struct ofs_ledger ledger;
	struct fixture f;

	fixture_open(&f, &config, &policy, 8);
	assert(demand(&f, 1, 0) == OFS_END_COLD);
	assert(demand(&f, 2, 1) == OFS_END_COLD);
	assert(demand(&f, 3, 0) == OFS_END_RETAINED);
	assert(demand(&f, 4, 2) == OFS_END_COLD); /* fifo drops 0, an LRU would have dropped 1 */
	assert(demand(&f, 5, 0) == OFS_END_POLICY);
	assert(demand(&f, 6, 1) == OFS_END_CAPACITY);
	assert(ofs_core_ledger(f.core, f.tenant, &ledger) == 0);
	assert(ledger.demands == 6 && ledger.shadow_misses == 4 && ledger.evictions == 3);
	assert(ledger.issued[OFS_CAUSE_DEMAND] == 5 && ledger.demand_bytes_read == 5 * 4096);
	ofs_core_close(f.core);
}

static void
test_late_and_what_the_host_saw(void)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct ofs_ledger ledger;
	struct fixture f;
	uint32_t io;

	fixture_open(&f, &config, &policy, 8);
	assert(fixture_demand(&f, 100, 0) == OFS_END_COLD);
	io = f.actions[0].io;
	assert(fixture_demand(&f, 200, 0) == OFS_END_LATE && f.action_count == 0);
	assert(ofs_core_io_done(f.core, 200 + 1024, io, 0) == 0);
	fixture_take(&f);
	assert(f.action_count == 3); /* one PUBLISH, both waiters */
	assert(f.actions[0].type == OFS_ACTION_PUBLISH && f.actions[1].rc == 0);
	assert(demand_seen(&f, 2000, 0, OFS_SEEN_MISS) == OFS_END_LATE);
	assert(f.action_count == 1 && f.actions[0].type == OFS_ACTION_COMPLETE);
	assert(demand_seen(&f, 2001, 0, OFS_CAUSE_DEMAND) == OFS_END_RETAINED);
	assert(f.action_count == 0); /* the host has it already */
	assert(demand_seen(&f, 2002, 5, OFS_CAUSE_WINDOW) == OFS_END_WINDOW);
	assert(f.action_count == 0); /* read by the host, gone since */
	assert(ofs_core_ledger(f.core, f.tenant, &ledger) == 0);
	assert(ledger.late_ns_log2[10] == 1 && ledger.late_ns_log2[0] == 1);
	ofs_core_close(f.core);
}

static void
test_nontrivial_and_retries(void)
{
	struct ofs_core_config config = fixture_config(8);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct ofs_session_config session = {.sink_blocks = 1, .window_blocks = 2};
	struct ofs_key contents[6] = {{1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}, {6, 0}};
	uint32_t ordinals[6] = {0, 1, 2, 3, 4, 5};
	struct ofs_ledger ledger;
	struct fixture f;
	struct ofs_step step = {.demand_count = 6, .demands = ordinals};

	fixture_open(&f, &config, &policy, 0);
	session.tenant = f.tenant;
	assert(ofs_core_session_open(f.core, 0, &session, &step.session) == 0);
	assert(ofs_core_session_append(f.core, 0, step.session, 6, contents, f.infos) == 0);
	assert(ofs_core_step(f.core, 1, &step, NULL) == 0); /* nothing is stored: -ENOENT each */
	fixture_take(&f);
	assert(f.action_count == 6 && f.actions[0].rc == -ENOENT);
	step.flags = OFS_STEP_RETRY;
	assert(ofs_core_step(f.core, 2, &step, NULL) == 0);
	fixture_take(&f);
	assert(ofs_core_ledger(f.core, f.tenant, &ledger) == 0);
	assert(ledger.demands == 6 && ledger.nontrivial == 3 && ledger.steps == 1);
	assert(ledger.nontrivial_ends[OFS_END_COLD] == 3);
	ofs_core_close(f.core);
}

static void
test_records_are_not_overwritten(void)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct ofs_ledger_record records[8];
	struct ofs_ledger ledger;
	struct fixture f;

	config.record_max = 3;
	fixture_open(&f, &config, &policy, 8);
	for (uint32_t i = 0; i < 5; i++)
		demand(&f, 10 + i, i);
	assert(ofs_core_records(f.core, records, 2) == 2);
	assert(records[0].ordinal == 0 && records[1].ordinal == 1 && records[1].now_ns == 11);
	demand(&f, 20, 6);
	assert(ofs_core_records(f.core, records, 8) == 2);
	assert(records[0].ordinal == 2 && records[1].ordinal == 6);
	assert(ofs_core_ledger(f.core, OFS_NONE, &ledger) == 0 && ledger.records_lost == 2);
	ofs_core_close(f.core);
}

/* More blocks than any context has: are they counted as selected? */
static void
test_a_selection_is_of_one_context(void)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct ofs_step step = {.selected_count = config.session_chunk_max + 1};
	struct ofs_ledger ledger;
	struct fixture f;

	fixture_open(&f, &config, &policy, 8);
	step.session = f.session;
	assert(ofs_core_step(f.core, 1, &step, NULL) == 0);
	step.selected_count++;
	assert(ofs_core_step(f.core, 2, &step, NULL) == -EINVAL);
	step.selected_count = UINT32_MAX;
	assert(ofs_core_step(f.core, 3, &step, NULL) == -EINVAL);
	assert(ofs_core_ledger(f.core, OFS_NONE, &ledger) == 0);
	assert(ledger.steps == 1 && ledger.selected == config.session_chunk_max + 1);
	ofs_core_close(f.core);
}

int
main(void)
{
	test_cold_capacity_policy_retained();
	test_late_and_what_the_host_saw();
	test_nontrivial_and_retries();
	test_records_are_not_overwritten();
	test_a_selection_is_of_one_context();
	return 0;
}
