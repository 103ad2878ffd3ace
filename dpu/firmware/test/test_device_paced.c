/*
 * Does a modelled device's software keep its pace: is a step decided when the model has taken its
 * command, is a block there when the model has read it, and is an answer sent when it has handed
 * the hits over? Does each caller get its completion in order of time, and never before the
 * model's; and does a host that leaves leave nothing behind?
 */
#include "support_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define US 1000000ull /* picoseconds */
#define COMMAND_NS 30000ull
#define READ_NS 100000ull
#define HIT_NS 20000ull
#define LOOKS(ns) \
	((ns) * 5 / 4) /* a host in virtual time looks the less often the longer it waits */

static const uint32_t ALL_FOUR[] = {0, 1, 2, 3};

static struct ofs_timing *
open_timing(const char *side)
{
	struct ofs_timing_config config = {.in_flight_max = 4096,
		.read_ps = READ_NS * 1000,
		.write_ps = READ_NS * 1000,
		.hit_ps = HIT_NS * 1000,
		.command_ps = COMMAND_NS * 1000};
	struct ofs_timing *timing;
	int rc;

	snprintf(config.side, sizeof(config.side), "%s", side);
	rc = ofs_timing_open(&timing, &config);
	assert(rc == 0);
	return timing;
}

/* Two users of one server: each gets its own ends, none before its time, the earlier first. */
static void
test_ends_go_to_who_asked(const char *side, uint64_t first_ns, uint64_t second_ns)
{
	const uint32_t in_flight_max[OFS_PACE_USERS] = {4, 4};
	struct ofs_timing_request asked = {.count = 1, .size_bytes = 4096, .tag = 7};
	struct ofs_timing *timing = open_timing(side);
	struct ofs_pace_end end;
	struct ofs_clock clock;
	struct ofs_pace *pace;
	int rc;

	ofs_clock_init_sim(&clock, 1000);
	rc = ofs_pace_open(&pace, timing, &clock, in_flight_max);
	assert(rc == 0 && ofs_pace_next_ns(pace) == UINT64_MAX);
	ofs_pace_ask(pace, OFS_PACE_STORAGE, OFS_PACE_READ, 1000, &asked);
	ofs_pace_ask(pace, OFS_PACE_COMMANDS, OFS_PACE_HIT, 1000, &asked);
	assert(ofs_pace_take(pace, OFS_PACE_COMMANDS, first_ns - 1, &end) == 0);
	assert(ofs_pace_take(pace, OFS_PACE_STORAGE, first_ns - 1, &end) == 0);
	assert(ofs_pace_next_ns(pace) <= first_ns);
	for (int turn = 0; turn < 2; turn++) {
		enum ofs_pace_user user =
			turn == (first_ns == 1000 + READ_NS) ? OFS_PACE_COMMANDS : OFS_PACE_STORAGE;
		uint64_t due_ns = turn == 0 ? first_ns : second_ns;

		assert(ofs_pace_take(pace, user, due_ns, &end) == 1);
		assert(end.tag == 7 && end.due_ns == due_ns);
		assert(ofs_pace_take(pace, user, due_ns, &end) == 0);
	}
	assert(ofs_pace_next_ns(pace) == UINT64_MAX);
	ofs_pace_close(pace);
	timing->ops->close(timing);
}

static void
test_what_late_means(void)
{
	assert(!ofs_pace_late(0, 100000, 104999) && !ofs_pace_late(0, 100000, 99000));
	assert(!ofs_pace_late(0, 100000, 105000) && ofs_pace_late(0, 100000, 105001));
	assert(
		!ofs_pace_late(0, 100, 1099) && ofs_pace_late(0, 100, 1100)); /* a microsecond at least */
}

static void
begin(struct world *world, struct world_host *host, struct world_session *session,
	struct ofs_timing *timing)
{
	struct ofs_device_config config;

	world_config(&config);
	snprintf(config.storage.backend, sizeof(config.storage.backend), "emulated");
	config.timing = timing;
	world_begin(world, host, &config);
	world_join(host, session, 100, 8);
	world_put_all(session, 0, 0);
}

static void
end(struct world_host *host, struct ofs_timing *timing)
{
	world_end(host, 0);
	timing->ops->close(timing);
}

static uint64_t
timed_fetch(struct world *world, struct world_session *session, uint32_t step, uint32_t hit_count)
{
	struct world_fetch fetch;
	uint64_t begin_ns = world->now_ns;

	session->step = step;
	fetch = world_read(session, 0, 4, 0);
	assert(fetch.hit_count == hit_count);
	return world->now_ns - begin_ns;
}

/* Missed: command, read, hit. Staged: no read. No faster than the model, and not much slower. */
static void
test_a_step_takes_what_the_model_says(void)
{
	struct ofs_timing *timing = open_timing("free");
	struct ofs_device_status status;
	struct world_session session;
	struct world_host host;
	struct world world;
	uint64_t took_ns;

	begin(&world, &host, &session, timing);
	took_ns = timed_fetch(&world, &session, 1, 0);
	assert(took_ns >= COMMAND_NS + READ_NS + HIT_NS);
	assert(took_ns <= LOOKS(COMMAND_NS + READ_NS + HIT_NS));
	took_ns = timed_fetch(&world, &session, 2, 4);
	assert(took_ns >= COMMAND_NS + HIT_NS && took_ns <= LOOKS(COMMAND_NS + HIT_NS));
	status = world_status(&world);
	assert(status.paced == 4); /* two commands, two answers */
	end(&host, timing);
}

