/*
 * session.c: sessions, the keyed prefix chain, sharing.
 *
 * Model: a session is an ordered list of chunks. The store key of a chunk is SipHash(secret, parent
 * store key || content); a session opened while sharing is on uses the store key as its directory
 * key; any other session uses SipHash(secret, store key || its serial), which no other session can
 * have. Serials are never reused; session numbers are.
 */
#include <stdbool.h>

#include "internal.h"

int
ofs_core_session_open(struct ofs_core *core, uint64_t now_ns,
	const struct ofs_session_config *config, uint32_t *session)
{
	struct ofs_bytes in = {config, sizeof(*config)}, out = {session, sizeof(*session)};
	struct ofs_session *s;
	int rc;

	if (config->tenant >= core->tenant_count || config->step_ns > OFS_STEP_NS_MAX)
		return -EINVAL;
	if (core->free_session_count == 0)
		return -ENOSPC;
	rc = ofs_event_enter(core, now_ns, OFS_EVENT_SESSION_OPEN);
	if (rc)
		return rc;
	*session = core->free_sessions[--core->free_session_count];
	s = &core->sessions[*session];
	assert(!s->open && s->pin_count == 0);
	memset(s, 0, sizeof(*s));
	s->config = *config;
	s->open = 1;
	s->shared = (core->policy.prefetchers & OFS_PREFETCH_SHARED) != 0;
	s->serial = ++core->session_serial;
	s->opened_event = core->event;
	s->step_ns = config->step_ns;
	s->layer_ns = config->step_ns / core->config.layer_count;
	for (uint32_t layer = 0; layer < core->config.layer_count; layer++) {
		struct ofs_layer *l = ofs_layer_of(core, *session, layer);

		memset(l, 0, sizeof(*l));
		memset(ofs_row_of(core, core->chosen, *session, layer), 0, core->row_words * 8);
		memset(ofs_row_of(core, core->held, *session, layer), 0, core->row_words * 8);
		memset(ofs_row_of(core, core->lifted, *session, layer), 0, core->row_words * 8);
	}
	ofs_work_touch(core, OFS_TABLE_SESSION, sizeof(*s));
	ofs_work_touch(core, OFS_TABLE_LAYER,
		core->config.layer_count * (sizeof(struct ofs_layer) + 3ull * core->row_words * 8));
	ofs_calibration_open(core, *session);
	ofs_log_event(core, OFS_EVENT_SESSION_OPEN, now_ns, 0, &in, 1, &out, 1);
	return 0;
}

static struct ofs_key
hash_words(const struct ofs_key *secret, const uint64_t *words, unsigned count)
{
	unsigned char bytes[32];
	struct ofs_key key;

	for (unsigned i = 0; i < 8 * count; i++)
		bytes[i] = (unsigned char)(words[i / 8] >> (8 * (i % 8)));
	ofs_siphash(secret, bytes, 8 * count, &key);
	return key;
}

/* The keys of the chunk that follows `parent`, the store key of the one before it. */
static struct ofs_chunk_keys
chain_keys(const struct ofs_core *core, const struct ofs_session *s, const struct ofs_key *parent,
	const struct ofs_key *content)
{
	const struct ofs_key *secret = &core->tenants[s->config.tenant].secret;
	uint64_t words[4] = {parent->lo, parent->hi, content->lo, content->hi};
	struct ofs_chunk_keys keys;

	keys.store_key = keys.key = hash_words(secret, words, 4);
	if (s->shared)
		return keys;
	words[0] = keys.store_key.lo;
	words[1] = keys.store_key.hi;
	words[2] = s->serial;
	keys.key = hash_words(secret, words, 3);
	return keys;
}

struct ofs_key
ofs_core_first_key(const struct ofs_core *core, uint32_t tenant, const struct ofs_key *content)
{
	uint64_t words[4] = {0, 0, content->lo, content->hi};

	return hash_words(&core->tenants[tenant].secret, words, 4);
}

/* Finds or makes the chunk under these keys. The home is made first, and removed on failure. */
static int
chunk_get(struct ofs_core *core, uint32_t tenant, const struct ofs_key *store_key,
	const struct ofs_key *key, uint32_t *chunk, int *found)
{
	uint32_t home;
	int rc;

	*chunk = ofs_index_find(core, tenant, key);
	*found = *chunk != OFS_NONE;
	if (*found)
		return 0;
	if (ofs_key_equal(store_key, key))
		return ofs_chunk_create(core, tenant, key, OFS_NONE, chunk);
	home = ofs_index_find(core, tenant, store_key);
	if (home == OFS_NONE) {
		rc = ofs_chunk_create(core, tenant, store_key, OFS_NONE, &home);
		if (rc)
			return rc;
	}
	rc = ofs_chunk_create(core, tenant, key, home, chunk);
	if (rc)
		ofs_chunk_maybe_free(core, home);
	return rc;
}

