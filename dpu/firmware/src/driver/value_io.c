/* Tasks on values: queues, deadlines, holds, and the turn that moves them; see value_io.h. */
#include "driver/value_tasks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define TICKETS 32
#define SLICE_NS 500000ull /* the longest that a submitted task waits for one that is in flight */
#define TURNS_MAX 16       /* before it returns ends */

int
ofs_value_io_open(struct ofs_value_io **out, struct ofs_driver *driver, uint32_t sessions_max,
	uint64_t timeout_ns)
{
	const struct ofs_port_header *port = &driver->fabric->port;
	struct ofs_value_io *io = calloc(1, sizeof(*io));
	uint32_t calls_max = ofs_driver_calls_max(driver);
	int rc = -ENOMEM;

	if (io == NULL)
		return -ENOMEM;
	assert(sessions_max > 0);
	rc = ofs_task_inbox_open(&io->inbox);
	if (rc != 0) {
		free(io);
		return rc;
	}
	rc = -ENOMEM;
	io->driver = driver;
	io->payload_size_bytes = ofs_driver_payload_size_bytes(driver);
	io->layer_count = driver->fabric->region.layer_count;
	io->sessions_max = sessions_max;
	io->timeout_ns = timeout_ns;
	io->deadline_ns = io->again_ns = io->holds_until_ns = OFS_NEVER_NS;
	io->put_max = port->put_slot_count;
	/* Commands have calls too. */
	io->run_max = calls_max > OFS_TASK_BATCHES ? calls_max - OFS_TASK_BATCHES : 1;
	if (io->run_max > OFS_TASK_RUNS)
		io->run_max = OFS_TASK_RUNS;
	io->over = calloc(sessions_max, sizeof(*io->over));
	io->holds = calloc(sessions_max, sizeof(*io->holds));
	io->runs = calloc(io->run_max, sizeof(*io->runs));
	io->rows = malloc((size_t)io->run_max * io->payload_size_bytes);
	if (io->over != NULL && io->holds != NULL && io->runs != NULL && io->rows != NULL)
		rc = ofs_values_max(port->demand_max, port->score_max) == 0 || io->layer_count == 0
			? -ENOTSUP
			: 0;
	if (rc == 0)
		rc = ofs_driver_register(driver, io->rows, (uint64_t)io->run_max * io->payload_size_bytes);
	if (rc != 0) {
		free(io->rows);
		io->rows = NULL;
		ofs_value_io_close(io);
		return rc;
	}
	for (uint32_t i = 0; i < io->run_max; i++)
		io->runs[i].row = io->rows + (size_t)i * io->payload_size_bytes;
	*out = io;
	return 0;
}

static void
cancel_all(struct ofs_value_io *io)
{
	if (io->runs != NULL)
		ofs_task_runs_cancel(io, NULL);
	for (uint32_t i = 0; i < OFS_TASK_BATCHES; i++)
		if (io->batches[i].used)
			(void)ofs_ask_cancel(io->driver, io->batches[i].ticket);
}

void
ofs_value_io_close(struct ofs_value_io *io)
{
	cancel_all(io);
	if (io->rows != NULL)
		(void)ofs_driver_unregister(io->driver, io->rows,
			(uint64_t)io->run_max * io->payload_size_bytes);
	free(io->over);
	free(io->holds);
	free(io->runs);
	free(io->rows);
	ofs_task_inbox_close(&io->inbox);
	free(io);
}

/* ---- the caller's side ---- */

static bool
opens(const struct ofs_value_task *task)
{
	return task->verb == OFS_VALUE_STORE || task->verb == OFS_VALUE_RETRIEVE;
}

uint64_t
ofs_value_task_set(struct ofs_value_task *task, const uint8_t *key, uint32_t verb, uint32_t flags,
	void *memory, uint64_t length, int64_t filled, uint64_t timeout_ns)
{
	memcpy(&task->key, key, sizeof(task->key));
	task->verb = verb;
	task->flags = flags;
	task->length = length;
	if (memory != NULL) {
		task->part = (struct iovec){memory, length};
		task->iovecs = &task->part;
		task->iovec_count = 1;
	}
	task->filled = filled < 0 ? length : (uint64_t)filled;
	task->committed = filled < 0;
	task->timeout_ns = timeout_ns;
	return (uint64_t)(uintptr_t)task;
}

