/*
 * What a context does when it is advanced: opens sessions for tasks that are ready, moves their
 * pieces, commits stores, and ends sessions. As many values as fit go in a command.
 */
#include "internal.h"

#include <string.h>

#define OVER_BATCH 16 /* sessions to end that are worth a command while tasks run */

static const uint32_t verbs[KV_OP_COUNT] = {OFS_VALUE_STORE, OFS_VALUE_RETRIEVE, OFS_VALUE_EXIST};

static void
finish(struct doca_task *task, doca_error_t status)
{
	task->status = status;
	kv_push(&task->io->ended, task);
}

/* The connection is lost: everything that uses it ends, and the next task makes another. */
static void
lose(struct doca_kv_io *io, int rc)
{
	struct doca_task *task;

	kv_say("%s: the connection is lost (%s)", io->dev->path, strerror(-rc));
	kv_link_close(io->link); /* with all calls in flight: nothing of a task is used after it */
	io->link = NULL;
	io->session_count = io->over_count = io->ahead_count = 0;
	while ((task = kv_pop(&io->open)) != NULL || (task = kv_pop(&io->committing)) != NULL)
		finish(task, DOCA_ERROR_IO_FAILED);
}

int
kv_command(struct doca_kv_io *io, uint32_t verb, uint32_t count, const struct ofs_value_ask *asks,
	struct ofs_value_told *told)
{
	int rc = ofs_driver_values(io->link->driver, verb, count, asks, told, KV_TIMEOUT_NS);

	if (rc != 0)
		lose(io, rc);
	return rc;
}

/* A name in the tenant: that of the key in its volume. */
static struct ofs_value_ask
ask_of(const struct doca_task *task)
{
	struct ofs_value_ask ask = {.length = task->op == KV_STORE ? task->value_len : 0};

	ofs_value_key(task->dev->nguid, task->key, task->key_len, &ask.key);
	if (task->do_not_overwrite)
		ask.flags |= OFS_VALUE_KEEP;
	if (task->must_exist)
		ask.flags |= OFS_VALUE_OVER;
	return ask;
}

/* What the daemon said of a task that was ready. */
static void
settle(struct doca_task *task, const struct ofs_value_told *told)
{
	struct doca_kv_io *io = task->io;
	uint64_t payload = io->link->payload_size_bytes;
	uint64_t bytes;

	if (task->op == KV_EXIST) {
		finish(task, told->rc == 0 ? DOCA_ERROR_ALREADY_EXIST : kv_error_of(told->rc));
		return;
	}
	if (told->rc != 0) {
		finish(task, kv_error_of(told->rc));
		return;
	}
	task->session = told->session;
	task->chunk = told->chunk;
	task->length = task->op == KV_STORE ? task->value_len : told->length;
	bytes = task->length < task->value_len ? task->length : task->value_len;
	task->piece_count = (uint32_t)((bytes + payload - 1) / payload);
	io->session_count++;
	kv_push(&io->open, task);
}

static bool
opens_session(const struct doca_task *task)
{
	return task->op != KV_EXIST;
}

/* The tasks at the head of the queue that one command can name. */
static uint32_t
gather(const struct doca_kv_io *io, struct ofs_value_ask *asks)
{
	const struct doca_task *head = io->ready.head;
	uint32_t room = KV_SESSIONS_MAX - io->session_count;
	uint32_t count = 0;

	for (const struct doca_task *task = head; task != NULL && task->op == head->op;
		 task = task->next) {
		if (count == KV_BATCH_MAX || (opens_session(task) && count == room))
			break;
		asks[count++] = ask_of(task);
	}
	return count;
}

/* Whether it waits: the daemon has no session for it now, and will when some host ends one. */
static bool
waits(struct doca_task *task, int rc)
{
	uint64_t now_ns;

	if (rc != -EBUSY)
		return false;
	now_ns = ofs_machine_now_ns();
	if (task->deadline_ns == 0)
		task->deadline_ns = now_ns + KV_TIMEOUT_NS;
	return now_ns < task->deadline_ns;
}

static void
open_ready(struct doca_kv_io *io)
{
	struct ofs_value_ask asks[KV_BATCH_MAX];
	struct ofs_value_told told[KV_BATCH_MAX];
	struct kv_queue later = {NULL, NULL};
	uint32_t count;

	while (later.head == NULL && io->ready.head != NULL && (count = gather(io, asks)) > 0) {
		uint32_t verb = verbs[io->ready.head->op];

		if (kv_command(io, verb, count, asks, told) != 0)
			return;
		for (uint32_t i = 0; i < count; i++) {
			struct doca_task *task = kv_pop(&io->ready);

			if (waits(task, told[i].rc))
				kv_push(&later, task);
			else
				settle(task, &told[i]);
		}
	}
	if (later.head != NULL) {
		kv_append(&later, &io->ready);
		io->ready = later;
		/* What this context holds without using it. */
		kv_ahead_expire(io, UINT64_MAX);
		kv_run_out(io);
	}
}

