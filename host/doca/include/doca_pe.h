/*
 * doca_pe.h: the progress engine, and what all kinds of task share.
 *
 * One thread at a time uses an engine and the contexts connected to it. Callbacks run inside
 * doca_pe_progress.
 */
#ifndef DOCA_PE_H
#define DOCA_PE_H

#include <doca_ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_pe;
struct doca_task;

enum doca_task_submit_flag {
	DOCA_TASK_SUBMIT_FLAG_NONE = 0U,
	DOCA_TASK_SUBMIT_FLAG_FLUSH = (1U << 0),
	DOCA_TASK_SUBMIT_FLAG_OPTIMIZE_REPORTS = (1U << 1) /* no effect here */
};

typedef void (*doca_task_completion_cb_t)(struct doca_task *task, union doca_data task_user_data,
	union doca_data ctx_user_data);

DOCA_STABLE doca_error_t doca_pe_create(struct doca_pe **pe);
/* IN_USE: a context that runs is connected. */
DOCA_STABLE doca_error_t doca_pe_destroy(struct doca_pe *pe);
/* BAD_STATE: the context runs; IN_USE: it is connected already. */
DOCA_STABLE doca_error_t doca_pe_connect_ctx(struct doca_pe *pe, struct doca_ctx *ctx);
/*
 * Advances every task, and calls back for at most one that has ended: 1, else 0. It waits for
 * nothing but a new connection, where one was lost and a task is submitted: up to a second for a
 * daemon that does not answer. Then tasks end with IO_FAILED at once, and it tries again after
 * another second.
 */
DOCA_STABLE int doca_pe_progress(struct doca_pe *pe);
/* Readable, once a notification was requested, when doca_pe_progress has something to do. */
DOCA_STABLE doca_error_t doca_pe_get_notification_handle(struct doca_pe *pe,
	doca_notification_handle_t *handle);
DOCA_STABLE doca_error_t doca_pe_request_notification(struct doca_pe *pe);
DOCA_STABLE void doca_pe_clear_notification(struct doca_pe *pe, doca_notification_handle_t handle);

/* BAD_STATE: it was submitted and has not ended; INVALID_VALUE: it has no key, or none that can be;
 * NOT_CONNECTED: its device is no longer bound; TOO_BIG: a value longer than the device takes. */
DOCA_STABLE doca_error_t doca_task_submit(struct doca_task *task);
DOCA_STABLE doca_error_t doca_task_submit_ex(struct doca_task *task, uint32_t flags);
/* Also from inside its callback. Of a task in flight, or of one freed before: no effect but a line
 * on standard error. That holds until its memory is allocated again, which takes what was freed
 * longest ago, or until its context is started again or destroyed. */
DOCA_STABLE void doca_task_free(struct doca_task *task);
DOCA_STABLE doca_error_t doca_task_get_user_data(const struct doca_task *task,
	union doca_data *user_data);
DOCA_STABLE doca_error_t doca_task_set_user_data(struct doca_task *task, union doca_data user_data);
/* IN_PROGRESS until it has ended; where its last submission was refused, the reason. */
DOCA_STABLE doca_error_t doca_task_get_status(const struct doca_task *task);

#ifdef __cplusplus
}
#endif

#endif