int
ofs_value_io_submit(struct ofs_value_io *io, struct ofs_value_task *task)
{
	bool moves = opens(task), lists = task->verb == OFS_VALUE_LIST;
	uint64_t bytes = 0;

	if (!moves && !lists && task->verb != OFS_VALUE_EXIST && task->verb != OFS_VALUE_DELETE)
		return -EINVAL;
	if (task->name_bytes > OFS_VALUE_NAME_BYTES_MAX
		|| (lists && task->length < OFS_LIST_HEAD_BYTES))
		return -EINVAL;
	for (uint32_t i = 0; i < task->iovec_count; i++)
		bytes += task->iovecs[i].iov_len < task->length ? task->iovecs[i].iov_len : task->length;
	if ((moves || lists) && !(task->flags & OFS_TASK_HOLD) && bytes < task->length)
		return -EINVAL;
	assert(task->state == OFS_TASK_IDLE);
	task->state = OFS_TASK_READY;
	task->rc = 0;
	task->value_length = task->landed = task->patience_ns = task->pause_ns = 0;
	task->home = lists && task->flags & OFS_TASK_FIRST;
	task->piece_count = task->pieces_begun = task->pieces_ended = task->dropped = 0;
	memset(task->ends, 0, sizeof(task->ends));
	ofs_task_inbox_put(&io->inbox, task);
	return 0;
}

/* Takes what was submitted: whether there was a task. */
static bool
take(struct ofs_value_io *io)
{
	struct ofs_task_queue tasks = ofs_task_inbox_take(&io->inbox);
	struct ofs_value_task *task;
	uint64_t now_ns;

	if (tasks.head == NULL)
		return false;
	now_ns = ofs_driver_now_ns(io->driver);
	while ((task = ofs_task_pop(&tasks)) != NULL) {
		task->deadline_ns = OFS_NEVER_NS;
		if (task->timeout_ns != 0 && task->timeout_ns < OFS_NEVER_NS - now_ns)
			task->deadline_ns = now_ns + task->timeout_ns;
		if (task->deadline_ns < io->deadline_ns)
			io->deadline_ns = task->deadline_ns;
		io->task_count++;
		if (io->lost != 0)
			ofs_task_finish(io, task, -EPIPE);
		else
			ofs_task_push(opens(task) ? &io->opens : &io->asks, task);
	}
	return true;
}

void
ofs_value_io_fill(struct ofs_value_io *io, struct ofs_value_task *task, uint64_t filled,
	int committed)
{
	(void)io;
	task->filled = filled < task->length ? filled : task->length;
	task->committed = committed != 0;
}

void
ofs_value_io_drop(struct ofs_value_io *io, struct ofs_value_task *task)
{
	(void)io;
	task->dropped = !task->committed;
}

uint32_t
ofs_value_io_count(const struct ofs_value_io *io)
{
	return io->task_count + ofs_task_inbox_count(&io->inbox);
}

uint32_t
ofs_value_io_held(const struct ofs_value_io *io)
{
	return io->hold_count;
}

void
ofs_value_io_release(struct ofs_value_io *io, const struct ofs_key *key)
{
	ofs_task_end_holds_of(io, key, false);
}

/* ---- ends ---- */

/* Every task of a queue that `leaves`, with its session, if it has one. */
static void
sift(struct ofs_value_io *io, struct ofs_task_queue *queue,
	bool (*leaves)(struct ofs_value_io *io, struct ofs_value_task *task))
{
	struct ofs_task_queue stay = {NULL, NULL};
	struct ofs_value_task *task;

	while ((task = ofs_task_pop(queue)) != NULL)
		if (!leaves(io, task))
			ofs_task_push(&stay, task);
	*queue = stay;
}

static void
lose(struct ofs_value_io *io, int rc)
{
	struct ofs_task_queue *queues[] = {&io->asks, &io->opens, &io->later, &io->moving,
		&io->committing};
	struct ofs_value_task *task;

	cancel_all(io);
	io->lost = rc;
	for (uint32_t i = 0; i < sizeof(queues) / sizeof(queues[0]); i++)
		while ((task = ofs_task_pop(queues[i])) != NULL)
			ofs_task_finish(io, task, -EPIPE);
	for (uint32_t i = 0; i < OFS_TASK_BATCHES; i++) {
		struct ofs_task_batch *batch = &io->batches[i];

		for (uint32_t j = 0; batch->used && j < batch->asking.count; j++)
			if (batch->tasks[j] != NULL)
				ofs_task_finish(io, batch->tasks[j], -EPIPE);
		batch->used = false;
	}
	io->hold_count = io->over_count = io->session_count = io->opening_count = 0;
}

/* ---- deadlines ---- */

static bool
is_late(struct ofs_value_io *io, struct ofs_value_task *task)
{
	if (task->verb == OFS_VALUE_STORE)
		return false; /* its memory may be in use by the daemon's end of a put */
	if (ofs_driver_now_ns(io->driver) < task->deadline_ns) {
		if (task->deadline_ns < io->deadline_ns)
			io->deadline_ns = task->deadline_ns;
		return false;
	}
	ofs_task_runs_cancel(io, task);
	if (task->state == OFS_TASK_MOVING)
		ofs_task_over(io, task->session);
	ofs_task_finish(io, task, -ETIMEDOUT);
	return true;
}