/* The store key from which the session's next chunk is derived. */
static struct ofs_key
chain_end(const struct ofs_core *core, uint32_t session)
{
	const struct ofs_session *s = &core->sessions[session];
	uint32_t last;

	if (s->count == 0)
		return (struct ofs_key){0, 0};
	last = ofs_session_list(core, session)[s->count - 1];
	return core->chunks[core->chunks[last].home].key;
}

int
ofs_core_session_look(const struct ofs_core *core, uint32_t session, uint32_t count,
	const struct ofs_key *contents, uint32_t *chunks)
{
	const struct ofs_session *s;
	struct ofs_key parent;
	int made = 0;

	if (ofs_session_check(core, session))
		return -EINVAL;
	s = &core->sessions[session];
	parent = chain_end(core, session);
	for (uint32_t i = 0; i < count; i++) {
		struct ofs_chunk_keys keys = chain_keys(core, s, &parent, &contents[i]);

		chunks[i] = ofs_index_peek(core, s->config.tenant, &keys.store_key);
		/* A private chunk is always made, in addition to its home. */
		made += (chunks[i] == OFS_NONE) + !s->shared;
		parent = keys.store_key;
	}
	return made;
}

static void
session_add_chunk(struct ofs_core *core, uint32_t session, uint32_t chunk)
{
	struct ofs_session *s = &core->sessions[session];
	uint32_t ordinal = s->count++;

	assert(ordinal < core->config.session_chunk_max);
	ofs_session_list(core, session)[ordinal] = chunk;
	ofs_chunk_link(core, chunk, session, ordinal);
	for (uint32_t layer = 0; layer < core->config.layer_count; layer++) {
		uint64_t *word = ofs_row_of(core, core->held, session, layer) + ordinal / 64;
		uint64_t bit = 1ull << (ordinal % 64);

		*word = core->block_slot[ofs_block_of(core, chunk, layer)] != OFS_NONE ? *word | bit
																			   : *word & ~bit;
		ofs_averages_of(core, session, layer)[ordinal] = 0;
	}
	ofs_work_touch(core, OFS_TABLE_SESSION, sizeof(chunk));
	ofs_work_touch(core, OFS_TABLE_BLOCK, core->config.layer_count * sizeof(*core->block_slot));
	ofs_work_touch(core, OFS_TABLE_LAYER,
		core->config.layer_count * (sizeof(*core->held) + sizeof(*core->averages)));
	if (s->generating)
		ofs_chunk_generating(core, chunk, 1);
}

static void
session_drop_last(struct ofs_core *core, uint32_t session)
{
	struct ofs_session *s = &core->sessions[session];
	uint32_t ordinal = --s->count;
	uint32_t chunk = ofs_session_list(core, session)[ordinal];

	if (s->generating)
		ofs_chunk_generating(core, chunk, -1);
	ofs_chunk_unlink(core, chunk, session, ordinal);
	ofs_chunk_maybe_free(core, chunk);
}

/* Whether the session named the chunk in the current append. */
static bool
is_last_linked(const struct ofs_core *core, uint32_t chunk, uint32_t session)
{
	uint32_t link = core->chunks[chunk].link;

	return link != OFS_NONE && link >> core->link_shift == session;
}

/*
 * Whether keys from outside are possible outputs of chain_keys: the store key belongs to a common
 * chunk or none, the directory key of a private chunk to none yet, and the session has named none
 * of them.
 */
static bool
are_keys_good(const struct ofs_core *core, uint32_t session, const struct ofs_chunk_keys *keys)
{
	uint32_t tenant = core->sessions[session].config.tenant, link;
	uint32_t home = ofs_index_peek(core, tenant, &keys->store_key);

	if (home != OFS_NONE && core->chunks[home].home != home)
		return false;
	if (!ofs_key_equal(&keys->store_key, &keys->key))
		return ofs_index_peek(core, tenant, &keys->key) == OFS_NONE;
	if (home == OFS_NONE)
		return true;
	for (link = core->chunks[home].link; link != OFS_NONE; link = core->link_next[link])
		if (link >> core->link_shift == session)
			return false;
	return true;
}

