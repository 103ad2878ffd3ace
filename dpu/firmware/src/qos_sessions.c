/* The waiting items of each tenant, by sessions and their rounds; see qos_sessions.h. */
#include "qos_sessions.h"

#include <stdlib.h>

static inline struct ofs_qos_waiter *
waiters_of(const struct ofs_qos_sessions *sessions, uint32_t tenant)
{
	return sessions->waiters + (size_t)tenant * sessions->config.queue_max;
}

static inline struct ofs_qos_member *
members_of(const struct ofs_qos_sessions *sessions, uint32_t tenant, uint64_t round)
{
	return sessions->members + (2 * (size_t)tenant + (round & 1)) * sessions->config.queue_max;
}

/* The round of the first session: the next one if none waits in the current one. */
static inline uint64_t
round_of(const struct ofs_qos_line *line)
{
	return line->round + (line->member_counts[line->round & 1] == 0);
}

/* The first waiter of its tenant. */
static struct ofs_qos_waiter *
first_of(const struct ofs_qos_sessions *sessions, uint32_t tenant)
{
	const struct ofs_qos_member *member =
		members_of(sessions, tenant, round_of(&sessions->lines[tenant]));

	return &waiters_of(sessions, tenant)[sessions->entries[member->entry].first];
}

/* Merges two heaps. Each step follows a right spine, which is short in both. */
static uint32_t
merge(struct ofs_qos_waiter *waiters, uint32_t a, uint32_t b)
{
	struct ofs_qos_waiter *top;
	uint32_t under;

	if (a == OFS_NONE || b == OFS_NONE)
		return a == OFS_NONE ? b : a;
	if (ofs_heap_before(&waiters[b], &waiters[a])) {
		under = a;
		a = b;
		b = under;
	}
	top = &waiters[a];
	under = merge(waiters, top->right, b);
	if (top->left == OFS_NONE || waiters[top->left].rank < waiters[under].rank) {
		top->right = top->left;
		top->left = under;
	} else {
		top->right = under;
	}
	top->rank = top->right == OFS_NONE ? 0 : waiters[top->right].rank + 1;
	return a;
}

static void
member_moved(void *owner, const void *item, uint32_t position)
{
	const struct ofs_qos_member *member = (const struct ofs_qos_member *)item;

	((struct ofs_qos_sessions *)owner)->entries[member->entry].position = position;
}

/* Its first waiter has changed to an earlier one; or the session joins its round. */
static void
member_rise(struct ofs_qos_sessions *sessions, uint32_t tenant, uint32_t entry, int joins)
{
	struct ofs_qos_session *session = &sessions->entries[entry];
	struct ofs_qos_member member = {.key = waiters_of(sessions, tenant)[session->first].key,
		.entry = entry};
	uint32_t *count = &sessions->lines[tenant].member_counts[session->round & 1];
	uint32_t position = joins ? (*count)++ : session->position;

	ofs_heap_up(members_of(sessions, tenant, session->round), sizeof(member), position, &member,
		member_moved, sessions);
}

/* The first of the round was served: its session stays with its next item, or leaves the round. */
static void
member_serve(struct ofs_qos_sessions *sessions, uint32_t tenant, uint64_t round)
{
	struct ofs_qos_member *members = members_of(sessions, tenant, round), member = members[0];
	struct ofs_qos_session *session = &sessions->entries[member.entry];
	uint32_t *count = &sessions->lines[tenant].member_counts[round & 1];

	if (session->first != OFS_NONE && session->round == round) {
		member.key = waiters_of(sessions, tenant)[session->first].key;
	} else {
		if (session->first != OFS_NONE)
			member_rise(sessions, tenant, member.entry, 1);
		member = members[--*count];
		if (*count == 0)
			return;
	}
	ofs_heap_down(members, sizeof(member), *count, 0, &member, member_moved, sessions);
}

/* Bytes served count in the session's round; from session_quantum on it moves to the next round. */
static void
round_use(const struct ofs_qos_sessions *sessions, struct ofs_qos_session *session,
	uint32_t cost_bytes)
{
	uint64_t quantum_bytes = sessions->config.session_quantum_bytes;

	if (quantum_bytes == 0)
		return;
	session->used_bytes += cost_bytes;
	if (session->used_bytes >= quantum_bytes) {
		session->used_bytes -= quantum_bytes;
		session->round++;
	}
}

uint32_t
ofs_qos_sessions_entry(struct ofs_qos_sessions *sessions, const struct ofs_qos_item *item)
{
	uint32_t shared = sessions->config.session_count + item->tenant;
	struct ofs_qos_session *session;

	if (item->session == OFS_QOS_NO_SESSION)
		return shared;
	session = &sessions->entries[item->session];
	if (session->stats.tenant == item->tenant)
		return item->session;
	if (session->stats.waiting > 0)
		return shared;
	*session = (struct ofs_qos_session){.first = OFS_NONE, .stats.tenant = item->tenant};
	return item->session;
}

