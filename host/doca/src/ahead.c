/*
 * Values that will be retrieved: a session of each stays open and hints at its blocks, until a
 * retrieve of the key has ended or the time is long over. The retrieve opens a session of its own,
 * since the value may have been replaced meanwhile; blocks that are staged serve both.
 */
#include "internal.h"

#include <string.h>

#define STEP_NS 1000000ull /* of a session of a value: the unit of a guess's deadline */
#define STALE_NS 1000000000ull

/* Guesses for every block of the value: that it will be read within so long. */
static void
hint(struct kv_link *link, const struct offstage_kv_ahead *ask, uint32_t session, uint64_t length)
{
	uint32_t count = (uint32_t)((length + link->payload_size_bytes - 1) / link->payload_size_bytes);
	uint64_t steps = ask->within_ns / STEP_NS;
	struct ofs_guess guesses[KV_BATCH_MAX];

	for (uint32_t first = 0; first < count; first += KV_BATCH_MAX) {
		uint32_t some = count - first < KV_BATCH_MAX ? count - first : KV_BATCH_MAX;

		for (uint32_t i = 0; i < some; i++)
			guesses[i] = (struct ofs_guess){.layer = (uint16_t)(first + i),
				.steps = steps < UINT16_MAX ? (uint16_t)steps : UINT16_MAX,
				.probability = ask->probability,
				.cause = OFS_CAUSE_LOOKAHEAD};
		(void)ofs_driver_hint(link->driver, session, guesses, some);
	}
}

static void
release(struct doca_kv_io *io, uint32_t i)
{
	kv_end_session(io, io->ahead[i].session);
	io->ahead[i] = io->ahead[--io->ahead_count];
}

void
kv_ahead_retrieved(struct doca_kv_io *io, const struct doca_task *task)
{
	for (uint32_t i = 0; i < io->ahead_count; i++)
		if (io->ahead[i].key_len == task->key_len
			&& memcmp(io->ahead[i].key, task->key, task->key_len) == 0) {
			release(io, i);
			return;
		}
}

void
kv_ahead_expire(struct doca_kv_io *io, uint64_t now_ns)
{
	for (uint32_t i = io->ahead_count; i-- > 0;)
		if (io->ahead[i].until_ns <= now_ns)
			release(io, i);
}

static void
hold(struct doca_kv_io *io, const struct offstage_kv_ahead *ask, const struct ofs_value_told *told)
{
	struct kv_ahead *one = &io->ahead[io->ahead_count++];

	one->session = told->session;
	one->until_ns = ofs_machine_now_ns() + ask->within_ns + STALE_NS;
	one->key_len = ask->key_len;
	memcpy(one->key, ask->key, ask->key_len);
	io->session_count++;
	hint(io->link, ask, told->session, told->length);
}

/* As many as fit in a command; the others of `count` are FULL. */
static int
ahead(struct doca_kv_io *io, struct offstage_kv_ahead *asks, uint32_t count)
{
	struct ofs_value_ask named[KV_AHEAD_MAX] = {{{0}, 0, 0, 0}};
	struct ofs_value_told told[KV_AHEAD_MAX];
	int rc;

	for (uint32_t i = 0; i < count; i++)
		ofs_value_key(io->dev->nguid, asks[i].key, asks[i].key_len, &named[i].key);
	rc = kv_command(io, OFS_VALUE_RETRIEVE, count, named, told);
	for (uint32_t i = 0; i < count; i++) {
		asks[i].result = rc == 0 && told[i].rc == -EBUSY ? DOCA_ERROR_FULL
														 : kv_error_of(rc != 0 ? rc : told[i].rc);
		if (rc == 0 && told[i].rc == 0)
			hold(io, &asks[i], &told[i]);
	}
	return rc;
}

doca_error_t
offstage_kv_io_prefetch(struct doca_kv_io *io, struct offstage_kv_ahead *asks, uint32_t count)
{
	if (io == NULL || asks == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; i < count; i++)
		if (asks[i].key == NULL || asks[i].key_len == 0 || asks[i].key_len > KV_KEY_BYTES_MAX)
			return DOCA_ERROR_INVALID_VALUE;
	if (io->dev == NULL || io->link == NULL)
		return DOCA_ERROR_NOT_CONNECTED;
	while (count > 0) {
		uint32_t most = KV_SESSIONS_MAX - io->session_count;
		uint32_t room = KV_AHEAD_MAX - io->ahead_count;
		uint32_t some = room < most ? room : most;

		some = some < count ? some : count;
		if (some == 0)
			break;
		if (ahead(io, asks, some) != 0)
			return DOCA_ERROR_IO_FAILED;
		asks += some;
		count -= some;
	}
	for (uint32_t i = 0; i < count; i++)
		asks[i].result = DOCA_ERROR_FULL;
	return DOCA_SUCCESS;
}
