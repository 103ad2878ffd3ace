/* See support_simulate.h. The weather (configuration and odds) is drawn in support_weather.c. */
#include "support_simulate.h"
#include "support_weather.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_TIMEOUT_NS 1000000000ull /* far beyond every deadline of the device */

/* A tenant with limits never exceeds them, except after a power cut: then blocks that were being
 * deleted, or were written and not acknowledged, may be there again. */
void
simulate_check_quotas(struct simulation *s)
{
	const struct ofs_tenant_quota *quota = &s->weather.quota;
	struct ofs_tenant_status status;
	uint64_t purged = 0;

	for (uint32_t i = 0; i < s->world.config.core.tenant_max; i++) {
		CHECK(ofs_device_tenant_status_get(s->world.device, i, &status) == 0);
		CHECK(quota->chunks_max == 0 || s->result.cuts > 0 || status.chunks <= quota->chunks_max);
		CHECK(quota->stored_bytes_max == 0 || s->result.cuts > 0
			|| status.stored_bytes <= quota->stored_bytes_max);
		CHECK(quota->dirty_blocks_max == 0 || status.dirty_blocks <= quota->dirty_blocks_max);
		purged += status.purged;
	}
	s->purged = s->purged || purged > 0;
}

static void
check_tables(struct simulation *s)
{
	simulate_check_quotas(s);
	CHECK(ofs_core_verify(s->world.device->core) == 0);
	CHECK(ofs_store_verify(s->world.device->store) == 0);
	CHECK(world_check_directory(&s->world) <= s->world.config.core.slot_count);
	CHECK(world_status(&s->world).publish_overflow == 0);
}

/* One call in eight has so little time that it ends before its block is written or read. */
uint64_t
simulate_patience_ns(struct simulation *s)
{
	s->hasty = weather_below(&s->weather, 8) == 0;
	return s->hasty ? 1 + weather_below(&s->weather, 50000) : CALL_TIMEOUT_NS;
}

static void
take_log(struct simulation *s)
{
	int count;

	do {
		if (s->log_size_bytes + LOG_PIECE > s->log_room_bytes) {
			s->log_room_bytes = 2 * s->log_room_bytes + LOG_PIECE;
			s->log = realloc(s->log, s->log_room_bytes);
			CHECK(s->log != NULL);
		}
		count = ofs_device_log_take(s->world.device, s->log + s->log_size_bytes, LOG_PIECE);
		CHECK(count >= 0);
		s->log_size_bytes += (uint32_t)count;
	} while (count > 0);
}

struct world_session *
simulate_any_session(struct simulation *s)
{
	uint32_t from = weather_below(&s->weather, SESSIONS_MAX);

	for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
		uint32_t number = (from + i) % SESSIONS_MAX;

		if (s->session_used[number] && !s->host_raw[s->sessions[number].host - s->hosts])
			return &s->sessions[number];
	}
	return NULL;
}

static void
do_attach(struct simulation *s)
{
	uint32_t h = weather_below(&s->weather, HOSTS_MAX);

	if (s->host_used[h])
		return;
	world_attach(&s->world, &s->hosts[h], weather_below(&s->weather, s->world.tenant_count),
		&s->weather.fabric);
	s->host_used[h] = true;
	s->host_raw[h] = weather_below(&s->weather, 4) == 0;
	s->host_mad[h] = false;
	s->raw_flying[h] = 0;
	s->weather.fabric.seed++;
}

static void
append_checked(struct simulation *s, struct world_session *session, uint64_t content,
	uint32_t count)
{
	int rc = world_append(session, content, count);

	CHECK(rc == 0 || (rc == -EDQUOT && s->weather.quota.chunks_max > 0));
}

