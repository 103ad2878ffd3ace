/* What a context does when it is advanced: hands tasks to the driver's, and takes ended ones. */
#include "internal.h"

#include <clock.h>

#include <string.h>

#define ENDED_BATCH 32

static const uint32_t verbs[KV_OP_COUNT] = {OFS_VALUE_STORE, OFS_VALUE_RETRIEVE, OFS_VALUE_EXIST};

static void
finish(struct doca_task *task, doca_error_t status)
{
	task->status = status;
	ofs_task_push(&task->io->ended, &task->value);
}

static doca_error_t
status_of(const struct doca_task *task)
{
	if (task->op == KV_EXIST && task->value.rc == 0)
		return DOCA_ERROR_ALREADY_EXIST;
	return kv_error_of(task->value.rc);
}

/* The next task makes another connection. */
static void
lose(struct doca_kv_io *io, int rc)
{
	kv_say(&io->said, "%s: the connection is lost (%s)", io->dev->path, strerror(-rc));
	kv_link_close(io->link);
	io->link = NULL;
}

int
kv_take_ended(struct doca_kv_io *io, uint64_t timeout_ns)
{
	struct ofs_value_task *ended[ENDED_BATCH];
	int count;

	do {
		count = ofs_value_io_run(io->link->values, timeout_ns, ended, ENDED_BATCH);
		for (int i = 0; i < count; i++) {
			struct doca_task *task = ended[i]->user;

			if (task != NULL) /* else it holds a value, and its memory says so */
				finish(task, status_of(task));
		}
		timeout_ns = 0;
	} while (count > 0);
	if (count < 0)
		lose(io, count);
	return count;
}

/* Under a name in the tenant: that of the key in its volume. */
static void
hand_over(struct doca_task *task)
{
	struct ofs_value_task *value = &task->value;

	*value = (struct ofs_value_task){.verb = verbs[task->op], .user = task};
	ofs_value_key(task->dev->nguid, task->key, task->key_len, &value->key);
	value->name_bytes = task->key_len;
	memcpy(&value->name, task->key, task->key_len);
	if (task->op != KV_EXIST) {
		value->length = value->filled = task->value_len;
		value->iovecs = task->iovecs;
		value->iovec_count = task->iovcnt;
	}
	value->committed = 1;
	value->flags = (task->do_not_overwrite ? OFS_TASK_KEEP : 0u) //
		| (task->must_exist ? OFS_TASK_OVER : 0u) | (task->dev->durable ? OFS_TASK_DURABLE : 0u);
	/* It may be another daemon than when it was submitted. */
	if (task->op == KV_STORE && task->value_len > task->dev->value_bytes_max)
		finish(task, DOCA_ERROR_TOO_BIG);
	else if (ofs_value_io_submit(task->io->link->values, value) != 0)
		finish(task, DOCA_ERROR_INVALID_VALUE);
}

/* Connects, unless a daemon has just not answered. */
static int
connect_again(struct doca_kv_io *io)
{
	int rc;

	if (ofs_machine_now_ns() < io->again_ns)
		return -ETIMEDOUT;
	rc = kv_link_open(&io->link, io->dev, KV_AGAIN_NS, &io->said);
	io->again_ns = rc == -ETIMEDOUT ? ofs_machine_now_ns() + KV_AGAIN_NS : 0;
	return rc;
}

/* Hands over what was flushed, over a new connection where the daemon has ended the one before. */
static void
begin(struct doca_kv_io *io)
{
	struct ofs_value_task *value;
	int rc = 0;

	if (io->link != NULL && kv_link_closed(io->link)) {
		(void)kv_take_ended(io, 0);
		if (io->link != NULL && ofs_value_io_count(io->link->values) > 0)
			return; /* those before end first */
		if (io->link != NULL)
			lose(io, -EPIPE);
	}
	if (io->link == NULL)
		rc = connect_again(io);
	while ((value = ofs_task_pop(&io->ready)) != NULL)
		if (rc == 0)
			hand_over(value->user);
		else
			finish(value->user, DOCA_ERROR_IO_FAILED);
}

void
kv_run(struct doca_kv_io *io)
{
	if (io->dev == NULL)
		return;
	if (io->ready.head != NULL)
		begin(io);
	if (io->link != NULL)
		(void)kv_take_ended(io, 0);
}
