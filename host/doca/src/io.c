/* An I/O context: its settings, its pool of tasks, and the device that is bound to it. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

doca_error_t
doca_kv_io_cap_get_max_tasks(uint32_t *max_tasks)
{
	if (max_tasks == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	*max_tasks = KV_TASKS_MAX;
	return DOCA_SUCCESS;
}

doca_error_t
doca_kv_nvme_kernel_io_create(struct doca_kv_nvme_kernel_io **io)
{
	if (io == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	*io = calloc(1, sizeof(**io));
	if (*io == NULL)
		return DOCA_ERROR_NO_MEMORY;
	(*io)->io.num_tasks = KV_TASKS_DEFAULT;
	return DOCA_SUCCESS;
}

doca_error_t
doca_kv_nvme_kernel_io_destroy(struct doca_kv_nvme_kernel_io *io)
{
	if (io == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (io->io.ctx.state != DOCA_CTX_STATE_IDLE)
		return DOCA_ERROR_BAD_STATE;
	if (io->io.ctx.pe != NULL) {
		struct doca_ctx **link = &io->io.ctx.pe->contexts;

		while (*link != &io->io.ctx)
			link = &(*link)->next;
		*link = io->io.ctx.next;
	}
	free(io->io.tasks);
	free(io);
	return DOCA_SUCCESS;
}

struct doca_kv_io *
doca_kv_nvme_kernel_io_as_kv_io(struct doca_kv_nvme_kernel_io *io)
{
	return io == NULL ? NULL : &io->io;
}

struct doca_ctx *
doca_kv_io_as_ctx(struct doca_kv_io *io)
{
	return io == NULL ? NULL : &io->ctx;
}

doca_error_t
doca_kv_io_set_num_tasks(struct doca_kv_io *io, uint32_t num_tasks)
{
	if (io == NULL || num_tasks == 0 || num_tasks > KV_TASKS_MAX)
		return DOCA_ERROR_INVALID_VALUE;
	if (io->ctx.state != DOCA_CTX_STATE_IDLE)
		return DOCA_ERROR_BAD_STATE;
	io->num_tasks = num_tasks;
	return DOCA_SUCCESS;
}

doca_error_t
doca_kv_io_get_num_tasks(const struct doca_kv_io *io, uint32_t *num_tasks)
{
	if (io == NULL || num_tasks == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	*num_tasks = io->num_tasks;
	return DOCA_SUCCESS;
}

doca_error_t
kv_io_start(struct doca_kv_io *io)
{
	struct doca_task *tasks = calloc(io->num_tasks, sizeof(*tasks));

	if (tasks == NULL)
		return DOCA_ERROR_NO_MEMORY;
	free(io->tasks);
	io->tasks = tasks;
	io->free = (struct ofs_task_queue){NULL, NULL};
	for (uint32_t i = 0; i < io->num_tasks; i++) {
		tasks[i].io = io;
		tasks[i].value.user = &tasks[i];
		ofs_task_push(&io->free, &tasks[i].value);
	}
	io->ctx.state = DOCA_CTX_STATE_RUNNING;
	return DOCA_SUCCESS;
}

/* The tasks' memory stays: who frees one of them again gets a line. */
doca_error_t
kv_io_stop(struct doca_kv_io *io)
{
	if (io->dev != NULL || io->task_count > 0)
		return DOCA_ERROR_IN_USE;
	io->ctx.state = DOCA_CTX_STATE_IDLE;
	return DOCA_SUCCESS;
}