static void
expire(struct ofs_value_io *io)
{
	uint64_t now_ns = ofs_driver_now_ns(io->driver);

	if (now_ns >= io->holds_until_ns)
		ofs_task_end_holds_until(io, now_ns);
	if (now_ns < io->deadline_ns)
		return;
	io->deadline_ns = OFS_NEVER_NS;
	sift(io, &io->asks, is_late);
	sift(io, &io->opens, is_late);
	sift(io, &io->later, is_late);
	sift(io, &io->moving, is_late);
	for (uint32_t i = 0; i < OFS_TASK_BATCHES; i++) {
		struct ofs_task_batch *batch = &io->batches[i];

		for (uint32_t j = 0; batch->used && j < batch->asking.count; j++)
			if (batch->tasks[j] != NULL && is_late(io, batch->tasks[j]))
				batch->tasks[j] = NULL; /* its session ends when the answer comes */
	}
}

/* ---- a turn ---- */

/* Whether the task has no piece in flight, and begins none; then it goes where it belongs. */
static bool
is_moved(struct ofs_value_io *io, struct ofs_value_task *task)
{
	bool all = task->pieces_begun == task->piece_count;

	if (task->pieces_ended < task->pieces_begun)
		return false;
	if (task->rc == 0 && !task->dropped
		&& (!all || (task->verb == OFS_VALUE_STORE && !task->committed)))
		return false;
	if (task->verb == OFS_VALUE_STORE && task->rc == 0 && !task->dropped) {
		task->state = OFS_TASK_COMMITTING;
		task->patience_ns = 0;
		ofs_task_push(&io->committing, task);
		return true;
	}
	ofs_task_over(io, task->session);
	if (task->verb == OFS_VALUE_RETRIEVE)
		ofs_task_end_holds_of(io, &task->key, true);
	ofs_task_finish(io, task, task->dropped ? -ECANCELED : task->rc);
	return true;
}

static bool
is_dropped(struct ofs_value_io *io, struct ofs_value_task *task)
{
	if (task->dropped)
		ofs_task_finish(io, task, -ECANCELED);
	return task->dropped;
}

/* Ends the call of a ticket. 0, or the error of the connection. */
static int
end_call(struct ofs_value_io *io, uint64_t ticket)
{
	for (uint32_t i = 0; i < OFS_TASK_BATCHES; i++)
		if (io->batches[i].used && io->batches[i].ticket == ticket)
			return ofs_task_batch_end(io, &io->batches[i]);
	for (uint32_t i = 0; i < io->run_max; i++)
		if (io->runs[i].task != NULL && io->runs[i].ticket == ticket)
			return ofs_task_run_end(io, &io->runs[i]);
	return 0;
}

/* Moves everything on, and waits so long at most for a call to end: whether something moved. */
static bool
turn(struct ofs_value_io *io, uint64_t wait_ns)
{
	uint64_t tickets[TICKETS];
	bool moved = take(io);
	uint32_t flying = io->flying_count;
	int rc, count;

	expire(io);
	ofs_task_resume(io);
	sift(io, &io->opens, is_dropped);
	sift(io, &io->moving, is_moved);
	rc = ofs_task_commands_begin(io);
	if (rc == 0)
		rc = ofs_task_runs_begin(io);
	moved |= io->flying_count != flying;
	count = rc == 0 ? ofs_calls_poll(io->driver, OFS_CALLS_VALUES, wait_ns, tickets, TICKETS) : rc;
	rc = count < 0 ? count : 0;
	for (int i = 0; rc == 0 && i < count; i++)
		rc = end_call(io, tickets[i]);
	if (rc != 0)
		lose(io, rc);
	else
		sift(io, &io->moving, is_moved);
	return moved || count > 0;
}

/* When something is to be done without an answer; OFS_NEVER_NS: never. */
static uint64_t
next_due_ns(const struct ofs_value_io *io)
{
	uint32_t yields, room = ofs_task_room(io, &yields);
	uint64_t due_ns = io->task_count > 0 ? io->deadline_ns : OFS_NEVER_NS;

	if (io->opens.head != NULL && room + yields > 0 && io->busy_until_ns < due_ns)
		due_ns = io->busy_until_ns;
	if (io->later.head != NULL && io->again_ns < due_ns)
		due_ns = io->again_ns;
	if (io->committing.head != NULL && io->commit_due_ns < due_ns)
		due_ns = io->commit_due_ns;
	return due_ns;
}

