/* The progress engine, contexts and tasks, whatever they are of. */
#include "internal.h"

#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define LOOK_NS \
	50000 /* a notification while tasks are in flight: the daemon's answers are polled */

doca_error_t
doca_pe_create(struct doca_pe **pe)
{
	if (pe == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	*pe = calloc(1, sizeof(**pe));
	if (*pe == NULL)
		return DOCA_ERROR_NO_MEMORY;
	(*pe)->timer = doca_event_invalid_handle;
	return DOCA_SUCCESS;
}

doca_error_t
doca_pe_destroy(struct doca_pe *pe)
{
	if (pe == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	for (struct doca_ctx *ctx = pe->contexts; ctx != NULL; ctx = ctx->next)
		if (ctx->state != DOCA_CTX_STATE_IDLE)
			return DOCA_ERROR_IN_USE;
	for (struct doca_ctx *ctx = pe->contexts; ctx != NULL; ctx = ctx->next)
		ctx->pe = NULL;
	if (pe->timer >= 0)
		close(pe->timer);
	free(pe);
	return DOCA_SUCCESS;
}

doca_error_t
doca_pe_connect_ctx(struct doca_pe *pe, struct doca_ctx *ctx)
{
	if (pe == NULL || ctx == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (ctx->state != DOCA_CTX_STATE_IDLE)
		return DOCA_ERROR_BAD_STATE;
	if (ctx->pe != NULL)
		return DOCA_ERROR_IN_USE;
	ctx->pe = pe;
	ctx->next = pe->contexts;
	pe->contexts = ctx;
	return DOCA_SUCCESS;
}

static bool
reap(struct doca_kv_io *io)
{
	struct ofs_value_task *value = ofs_task_pop(&io->ended);
	struct doca_task *task;
	bool completed;

	if (value == NULL)
		return false;
	task = value->user;
	task->state = KV_OVER;
	io->flying_count--;
	completed = task->status == DOCA_SUCCESS;
	(completed ? io->completed : io->failed)[task->op](task, task->user_data, io->ctx.user_data);
	return true;
}

int
doca_pe_progress(struct doca_pe *pe)
{
	if (pe == NULL)
		return 0;
	for (struct doca_ctx *ctx = pe->contexts; ctx != NULL; ctx = ctx->next)
		if (ctx->state == DOCA_CTX_STATE_RUNNING)
			kv_run(kv_io_of(ctx));
	for (struct doca_ctx *ctx = pe->contexts; ctx != NULL; ctx = ctx->next)
		if (ctx->state == DOCA_CTX_STATE_RUNNING && reap(kv_io_of(ctx)))
			return 1;
	return 0;
}

doca_error_t
doca_pe_get_notification_handle(struct doca_pe *pe, doca_notification_handle_t *handle)
{
	if (pe == NULL || handle == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (pe->timer < 0)
		pe->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	*handle = pe->timer;
	return pe->timer < 0 ? DOCA_ERROR_OPERATING_SYSTEM : DOCA_SUCCESS;
}

doca_error_t
doca_pe_request_notification(struct doca_pe *pe)
{
	struct itimerspec when = {.it_value = {0, 0}};
	bool flying = false, ended = false;

	if (pe == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (pe->timer < 0)
		return DOCA_ERROR_BAD_STATE;
	for (struct doca_ctx *ctx = pe->contexts; ctx != NULL; ctx = ctx->next) {
		flying |= kv_io_of(ctx)->flying_count > 0;
		ended |= kv_io_of(ctx)->ended.head != NULL;
	}
	when.it_value.tv_nsec = ended ? 1 : flying ? LOOK_NS : 0;
	return timerfd_settime(pe->timer, 0, &when, NULL) < 0 ? DOCA_ERROR_OPERATING_SYSTEM
														  : DOCA_SUCCESS;
}

void
doca_pe_clear_notification(struct doca_pe *pe, doca_notification_handle_t handle)
{
	uint64_t times;

	(void)pe;
	if (read(handle, &times, sizeof(times)) < 0)
		return; /* none had come */
}

/* ---- contexts ---- */

doca_error_t
doca_ctx_start(struct doca_ctx *ctx)
{
	if (ctx == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (ctx->pe == NULL || ctx->state != DOCA_CTX_STATE_IDLE)
		return DOCA_ERROR_BAD_STATE;
	return kv_io_start(kv_io_of(ctx));
}

doca_error_t
doca_ctx_stop(struct doca_ctx *ctx)
{
	if (ctx == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (ctx->state != DOCA_CTX_STATE_RUNNING)
		return DOCA_ERROR_BAD_STATE;
	return kv_io_stop(kv_io_of(ctx));
}

doca_error_t
doca_ctx_get_num_inflight_tasks(const struct doca_ctx *ctx, size_t *count)
{
	if (ctx == NULL || count == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	*count = ((const struct doca_kv_io *)ctx)->flying_count;
	return DOCA_SUCCESS;
}

doca_error_t
doca_ctx_set_user_data(struct doca_ctx *ctx, union doca_data user_data)
{
	if (ctx == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	ctx->user_data = user_data;
	return DOCA_SUCCESS;
}

doca_error_t
doca_ctx_get_user_data(const struct doca_ctx *ctx, union doca_data *user_data)
{
	if (ctx == NULL || user_data == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	*user_data = ctx->user_data;
	return DOCA_SUCCESS;
}

doca_error_t
doca_ctx_get_state(const struct doca_ctx *ctx, enum doca_ctx_states *state)
{
	if (ctx == NULL || state == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	*state = ctx->state;
	return DOCA_SUCCESS;
}

void
doca_ctx_flush_tasks(struct doca_ctx *ctx)
{
	if (ctx != NULL)
		kv_flush(kv_io_of(ctx));
}

/* ---- tasks ---- */

doca_error_t
doca_task_submit(struct doca_task *task)
{
	return doca_task_submit_ex(task, DOCA_TASK_SUBMIT_FLAG_FLUSH);
}

doca_error_t
doca_task_submit_ex(struct doca_task *task, uint32_t flags)
{
	if (task == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return kv_submit(task, flags & DOCA_TASK_SUBMIT_FLAG_FLUSH);
}

void
doca_task_free(struct doca_task *task)
{
	if (task != NULL)
		kv_free(task);
}

doca_error_t
doca_task_get_user_data(const struct doca_task *task, union doca_data *user_data)
{
	if (task == NULL || user_data == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	*user_data = task->user_data;
	return DOCA_SUCCESS;
}

doca_error_t
doca_task_set_user_data(struct doca_task *task, union doca_data user_data)
{
	if (task == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	task->user_data = user_data;
	return DOCA_SUCCESS;
}

doca_error_t
doca_task_get_status(const struct doca_task *task)
{
	if (task == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	return task->state == KV_FLYING ? DOCA_ERROR_IN_PROGRESS : task->status;
}
