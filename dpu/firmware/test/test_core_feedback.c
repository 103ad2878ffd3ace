/* Does prefetch guess less when its guesses are wrong, and read earlier when they come late? */
#include "core_fixture.h"

#define CHUNKS 64
#define SAMPLE 64 /* ended guesses between two adjustments */
#define DEGREE 8
#define STEP_NS 100000000
#define MARGIN_FIRST_NS 50000
#define MARGIN_MAX_NS 10000000

/* A session that walks through its context; next-N guesses the one neighbour of each demand. */
struct walk {
	struct fixture f;
	struct ofs_policy policy;
	uint64_t now_ns;
	uint32_t guess;     /* the one ordinal that is on its way */
	uint32_t io;        /* the read of it */
	uint64_t margin_ns; /* by which it is read earlier than needed */
};

static void
answer(struct walk *w, uint32_t io)
{
	assert(ofs_core_io_done(w->f.core, w->now_ns, io, 0) == 0);
	fixture_take(&w->f);
	assert(ofs_core_verify(w->f.core) == 0);
}

/* Demand the ordinal, which is not the last: its neighbour is the next guess. */
static void
demand(struct walk *w, uint32_t ordinal)
{
	uint32_t missed = OFS_NONE;

	fixture_demand(&w->f, ++w->now_ns, ordinal);
	w->guess = OFS_NONE;
	for (int i = 0; i < w->f.action_count; i++) {
		const struct ofs_action *action = &w->f.actions[i];

		if (action->type != OFS_ACTION_READ)
			continue;
		if (action->cause == OFS_CAUSE_DEMAND) {
			missed = action->io;
			continue;
		}
		w->guess = ordinal + 1;
		w->io = action->io;
		w->margin_ns = w->now_ns + STEP_NS - action->deadline_ns;
	}
	assert(w->guess == ordinal + 1);
	if (missed != OFS_NONE)
		answer(w, missed);
}

static void
walk_open(struct walk *w, uint32_t accuracy_permille_min, uint32_t lateness_permille_max)
{
	struct ofs_core_config config = fixture_config(8);

	memset(w, 0, sizeof(*w));
	w->policy = fixture_policy(OFS_EVICT_LRU);
	w->policy.prefetchers = OFS_PREFETCH_NEXT_N;
	w->policy.next_n = 1;
	w->policy.degree_max = DEGREE;
	w->policy.accuracy_permille_min = accuracy_permille_min;
	w->policy.lateness_permille_max = lateness_permille_max;
	fixture_open(&w->f, &config, &w->policy, 0);
	fixture_session(&w->f, STEP_NS, CHUNKS);
	demand(w, 0);
}

/* `count` guesses end so: met in time, met while they are read, or let go for nothing. */
static void
end_as(struct walk *w, uint32_t fate, uint32_t count)
{
	for (; count > 0; count--) {
		uint32_t guess = w->guess, io = w->io, next = guess + (fate == OFS_FATE_UNUSED);

		if (fate != OFS_FATE_LATE)
			answer(w, io);
		if (fate == OFS_FATE_UNUSED)
			assert(ofs_core_block_drop(w->f.core, w->now_ns, w->f.infos[guess].chunk, 0) == 0);
		if (next + 1 >= CHUNKS) {
			/* At the end of the context it is met without a guess to follow. */
			if (next < CHUNKS)
				fixture_demand(&w->f, ++w->now_ns, next);
			if (fate == OFS_FATE_UNUSED)
				fixture_answer(&w->f, w->now_ns, 0);
			next = 0;
			demand(w, 0);
		} else {
			demand(w, next);
		}
		if (fate == OFS_FATE_LATE)
			answer(w, io);
	}
}

static uint64_t
degree(const struct walk *w)
{
	struct ofs_ledger ledger;

	assert(ofs_core_ledger(w->f.core, w->f.tenant, &ledger) == 0);
	return ledger.degree_now;
}

static void
test_the_degree_halves_below_the_minimum_and_not_before_a_sample(void)
{
	struct walk w;

	walk_open(&w, 400, 0);
	assert(degree(&w) == DEGREE);
	end_as(&w, OFS_FATE_UNUSED, SAMPLE - 1);
	assert(degree(&w) == DEGREE);
	end_as(&w, OFS_FATE_UNUSED, 1);
	assert(degree(&w) == DEGREE / 2);
	end_as(&w, OFS_FATE_UNUSED, SAMPLE - 1); /* a sample begins from nothing */
	assert(degree(&w) == DEGREE / 2);
	end_as(&w, OFS_FATE_UNUSED, 1);
	assert(degree(&w) == DEGREE / 4);
	end_as(&w, OFS_FATE_UNUSED, 3 * SAMPLE);
	assert(degree(&w) == 1); /* one guess is kept, to learn from */
	ofs_core_close(w.f.core);
}