static int
append_chunks(struct ofs_core *core, uint32_t session, uint32_t count,
	const struct ofs_chunk_keys *keys, struct ofs_chunk_info *infos)
{
	struct ofs_session *s = &core->sessions[session];
	struct ofs_ledger *ledger = &core->ledgers[s->config.tenant];
	uint32_t old_count = s->count, shared = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t chunk;
		int found;
		int rc =
			chunk_get(core, s->config.tenant, &keys[i].store_key, &keys[i].key, &chunk, &found);

		if (rc == 0 && found && is_last_linked(core, chunk, session))
			rc = -EINVAL;
		if (rc) {
			while (s->count > old_count)
				session_drop_last(core, session);
			return rc;
		}
		shared += (uint32_t)found;
		session_add_chunk(core, session, chunk);
		ofs_chunk_info_get(core, chunk, &infos[i]);
	}
	ledger->appended_chunks += count;
	ledger->shared_chunks += shared;
	ofs_score_appended(core, session, old_count);
	return 0;
}

/* Checks an append before its keys are read. */
static int
append_check(const struct ofs_core *core, uint32_t session, uint32_t count)
{
	int rc = ofs_session_check(core, session);

	if (rc == 0 && count > core->config.session_chunk_max - core->sessions[session].count)
		rc = -ENOSPC;
	return rc;
}

/* The log contains the keys, not what they were derived from. */
static int
append(struct ofs_core *core, uint64_t now_ns, uint32_t session, uint32_t count,
	const struct ofs_chunk_keys *keys, struct ofs_chunk_info *infos)
{
	uint32_t head[2] = {session, count};
	struct ofs_bytes in[2] = {{head, sizeof(head)}, {keys, count * sizeof(*keys)}};
	struct ofs_bytes out = {infos, count * sizeof(*infos)};
	int rc = ofs_event_enter(core, now_ns, OFS_EVENT_APPEND);

	if (rc)
		return rc;
	rc = append_chunks(core, session, count, keys, infos);
	ofs_log_event(core, OFS_EVENT_APPEND, now_ns, rc, in, 2, &out, rc ? 0 : 1);
	return rc;
}

int
ofs_core_session_append(struct ofs_core *core, uint64_t now_ns, uint32_t session, uint32_t count,
	const struct ofs_key *contents, struct ofs_chunk_info *infos)
{
	struct ofs_key parent;
	int rc = append_check(core, session, count);

	if (rc)
		return rc;
	parent = chain_end(core, session);
	for (uint32_t i = 0; i < count; i++) {
		core->append_keys[i] = chain_keys(core, &core->sessions[session], &parent, &contents[i]);
		parent = core->append_keys[i].store_key;
	}
	return append(core, now_ns, session, count, core->append_keys, infos);
}

int
ofs_core_session_append_folded(struct ofs_core *core, uint64_t now_ns, uint32_t session,
	uint32_t count, const struct ofs_key *content, struct ofs_chunk_info *infos)
{
	const struct ofs_key none = {0, 0};
	struct ofs_chunk_keys *keys = core->append_keys;
	int rc = append_check(core, session, count);

	if (rc)
		return rc;
	if (core->sessions[session].count > 0)
		return -EINVAL;
	keys[0] = chain_keys(core, &core->sessions[session], &none, content);
	for (uint32_t i = 1; i < count; i++) {
		ofs_fold_key(&keys[0].store_key, i, &keys[i].store_key);
		ofs_fold_key(&keys[0].key, i, &keys[i].key);
	}
	return append(core, now_ns, session, count, keys, infos);
}

int
ofs_core_session_append_keys(struct ofs_core *core, uint64_t now_ns, uint32_t session,
	uint32_t count, const struct ofs_chunk_keys *keys, struct ofs_chunk_info *infos)
{
	int rc = append_check(core, session, count);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < count; i++)
		if (!are_keys_good(core, session, &keys[i]))
			return -EINVAL;
	return append(core, now_ns, session, count, keys, infos);
}

static void
session_generating(struct ofs_core *core, uint32_t session, int generating)
{
	struct ofs_session *s = &core->sessions[session];
	const uint32_t *chunks = ofs_session_list(core, session);

	if (s->generating == generating)
		return;
	s->generating = (uint8_t)generating;
	for (uint32_t i = 0; i < s->count; i++)
		ofs_chunk_generating(core, chunks[i], generating ? 1 : -1);
}

