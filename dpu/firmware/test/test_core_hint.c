/* Is a guess of the host read ahead, or kept, and nothing once its step is over? */
#include "core_fixture.h"

#define STEP_NS 1000000

static struct ofs_guess
guess_of(uint32_t ordinal, uint16_t steps, uint16_t probability)
{
	return (struct ofs_guess){.ordinal = ordinal,
		.steps = steps,
		.probability = probability,
		.cause = OFS_CAUSE_LOOKAHEAD};
}

static void
hint(struct fixture *f, uint64_t now_ns, struct ofs_guess guess)
{
	assert(ofs_core_hint(f->core, now_ns, f->session, &guess, 1) == 0);
	assert(ofs_core_verify(f->core) == 0);
	fixture_take(f);
}

/* An empty selection: the layer runs one more step. */
static void
run_step(struct fixture *f, uint64_t now_ns, uint32_t number)
{
	struct ofs_step step = {.session = f->session, .step = number};

	assert(ofs_core_step(f->core, now_ns, &step, NULL) == 0);
	assert(ofs_core_verify(f->core) == 0);
	fixture_take(f);
}

static uint64_t
fate_of(const struct fixture *f, uint32_t fate)
{
	struct ofs_ledger ledger;

	assert(ofs_core_ledger(f->core, f->tenant, &ledger) == 0);
	return ledger.fates[OFS_CAUSE_LOOKAHEAD][fate];
}

static void
test_an_absent_block_is_read_for_its_session(void)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct fixture f;

	policy.degree_max = 0; /* which bounds the core's own guesses only */
	fixture_open(&f, &config, &policy, 8);
	run_step(&f, 0, 0);
	hint(&f, 10, guess_of(3, 2, 9000));
	assert(f.action_count == 1 && f.actions[0].type == OFS_ACTION_READ);
	assert(f.actions[0].cause == OFS_CAUSE_LOOKAHEAD && f.actions[0].session == f.session);
	assert(f.actions[0].deadline_ns == 2 * STEP_NS);
	fixture_answer(&f, 20, 0);
	assert(fixture_demand(&f, 30, 3) == OFS_END_LOOKAHEAD);
	assert(fate_of(&f, OFS_FATE_USED) == 1);
	fixture_demand(&f, 40, 4);
	assert(f.actions[0].type == OFS_ACTION_READ && f.actions[0].session == f.session);
	fixture_answer(&f, 50, 0);
	ofs_core_close(f.core);
}

static void
test_a_guess_ends_with_the_step_it_was_meant_for(void)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct fixture f;

	policy.prefetch_in_flight_max = 0; /* nothing is issued: drops show what waited */
	fixture_open(&f, &config, &policy, 8);
	hint(&f, 0, guess_of(0, 0, 9000)); /* its first step */
	hint(&f, 0, guess_of(1, 2, 9000));
	run_step(&f, 10, 0);
	assert(fate_of(&f, OFS_FATE_DROPPED) == 1);
	hint(&f, 20, guess_of(2, 0, 9000)); /* the layer has run this step */
	assert(fate_of(&f, OFS_FATE_DROPPED) == 2);
	run_step(&f, 30, 1);
	assert(fate_of(&f, OFS_FATE_DROPPED) == 2);
	run_step(&f, 40, 2);
	assert(fate_of(&f, OFS_FATE_DROPPED) == 3);
	hint(&f, 50, guess_of(3, 1, 9000));
	run_step(&f, 40 * STEP_NS, 3); /* long after it was needed */
	assert(fate_of(&f, OFS_FATE_DROPPED) == 4);
	ofs_core_close(f.core);
}

static uint32_t
victim_of(struct fixture *f, uint64_t now_ns, uint32_t ordinal)
{
	uint32_t victim = OFS_NONE;

	assert(fixture_demand(f, now_ns, ordinal) >= OFS_END_COLD);
	for (int i = 0; i < f->action_count; i++)
		if (f->actions[i].type == OFS_ACTION_RETRACT)
			victim = f->actions[i].chunk;
	fixture_answer(f, now_ns, 0);
	return victim;
}

static void
test_a_resident_block_counts_as_used(void)
{
	struct ofs_core_config config = fixture_config(3);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct fixture f;

	fixture_open(&f, &config, &policy, 8);
	for (uint32_t i = 0; i < 3; i++)
		assert(victim_of(&f, i, i) == OFS_NONE);
	hint(&f, 5, guess_of(0, 1, 1));
	assert(f.action_count == 0);
	assert(victim_of(&f, 6, 3) == f.infos[1].chunk);
	assert(victim_of(&f, 7, 4) == f.infos[2].chunk);
	assert(victim_of(&f, 8, 5) == f.infos[0].chunk);
	ofs_core_close(f.core);
}