static void
test_the_degree_grows_by_one_from_twice_the_minimum_up_to_its_maximum(void)
{
	struct walk w;

	walk_open(&w, 250, 0);
	end_as(&w, OFS_FATE_UNUSED, 2 * SAMPLE);
	assert(degree(&w) == DEGREE / 4);
	end_as(&w, OFS_FATE_USED, SAMPLE / 2 - 1); /* 484 permille: between the minimum and twice it */
	end_as(&w, OFS_FATE_UNUSED, SAMPLE / 2 + 1);
	assert(degree(&w) == DEGREE / 4);
	end_as(&w, OFS_FATE_USED, SAMPLE / 2); /* 500 permille: twice the minimum */
	end_as(&w, OFS_FATE_UNUSED, SAMPLE / 2);
	assert(degree(&w) == DEGREE / 4 + 1);
	end_as(&w, OFS_FATE_USED, SAMPLE / 4); /* 250 permille: not below */
	end_as(&w, OFS_FATE_UNUSED, 3 * SAMPLE / 4);
	assert(degree(&w) == DEGREE / 4 + 1);
	end_as(&w, OFS_FATE_USED, SAMPLE / 4 - 1); /* 234 permille: below */
	end_as(&w, OFS_FATE_UNUSED, 3 * SAMPLE / 4 + 1);
	assert(degree(&w) == (DEGREE / 4 + 1) / 2);
	end_as(&w, OFS_FATE_USED, 10 * SAMPLE);
	assert(degree(&w) == DEGREE);
	ofs_core_close(w.f.core);
}

static void
test_a_minimum_above_one_half_still_lets_the_degree_grow(void)
{
	struct walk w;

	walk_open(&w, 600, 0);
	end_as(&w, OFS_FATE_UNUSED, SAMPLE);
	assert(degree(&w) == DEGREE / 2);
	end_as(&w, OFS_FATE_USED, SAMPLE - 1); /* 984 permille: good is all of them */
	end_as(&w, OFS_FATE_UNUSED, 1);
	assert(degree(&w) == DEGREE / 2);
	end_as(&w, OFS_FATE_USED, SAMPLE);
	assert(degree(&w) == DEGREE / 2 + 1);
	ofs_core_close(w.f.core);
}

static void
test_a_late_guess_was_accurate(void)
{
	struct walk w;

	walk_open(&w, 400, 0);
	end_as(&w, OFS_FATE_UNUSED, SAMPLE);
	end_as(&w, OFS_FATE_LATE, SAMPLE);
	assert(degree(&w) == DEGREE / 2 + 1);
	ofs_core_close(w.f.core);
}

static void
test_the_margin_doubles_while_guesses_come_late_and_halves_when_few_do(void)
{
	struct walk w;

	walk_open(&w, 0, 200);
	end_as(&w, OFS_FATE_LATE, SAMPLE - 1);
	assert(w.margin_ns == 0);
	end_as(&w, OFS_FATE_LATE, 1);
	assert(w.margin_ns == MARGIN_FIRST_NS);
	end_as(&w, OFS_FATE_LATE, SAMPLE);
	assert(w.margin_ns == 2 * MARGIN_FIRST_NS);
	end_as(&w, OFS_FATE_LATE, 7 * SAMPLE);
	assert(w.margin_ns == MARGIN_MAX_NS);
	end_as(&w, OFS_FATE_USED, SAMPLE - 1);
	assert(w.margin_ns == MARGIN_MAX_NS);
	end_as(&w, OFS_FATE_USED, 1);
	assert(w.margin_ns == MARGIN_MAX_NS / 2);
	end_as(&w, OFS_FATE_USED, SAMPLE);
	assert(w.margin_ns == MARGIN_MAX_NS / 4);
	ofs_core_close(w.f.core);
}

/* The margin when `late` of a sample's `useful` guesses were late and the rest went unused. */
static uint64_t
margin_after(uint32_t late, uint32_t useful)
{
	struct walk w;
	uint64_t after_ns;

	walk_open(&w, 0, 250);
	end_as(&w, OFS_FATE_LATE, SAMPLE);
	end_as(&w, OFS_FATE_LATE, late);
	end_as(&w, OFS_FATE_UNUSED, SAMPLE - useful);
	end_as(&w, OFS_FATE_USED, useful - late);
	after_ns = w.margin_ns;
	ofs_core_close(w.f.core);
	return after_ns;
}

static void
test_lateness_is_a_share_of_the_guesses_that_were_met(void)
{
	assert(margin_after(9, 32) == 2 * MARGIN_FIRST_NS); /* 281 permille of those met */
	assert(margin_after(8, 32) == MARGIN_FIRST_NS);     /* 250: the maximum is not above it */
	assert(margin_after(5, 32) == MARGIN_FIRST_NS);     /* 156: not down to its half */
	assert(margin_after(4, 32) == MARGIN_FIRST_NS / 2); /* 125 */
}

