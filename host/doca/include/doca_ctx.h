/* doca_ctx.h: a context: configured while idle, started, and stopped when nothing of it is used. */
#ifndef DOCA_CTX_H
#define DOCA_CTX_H

#include <doca_error.h>
#include <doca_types.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_ctx;

enum doca_ctx_states {
	DOCA_CTX_STATE_IDLE = 0,
	DOCA_CTX_STATE_STARTING = 1,
	DOCA_CTX_STATE_RUNNING = 2,
	DOCA_CTX_STATE_STOPPING = 3
};

/* BAD_STATE: it is connected to no progress engine, or runs; NO_MEMORY. */
DOCA_STABLE doca_error_t doca_ctx_start(struct doca_ctx *ctx);
/* IN_USE: a device is bound, or a task is not freed. */
DOCA_STABLE doca_error_t doca_ctx_stop(struct doca_ctx *ctx);
DOCA_STABLE doca_error_t doca_ctx_get_num_inflight_tasks(const struct doca_ctx *ctx, size_t *count);
/* Passed to every callback. */
DOCA_STABLE doca_error_t doca_ctx_set_user_data(struct doca_ctx *ctx, union doca_data user_data);
DOCA_STABLE doca_error_t doca_ctx_get_user_data(const struct doca_ctx *ctx,
	union doca_data *user_data);
DOCA_STABLE doca_error_t doca_ctx_get_state(const struct doca_ctx *ctx,
	enum doca_ctx_states *state);
/* Publishes the tasks that were submitted without DOCA_TASK_SUBMIT_FLAG_FLUSH. */
DOCA_STABLE void doca_ctx_flush_tasks(struct doca_ctx *ctx);

#ifdef __cplusplus
}
#endif

#endif