/* Between steps of the layer a lifted score decides; the layer's next step puts it back. */
static void
test_a_lifted_score_bars_guesses_until_the_step(void)
{
	struct ofs_core_config config = fixture_config(2);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_SCORE);
	struct fixture f;

	fixture_open(&f, &config, &policy, 8);
	assert(ofs_core_session_set_generating(f.core, 0, f.session, 1) == 0);
	assert(victim_of(&f, 1, 0) == OFS_NONE && victim_of(&f, 2, 1) == OFS_NONE);
	run_step(&f, 3, 1); /* the pins end */
	hint(&f, 4, guess_of(0, 1, 65535));
	hint(&f, 4, guess_of(1, 1, 65535));
	hint(&f, 5, guess_of(2, 1, 32768)); /* less likely than its victim */
	assert(f.action_count == 0 && fate_of(&f, OFS_FATE_DROPPED) == 1);
	run_step(&f, 6, 2);
	hint(&f, 7, guess_of(2, 1, 32768));
	assert(f.action_count == 2 && f.actions[0].type == OFS_ACTION_RETRACT);
	fixture_answer(&f, 8, 0);
	ofs_core_close(f.core);
}

static void
test_what_is_refused_changes_nothing(void)
{
	struct ofs_core_config config = fixture_config(2);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct ofs_guess guesses[65], bad;
	struct fixture f;

	fixture_open(&f, &config, &policy, 8);
	for (uint32_t i = 0; i < 65; i++)
		guesses[i] = guess_of(i % 8, 1, 9000);
	assert(ofs_core_hint(f.core, 1, f.session, guesses, 65) == -EINVAL); /* queue_max is 64 */
	assert(ofs_core_hint(f.core, 1, f.session + 1, guesses, 1) == -EINVAL);
	for (int wrong = 0; wrong < 4; wrong++) {
		bad = guess_of(1, 1, 9000);
		bad.layer = wrong == 0;
		bad.ordinal = wrong == 1 ? 8 : 1;
		bad.cause = wrong == 2 ? OFS_CAUSE_DEMAND : wrong == 3 ? OFS_CAUSE_COUNT : bad.cause;
		guesses[1] = bad;
		assert(ofs_core_hint(f.core, 1, f.session, guesses, 2) == -EINVAL);
	}
	fixture_take(&f);
	assert(f.action_count == 0);
	assert(ofs_core_hint(f.core, 1, f.session, NULL, 0) == 0);
	ofs_core_close(f.core);
}

/* The longest pace and the guess that is furthest ahead: is that a time, and a longer one none? */
static void
test_every_guess_has_a_time(void)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct ofs_session_config session = {.select_blocks = 4};
	uint64_t absurd_ns[] = {OFS_STEP_NS_MAX + 1, 1ull << 50, INT64_MAX, UINT64_MAX};
	uint64_t begun_ns = OFS_BEGIN_STEPS * (uint64_t)OFS_STEP_NS_MAX;
	struct fixture f;

	fixture_open(&f, &config, &policy, 8);
	for (uint32_t i = 0; i < sizeof(absurd_ns) / sizeof(absurd_ns[0]); i++) {
		session.step_ns = absurd_ns[i];
		assert(ofs_core_session_open(f.core, 0, &session, &f.session) == -EINVAL);
	}
	fixture_session(&f, OFS_STEP_NS_MAX, 8);
	hint(&f, 0, guess_of(3, UINT16_MAX, 9000));
	assert(f.action_count == 1);
	assert(f.actions[0].deadline_ns == begun_ns + UINT16_MAX * (uint64_t)OFS_STEP_NS_MAX);
	fixture_answer(&f, 1, 0);
	ofs_core_close(f.core);
}

/* Poor guesses of the host must not take the core's own degree away. */
static void
test_the_degree_is_the_cores_own(void)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct ofs_ledger ledger;
	struct fixture f;

	policy.accuracy_permille_min = 500;
	policy.degree_max = 8;
	fixture_open(&f, &config, &policy, 200);
	for (uint32_t i = 0; i < 200; i++) {
		hint(&f, i, guess_of(i, 5, 9000));
		fixture_answer(&f, i, 0);
	}
	assert(ofs_core_ledger(f.core, f.tenant, &ledger) == 0);
	assert(ledger.fates[OFS_CAUSE_LOOKAHEAD][OFS_FATE_UNUSED] == 196);
	assert(ledger.degree_now == 8);
	ofs_core_close(f.core);
}

int
main(void)
{
	test_an_absent_block_is_read_for_its_session();
	test_a_guess_ends_with_the_step_it_was_meant_for();
	test_a_resident_block_counts_as_used();
	test_a_lifted_score_bars_guesses_until_the_step();
	test_what_is_refused_changes_nothing();
	test_every_guess_has_a_time();
	test_the_degree_is_the_cores_own();
	return 0;
}