int
ofs_qos_sessions_put(struct ofs_qos_sessions *sessions, uint32_t entry,
	const struct ofs_heap_key *key, const struct ofs_qos_item *item)
{
	struct ofs_qos_session *session = &sessions->entries[entry];
	struct ofs_qos_line *line = &sessions->lines[item->tenant];
	struct ofs_qos_waiter *waiters = waiters_of(sessions, item->tenant);
	uint32_t number = line->free;
	int joins = session->first == OFS_NONE;

	line->free = waiters[number].left;
	waiters[number] = (struct ofs_qos_waiter){.key = *key,
		.item = *item,
		.entry = entry,
		.left = OFS_NONE,
		.right = OFS_NONE};
	session->stats.put++;
	session->stats.put_bytes += item->cost_bytes;
	if (++session->stats.waiting > session->stats.waiting_max)
		session->stats.waiting_max = session->stats.waiting;
	if (joins && session->round < line->round) {
		session->round = line->round;
		session->used_bytes = 0;
	}
	session->first = merge(waiters, session->first, number);
	if (session->first != number)
		return 0;
	member_rise(sessions, item->tenant, entry, joins);
	return first_of(sessions, item->tenant) == &waiters[number];
}

const struct ofs_qos_item *
ofs_qos_sessions_first(const struct ofs_qos_sessions *sessions, uint32_t tenant)
{
	return &first_of(sessions, tenant)->item;
}

void
ofs_qos_sessions_take(struct ofs_qos_sessions *sessions, uint32_t tenant, uint64_t now_ps,
	struct ofs_qos_item *item)
{
	struct ofs_qos_line *line = &sessions->lines[tenant];
	struct ofs_qos_waiter *waiters = waiters_of(sessions, tenant), *taken;
	struct ofs_qos_session *session;
	uint64_t wait_ps;

	line->round = round_of(line);
	taken = first_of(sessions, tenant);
	session = &sessions->entries[taken->entry];
	*item = taken->item;
	wait_ps = now_ps - item->put_ps;
	session->stats.waiting--;
	session->stats.taken++;
	session->stats.taken_bytes += item->cost_bytes;
	session->stats.wait_ps_sum += wait_ps;
	if (wait_ps > session->stats.wait_ps_max)
		session->stats.wait_ps_max = wait_ps;
	session->first = merge(waiters, taken->left, taken->right);
	taken->left = line->free;
	line->free = (uint32_t)(taken - waiters);
	round_use(sessions, session, item->cost_bytes);
	member_serve(sessions, tenant, line->round);
}

int
ofs_qos_sessions_open(struct ofs_qos_sessions *sessions, const struct ofs_qos_config *config)
{
	size_t tenants = config->tenant_count, waiters = tenants * config->queue_max;

	sessions->config = *config;
	sessions->lines = calloc(tenants, sizeof(*sessions->lines));
	sessions->waiters = calloc(waiters, sizeof(*sessions->waiters));
	sessions->members = calloc(2 * waiters, sizeof(*sessions->members));
	sessions->entries = calloc(config->session_count + tenants, sizeof(*sessions->entries));
	if (!sessions->lines || !sessions->waiters || !sessions->members || !sessions->entries)
		return -ENOMEM;
	return 0;
}

void
ofs_qos_sessions_close(struct ofs_qos_sessions *sessions)
{
	free(sessions->lines);
	free(sessions->waiters);
	free(sessions->members);
	free(sessions->entries);
}

void
ofs_qos_sessions_clear(struct ofs_qos_sessions *sessions)
{
	uint32_t entry_count = sessions->config.session_count + sessions->config.tenant_count;

	for (uint32_t tenant = 0; tenant < sessions->config.tenant_count; tenant++) {
		struct ofs_qos_waiter *waiters = waiters_of(sessions, tenant);
		struct ofs_qos_line *line = &sessions->lines[tenant];

		for (uint32_t i = 0; i < sessions->config.queue_max; i++)
			waiters[i].left = i + 1 < sessions->config.queue_max ? i + 1 : OFS_NONE;
		line->free = line->member_counts[0] = line->member_counts[1] = 0;
	}
	for (uint32_t i = 0; i < entry_count; i++) {
		sessions->entries[i].first = OFS_NONE;
		sessions->entries[i].stats.waiting = 0;
	}
}

void
ofs_qos_sessions_reset(struct ofs_qos_sessions *sessions)
{
	uint32_t session_count = sessions->config.session_count;

	for (uint32_t tenant = 0; tenant < sessions->config.tenant_count; tenant++) {
		sessions->lines[tenant] = (struct ofs_qos_line){.free = 0};
		sessions->entries[session_count + tenant] =
			(struct ofs_qos_session){.stats.tenant = tenant};
	}
	for (uint32_t i = 0; i < session_count; i++)
		sessions->entries[i] = (struct ofs_qos_session){.stats.tenant = OFS_NONE};
	ofs_qos_sessions_clear(sessions);
}
