/*
 * Values under keys, beside the blocks of the same hosts: what a key has is what was stored last,
 * whole, or nothing; and a list of a volume has the names of those, once each. Every second seed
 * has them. They draw from a sequence of their own, so that the other events of a seed stay what
 * they were.
 *
 * Each eight bytes of a value follow from its seed, which the first eight are, and a seed is never
 * used twice: so the bytes say of which store they are, and of which key. Whether a store gave a
 * name follows from its seed too.
 */
#include "support_simulate.h"
#include "support_weather.h"

#include <string.h>

enum { COMMITS_MAX = 200, PASS_NS = 1000000, VOLUMES = 2, ASKS_MAX = 8, FIRST = VALUE_KEYS };

/* What a walk over a volume found. */
struct told_names {
	uint32_t numbers[VALUE_KEYS]; /* in the order of the list */
	uint32_t count;
	uint32_t changed; /* bits of those that were stored or deleted meanwhile */
};

static const struct ofs_key volumes[VOLUMES] = {{1, 2}, {3, 4}};

static uint32_t
below(struct simulation *s, uint32_t limit)
{
	return (uint32_t)(ofs_draw(&s->value_random) % limit);
}

static uint64_t
word_of(uint64_t seed, uint64_t i)
{
	return i == 0 ? seed : ofs_mix(seed * 0x9e3779b97f4a7c15ull + i);
}

/* Whose store it was is in the seed's upper half. */
static uint64_t
seed_of(uint32_t tenant, uint32_t number, uint64_t draw)
{
	return (uint64_t)tenant << 48 | (uint64_t)number << 32 | draw;
}

static bool
has_name(uint64_t seed)
{
	return seed % 8 != 0;
}

/* From the shortest name to the longest. */
static uint32_t
name_of(uint32_t number, struct ofs_key *name)
{
	uint32_t bytes = 1 + (OFS_VALUE_NAME_BYTES_MAX - 1) * number / (VALUE_KEYS - 1);

	*name = (struct ofs_key){0};
	memset(name, 'a' + (int)number, bytes);
	return bytes;
}

static struct ofs_key
key_of(uint32_t number)
{
	struct ofs_key name, key;
	uint32_t bytes = name_of(number, &name);

	ofs_value_key((const uint8_t *)&volumes[number % VOLUMES], (const uint8_t *)&name, bytes, &key);
	return key;
}

static struct ofs_value_told
ask(struct simulation *s, struct world_host *host, uint32_t verb, const struct ofs_value_ask *asked)
{
	struct ofs_value_told told = {.rc = 1};
	int rc =
		ofs_driver_values(host->driver, &(struct ofs_asking){verb, 1, asked, &told, 1000000000ull});

	/* Commands are answered at once, whatever the drive does. */
	CHECK(rc == 0 && told.rc <= 0);
	simulate_mix(s, (uint64_t)(int64_t)told.rc);
	return told;
}

static int
ask_session(struct simulation *s, struct world_host *host, uint32_t verb, uint32_t session)
{
	return ask(s, host, verb, &(struct ofs_value_ask){.session = session}).rc;
}

/* Whether the host has room for neither session nor value, or its tenant is at a bound. */
static bool
is_full(int rc)
{
	return rc == -ENOSPC || rc == -EBUSY || rc == -EDQUOT;
}

/* A power cut has left any store of the key, or none. */
static bool
is_doubtful(const struct simulated_value *value)
{
	return value->any && !value->kept;
}

static int
put_pieces(struct simulation *s, struct world_host *host, uint32_t session, uint8_t *bytes,
	uint64_t length)
{
	uint32_t payload = s->world.config.store.payload_size_bytes;
	uint32_t ordinal = 0;
	int32_t rc = 0;

	for (uint32_t layer = 0; rc == 0 && (uint64_t)layer * payload < length; layer++) {
		uint64_t left = length - (uint64_t)layer * payload;
		struct ofs_put put = {.session = session,
			.layer = layer,
			.count = 1,
			.length_bytes = (uint32_t)(left < payload ? left : payload),
			.ordinals = &ordinal,
			.source = bytes + (uint64_t)layer * payload,
			.source_stride_bytes = payload,
			.timeout_ns = simulate_patience_ns(s),
			.rcs = &rc};

		(void)ofs_driver_put(host->driver, &put);
		CHECK(rc == 0 || is_full(rc) || (s->hasty && rc == -ETIMEDOUT)
			|| (!s->weather.strict && (rc == -EIO || rc == -ETIMEDOUT || rc == -EBADMSG)));
	}
	return rc;
}

