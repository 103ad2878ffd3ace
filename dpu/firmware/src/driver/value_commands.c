/* Commands on the values of tasks: as many values as fit in each, and several in flight. */
#include "driver/value_tasks.h"

#include <assert.h>

#define BUSY_NS 1000000ull      /* until the next try for a session, */
#define COMMIT_NS 50000ull      /* and for a commit */
#define PAUSE_MIN_NS 1000000ull /* before the command of a task is repeated, at first */
#define PAUSE_MAX_NS 20000000ull

static struct ofs_task_batch *
free_batch(struct ofs_value_io *io)
{
	for (uint32_t i = 0; i < OFS_TASK_BATCHES; i++)
		if (!io->batches[i].used)
			return &io->batches[i];
	return NULL;
}

static bool
opens_session(uint32_t verb)
{
	return verb == OFS_VALUE_STORE || verb == OFS_VALUE_RETRIEVE;
}

/* Sends the batch, which names `count` values. 0, -EAGAIN, or the error of the connection. */
static int
send(struct ofs_value_io *io, struct ofs_task_batch *batch, uint32_t verb, uint32_t count)
{
	int rc;

	batch->asking = (struct ofs_asking){.verb = verb,
		.count = count,
		.asks = batch->asks,
		.told = batch->told,
		.timeout_ns = io->timeout_ns};
	rc = ofs_ask_begin(io->driver, OFS_CALLS_VALUES, &batch->asking, &batch->ticket);
	batch->used = rc == 0;
	if (rc == 0 && opens_session(verb))
		io->opening_count += count;
	return rc;
}

static uint16_t
flags_of(const struct ofs_value_task *task)
{
	uint32_t flags = task->flags & OFS_TASK_DURABLE ? OFS_VALUE_DURABLE : 0;

	return (uint16_t)(flags | (task->flags & (OFS_TASK_KEEP | OFS_TASK_OVER)));
}

/* What the tasks at the head of a queue ask for together, with one verb: how many. */
static uint32_t
gather(const struct ofs_task_queue *queue, uint32_t room, struct ofs_task_batch *batch)
{
	const struct ofs_value_task *task = queue->head;
	uint32_t most = room < OFS_TASK_BATCH ? room : OFS_TASK_BATCH;
	uint32_t count = 0;

	for (; task != NULL && count < most && task->verb == queue->head->verb; task = task->next) {
		batch->asks[count++] = (struct ofs_value_ask){.key = task->key,
			.length = task->verb == OFS_VALUE_STORE ? task->length
				: task->verb == OFS_VALUE_DELETE    ? task->home
													: 0,
			.flags = flags_of(task)};
		if (task->verb == OFS_VALUE_STORE) {
			batch->asks[count - 1].name_bytes = (uint16_t)task->name_bytes;
			batch->asks[count - 1].name = task->name;
		}
	}
	return count;
}

/* Asks for the tasks of one queue. */
static int
ask(struct ofs_value_io *io, struct ofs_task_queue *queue, uint32_t room)
{
	struct ofs_task_batch *batch;

	while (queue->head != NULL && room > 0 && (batch = free_batch(io)) != NULL) {
		bool lists = queue->head->verb == OFS_VALUE_LIST;
		uint32_t count =
			lists ? ofs_task_list(io, queue->head, batch->asks) : gather(queue, room, batch);
		int rc = send(io, batch, queue->head->verb, count);

		if (rc != 0)
			return rc == -EAGAIN ? 0 : rc;
		for (uint32_t i = 0; i < count; i++) {
			batch->tasks[i] = lists && i > 0 ? NULL : ofs_task_pop(queue);
			if (batch->tasks[i] != NULL)
				batch->tasks[i]->state = OFS_TASK_ASKED;
		}
		room -= count;
	}
	return 0;
}

/* Holds give way until what moves has half of all sessions. */
uint32_t
ofs_task_room(const struct ofs_value_io *io, uint32_t *yields)
{
	uint32_t used = io->session_count + io->opening_count;
	uint32_t moving = used - io->hold_count;
	uint32_t half = io->sessions_max / 2 > 0 ? io->sessions_max / 2 : 1;

	*yields = used == io->sessions_max && moving < half ? half - moving : 0;
	return io->sessions_max - used;
}

static int
open_sessions(struct ofs_value_io *io, uint64_t now_ns)
{
	uint32_t yields, room = ofs_task_room(io, &yields);

	if (io->opens.head == NULL || now_ns < io->busy_until_ns)
		return 0;
	if (yields > 0)
		ofs_task_yield(io, yields);
	return ask(io, &io->opens, room);
}

