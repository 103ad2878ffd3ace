/*
 * skeleton: how to add a side, and the template for one whose ends are not known immediately.
 *
 * Model (every side opens with its own): one server that takes one request after another, each for
 * its constant time, urgent ones first. An urgent request may overtake those that wait, so that no
 * end is known when a request is made. Waiting requests are in two rings; the server has one more.
 *
 * To add a side: copy this file, give every `skeleton` your name, declare its open in internal.h
 * and add it to sides[] in timing.c; or build it into a shared object of your own and hand the
 * pointer to bindings/timing.py. The suites in test/test_timing.c and tests/contract/test_timing.py
 * are the definition of "works". A side that knows every end immediately is shorter: free.c.
 */
#include <assert.h>
#include <stdlib.h>

#include "internal.h"

#define IN_FLIGHT_MAX (1u << 24)

struct job {
	uint64_t tag;
	uint64_t asked_ps;
	uint64_t takes_ps;
};

/* Bounded by in_flight_max, which the caller respects: a full ring is a bug of ours. */
struct ring {
	struct job *jobs;
	uint32_t head, count;
};

struct skeleton_timing {
	struct ofs_timing base;
	struct ofs_timing_config config;
	struct ring rings[2]; /* 0: urgent */
	struct job running;
	uint64_t end_ps; /* of the running job; OFS_TIMING_LATER: none runs */
	uint64_t free_ps;
};

/* Begins the next job, when the server became free or at its request, whichever is later. */
static void
server_next(struct skeleton_timing *skeleton)
{
	struct ring *ring = &skeleton->rings[skeleton->rings[0].count ? 0 : 1];

	skeleton->end_ps = OFS_TIMING_LATER;
	if (ring->count == 0)
		return;
	skeleton->running = ring->jobs[ring->head];
	ring->head = (ring->head + 1) % skeleton->base.in_flight_max;
	ring->count--;
	if (skeleton->free_ps < skeleton->running.asked_ps)
		skeleton->free_ps = skeleton->running.asked_ps;
	skeleton->free_ps += skeleton->running.takes_ps;
	skeleton->end_ps = skeleton->free_ps;
}

/* Every request: queues it. What ended before now_ps was polled, so the server is idle or ahead. */
static uint64_t
server_take(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request,
	uint64_t takes_ps, int urgent)
{
	struct skeleton_timing *skeleton = (struct skeleton_timing *)timing;
	struct ring *ring = &skeleton->rings[urgent ? 0 : 1];
	uint32_t size = timing->in_flight_max;

	assert(ring->count < size);
	ring->jobs[(ring->head + ring->count++) % size] = (struct job){request->tag, now_ps, takes_ps};
	if (skeleton->end_ps == OFS_TIMING_LATER)
		server_next(skeleton);
	return OFS_TIMING_LATER;
}

/* A block from the medium into the device's memory. Its deadline gives its priority: a read that is
 * due now overtakes prefetches. */
static uint64_t
skeleton_read(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	const struct ofs_timing_config *config = &((struct skeleton_timing *)timing)->config;

	return server_take(timing, now_ps, request, config->read_ps, request->deadline_ps <= now_ps);
}

/* A block to the medium, at low priority. */
static uint64_t
skeleton_write(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	return server_take(timing, now_ps, request, ((struct skeleton_timing *)timing)->config.write_ps,
		0);
}

/* `count` staged blocks over the fabric to the host that demanded them. */
static uint64_t
skeleton_hit(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	return server_take(timing, now_ps, request, ((struct skeleton_timing *)timing)->config.hit_ps,
		1);
}

/* A command of `count` demands and `score_count` scores, up to its decisions. */
static uint64_t
skeleton_command(struct ofs_timing *timing, uint64_t now_ps,
	const struct ofs_timing_request *request)
{
	return server_take(timing, now_ps, request,
		((struct skeleton_timing *)timing)->config.command_ps, 1);
}

/* May be early, never late: an early poll returns nothing and costs a call. */
static uint64_t
skeleton_next_ps(const struct ofs_timing *timing)
{
	return ((const struct skeleton_timing *)timing)->end_ps;
}

/* Returns what has ended, and begins what follows, which may end by now, too. */
static int
skeleton_poll(struct ofs_timing *timing, uint64_t now_ps, struct ofs_timing_end *ends, int max)
{
	struct skeleton_timing *skeleton = (struct skeleton_timing *)timing;
	int count = 0;

	while (count < max && skeleton->end_ps != OFS_TIMING_LATER && skeleton->end_ps <= now_ps) {
		ends[count++] = (struct ofs_timing_end){skeleton->running.tag, skeleton->end_ps};
		server_next(skeleton);
	}
	return count;
}

/* Resets everything except what open was given. A side with random draws restarts them. */
static void
skeleton_reset(struct ofs_timing *timing)
{
	struct skeleton_timing *skeleton = (struct skeleton_timing *)timing;

	skeleton->rings[0].head = skeleton->rings[0].count = 0;
	skeleton->rings[1].head = skeleton->rings[1].count = 0;
	skeleton->end_ps = OFS_TIMING_LATER;
	skeleton->free_ps = 0;
}

/* Called for a half-open side too, so every pointer must be valid or NULL. */
static void
skeleton_close(struct ofs_timing *timing)
{
	struct skeleton_timing *skeleton = (struct skeleton_timing *)timing;

	free(skeleton->rings[0].jobs);
	free(skeleton->rings[1].jobs);
	free(skeleton);
}

static const struct ofs_timing_ops ops = {
	.name = "skeleton",
	.version = OFS_TIMING_VERSION,
	.read = skeleton_read,
	.write = skeleton_write,
	.hit = skeleton_hit,
	.command = skeleton_command,
	.next_ps = skeleton_next_ps,
	.poll = skeleton_poll,
	.reset = skeleton_reset,
	.close = skeleton_close,
};

/* Everything that allocates or can be refused happens here. */
int
ofs_timing_skeleton_open(struct ofs_timing **out, const struct ofs_timing_config *config)
{
	struct skeleton_timing *skeleton;
	uint32_t max = config->in_flight_max;

	if (max == 0 || max > IN_FLIGHT_MAX)
		return -EINVAL;
	skeleton = calloc(1, sizeof(*skeleton));
	if (skeleton == NULL)
		return -ENOMEM;
	skeleton->base = (struct ofs_timing){.ops = &ops, .in_flight_max = max};
	skeleton->config = *config;
	skeleton->rings[0].jobs = malloc(max * sizeof(struct job));
	skeleton->rings[1].jobs = malloc(max * sizeof(struct job));
	if (skeleton->rings[0].jobs == NULL || skeleton->rings[1].jobs == NULL) {
		skeleton_close(&skeleton->base);
		return -ENOMEM;
	}
	skeleton_reset(&skeleton->base);
	*out = &skeleton->base;
	return 0;
}