static int
commit(struct simulation *s, struct world_host *host, uint32_t session)
{
	int rc = -EAGAIN;

	for (int i = 0; rc == -EAGAIN && i < COMMITS_MAX; i++) {
		rc = ask_session(s, host, OFS_VALUE_COMMIT, session);
		if (rc == -EAGAIN)
			world_pass(&s->world, PASS_NS);
	}
	CHECK(rc == 0 || rc == -EEXIST || rc == -ENOENT || is_full(rc) || rc == -EAGAIN);
	return rc;
}

static void
store(struct simulation *s, struct world_host *host, uint32_t number, uint8_t *bytes,
	uint64_t bytes_max)
{
	struct simulated_value *value = &s->values[host->tenant][number];
	uint64_t seed = seed_of(host->tenant, number, ++s->value_seed);
	struct ofs_value_ask asked = {.key = key_of(number),
		.length = 8 + below(s, (uint32_t)bytes_max - 7)};
	struct ofs_value_told told;
	int rc;

	if (has_name(seed))
		asked.name_bytes = (uint16_t)name_of(number, &asked.name);
	asked.flags = below(s, 4) == 0 ? OFS_VALUE_KEEP : below(s, 4) == 0 ? OFS_VALUE_OVER : 0;
	for (uint64_t i = 0; i < bytes_max / 8; i++) {
		uint64_t word = word_of(seed, i);

		memcpy(bytes + 8 * i, &word, sizeof(word));
	}
	told = ask(s, host, OFS_VALUE_STORE, &asked);
	if (told.rc != 0) {
		CHECK(is_full(told.rc) || (told.rc == -EEXIST && asked.flags == OFS_VALUE_KEEP)
			|| (told.rc == -ENOENT && asked.flags == OFS_VALUE_OVER));
		return;
	}
	rc = put_pieces(s, host, told.session, bytes, asked.length);
	value->begun = seed;
	if (rc == 0 && below(s, 8) != 0)
		rc = commit(s, host, told.session);
	else
		rc = rc == 0 ? -ECANCELED : rc;
	if (rc == 0) {
		*value = (struct simulated_value){.seed = seed, .begun = seed};
		s->result.values++;
		return;
	}
	CHECK(ask_session(s, host, OFS_VALUE_END, told.session) == 0);
}

/* The bytes are those of one store of this key, and of the last where that is known. */
static void
judge_value(struct simulation *s, struct world_host *host, uint32_t number, const uint8_t *bytes,
	uint64_t length)
{
	struct simulated_value *value = &s->values[host->tenant][number];
	uint64_t seed, word;

	memcpy(&seed, bytes, sizeof(seed));
	CHECK(seed >> 32 == seed_of(host->tenant, number, 0) >> 32);
	for (uint64_t i = 1; 8 * i + 8 <= length; i++) {
		memcpy(&word, bytes + 8 * i, sizeof(word));
		CHECK(word == word_of(seed, i));
	}
	CHECK(value->any ? seed <= value->begun : seed == value->seed);
	*value = (struct simulated_value){.seed = seed, .begun = value->begun};
}

/* No value: rightly, or its blocks were lost, which an injected fault or a bound may do. */
static void
judge_absent(struct simulation *s, struct world_host *host, uint32_t number)
{
	struct simulated_value *value = &s->values[host->tenant][number];

	simulate_check_quotas(s);
	CHECK(value->seed == 0 || is_doubtful(value) || !s->weather.strict || s->purged
		|| s->weather.quota.chunks_max > 0 || s->weather.quota.stored_bytes_max > 0);
	*value = (struct simulated_value){.begun = value->begun};
}