static int
commit(struct ofs_value_io *io, uint64_t now_ns)
{
	struct ofs_task_batch *batch = free_batch(io);
	uint32_t count = 0;
	int rc;

	if (io->committing.head == NULL || now_ns < io->commit_due_ns || batch == NULL)
		return 0;
	for (struct ofs_value_task *task = io->committing.head; task != NULL && count < OFS_TASK_BATCH;
		 task = task->next)
		batch->asks[count++] = (struct ofs_value_ask){.session = task->session};
	rc = send(io, batch, OFS_VALUE_COMMIT, count);
	if (rc != 0)
		return rc == -EAGAIN ? 0 : rc;
	for (uint32_t i = 0; i < count; i++)
		batch->tasks[i] = ofs_task_pop(&io->committing);
	return 0;
}

static int
end_sessions(struct ofs_value_io *io)
{
	bool idle = io->opens.head != NULL || (io->flying_count == 0 && ofs_task_next(io) == NULL);
	struct ofs_task_batch *batch = free_batch(io);
	uint32_t count = io->over_count < OFS_TASK_BATCH ? io->over_count : OFS_TASK_BATCH;
	int rc;

	if (count == 0 || batch == NULL || (count < OFS_TASK_OVER_MIN && !idle))
		return 0;
	for (uint32_t i = 0; i < count; i++) {
		batch->tasks[i] = NULL;
		batch->asks[i] = (struct ofs_value_ask){.session = io->over[io->over_count - 1 - i]};
	}
	rc = send(io, batch, OFS_VALUE_END, count);
	if (rc != 0)
		return rc == -EAGAIN ? 0 : rc;
	io->over_count -= count;
	return 0;
}

int
ofs_task_commands_begin(struct ofs_value_io *io)
{
	uint64_t now_ns = ofs_driver_now_ns(io->driver);
	int rc = commit(io, now_ns);

	if (rc == 0)
		rc = ask(io, &io->asks, UINT32_MAX);
	if (rc == 0)
		rc = open_sessions(io, now_ns);
	return rc != 0 ? rc : end_sessions(io);
}

/* ---- answers ---- */

static void
start(struct ofs_value_io *io, struct ofs_value_task *task, const struct ofs_value_told *told)
{
	task->session = told->session;
	if (task->verb == OFS_VALUE_STORE)
		ofs_task_end_holds_of(io, &task->key, true);
	ofs_task_cut(io, task, &told->chunk,
		task->verb == OFS_VALUE_STORE ? task->length : told->length);
	if (task->flags & OFS_TASK_WHOLE && task->value_length != task->length) {
		ofs_task_over(io, task->session);
		ofs_task_finish(io, task, -EMSGSIZE);
		return;
	}
	if (task->flags & OFS_TASK_HOLD) {
		ofs_task_hold(io, task);
		return;
	}
	task->state = OFS_TASK_MOVING;
	ofs_task_push(&io->moving, task);
}

/* The value is being brought back, or its delete has yet to be noted or to end on the drive. */
static void
ask_later(struct ofs_value_io *io, struct ofs_value_task *task)
{
	uint64_t pause_ns = task->pause_ns == 0 ? PAUSE_MIN_NS : 2 * task->pause_ns;

	task->pause_ns = pause_ns < PAUSE_MAX_NS ? pause_ns : PAUSE_MAX_NS;
	task->again_ns = ofs_driver_now_ns(io->driver) + task->pause_ns;
	if (io->later.head == NULL || task->again_ns < io->again_ns)
		io->again_ns = task->again_ns;
	task->state = OFS_TASK_READY;
	ofs_task_push(&io->later, task);
}

void
ofs_task_resume(struct ofs_value_io *io)
{
	struct ofs_task_queue some = io->later;
	struct ofs_value_task *task;
	uint64_t now_ns;

	if (some.head == NULL || (now_ns = ofs_driver_now_ns(io->driver)) < io->again_ns)
		return;
	io->later.head = NULL;
	io->again_ns = OFS_NEVER_NS;
	while ((task = ofs_task_pop(&some)) != NULL) {
		if (task->again_ns > now_ns && task->again_ns < io->again_ns)
			io->again_ns = task->again_ns;
		ofs_task_push(task->again_ns > now_ns ? &io->later
				: opens_session(task->verb)   ? &io->opens
											  : &io->asks,
			task);
	}
}

