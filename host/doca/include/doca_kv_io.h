/*
 * doca_kv_io.h: store, retrieve and look for values under keys of 1 to 16 bytes.
 *
 * A context is configured, connected to a progress engine and started; then one device is bound.
 * A task is allocated for the device, given its key and buffers, submitted, and freed after its
 * callback. Buffers and iovecs stay the caller's and must stay valid until then. Exactly one
 * callback is called for a task: completion, or error with the reason in doca_task_get_status:
 *
 *   store     completion; error ALREADY_EXIST (do_not_overwrite), NOT_FOUND (must_exist), FULL,
 *             TOO_BIG
 *   retrieve  completion; error NOT_FOUND
 *   exist     error in every case: ALREADY_EXIST there, NOT_FOUND absent
 *
 * and for each INVALID_VALUE, IO_FAILED, TIME_OUT. A store replaces what the key had in one step.
 * No call deletes a value.
 */
#ifndef DOCA_KV_IO_H
#define DOCA_KV_IO_H

#include <doca_ctx.h>
#include <doca_kv_dev.h>

#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_task;
struct doca_kv_io;
struct doca_kv_io_task_store;
struct doca_kv_io_task_retrieve;
struct doca_kv_io_task_exist;

typedef void (*doca_kv_io_task_store_completion_cb_t)(struct doca_kv_io_task_store *task,
	union doca_data task_user_data, union doca_data ctx_user_data);
typedef void (*doca_kv_io_task_retrieve_completion_cb_t)(struct doca_kv_io_task_retrieve *task,
	union doca_data task_user_data, union doca_data ctx_user_data);
typedef void (*doca_kv_io_task_exist_completion_cb_t)(struct doca_kv_io_task_exist *task,
	union doca_data task_user_data, union doca_data ctx_user_data);

/* ---- the context ---- */

DOCA_EXPERIMENTAL doca_error_t doca_kv_io_cap_get_max_tasks(uint32_t *max_tasks);
DOCA_EXPERIMENTAL struct doca_ctx *doca_kv_io_as_ctx(struct doca_kv_io *io);
/* Tasks that may be allocated together. BAD_STATE: the context runs; INVALID_VALUE. */
DOCA_EXPERIMENTAL doca_error_t doca_kv_io_set_num_tasks(struct doca_kv_io *io, uint32_t num_tasks);
DOCA_EXPERIMENTAL doca_error_t doca_kv_io_get_num_tasks(const struct doca_kv_io *io,
	uint32_t *num_tasks);
/* BAD_STATE: the context does not run; IN_USE: a device is bound; TIME_OUT: the daemon does not
 * answer for 5 s; or why no port was given. */
DOCA_EXPERIMENTAL doca_error_t doca_kv_io_bind_dev(struct doca_kv_io *io,
	struct doca_kv_dev *kv_dev);
/* IN_USE: a task of it has not ended; NOT_FOUND: it is not bound. */
DOCA_EXPERIMENTAL doca_error_t doca_kv_io_unbind_dev(struct doca_kv_io *io,
	struct doca_kv_dev *kv_dev);

/* BAD_STATE: the context runs. Both are needed before a task of the kind is allocated. */
DOCA_EXPERIMENTAL doca_error_t doca_kv_io_task_store_register_completion_cb(struct doca_kv_io *io,
	doca_kv_io_task_store_completion_cb_t cb);
DOCA_EXPERIMENTAL doca_error_t doca_kv_io_task_store_register_error_cb(struct doca_kv_io *io,
	doca_kv_io_task_store_completion_cb_t cb);
DOCA_EXPERIMENTAL doca_error_t doca_kv_io_task_retrieve_register_completion_cb(
	struct doca_kv_io *io, doca_kv_io_task_retrieve_completion_cb_t cb);
DOCA_EXPERIMENTAL doca_error_t doca_kv_io_task_retrieve_register_error_cb(struct doca_kv_io *io,
	doca_kv_io_task_retrieve_completion_cb_t cb);
DOCA_EXPERIMENTAL doca_error_t doca_kv_io_task_exist_register_completion_cb(struct doca_kv_io *io,
	doca_kv_io_task_exist_completion_cb_t cb);
DOCA_EXPERIMENTAL doca_error_t doca_kv_io_task_exist_register_error_cb(struct doca_kv_io *io,
	doca_kv_io_task_exist_completion_cb_t cb);

/* ---- tasks: FULL when num_tasks are allocated, NOT_CONNECTED when the device is not bound ---- */

DOCA_EXPERIMENTAL doca_error_t doca_kv_io_task_store_alloc_init(struct doca_kv_io *io,
	struct doca_kv_dev *dev, union doca_data task_user_data, struct doca_kv_io_task_store **task);