static void
do_open(struct simulation *s)
{
	uint32_t h = weather_below(&s->weather, HOSTS_MAX);
	uint32_t i = 0;

	while (i < SESSIONS_MAX && s->session_used[i])
		i++;
	if (!s->host_used[h] || i == SESSIONS_MAX)
		return;
	CHECK(world_session(&s->hosts[h], &s->sessions[i], 1 + weather_below(&s->weather, 8)) == 0);
	s->session_used[i] = true;
	if (s->host_raw[h]) /* so that some of its commands get further than their session */
		append_checked(s, &s->sessions[i], 0, 8);
}

/* Contents come from a few long texts, so that sessions share prefixes. */
static void
do_append(struct simulation *s)
{
	struct world_session *session = simulate_any_session(s);
	uint32_t count = 1 + weather_below(&s->weather, 12);
	uint64_t text;

	if (session == NULL || session->count + count > WORLD_CHUNKS_MAX)
		return;
	text = weather_below(&s->weather, 2);
	append_checked(s, session, 1000 * text + session->count, count);
}

void
simulate_judge_put(struct simulation *s, const struct ofs_key *store_key, uint32_t layer,
	int32_t rc)
{
	simulate_mix(s, (uint64_t)(int64_t)rc);
	/* Every put ends, with an answer that says why. */
	CHECK(rc == 0 || rc == -ENOSPC || (s->hasty && rc == -ETIMEDOUT)
		|| (rc == -EDQUOT && s->weather.quota.stored_bytes_max > 0)
		|| (!s->weather.strict && (rc == -EIO || rc == -ETIMEDOUT || rc == -EBADMSG)));
	if (rc == 0) {
		oracle_find(&s->oracle, store_key, layer)->acknowledged = true;
		s->result.puts++;
	}
}

static void
do_put(struct simulation *s)
{
	struct world_session *session = simulate_any_session(s);
	int32_t rcs[WORLD_CHUNKS_MAX];
	uint32_t layer = weather_below(&s->weather, s->world.config.core.layer_count);
	uint32_t first, count;

	if (session == NULL || session->count == 0)
		return;
	first = weather_below(&s->weather, session->count);
	count = 1 + weather_below(&s->weather, 24);
	count = count < session->count - first ? count : session->count - first;
	for (uint32_t i = 0; i < count; i++)
		oracle_find(&s->oracle, &session->chunks[first + i].store_key, layer)->tried = true;
	(void)world_put(session, layer, first, count, simulate_patience_ns(s), rcs);
	for (uint32_t i = 0; i < count; i++)
		simulate_judge_put(s, &session->chunks[first + i].store_key, layer, rcs[i]);
}

void
simulate_judge(struct simulation *s, const struct ofs_key *store_key, uint32_t layer, int32_t rc)
{
	struct oracle_block *block = oracle_find(&s->oracle, store_key, layer);

	simulate_mix(s, (uint64_t)(int64_t)rc);
	if (rc == 0) {
		CHECK(block->tried);
		s->result.served++;
		return;
	}
	CHECK(rc == -ENOENT || rc == -EAGAIN || (s->hasty && rc == -ETIMEDOUT)
		|| (rc == -EBADMSG && s->result.cuts > 0 && !block->acknowledged)
		|| (!s->weather.strict
			&& (rc == -EIO || rc == -EBADMSG || rc == -ETIMEDOUT || rc == -ESTALE)));
	/* -ESTALE: the host gave up reading a block that kept changing; it may ask again. */
	if ((rc != -ENOENT && rc != -EIO) || !block->acknowledged)
		return;
	if (s->was_dirty)
		return; /* perhaps dirty in a private slot of another session: not in the store yet */
	simulate_check_quotas(s);
	CHECK(s->purged || !s->weather.strict); /* its tenant was at a bound when it was kept */
	block->acknowledged = false;
	s->result.lost += !s->purged;
}