/* No session is free at the daemon: it is asked again, for as long as the task has patience. */
static void
wait_for_session(struct ofs_value_io *io, struct ofs_value_task *task)
{
	uint64_t now_ns = ofs_driver_now_ns(io->driver);

	if (task->patience_ns == 0)
		task->patience_ns = now_ns + io->timeout_ns;
	if (now_ns >= task->patience_ns) {
		ofs_task_finish(io, task, -EBUSY);
		return;
	}
	io->busy_until_ns = now_ns + BUSY_NS;
	if (io->hold_count > 0)
		ofs_task_yield(io, 1);
	task->state = OFS_TASK_READY;
	ofs_task_push(&io->opens, task);
}

static void
opened(struct ofs_value_io *io, struct ofs_value_task *task, const struct ofs_value_told *told)
{
	io->session_count += told->rc == 0;
	if (task == NULL && told->rc == 0)
		ofs_task_over(io, told->session);
	else if (task == NULL)
		return;
	else if (told->rc == -EBUSY && !task->dropped && !(task->flags & OFS_TASK_HOLD))
		wait_for_session(io, task);
	else if (told->rc == -EAGAIN && !task->dropped)
		ask_later(io, task);
	else if (told->rc == 0)
		start(io, task, told);
	else
		ofs_task_finish(io, task, task->dropped ? -ECANCELED : told->rc);
}

/* A store some of whose pieces are not on the drive yet is asked again. */
static void
committed(struct ofs_value_io *io, struct ofs_value_task *task, int rc)
{
	uint64_t now_ns = ofs_driver_now_ns(io->driver);

	if (task->patience_ns == 0)
		task->patience_ns = now_ns + io->timeout_ns;
	if (rc == -EAGAIN && now_ns < task->patience_ns) {
		io->commit_due_ns = now_ns + COMMIT_NS;
		ofs_task_push(&io->committing, task);
		return;
	}
	if (rc == 0)
		io->session_count--; /* the commit ended it */
	else
		ofs_task_over(io, task->session);
	ofs_task_finish(io, task, rc == -EAGAIN ? -ETIMEDOUT : rc);
}

/* Whether the drive has long not ended its part of a delete; an archive may take longer. */
static bool
is_refused(struct ofs_value_io *io, struct ofs_value_task *task, const struct ofs_value_told *told)
{
	uint64_t now_ns = ofs_driver_now_ns(io->driver);

	if (task->verb != OFS_VALUE_DELETE)
		return false;
	task->home = told->length;
	if (task->home == 0 || task->patience_ns == 0)
		task->patience_ns = now_ns + io->timeout_ns;
	return now_ns >= task->patience_ns;
}

static void
told_of(struct ofs_value_io *io, struct ofs_value_task *task, const struct ofs_value_told *told)
{
	int rc = told->rc;

	if (task == NULL)
		return; /* given up, or one of the sessions that end */
	if (rc == -EAGAIN && is_refused(io, task, told))
		rc = -ETIMEDOUT;
	if (rc == -EAGAIN) {
		ask_later(io, task);
		return;
	}
	if (rc == -ENOENT && task->verb == OFS_VALUE_DELETE && task->pause_ns != 0)
		rc = 0; /* it was there, and has gone since */
	task->value_length = rc == 0 ? told->length : 0;
	if (rc == 0 && task->flags & OFS_TASK_WHOLE && told->length != task->length)
		rc = -EMSGSIZE;
	ofs_task_finish(io, task, rc);
}

int
ofs_task_batch_end(struct ofs_value_io *io, struct ofs_task_batch *batch)
{
	const struct ofs_asking *asking = &batch->asking;
	int rc = ofs_ask_end(io->driver, batch->ticket);

	if (rc != 0)
		return rc; /* with the connection every batch is lost: this one too */
	batch->used = false;
	if (opens_session(asking->verb)) {
		assert(io->opening_count >= asking->count);
		io->opening_count -= asking->count;
	}
	if (asking->verb == OFS_VALUE_END)
		io->session_count -= asking->count;
	if (asking->verb == OFS_VALUE_LIST) {
		ofs_task_listed(io, batch->tasks[0], batch->told, asking->count);
		return 0;
	}
	for (uint32_t i = 0; i < asking->count; i++)
		if (opens_session(asking->verb))
			opened(io, batch->tasks[i], &batch->told[i]);
		else if (asking->verb == OFS_VALUE_COMMIT)
			committed(io, batch->tasks[i], batch->told[i].rc);
		else
			told_of(io, batch->tasks[i], &batch->told[i]);
	return 0;
}