void
kv_end_session(struct doca_kv_io *io, uint32_t session)
{
	io->over[io->over_count++] = session; /* one of session_count, so there is room */
}

/* All its pieces have moved, or one has failed and none is in flight. */
static void
close_open(struct doca_kv_io *io, struct doca_task *task)
{
	if (task->op == KV_STORE && task->rc == 0) {
		task->deadline_ns = 0;
		kv_push(&io->committing, task);
		return;
	}
	finish(task, kv_error_of(task->rc));
	kv_end_session(io, task->session);
	if (task->op == KV_RETRIEVE)
		kv_ahead_retrieved(io, task);
}

static void
move_pieces(struct doca_kv_io *io)
{
	struct kv_queue open = io->open;
	struct doca_task *task;
	int rc = 0;

	for (task = open.head; task != NULL && rc == 0; task = task->next)
		rc = kv_pieces_begin(io->link, task);
	if (rc == 0)
		rc = kv_pieces_poll(io->link);
	if (rc != 0) {
		lose(io, rc);
		return;
	}
	io->open = (struct kv_queue){NULL, NULL};
	while ((task = kv_pop(&open)) != NULL) {
		bool all_begun = task->rc != 0 || task->pieces_begun == task->piece_count;

		if (all_begun && task->pieces_ended == task->pieces_begun)
			close_open(io, task);
		else
			kv_push(&io->open, task);
	}
}

/* A store whose pieces are not all on the drive yet is asked again, up to its deadline. */
static void
commit_stores(struct doca_kv_io *io)
{
	struct ofs_value_ask asks[KV_SESSIONS_MAX] = {{{0}, 0, 0, 0}};
	struct ofs_value_told told[KV_SESSIONS_MAX];
	struct kv_queue queue = io->committing;
	uint64_t now_ns = ofs_machine_now_ns();
	struct doca_task *task;
	uint32_t count = 0;

	for (task = queue.head; task != NULL; task = task->next)
		asks[count++].session = task->session;
	if (kv_command(io, OFS_VALUE_COMMIT, count, asks, told) != 0)
		return;
	io->committing = (struct kv_queue){NULL, NULL};
	for (uint32_t i = 0; i < count; i++) {
		task = kv_pop(&queue);
		if (task->deadline_ns == 0)
			task->deadline_ns = now_ns + KV_TIMEOUT_NS;
		if (told[i].rc == -EAGAIN && now_ns < task->deadline_ns) {
			kv_push(&io->committing, task);
			continue;
		}
		finish(task, told[i].rc == -EAGAIN ? DOCA_ERROR_TIME_OUT : kv_error_of(told[i].rc));
		if (told[i].rc == 0)
			io->session_count--; /* the commit ended it */
		else
			kv_end_session(io, task->session);
	}
}

void
kv_run_out(struct doca_kv_io *io)
{
	struct ofs_value_ask asks[KV_SESSIONS_MAX] = {{{0}, 0, 0, 0}};
	struct ofs_value_told told[KV_SESSIONS_MAX];
	uint32_t count = io->over_count;

	for (uint32_t i = 0; i < count; i++)
		asks[i].session = io->over[i];
	if (count == 0 || kv_command(io, OFS_VALUE_END, count, asks, told) != 0)
		return;
	io->over_count = 0;
	io->session_count -= count;
}

/* The tasks that are ready fail where no daemon answers. */
static void
connect_again(struct doca_kv_io *io)
{
	struct doca_task *task;
	int rc = kv_link_open(&io->link, io->dev);

	while (rc != 0 && (task = kv_pop(&io->ready)) != NULL)
		finish(task, DOCA_ERROR_IO_FAILED);
}

void
kv_run(struct doca_kv_io *io)
{
	if (io->dev == NULL)
		return;
	if (io->ahead_count > 0)
		kv_ahead_expire(io, ofs_machine_now_ns());
	if (io->link == NULL && io->ready.head != NULL)
		connect_again(io);
	if (io->link != NULL && io->ready.head != NULL)
		open_ready(io);
	if (io->link != NULL && io->open.head != NULL)
		move_pieces(io);
	if (io->link != NULL && io->committing.head != NULL)
		commit_stores(io);
	if (io->link != NULL && (io->over_count >= OVER_BATCH || io->open.head == NULL))
		kv_run_out(io);
}