static void
do_fetch(struct simulation *s)
{
	struct world_session *session = simulate_any_session(s);
	uint32_t layer = weather_below(&s->weather, s->world.config.core.layer_count);
	uint32_t ordinals[WORLD_DEMANDS_MAX];
	uint16_t scores[WORLD_CHUNKS_MAX];
	const uint16_t *given;
	struct world_fetch fetch;
	uint64_t patience_ns;
	uint32_t count;
	int rc;

	if (session == NULL || session->count == 0)
		return;
	count = 1 + weather_below(&s->weather, s->world.config.core.demand_max);
	count = count < session->count ? count : session->count;
	ordinals[0] = weather_below(&s->weather, session->count);
	for (uint32_t i = 1; i < count; i++)
		ordinals[i] = (ordinals[i - 1] + 1) % session->count;
	for (uint32_t i = 0; i < session->count; i++)
		scores[i] = (uint16_t)weather_below(&s->weather, 65536);
	session->step += weather_below(&s->weather, 2);
	s->was_dirty = world_status(&s->world).dirty_blocks > 0;
	/* One draw a statement: in which order arguments are evaluated is the compiler's choice. */
	patience_ns = simulate_patience_ns(s);
	given = weather_below(&s->weather, 3) == 0 ? NULL : scores;
	rc = world_fetch(session, layer, count, ordinals, given, patience_ns, &fetch);
	/* Within the call's time, unless every slot was quarantined by a hung device. */
	CHECK(rc == 0 || (rc == -ETIMEDOUT && (s->hasty || !s->weather.strict)));
	CHECK(fetch.wrong_count == 0);
	s->result.demands += count;
	for (uint32_t i = 0; i < count; i++)
		simulate_judge(s, &session->chunks[ordinals[i]].store_key, layer, fetch.rcs[i]);
}

/* Blocks that only this session reads are deleted with it, unless it is kept. */
static void
forget_session(struct simulation *s, const struct world_session *session)
{
	for (uint32_t c = 0; c < session->count; c++) {
		const struct ofs_key *key = &session->chunks[c].store_key;
		bool shared = false;

		for (uint32_t i = 0; i < SESSIONS_MAX; i++)
			for (uint32_t j = 0; s->session_used[i] && j < s->sessions[i].count; j++)
				shared |= ofs_key_equal(&s->sessions[i].chunks[j].store_key, key);
		for (uint32_t layer = 0; !shared && layer < s->world.config.core.layer_count; layer++)
			oracle_find(&s->oracle, key, layer)->acknowledged = false;
	}
}

static void
do_close(struct simulation *s)
{
	struct world_session *session = simulate_any_session(s);
	int keep = weather_below(&s->weather, 4) != 0;

	if (session == NULL)
		return;
	CHECK(ofs_device_session_close(s->world.device, session->number, keep) == 0);
	s->session_used[session - s->sessions] = false;
	if (!keep)
		forget_session(s, session);
}

static void
do_detach(struct simulation *s)
{
	uint32_t h = weather_below(&s->weather, HOSTS_MAX);

	if (!s->host_used[h])
		return;
	for (uint32_t i = 0; i < SESSIONS_MAX; i++)
		if (s->session_used[i] && s->sessions[i].host == &s->hosts[h])
			s->session_used[i] = false;
	world_detach(&s->hosts[h]);
	s->host_used[h] = false;
}

/* The prefetch account: each issued prefetch has ended, or is still staged or in flight. */
static void
check_ledger(struct simulation *s)
{
	struct ofs_ledger ledger = world_ledger(&s->world);
	uint64_t ends = 0, nontrivial = 0, open = 0;

	for (uint32_t i = 0; i < OFS_END_COUNT; i++) {
		ends += ledger.ends[i];
		nontrivial += ledger.nontrivial_ends[i];
	}
	CHECK(ends == ledger.demands && nontrivial == ledger.nontrivial);
	CHECK(ledger.nontrivial <= ledger.demands && ledger.log_bytes_lost == 0);
	for (uint32_t i = OFS_CAUSE_WINDOW; i < OFS_CAUSE_COUNT; i++) {
		uint64_t ended = 0;

		for (uint32_t f = 0; f < OFS_FATE_COUNT; f++)
			ended += f == OFS_FATE_DROPPED ? 0 : ledger.fates[i][f];
		CHECK(ended <= ledger.issued[i]);
		open += ledger.issued[i] - ended;
	}
	CHECK(open <= s->world.config.core.slot_count);
	CHECK(ledger.resident_slots <= s->world.config.core.slot_count);
}

