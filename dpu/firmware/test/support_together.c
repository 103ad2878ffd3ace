/*
 * Several fetches and puts of one driver in flight at once. The oracle judges each as if it were
 * alone, except for a block that is put and fetched at the same time: such a fetch may miss a put
 * that was not acknowledged before it began.
 */
#include "support_simulate.h"
#include "support_weather.h"

enum { TOGETHER_MAX = 6 };

struct together {
	struct world_flight flight;
	bool put;
	bool hasty;
	bool was_dirty;
	bool ended;
	bool acknowledged[WORLD_DEMANDS_MAX]; /* before it began */
	int rc;
};

static struct oracle_block *
block_of(struct simulation *s, const struct together *one, uint32_t i)
{
	const struct world_session *session = one->flight.session;

	return oracle_find(&s->oracle, &session->chunks[one->flight.ordinals[i]].store_key,
		one->flight.layer);
}

static int
begin_put(struct simulation *s, struct world_session *session, uint32_t layer, struct together *one)
{
	uint32_t ordinal = weather_below(&s->weather, session->count);

	one->put = true;
	oracle_find(&s->oracle, &session->chunks[ordinal].store_key, layer)->tried = true;
	return world_put_begin(session, layer, ordinal, simulate_patience_ns(s), &one->flight);
}

static int
begin_fetch(struct simulation *s, struct world_session *session, uint32_t layer,
	struct together *one)
{
	uint32_t count = 1 + weather_below(&s->weather, s->world.config.core.demand_max);
	uint32_t ordinals[WORLD_DEMANDS_MAX];
	int rc;

	count = count < session->count ? count : session->count;
	ordinals[0] = weather_below(&s->weather, session->count);
	for (uint32_t i = 1; i < count; i++)
		ordinals[i] = (ordinals[i - 1] + 1) % session->count;
	session->step += weather_below(&s->weather, 2);
	one->was_dirty = world_status(&s->world).dirty_blocks > 0;
	rc = world_fetch_begin(session, layer, count, ordinals, NULL, simulate_patience_ns(s),
		&one->flight);
	for (uint32_t i = 0; rc == 0 && i < count; i++)
		one->acknowledged[i] = block_of(s, one, i)->acknowledged;
	return rc;
}

/* Calls of one host, of any of its sessions. How many have begun. */
static uint32_t
begin(struct simulation *s, struct together *calls)
{
	struct world_session *first = simulate_any_session(s);
	uint32_t wanted = 2 + weather_below(&s->weather, TOGETHER_MAX - 1);
	uint32_t begun = 0;

	if (first == NULL)
		return 0;
	for (uint32_t i = 0; i < wanted; i++) {
		struct world_session *session = simulate_any_session(s);
		uint32_t layer = weather_below(&s->weather, s->world.config.core.layer_count);
		int rc;

		if (session->host != first->host || session->count == 0)
			session = first;
		if (session->count == 0)
			continue;
		calls[begun] = (struct together){0};
		rc = weather_below(&s->weather, 3) == 0 ? begin_put(s, session, layer, &calls[begun])
												: begin_fetch(s, session, layer, &calls[begun]);
		/* A driver has as many calls at once as its port has entries. */
		CHECK(rc == 0 || (rc == -EAGAIN && begun == s->world.config.port_entry_count));
		if (rc != 0)
			break;
		calls[begun++].hasty = s->hasty;
		if (weather_below(&s->weather, 2) == 0) { /* begun operations continue */
			uint64_t tickets[TOGETHER_MAX];

			(void)ofs_driver_poll(first->host->driver, weather_below(&s->weather, 20000), tickets,
				TOGETHER_MAX);
		}
	}
	return begun;
}

static void
judge_fetch(struct simulation *s, const struct together *one)
{
	const struct world_fetch *out = &one->flight.out;

	CHECK(one->rc == 0 || (one->rc == -ETIMEDOUT && (one->hasty || !s->weather.strict)));
	CHECK(out->wrong_count == 0);
	s->result.demands += out->count;
	s->hasty = one->hasty;
	for (uint32_t i = 0; i < out->count; i++) {
		const struct ofs_key *store_key =
			&one->flight.session->chunks[one->flight.ordinals[i]].store_key;

		/* A put that was acknowledged since promises nothing to a fetch that began before it. */
		s->was_dirty = one->was_dirty || !one->acknowledged[i];
		simulate_judge(s, store_key, one->flight.layer, out->rcs[i]);
	}
}

void
simulate_together(struct simulation *s)
{
	struct together *calls = calloc(TOGETHER_MAX, sizeof(*calls));
	uint32_t count;

	CHECK(calls != NULL);
	count = begin(s, calls);
	s->result.together += count > 1 ? count : 0;
	for (uint32_t left = count; left > 0; left--) { /* in any order */
		uint32_t i = weather_below(&s->weather, count);

		while (calls[i].ended)
			i = (i + 1) % count;
		calls[i].ended = true;
		calls[i].rc =
			calls[i].put ? world_put_end(&calls[i].flight) : world_fetch_end(&calls[i].flight);
	}
	/* Puts first: one that was acknowledged may have been lost to a fetch that ended after it. */
	for (uint32_t i = 0; i < count; i++) {
		const struct world_flight *flight = &calls[i].flight;

		s->hasty = calls[i].hasty;
		if (calls[i].put)
			simulate_judge_put(s, &flight->session->chunks[flight->ordinals[0]].store_key,
				flight->layer, flight->out.rcs[0]);
	}
	for (uint32_t i = 0; i < count; i++)
		if (!calls[i].put)
			judge_fetch(s, &calls[i]);
	free(calls);
}