static void
retrieve(struct simulation *s, struct world_host *host, uint32_t number, uint8_t *bytes)
{
	struct ofs_value_ask asked = {.key = key_of(number)};
	struct ofs_value_told told = ask(s, host, OFS_VALUE_RETRIEVE, &asked);
	uint32_t payload = s->world.config.store.payload_size_bytes;
	bool was_dirty = world_status(&s->world).dirty_blocks > 0;
	uint32_t zero = 0;
	int32_t rc = 0;

	CHECK(told.rc == 0 || told.rc == -ENOENT || is_full(told.rc));
	if (told.rc == -ENOENT)
		judge_absent(s, host, number);
	if (told.rc != 0)
		return;
	for (uint32_t layer = 0; rc == 0 && (uint64_t)layer * payload < told.length; layer++) {
		uint32_t length = 0;
		struct ofs_key key;
		uint8_t end;
		struct ofs_fetch fetch = {.session = told.session,
			.step = 1,
			.layer = layer,
			.selected_count = 1,
			.demand_count = 1,
			.ordinals = &zero,
			.keys = &key,
			.target = bytes + (uint64_t)layer * payload,
			.target_index = &zero,
			.target_stride_bytes = payload,
			.timeout_ns = simulate_patience_ns(s),
			.ends = &end,
			.rcs = &rc,
			.lengths = &length};

		ofs_block_key(&told.chunk, layer, &key);
		(void)ofs_driver_fetch(host->driver, &fetch);
		/* After a power cut a store that was never acknowledged may be there with a torn piece. */
		CHECK(rc == 0 || rc == -EAGAIN || (s->hasty && rc == -ETIMEDOUT) || !s->weather.strict
			|| (rc == -ENOENT && was_dirty) /* of the slot of a session that does not share */
			|| (rc == -EBADMSG && is_doubtful(&s->values[host->tenant][number])));
	}
	if (rc == 0)
		judge_value(s, host, number, bytes, told.length);
	CHECK(ask_session(s, host, OFS_VALUE_END, told.session) == 0);
}

static void delete(struct simulation *s, struct world_host *host, uint32_t number)
{
	struct ofs_value_ask asked = {.key = key_of(number)};
	struct ofs_value_told told = ask(s, host, OFS_VALUE_DELETE, &asked);

	CHECK(told.rc == 0 || told.rc == -ENOENT || (told.rc == -EAGAIN && told.length > 0));
	if (told.rc == -ENOENT)
		judge_absent(s, host, number);
	s->values[host->tenant][number] =
		(struct simulated_value){.begun = s->values[host->tenant][number].begun};
}

/* Notes the name that a list tells: one of the volume's, as it is spelt, and not told before. */
static void
note_name(struct simulation *s, struct told_names *walk, uint32_t volume,
	const struct ofs_value_told *told)
{
	uint32_t number = *(const uint8_t *)&told->chunk - (uint32_t)'a';
	struct ofs_key name;

	CHECK(number < VALUE_KEYS && number % VOLUMES == volume && told->length >= 8);
	CHECK(told->session == name_of(number, &name) && ofs_key_equal(&told->chunk, &name));
	for (uint32_t i = 0; i < walk->count; i++)
		CHECK(walk->numbers[i] != number);
	walk->numbers[walk->count++] = number;
}

/*
 * Walks a volume from the key of `start` on (FIRST: from the first), a few names a command. Between
 * two commands others are stored and deleted, where `bytes` are given. False: the port takes no
 * list.
 */