int
ofs_core_session_set_generating(struct ofs_core *core, uint64_t now_ns, uint32_t session,
	int generating)
{
	int rc = ofs_session_check(core, session);

	if (rc || (rc = ofs_event_enter(core, now_ns, OFS_EVENT_GENERATING)))
		return rc;
	generating = generating != 0;
	if (core->sessions[session].generating != generating) {
		session_generating(core, session, generating);
		if (generating)
			ofs_prefetch_begin(core, session);
	}
	ofs_pump(core);
	ofs_log_numbers(core, OFS_EVENT_GENERATING, now_ns, 0, session, (uint32_t)generating);
	return 0;
}

/* Removes the leaving session from the slot of a block. */
static void
slot_forget_session(struct ofs_core *core, uint32_t slot, uint32_t session)
{
	struct ofs_slot *s = &core->slots[slot];

	core->used_bits[(size_t)slot * core->used_words + session / 64] &= ~(1ull << (session % 64));
	ofs_score_leave(core, slot, session);
	if (s->state == OFS_SLOT_RESIDENT && !(s->flags & OFS_FLAG_FILLING))
		return;
	ofs_wait_cancel(core, slot, session);
	if ((s->flags & OFS_FLAG_FRESH) && s->staged_by == core->sessions[session].serial) {
		s->flags &= (uint8_t)~OFS_FLAG_FRESH;
		ofs_slot_fate(core, slot, OFS_FATE_CANCELLED);
	}
}

static void
session_leave_chunk(struct ofs_core *core, uint32_t session, uint32_t ordinal)
{
	uint32_t chunk = ofs_session_list(core, session)[ordinal];
	struct ofs_chunk *c = &core->chunks[chunk];
	int private;

	ofs_work_touch(core, OFS_TABLE_SESSION, sizeof(chunk));
	ofs_chunk_unlink(core, chunk, session, ordinal);
	private = c->home != chunk && c->references == 0;
	for (uint32_t layer = 0; layer < core->config.layer_count && c->slots; layer++) {
		uint32_t slot = core->block_slot[ofs_block_of(core, chunk, layer)];

		ofs_work_touch(core, OFS_TABLE_BLOCK, sizeof(slot));
		if (slot == OFS_NONE)
			continue;
		slot_forget_session(core, slot, session);
		if (core->slots[slot].state != OFS_SLOT_RESIDENT)
			continue;
		if (private && !ofs_slot_is_held(&core->slots[slot]))
			ofs_slot_evict(core, slot, 0);
	}
	ofs_chunk_maybe_free(core, chunk);
}

int
ofs_core_session_close(struct ofs_core *core, uint64_t now_ns, uint32_t session)
{
	struct ofs_session *s;
	int rc = ofs_session_check(core, session);

	if (rc || (rc = ofs_event_enter(core, now_ns, OFS_EVENT_CLOSE)))
		return rc;
	s = &core->sessions[session];
	ofs_lease_end(core, session);
	ofs_queue_cancel_session(core, session);
	session_generating(core, session, 0);
	for (uint32_t ordinal = 0; ordinal < s->count; ordinal++)
		session_leave_chunk(core, session, ordinal);
	assert(s->pin_count == 0 && !s->leased && !s->generating);
	assert(core->free_session_count < core->config.session_max);
	s->open = 0;
	core->free_sessions[core->free_session_count++] = session;
	ofs_log_numbers(core, OFS_EVENT_CLOSE, now_ns, 0, session, 0);
	return 0;
}

int
ofs_core_session_release(struct ofs_core *core, uint64_t now_ns, uint32_t session)
{
	int rc = ofs_session_check(core, session);

	if (rc || (rc = ofs_event_enter(core, now_ns, OFS_EVENT_RELEASE)))
		return rc;
	ofs_lease_end(core, session);
	ofs_log_numbers(core, OFS_EVENT_RELEASE, now_ns, 0, session, 0);
	return 0;
}

int
ofs_core_session_view(const struct ofs_core *core, uint32_t session, struct ofs_session_view *view)
{
	const struct ofs_session *s;

	if (ofs_session_check(core, session))
		return -EINVAL;
	s = &core->sessions[session];
	*view = (struct ofs_session_view){s->config.tenant, s->count, s->config.sink_blocks,
		ofs_window_begin(s)};
	return 0;
}

uint32_t
ofs_core_session_chunk(const struct ofs_core *core, uint32_t session, uint32_t ordinal)
{
	assert(ordinal < core->sessions[session].count);
	return ofs_session_list(core, session)[ordinal];
}