/* A hint is a command like any other: its blocks are read when the model has taken it. */
static void
test_a_hint_waits_for_the_model(void)
{
	struct ofs_timing *timing = open_timing("free");
	struct ofs_guess guess = {.ordinal = 1, .probability = UINT16_MAX, .cause = OFS_CAUSE_WINDOW};
	struct world_session session;
	struct world_host host;
	struct world world;
	uint64_t reads;
	int rc;

	begin(&world, &host, &session, timing);
	reads = world_status(&world).storage.reads;
	rc = ofs_driver_hint(host.driver, session.number, &guess, 1);
	assert(rc == 1);
	world_pass(&world, COMMAND_NS / 2);
	assert(world_status(&world).storage.reads == reads);
	world_pass(&world, 2 * (COMMAND_NS + READ_NS));
	assert(world_status(&world).storage.reads == reads + 1);
	end(&host, timing);
}

/* The calls to a model, on their way to another side. */
static struct {
	struct ofs_timing_ops ops;
	const struct ofs_timing_ops *below;
	struct ofs_timing_request read;
	uint32_t hit_counts[4], hits, hit_session;
} spy;

static uint64_t
spy_read(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	spy.read = *request;
	return spy.below->read(timing, now_ps, request);
}

static uint64_t
spy_hit(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	assert(spy.hits < 4);
	spy.hit_counts[spy.hits++] = request->count;
	spy.hit_session = request->session;
	return spy.below->hit(timing, now_ps, request);
}

/* Is a model told which demands wait for a read, and does it hand over staged blocks while the
 * rest is read? */
static void
test_what_a_model_is_asked(void)
{
	static const uint32_t half[] = {2, 3, 4, 5};
	struct ofs_timing *timing = open_timing("free");
	struct world_session session;
	struct world_fetch fetch;
	struct world_host host;
	struct world world;
	uint64_t begin_ns;
	int rc;

	spy.below = timing->ops;
	spy.ops = *timing->ops;
	spy.ops.read = spy_read;
	spy.ops.hit = spy_hit;
	timing->ops = &spy.ops;
	begin(&world, &host, &session, timing);
	(void)timed_fetch(&world, &session, 1, 0);
	assert(spy.read.cause == OFS_CAUSE_DEMAND && spy.read.tenant == 0);
	assert(spy.read.session == session.number && spy.hit_session == session.number);
	assert(spy.hits == 1 && spy.hit_counts[0] == 4);
	session.step = 2;
	begin_ns = world.now_ns;
	rc = world_fetch(&session, 0, 4, half, NULL, SECOND_NS, &fetch);
	assert(rc == 0 && fetch.hit_count == 2 && fetch.wrong_count == 0);
	assert(spy.hits == 3 && spy.hit_counts[1] == 2 && spy.hit_counts[2] == 2);
	assert(world.now_ns - begin_ns >= COMMAND_NS + READ_NS + HIT_NS);
	timing->ops = spy.below;
	end(&host, timing);
}

/* Commands and reads contend: with one server of the model a second step waits for the first. */
static void
test_steps_contend_for_the_model(void)
{
	struct ofs_timing *timing = open_timing("skeleton");
	struct world_session session;
	struct world_host host;
	struct world world;
	uint64_t took_ns;

	begin(&world, &host, &session, timing);
	took_ns = timed_fetch(&world, &session, 1, 0);
	assert(took_ns >= COMMAND_NS + 4 * READ_NS + HIT_NS); /* four reads, one after another */
	end(&host, timing);
}

/* A host that exits while the model has its command, and while it hands over its hits: there is no
 * answer, the port is free immediately, and the next host is served. */
static void
test_a_host_that_goes(uint64_t after_ns)
{
	struct ofs_timing *timing = open_timing("free");
	struct world_session session, next;
	struct world_host host, other;
	struct world_flight flight;
	struct world world;
	int rc;

	begin(&world, &host, &session, timing);
	(void)timed_fetch(&world, &session, 1, 0);
	session.step = 2;
	rc = world_fetch_begin(&session, 0, 4, ALL_FOUR, NULL, SECOND_NS, &flight);
	assert(rc == 0);
	world_pass(&world, after_ns);
	world_detach(&host);
	free(flight.bytes);
	world_attach(&world, &other, 0, NULL);
	world_join(&other, &next, 100, 8);
	next.step = 1;
	world_read(&next, 0, 4, 0);
	world_pass(&world, SECOND_NS / 100);
	end(&other, timing);
}

/* A storage other than emulated has its own times: refused, with the fix. */
static void
test_storage_of_its_own_time(void)
{
	struct ofs_timing *timing = open_timing("free");
	struct ofs_device_config config;
	struct world world;
	char error[512];
	int rc;

	world_config(&config);
	config.timing = timing;
	rc = world_try_open(&world, &config, error, sizeof(error));
	assert(rc == -EINVAL && strstr(error, "choose emulated") != NULL);
	timing->ops->close(timing);
}

int
main(void)
{
	test_ends_go_to_who_asked("free", 1000 + HIT_NS, 1000 + READ_NS);
	test_ends_go_to_who_asked("skeleton", 1000 + READ_NS, 1000 + READ_NS + HIT_NS);
	test_what_late_means();
	test_a_step_takes_what_the_model_says();
	test_a_hint_waits_for_the_model();
	test_what_a_model_is_asked();
	test_steps_contend_for_the_model();
	test_a_host_that_goes(COMMAND_NS / 2);
	test_a_host_that_goes(COMMAND_NS + HIT_NS / 2);
	test_storage_of_its_own_time();
	puts("paced device ok");
	return 0;
}