static void
do_reset(struct simulation *s)
{
	check_ledger(s);
	s->read_errors += world_ledger(&s->world).io_errors;
	CHECK(ofs_device_reset(s->world.device) == 0);
}

static void
do_session_control(struct simulation *s)
{
	struct world_session *session = simulate_any_session(s);

	if (session == NULL)
		return;
	if (weather_below(&s->weather, 2) == 0) {
		CHECK(ofs_driver_release(session->host->driver, session->number) == 0);
	} else {
		CHECK(ofs_device_session_set_generating(s->world.device, session->number,
				  (int)weather_below(&s->weather, 2))
			== 0);
	}
}

static void
do_policy(struct simulation *s)
{
	struct ofs_policy policy;

	weather_policy(&s->weather, &policy);
	CHECK(ofs_device_set_policy(s->world.device, &policy) == 0);
}

static void
do_hang(struct simulation *s)
{
	if (weather_below(&s->weather, 3) == 0 && s->weather.hangs)
		ofs_storage_hang(s->world.device->storage);
	else
		ofs_storage_unhang(s->world.device->storage);
}

static void
do_pass(struct simulation *s)
{
	static const uint64_t longest_ns[] = {1000, 100000, 10000000, 3000000000ull};

	world_pass(&s->world,
		1 + weather_below(&s->weather, (uint32_t)longest_ns[weather_below(&s->weather, 4)]));
}

static void
replay(struct simulation *s)
{
	struct ofs_work work[OFS_EVENT_COUNT], replayed[OFS_EVENT_COUNT];
	uint64_t diverged_at;
	int64_t agreed;

	CHECK(ofs_device_work(s->world.device, work) == 0);
	take_log(s);
	agreed = ofs_core_replay(s->log, s->log_size_bytes, &diverged_at, replayed);
	CHECK(agreed >= 0 && diverged_at == UINT64_MAX);
	CHECK(memcmp(work, replayed, sizeof(work)) == 0);
	s->result.agreed += (uint64_t)agreed;
	simulate_mix(s, ofs_checksum(s->log, s->log_size_bytes));
	s->log_size_bytes = 0;
}

static void
come(struct simulation *s)
{
	for (int i = 0; i < 3; i++) {
		do_attach(s);
		do_open(s);
		do_append(s);
	}
}

/* The device's counters are lost with it. */
static void
take_counters(struct simulation *s)
{
	struct ofs_device_status status = world_status(&s->world);

	check_ledger(s);
	s->read_errors += world_ledger(&s->world).io_errors;
	s->losses += status.store.checks_failed + status.store.expired;
	s->result.faults += status.storage.errors + status.store.checks_failed;
	s->result.discards += status.store.segments_discarded;
	s->result.virtual_ns += status.now_ns;
	simulate_mix(s, ofs_checksum(&status, sizeof(status)));
}

/*
 * A power cut: requests in flight tear, all hosts are gone, and the device restarts on the drive's
 * contents. Acknowledged blocks are there; where a start may miss one because of an injected fault,
 * or it was only dirty, that counts as no error.
 */
