/* Can a reader with an old (slot, generation) always see that the slot has moved on? */
#include "core/internal.h"
#include "core_fixture.h"

static const struct ofs_action *
action_of(const struct fixture *f, uint32_t type)
{
	for (int i = 0; i < f->action_count; i++)
		if (f->actions[i].type == type)
			return &f->actions[i];
	return NULL;
}

static void
test_generations_move_and_are_never_zero(void)
{
	struct ofs_core_config config = fixture_config(1);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	uint32_t before = 0;
	struct fixture f;

	fixture_open(&f, &config, &policy, 8);
	for (uint32_t i = 0; i < 8; i++) {
		const struct ofs_action *retract, *read;

		if (i == 4) {
			assert(ofs_core_session_release(f.core, i, f.session) == 0);
			f.core->slots[0].generation = before = UINT32_MAX;
		}
		fixture_demand(&f, i, i);
		retract = action_of(&f, OFS_ACTION_RETRACT);
		read = action_of(&f, OFS_ACTION_READ);
		assert((retract != NULL) == (i > 0));
		/* The victim leaves the directory before the slot is read into again. */
		assert(retract == NULL || (retract < read && retract->generation == before));
		assert(read->generation != 0 && read->generation != before);
		before = read->generation;
		fixture_answer(&f, i, 0);
	}
	ofs_core_close(f.core);
}

static void
test_pins_hold_until_the_next_step_or_the_lease(void)
{
	struct ofs_core_config config = fixture_config(2);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	uint32_t pair[2] = {0, 1}, other = 2;
	struct ofs_session_config second = {.step_ns = 1};
	struct ofs_step step = {.demand_count = 2, .demands = pair};
	struct ofs_key content = {99, 0};
	struct ofs_ledger ledger;
	struct fixture f;
	uint64_t next_ns;
	uint8_t end;

	policy.lease_ns = 1000;
	fixture_open(&f, &config, &policy, 4);
	step.session = f.session;
	assert(ofs_core_step(f.core, 10, &step, NULL) == 0);
	fixture_take(&f);
	fixture_answer(&f, 10, 0);
	second.tenant = f.tenant;
	assert(ofs_core_session_open(f.core, 10, &second, &f.session) == 0);
	assert(ofs_core_session_append(f.core, 10, f.session, 1, &content, f.infos) == 0);
	assert(ofs_core_block_stored(f.core, 10, f.infos[0].chunk, 0) == 0);
	end = fixture_demand(&f, 20, 0); /* both slots are pinned by the other session */
	assert(end == OFS_END_COLD && f.action_count == 1 && f.actions[0].rc == -EAGAIN);
	assert(ofs_core_tick(f.core, 500, &next_ns) == 0 && next_ns == 1010);
	assert(ofs_core_tick(f.core, 1010, &next_ns) == 0);
	step = (struct ofs_step){.session = f.session,
		.demand_count = 1,
		.demands = &other,
		.flags = OFS_STEP_RETRY};
	other = 0;
	assert(ofs_core_step(f.core, 1020, &step, &end) == 0);
	fixture_take(&f);
	assert(action_of(&f, OFS_ACTION_READ) != NULL);
	fixture_answer(&f, 1030, 0);
	assert(ofs_core_ledger(f.core, f.tenant, &ledger) == 0);
	assert(ledger.leases_expired == 2 && ledger.busy == 1 && ledger.demands == 3);
	ofs_core_close(f.core);
}

static void
test_a_timed_out_slot_is_not_reused(void)
{
	struct ofs_core_config config = fixture_config(1);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct fixture f;

	fixture_open(&f, &config, &policy, 4);
	fixture_demand(&f, 1, 0);
	assert(ofs_core_io_done(f.core, 2, action_of(&f, OFS_ACTION_READ)->io, -ETIMEDOUT) == 0);
	fixture_take(&f);
	assert(action_of(&f, OFS_ACTION_COMPLETE)->rc == -ETIMEDOUT);
	fixture_demand(&f, 3, 1);
	assert(f.action_count == 1 && f.actions[0].rc == -EAGAIN);
	assert(ofs_core_slot_free(f.core, 4, f.tenant, 0) == 0);
	assert(ofs_core_slot_free(f.core, 4, f.tenant, 0) == -EINVAL);
	fixture_demand(&f, 5, 1);
	assert(action_of(&f, OFS_ACTION_READ) != NULL);
	fixture_answer(&f, 6, 0);
	ofs_core_close(f.core);
}

static void
test_dirty_is_never_evicted(void)
{
	struct ofs_core_config config = fixture_config(1);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	uint32_t slot, generation;
	struct fixture f;

	fixture_open(&f, &config, &policy, 4);
	assert(ofs_core_block_stage(f.core, 1, f.infos[0].chunk, 0, &slot, &generation) == 0);
	assert(slot == 0 && generation == 1);
	fixture_demand(&f, 2, 1);
	assert(f.action_count == 1 && f.actions[0].rc == -EAGAIN);
	assert(fixture_demand(&f, 3, 0) == OFS_END_RETAINED);
	assert(ofs_core_block_clean(f.core, 4, f.infos[0].chunk, 0) == 0);
	assert(ofs_core_block_clean(f.core, 4, f.infos[0].chunk, 0) == -EINVAL);
	fixture_demand(&f, 5, 1);
	assert(action_of(&f, OFS_ACTION_RETRACT) != NULL);
	fixture_answer(&f, 6, 0);
	ofs_core_close(f.core);
}

static void
test_a_lost_block_is_not_read_again(void)
{
	struct ofs_core_config config = fixture_config(2);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct fixture f;

	fixture_open(&f, &config, &policy, 4);
	fixture_demand(&f, 1, 0);
	fixture_answer(&f, 2, -EBADMSG);
	fixture_demand(&f, 3, 0);
	assert(f.action_count == 1 && f.actions[0].rc == -ENOENT);
	assert(ofs_core_block_stored(f.core, 4, f.infos[0].chunk, 0) == 0);
	fixture_demand(&f, 5, 0);
	assert(action_of(&f, OFS_ACTION_READ) != NULL);
	fixture_answer(&f, 6, -ETIMEDOUT); /* late is not lost */
	fixture_demand(&f, 7, 0);
	assert(action_of(&f, OFS_ACTION_READ) != NULL);
	fixture_answer(&f, 8, 0);
	ofs_core_close(f.core);
}

int
main(void)
{
	test_generations_move_and_are_never_zero();
	test_pins_hold_until_the_next_step_or_the_lease();
	test_a_timed_out_slot_is_not_reused();
	test_dirty_is_never_evicted();
	test_a_lost_block_is_not_read_again();
	return 0;
}