static bool
list(struct simulation *s, struct world_host *host, uint32_t volume, uint32_t start, uint8_t *bytes,
	uint64_t bytes_max, struct told_names *walk)
{
	const struct ofs_port_header *port = &host->fabric->port;
	uint32_t most = ofs_values_max(port->demand_max, port->score_max), i;
	struct ofs_value_ask asks[ASKS_MAX] = {{.length = start == FIRST, .name = volumes[volume]}};
	struct ofs_value_told told[ASKS_MAX];
	struct ofs_asking asking = {OFS_VALUE_LIST, 0, asks, told, 1000000000ull};

	*walk = (struct told_names){.count = 0};
	if (start != FIRST)
		asks[0].key = key_of(start);
	for (;;) {
		uint32_t number = below(s, VALUE_KEYS), what = below(s, 4);

		asking.count = most < 2 ? most : 2 + below(s, (most < ASKS_MAX ? most : ASKS_MAX) - 1);
		CHECK(ofs_driver_values(host->driver, &asking) == 0);
		for (i = 0; i < asking.count && told[i].rc == 0; i++)
			note_name(s, walk, volume, &told[i]);
		CHECK(i < asking.count);
		simulate_mix(s, (uint64_t)walk->count << 32 | (uint32_t)told[i].rc);
		if (told[i].rc != -EAGAIN)
			break;
		asks[0].length = told[i].length;
		asks[0].key = told[i].chunk;
		if (bytes == NULL || what > 1)
			continue;
		if (what == 0)
			delete (s, host, number);
		else
			store(s, host, number, bytes, bytes_max);
		walk->changed |= 1u << number;
	}
	CHECK(told[i].rc == -ENOENT || (most < 2 && told[i].rc == -EINVAL));
	s->result.listed += walk->count;
	return told[i].rc == -ENOENT;
}

/* All names of a volume and nothing else; and from any key on, the end of the same list. */
static void
list_all(struct simulation *s, struct world_host *host, uint32_t start, uint8_t *bytes,
	uint64_t bytes_max)
{
	uint32_t volume = below(s, VOLUMES), skipped;
	struct told_names all, some;
	bool told[VALUE_KEYS] = {false};

	if (!list(s, host, volume, FIRST, bytes, bytes_max, &all))
		return;
	for (uint32_t i = 0; i < all.count; i++)
		told[all.numbers[i]] = true;
	for (uint32_t i = volume; i < VALUE_KEYS; i += VOLUMES) {
		const struct simulated_value *value = &s->values[host->tenant][i];

		if (all.changed >> i & 1)
			continue;
		if (told[i])
			CHECK(value->any ? value->begun != 0 : value->seed != 0 && has_name(value->seed));
		else if (!value->any && has_name(value->seed))
			judge_absent(s, host, i);
	}
	CHECK(list(s, host, volume, start, NULL, 0, &some));
	if (all.changed != 0 || !s->weather.strict)
		return;
	CHECK(some.count <= all.count);
	skipped = all.count - some.count;
	CHECK(memcmp(all.numbers + skipped, some.numbers, some.count * sizeof(some.numbers[0])) == 0);
	CHECK(
		start % VOLUMES != volume || !told[start] || (some.count > 0 && some.numbers[0] == start));
}

void
simulate_value(struct simulation *s)
{
	uint64_t bytes_max =
		(uint64_t)s->world.config.store.layer_count * s->world.config.store.payload_size_bytes;
	uint32_t h = below(s, HOSTS_MAX), number = below(s, VALUE_KEYS);
	uint32_t what = below(s, 8);
	uint8_t *bytes;

	if (!s->host_used[h] || s->host_raw[h])
		return;
	bytes = calloc(1, bytes_max);
	CHECK(bytes != NULL && ofs_driver_register(s->hosts[h].driver, bytes, bytes_max) == 0);
	if (what < 3)
		store(s, &s->hosts[h], number, bytes, bytes_max);
	else if (what == 3)
		delete (s, &s->hosts[h], number);
	else if (what == 4)
		list_all(s, &s->hosts[h], number, bytes, bytes_max);
	else
		retrieve(s, &s->hosts[h], number, bytes);
	CHECK(ofs_driver_unregister(s->hosts[h].driver, bytes, bytes_max) == 0);
	free(bytes);
}

/* After a power cut an earlier store may be the value again: if the last was deleted, or was not
 * on the drive, or if one began and was not committed. */
void
simulate_values_cut(struct simulation *s, bool forgive)
{
	for (uint32_t i = 0; i < TENANTS_MAX; i++)
		for (uint32_t j = 0; j < VALUE_KEYS; j++) {
			struct simulated_value *value = &s->values[i][j];

			/* What was there and on the drive is not lost to a later store that was not. */
			value->kept = !forgive && value->seed != 0 && !is_doubtful(value);
			value->any = value->any || forgive || value->seed == 0 || value->begun != value->seed;
		}
}
