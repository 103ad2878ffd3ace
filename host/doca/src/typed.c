/* What a task is given and asked for, by its kind. */
#include "internal.h"

#include <string.h>

/* A key that cannot be leaves the task without one, which its submission refuses. */
static void
set_key(struct doca_task *task, const void *key, uint16_t key_len)
{
	task->key_len = 0;
	if (key == NULL || key_len > KV_KEY_BYTES_MAX)
		return;
	memcpy(task->key, key, key_len);
	task->key_len = key_len;
}

static void
set_value(struct doca_task *task, const struct iovec *iovecs, uint32_t iovcnt, uint32_t value_len)
{
	task->iovecs = iovecs;
	task->iovcnt = iovcnt;
	task->value_len = value_len;
}

#define KEYED(kind)                                                                          \
	struct doca_task *doca_kv_io_task_##kind##_as_task(struct doca_kv_io_task_##kind *task)  \
	{                                                                                        \
		return task == NULL ? NULL : &task->task;                                            \
	}                                                                                        \
	const void *doca_kv_io_task_##kind##_get_key(const struct doca_kv_io_task_##kind *task)  \
	{                                                                                        \
		return task == NULL ? NULL : task->task.key;                                         \
	}                                                                                        \
	uint16_t doca_kv_io_task_##kind##_get_key_len(const struct doca_kv_io_task_##kind *task) \
	{                                                                                        \
		return task == NULL ? 0 : task->task.key_len;                                        \
	}

#define VALUED(kind)                                                                              \
	void doca_kv_io_task_##kind##_set_key_value_conf(struct doca_kv_io_task_##kind *task,         \
		const void *key, uint16_t key_len, const struct iovec *value_iovecs, uint32_t iovcnt,     \
		uint32_t value_len)                                                                       \
	{                                                                                             \
		if (task == NULL)                                                                         \
			return;                                                                               \
		set_key(&task->task, key, key_len);                                                       \
		set_value(&task->task, value_iovecs, iovcnt, value_len);                                  \
	}                                                                                             \
	const struct iovec *doca_kv_io_task_##kind##_get_value_iovecs(                                \
		const struct doca_kv_io_task_##kind *task)                                                \
	{                                                                                             \
		return task == NULL ? NULL : task->task.iovecs;                                           \
	}                                                                                             \
	uint32_t doca_kv_io_task_##kind##_get_value_iovcnt(const struct doca_kv_io_task_##kind *task) \
	{                                                                                             \
		return task == NULL ? 0 : task->task.iovcnt;                                              \
	}                                                                                             \
	uint32_t doca_kv_io_task_##kind##_get_value_len(const struct doca_kv_io_task_##kind *task)    \
	{                                                                                             \
		return task == NULL ? 0 : task->task.value_len;                                           \
	}

KEYED(store)
KEYED(retrieve)
KEYED(exist)
VALUED(store)
VALUED(retrieve)

void
doca_kv_io_task_exist_set_key_conf(struct doca_kv_io_task_exist *task, const void *key,
	uint16_t key_len)
{
	if (task != NULL)
		set_key(&task->task, key, key_len);
}

#define FLAG(name)                                                                          \
	void doca_kv_io_task_store_set_##name(struct doca_kv_io_task_store *task, uint8_t name) \
	{                                                                                       \
		if (task != NULL)                                                                   \
			task->task.name = name;                                                         \
	}                                                                                       \
	uint8_t doca_kv_io_task_store_get_##name(const struct doca_kv_io_task_store *task)      \
	{                                                                                       \
		return task == NULL ? 0 : task->task.name;                                          \
	}

FLAG(do_not_overwrite)
FLAG(must_exist)

uint32_t
doca_kv_io_task_retrieve_get_result_value_len(const struct doca_kv_io_task_retrieve *task)
{
	return task == NULL ? 0 : (uint32_t)task->task.value.value_length;
}

doca_error_t
offstage_kv_io_task_retrieve_get_blocks(const struct doca_kv_io_task_retrieve *task,
	uint32_t *on_time, uint32_t *waited_for)
{
	if (task == NULL || on_time == NULL || waited_for == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (task->task.state != KV_OVER)
		return DOCA_ERROR_BAD_STATE;
	*on_time = *waited_for = 0;
	for (int end = 0; end < OFS_END_COUNT; end++)
		*(end <= OFS_END_RETAINED ? on_time : waited_for) += task->task.value.ends[end];
	return DOCA_SUCCESS;
}