doca_error_t
doca_kv_io_bind_dev(struct doca_kv_io *io, struct doca_kv_dev *kv_dev)
{
	int rc;

	if (io == NULL || kv_dev == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (io->ctx.state != DOCA_CTX_STATE_RUNNING)
		return DOCA_ERROR_BAD_STATE;
	if (io->dev != NULL)
		return DOCA_ERROR_IN_USE;
	rc = kv_link_open(&io->link, kv_dev, KV_BIND_NS, NULL);
	if (rc != 0)
		return kv_error_of(rc);
	io->dev = kv_dev;
	io->again_ns = 0;
	kv_dev->bound_count++;
	return DOCA_SUCCESS;
}

doca_error_t
doca_kv_io_unbind_dev(struct doca_kv_io *io, struct doca_kv_dev *kv_dev)
{
	if (io == NULL || kv_dev == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (io->dev != kv_dev)
		return DOCA_ERROR_NOT_FOUND;
	if (io->flying_count > 0)
		return DOCA_ERROR_IN_USE;
	if (io->link != NULL)
		kv_link_close(io->link);
	io->link = NULL;
	io->dev = NULL;
	kv_dev->bound_count--;
	return DOCA_SUCCESS;
}

/* ---- callbacks ---- */

static doca_error_t
set_callback(struct doca_kv_io *io, kv_callback *place, void (*cb)(void))
{
	if (io->ctx.state != DOCA_CTX_STATE_IDLE)
		return DOCA_ERROR_BAD_STATE;
	*place = (kv_callback)cb;
	return DOCA_SUCCESS;
}

/* Their first argument is a pointer to a structure whose first member is the task. */
#define REGISTER(kind, op)                                                                       \
	doca_error_t doca_kv_io_task_##kind##_register_completion_cb(struct doca_kv_io *io,          \
		doca_kv_io_task_##kind##_completion_cb_t cb)                                             \
	{                                                                                            \
		return io == NULL || cb == NULL                                                          \
			? DOCA_ERROR_INVALID_VALUE                                                           \
			: set_callback(io, &io->completed[op], (void (*)(void))cb);                          \
	}                                                                                            \
	doca_error_t doca_kv_io_task_##kind##_register_error_cb(struct doca_kv_io *io,               \
		doca_kv_io_task_##kind##_completion_cb_t cb)                                             \
	{                                                                                            \
		return io == NULL || cb == NULL ? DOCA_ERROR_INVALID_VALUE                               \
										: set_callback(io, &io->failed[op], (void (*)(void))cb); \
	}

REGISTER(store, KV_STORE)
REGISTER(retrieve, KV_RETRIEVE)
REGISTER(exist, KV_EXIST)

/* ---- tasks ---- */

static doca_error_t
allocate(struct doca_kv_io *io, struct doca_kv_dev *dev, enum kv_op op, union doca_data user_data,
	struct doca_task **out)
{
	struct ofs_value_task *value;
	struct doca_task *task;

	if (io->ctx.state != DOCA_CTX_STATE_RUNNING || io->completed[op] == NULL
		|| io->failed[op] == NULL)
		return DOCA_ERROR_BAD_STATE;
	if (io->dev != dev)
		return DOCA_ERROR_NOT_CONNECTED;
	value = ofs_task_pop(&io->free);
	if (value == NULL)
		return DOCA_ERROR_FULL;
	task = value->user;
	*task = (struct doca_task){.io = io, .dev = dev, .op = op, .state = KV_NEW};
	task->status = DOCA_ERROR_IN_PROGRESS;
	task->user_data = user_data;
	io->task_count++;
	*out = task;
	return DOCA_SUCCESS;
}

#define ALLOCATE(kind, op)                                                       \
	doca_error_t doca_kv_io_task_##kind##_alloc_init(struct doca_kv_io *io,      \
		struct doca_kv_dev *dev, union doca_data task_user_data,                 \
		struct doca_kv_io_task_##kind **task)                                    \
	{                                                                            \
		if (io == NULL || dev == NULL || task == NULL)                           \
			return DOCA_ERROR_INVALID_VALUE;                                     \
		*task = NULL;                                                            \
		return allocate(io, dev, op, task_user_data, (struct doca_task **)task); \
	}

ALLOCATE(store, KV_STORE)
ALLOCATE(retrieve, KV_RETRIEVE)
ALLOCATE(exist, KV_EXIST)

/* Whether the iovecs have room for the value. */
static bool
has_value(const struct doca_task *task)
{
	uint64_t bytes = 0;

	if (task->value_len == 0 || task->iovecs == NULL)
		return false;
	for (uint32_t i = 0; i < task->iovcnt; i++) {
		if (task->iovecs[i].iov_base == NULL && task->iovecs[i].iov_len > 0)
			return false;
		bytes +=
			task->iovecs[i].iov_len < task->value_len ? task->iovecs[i].iov_len : task->value_len;
	}
	return bytes >= task->value_len;
}

static doca_error_t
check(const struct doca_task *task)
{
	if (task->io->dev != task->dev)
		return DOCA_ERROR_NOT_CONNECTED;
	if (task->key_len == 0 || (task->op != KV_EXIST && !has_value(task)))
		return DOCA_ERROR_INVALID_VALUE;
	if (task->op == KV_STORE && task->value_len > task->dev->value_bytes_max)
		return DOCA_ERROR_TOO_BIG;
	return DOCA_SUCCESS;
}

doca_error_t
kv_submit(struct doca_task *task, bool flush)
{
	struct doca_kv_io *io = task->io;

	if (task->state != KV_NEW && task->state != KV_OVER)
		return DOCA_ERROR_BAD_STATE;
	task->status = check(task);
	if (task->status != DOCA_SUCCESS)
		return task->status;
	task->state = KV_FLYING;
	task->value = (struct ofs_value_task){.user = task};
	io->flying_count++;
	ofs_task_push(&io->submitted, &task->value);
	if (flush)
		kv_flush(io);
	return DOCA_SUCCESS;
}

void
kv_flush(struct doca_kv_io *io)
{
	struct ofs_value_task *value;

	while ((value = ofs_task_pop(&io->submitted)) != NULL)
		ofs_task_push(&io->ready, value);
}

void
kv_free(struct doca_task *task)
{
	if (task->state == KV_FREE || task->state == KV_FLYING) {
		kv_say(NULL, "a task was freed %s", task->state == KV_FREE ? "twice" : "in flight");
		return;
	}
	task->state = KV_FREE;
	task->value.user = task;
	ofs_task_push(&task->io->free, &task->value);
	task->io->task_count--;
}