/* The value is the first `value_len` bytes of the iovecs, which hold at least as many. */
DOCA_EXPERIMENTAL void doca_kv_io_task_store_set_key_value_conf(struct doca_kv_io_task_store *task,
	const void *key, uint16_t key_len, const struct iovec *value_iovecs, uint32_t iovcnt,
	uint32_t value_len);
/* Ends with ALREADY_EXIST if the key has a value. */
DOCA_EXPERIMENTAL void doca_kv_io_task_store_set_do_not_overwrite(
	struct doca_kv_io_task_store *task, uint8_t do_not_overwrite);
DOCA_EXPERIMENTAL uint8_t doca_kv_io_task_store_get_do_not_overwrite(
	const struct doca_kv_io_task_store *task);
/* Ends with NOT_FOUND if the key has no value. */
DOCA_EXPERIMENTAL void doca_kv_io_task_store_set_must_exist(struct doca_kv_io_task_store *task,
	uint8_t must_exist);
DOCA_EXPERIMENTAL uint8_t doca_kv_io_task_store_get_must_exist(
	const struct doca_kv_io_task_store *task);
DOCA_EXPERIMENTAL struct doca_task *doca_kv_io_task_store_as_task(
	struct doca_kv_io_task_store *task);
DOCA_EXPERIMENTAL const void *doca_kv_io_task_store_get_key(
	const struct doca_kv_io_task_store *task);
DOCA_EXPERIMENTAL uint16_t doca_kv_io_task_store_get_key_len(
	const struct doca_kv_io_task_store *task);
DOCA_EXPERIMENTAL const struct iovec *doca_kv_io_task_store_get_value_iovecs(
	const struct doca_kv_io_task_store *task);
DOCA_EXPERIMENTAL uint32_t doca_kv_io_task_store_get_value_iovcnt(
	const struct doca_kv_io_task_store *task);
DOCA_EXPERIMENTAL uint32_t doca_kv_io_task_store_get_value_len(
	const struct doca_kv_io_task_store *task);

DOCA_EXPERIMENTAL doca_error_t doca_kv_io_task_retrieve_alloc_init(struct doca_kv_io *io,
	struct doca_kv_dev *dev, union doca_data task_user_data,
	struct doca_kv_io_task_retrieve **task);
/* The first `value_len` bytes of the value go to the iovecs; of a shorter one, all. */
DOCA_EXPERIMENTAL void doca_kv_io_task_retrieve_set_key_value_conf(
	struct doca_kv_io_task_retrieve *task, const void *key, uint16_t key_len,
	const struct iovec *value_iovecs, uint32_t iovcnt, uint32_t value_len);
DOCA_EXPERIMENTAL struct doca_task *doca_kv_io_task_retrieve_as_task(
	struct doca_kv_io_task_retrieve *task);
DOCA_EXPERIMENTAL const void *doca_kv_io_task_retrieve_get_key(
	const struct doca_kv_io_task_retrieve *task);
DOCA_EXPERIMENTAL uint16_t doca_kv_io_task_retrieve_get_key_len(
	const struct doca_kv_io_task_retrieve *task);
DOCA_EXPERIMENTAL const struct iovec *doca_kv_io_task_retrieve_get_value_iovecs(
	const struct doca_kv_io_task_retrieve *task);
DOCA_EXPERIMENTAL uint32_t doca_kv_io_task_retrieve_get_value_iovcnt(
	const struct doca_kv_io_task_retrieve *task);
DOCA_EXPERIMENTAL uint32_t doca_kv_io_task_retrieve_get_value_len(
	const struct doca_kv_io_task_retrieve *task);
/* The length of the value, whatever the iovecs took of it. */
DOCA_EXPERIMENTAL uint32_t doca_kv_io_task_retrieve_get_result_value_len(
	const struct doca_kv_io_task_retrieve *task);

DOCA_EXPERIMENTAL doca_error_t doca_kv_io_task_exist_alloc_init(struct doca_kv_io *io,
	struct doca_kv_dev *dev, union doca_data task_user_data, struct doca_kv_io_task_exist **task);
DOCA_EXPERIMENTAL void doca_kv_io_task_exist_set_key_conf(struct doca_kv_io_task_exist *task,
	const void *key, uint16_t key_len);
DOCA_EXPERIMENTAL struct doca_task *doca_kv_io_task_exist_as_task(
	struct doca_kv_io_task_exist *task);
DOCA_EXPERIMENTAL const void *doca_kv_io_task_exist_get_key(
	const struct doca_kv_io_task_exist *task);
DOCA_EXPERIMENTAL uint16_t doca_kv_io_task_exist_get_key_len(
	const struct doca_kv_io_task_exist *task);

#ifdef __cplusplus
}
#endif

#endif