static void
test_guesses_that_nobody_met_say_nothing_of_lateness(void)
{
	struct walk w;

	walk_open(&w, 0, 200);
	end_as(&w, OFS_FATE_LATE, SAMPLE);
	end_as(&w, OFS_FATE_UNUSED, SAMPLE);
	assert(w.margin_ns == MARGIN_FIRST_NS);
	ofs_core_close(w.f.core);
}

static void
test_zero_turns_each_of_the_two_off(void)
{
	struct walk w;

	walk_open(&w, 0, 0);
	end_as(&w, OFS_FATE_UNUSED, 2 * SAMPLE);
	assert(degree(&w) == DEGREE);
	end_as(&w, OFS_FATE_LATE, 2 * SAMPLE);
	assert(w.margin_ns == 0);
	ofs_core_close(w.f.core);
}

static void
test_a_policy_change_begins_anew(void)
{
	struct walk w;

	walk_open(&w, 400, 200);
	end_as(&w, OFS_FATE_UNUSED, SAMPLE);
	end_as(&w, OFS_FATE_LATE, SAMPLE);
	end_as(&w, OFS_FATE_UNUSED, SAMPLE - 1);
	assert(degree(&w) == DEGREE / 2 + 1 && w.margin_ns == MARGIN_FIRST_NS);
	assert(ofs_core_set_policy(w.f.core, w.now_ns, &w.policy) == 0);
	assert(degree(&w) == DEGREE);
	end_as(&w, OFS_FATE_UNUSED, SAMPLE - 1);
	assert(degree(&w) == DEGREE && w.margin_ns == 0);
	end_as(&w, OFS_FATE_USED, 1); /* 15 permille: with it the new sample is full */
	assert(degree(&w) == DEGREE / 2);
	ofs_core_close(w.f.core);
}

/* The margin is taken from the available time, half of it at most: queue.c. */
static void
test_a_margin_never_takes_more_than_half_the_time(void)
{
	struct ofs_guess guess = {.ordinal = CHUNKS - 1, .cause = OFS_CAUSE_LOOKAHEAD};
	struct walk w;
	uint64_t next_ns;

	walk_open(&w, 0, 200);
	end_as(&w, OFS_FATE_LATE, 9 * SAMPLE);
	answer(&w, w.io);
	assert(w.margin_ns == MARGIN_MAX_NS);
	guess.steps = 1; /* the step began at 1: 1 ms of it is left */
	assert(ofs_core_tick(w.f.core, STEP_NS - 999999, &next_ns) == 0);
	fixture_take(&w.f);
	assert(ofs_core_hint(w.f.core, STEP_NS - 999999, w.f.session, &guess, 1) == 0);
	fixture_take(&w.f);
	assert(w.f.action_count > 0 && w.f.actions[w.f.action_count - 1].type == OFS_ACTION_READ);
	assert(w.f.actions[w.f.action_count - 1].deadline_ns == STEP_NS + 1 - 500000);
	ofs_core_close(w.f.core);
}

/* The degree does not bound them, so how they end says nothing about it: ledger.c. */
static void
test_guesses_of_the_host_do_not_count(void)
{
	struct ofs_guess guess = {.cause = OFS_CAUSE_LOOKAHEAD, .steps = 1};
	struct walk w;

	walk_open(&w, 400, 0);
	for (uint32_t i = 0; i < 2 * SAMPLE; i++) {
		guess.ordinal = 8 + i % (CHUNKS - 8);
		assert(ofs_core_hint(w.f.core, ++w.now_ns, w.f.session, &guess, 1) == 0);
		fixture_take(&w.f);
		fixture_answer(&w.f, w.now_ns, 0);
		assert(ofs_core_block_drop(w.f.core, w.now_ns, w.f.infos[guess.ordinal].chunk, 0) == 0);
		fixture_take(&w.f);
	}
	assert(degree(&w) == DEGREE);
	ofs_core_close(w.f.core);
}

int
main(void)
{
	test_the_degree_halves_below_the_minimum_and_not_before_a_sample();
	test_the_degree_grows_by_one_from_twice_the_minimum_up_to_its_maximum();
	test_a_minimum_above_one_half_still_lets_the_degree_grow();
	test_a_late_guess_was_accurate();
	test_the_margin_doubles_while_guesses_come_late_and_halves_when_few_do();
	test_lateness_is_a_share_of_the_guesses_that_were_met();
	test_guesses_that_nobody_met_say_nothing_of_lateness();
	test_zero_turns_each_of_the_two_off();
	test_a_policy_change_begins_anew();
	test_a_margin_never_takes_more_than_half_the_time();
	test_guesses_of_the_host_do_not_count();
	return 0;
}