/* Whether there is something to tell. */
static bool
has_news(const struct ofs_value_io *io)
{
	return io->ended.head != NULL || io->news || io->lost != 0;
}

/* Whether a call is in flight, or its end not taken. */
static bool
is_flying(const struct ofs_value_io *io)
{
	for (uint32_t i = 0; i < OFS_TASK_BATCHES; i++)
		if (io->batches[i].used)
			return true;
	return io->flying_count > 0;
}

int
ofs_value_io_busy(const struct ofs_value_io *io)
{
	return io->lost == 0
		&& (ofs_task_inbox_count(&io->inbox) > 0 || is_flying(io) || io->over_count > 0
			|| io->asks.head != NULL || io->ended.head != NULL || ofs_task_next(io) != NULL
			|| next_due_ns(io) != OFS_NEVER_NS);
}

static uint64_t
end_of(const struct ofs_value_io *io, uint64_t timeout_ns)
{
	uint64_t now_ns = ofs_driver_now_ns(io->driver);

	return timeout_ns < OFS_NEVER_NS - now_ns ? now_ns + timeout_ns : OFS_NEVER_NS;
}

/* A turn, which waits until then at most unless the one before `moved`. False: nothing can happen
 * by itself, as where stores are not filled. */
static bool
step(struct ofs_value_io *io, uint64_t now_ns, uint64_t until_ns, bool *moved)
{
	uint64_t due_ns = next_due_ns(io);
	uint64_t wait_ns = (due_ns < until_ns ? due_ns : until_ns) - now_ns;

	if (*moved || due_ns <= now_ns)
		wait_ns = 0;
	else if (!is_flying(io) && due_ns == OFS_NEVER_NS)
		return false;
	else if (!is_flying(io))
		io->driver->fabric->ops->pause(io->driver->fabric, wait_ns);
	*moved = turn(io, is_flying(io) ? wait_ns : 0);
	return true;
}

/* Returns tasks that have ended to their caller. */
static int
tell(struct ofs_value_io *io, struct ofs_value_task **ended, uint32_t max)
{
	struct ofs_value_task *task;
	uint32_t count = 0;

	while (count < max && (task = ofs_task_pop(&io->ended)) != NULL) {
		task->state = OFS_TASK_IDLE;
		io->task_count--;
		ended[count++] = task;
	}
	return count == 0 && io->lost != 0 ? io->lost : (int)count;
}

int
ofs_value_io_run(struct ofs_value_io *io, uint64_t timeout_ns, struct ofs_value_task **ended,
	uint32_t max)
{
	uint64_t until_ns = end_of(io, timeout_ns), now_ns;
	bool moved;

	io->news = false;
	moved = io->lost == 0 ? turn(io, 0) : take(io);
	while (!has_news(io) && io->task_count > 0
		&& (now_ns = ofs_driver_now_ns(io->driver)) < until_ns
		&& step(io, now_ns, until_ns, &moved)) {
	}
	return tell(io, ended, max);
}

/* Nothing can happen by itself but the end of a hold. */
static void
rest(struct ofs_value_io *io, uint64_t now_ns, uint64_t until_ns)
{
	if (io->holds_until_ns < until_ns)
		until_ns = io->holds_until_ns;
	if (now_ns < until_ns)
		ofs_task_inbox_rest(&io->inbox,
			until_ns - now_ns < OFS_NEVER_NS / io->driver->fabric->dilation
				? (until_ns - now_ns) * io->driver->fabric->dilation
				: OFS_NEVER_NS);
}

int
ofs_value_io_serve(struct ofs_value_io *io, uint64_t timeout_ns, struct ofs_value_task **ended,
	uint32_t max)
{
	uint64_t until_ns = end_of(io, timeout_ns), now_ns;
	bool moved = true; /* sessions may be over, without a task */

	io->news = false;
	while (!has_news(io) && !ofs_task_inbox_woken(&io->inbox)
		&& (now_ns = ofs_driver_now_ns(io->driver)) < until_ns) {
		uint64_t slice_ns = until_ns - now_ns < SLICE_NS ? until_ns : now_ns + SLICE_NS;

		if (!step(io, now_ns, slice_ns, &moved)) {
			rest(io, now_ns, ofs_value_io_busy(io) ? slice_ns : until_ns);
			moved = true; /* there is a task, or a hold is over */
		}
	}
	/* An end wakes others up: what needs no wait goes on first. */
	for (uint32_t i = 0; i < TURNS_MAX && io->ended.head != NULL && !io->news && io->lost == 0; i++)
		if (!turn(io, 0))
			break;
	return tell(io, ended, max);
}