static void
do_cut(struct simulation *s)
{
	bool forgive = !s->weather.strict || world_status(&s->world).dirty_blocks > 0;

	simulate_check_quotas(s);
	for (uint32_t h = 0; h < HOSTS_MAX; h++)
		if (s->host_used[h])
			world_abandon(&s->hosts[h]);
	memset(s->host_used, 0, sizeof(s->host_used));
	memset(s->session_used, 0, sizeof(s->session_used));
	for (uint32_t i = 0; forgive && i < ORACLE_BLOCKS_MAX; i++)
		s->oracle.blocks[i].acknowledged = false;
	simulate_values_cut(s, forgive);
	take_counters(s);
	replay(s);
	ofs_storage_hang(s->world.device->storage);
	world_close(&s->world, 0);
	s->result.cuts++;
	weather_open_again(&s->weather, &s->world);
	check_tables(s);
	come(s);
}

typedef void simulate_event(struct simulation *s);

static simulate_event *const events[WEATHER_EVENTS] = {do_attach, do_open, do_append, do_put,
	do_fetch, do_close, do_detach, simulate_raw, do_reset, do_session_control, do_policy, do_hang,
	do_pass, simulate_together, do_cut};

/* After the faults: hung requests end, all hosts leave, and everything is accounted for. */
static void
settle(struct simulation *s)
{
	struct ofs_device_status status;
	int rc;

	ofs_storage_unhang(s->world.device->storage);
	world_pass(&s->world, 2000000000ull);
	for (uint32_t h = 0; h < HOSTS_MAX; h++) {
		if (s->host_used[h] && s->host_raw[h]) {
			for (int i = 0; i < 16; i++)
				simulate_raw_collect(s, h); /* the fabric holds completions back */
			CHECK(s->host_mad[h] || s->raw_flying[h] == 0);
		}
		if (s->host_used[h])
			world_detach(&s->hosts[h]);
	}
	/* Single I/Os may hang after the last unhang: let go of those too. */
	for (int i = 0; i < 64; i++) {
		world_pass(&s->world, 100000000);
		ofs_storage_unhang(s->world.device->storage);
	}
	check_tables(s);
	rc = ofs_device_drain(s->world.device, CALL_TIMEOUT_NS);
	status = world_status(&s->world);
	CHECK(rc == 0 || status.store_full > 0 || !s->weather.strict);
	CHECK(status.ports == 0 && status.sessions == 0 && status.reads_in_flight == 0);
	CHECK(status.slots_quarantined == 0 || !s->weather.strict);
	CHECK(status.dirty_blocks <= s->world.config.dirty_blocks_max);
	take_counters(s);
	CHECK(s->result.lost <= s->read_errors + s->losses);
	/* A block that was cut off in the middle of its put may fail its check. */
	CHECK(!s->weather.strict || s->result.faults == 0 || s->result.cuts > 0);
}

void
simulate(uint64_t seed, uint32_t steps, struct simulate_result *result)
{
	struct simulation *s = calloc(1, sizeof(*s));
	struct ofs_histogram stages[OFS_STAGE_COUNT];
	struct ofs_ledger ledger;

	assert(s != NULL);
	weather_open(&s->weather, seed, &s->world);
	oracle_open(&s->oracle);
	s->value_random = ~seed;
	come(s);
	for (s->step = 0; s->step < steps; s->step++) {
		events[weather_event(&s->weather)](s);
		if (s->world.config.value_max > 0 && ofs_draw(&s->value_random) % 4 == 0)
			simulate_value(s);
		if (s->step % 32 == 0) {
			check_tables(s);
			take_log(s);
		}
	}
	settle(s);
	ledger = world_ledger(&s->world);
	simulate_mix(s, ofs_checksum(&ledger, sizeof(ledger)));
	CHECK(ofs_device_stages_get(s->world.device, stages) == 0);
	simulate_mix(s, ofs_checksum(stages, sizeof(stages)));
	replay(s);
	world_close(&s->world, 0);
	weather_close(&s->weather);
	s->result.strict = s->weather.strict;
	s->result.hash = s->hash;
	*result = s->result;
	oracle_close(&s->oracle);
	free(s->log);
	free(s);
}
