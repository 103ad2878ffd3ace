/*
 * What theirs cannot say: which keys a volume has; and values that will be retrieved, of which each
 * is held, and its blocks announced, until a retrieve of the key has ended or the time is long
 * over.
 */
#include "internal.h"

#include <string.h>

#define STALE_NS 1000000000ull

/* Holds of a few values: 0, or the error of the connection. */
static int
hold(struct doca_kv_io *io, struct offstage_kv_ahead *asks, uint32_t count)
{
	struct ofs_value_task tasks[KV_AHEAD_MAX];
	uint32_t left = count;
	int rc = 0;

	for (uint32_t i = 0; i < count; i++) {
		tasks[i] = (struct ofs_value_task){.verb = OFS_VALUE_RETRIEVE,
			.flags = OFS_TASK_HOLD | OFS_TASK_ONCE,
			.hold_ns = asks[i].within_ns < UINT64_MAX - STALE_NS ? asks[i].within_ns + STALE_NS
																 : UINT64_MAX,
			.due_ns = asks[i].within_ns,
			.probability = asks[i].probability};
		ofs_value_key(io->dev->nguid, asks[i].key, asks[i].key_len, &tasks[i].key);
		(void)ofs_value_io_submit(io->link->values, &tasks[i]);
	}
	while (rc == 0 && left > 0) {
		rc = kv_take_ended(io, KV_TIMEOUT_NS);
		left = 0;
		for (uint32_t i = 0; i < count; i++)
			left += tasks[i].state != OFS_TASK_IDLE;
	}
	for (uint32_t i = 0; i < count; i++)
		asks[i].result = tasks[i].rc == -EBUSY ? DOCA_ERROR_FULL : kv_error_of(tasks[i].rc);
	return rc;
}

doca_error_t
offstage_kv_io_list(struct doca_kv_io *io, const void *start, uint16_t start_len, void *list,
	uint32_t list_len, uint32_t *count)
{
	struct iovec memory = {list, list_len};
	struct ofs_value_task task = {.verb = OFS_VALUE_LIST,
		.flags = start_len == 0 ? OFS_TASK_FIRST : 0,
		.length = list_len,
		.iovecs = &memory,
		.iovec_count = 1};
	int rc = 0;

	if (io == NULL || list == NULL || list_len < OFS_LIST_HEAD_BYTES || count == NULL
		|| start_len > KV_KEY_BYTES_MAX || (start == NULL && start_len > 0))
		return DOCA_ERROR_INVALID_VALUE;
	if (io->dev == NULL || io->link == NULL)
		return DOCA_ERROR_NOT_CONNECTED;
	memcpy(&task.name, io->dev->nguid, sizeof(task.name));
	if (start_len > 0)
		ofs_value_key(io->dev->nguid, start, start_len, &task.key);
	if (ofs_value_io_submit(io->link->values, &task) != 0)
		return DOCA_ERROR_INVALID_VALUE;
	while (rc >= 0 && task.state != OFS_TASK_IDLE)
		rc = kv_take_ended(io, KV_TIMEOUT_NS);
	if (rc < 0)
		return DOCA_ERROR_IO_FAILED;
	*count = (uint32_t)task.value_length;
	return kv_error_of(task.rc);
}

doca_error_t
offstage_kv_io_prefetch(struct doca_kv_io *io, struct offstage_kv_ahead *asks, uint32_t count)
{
	if (io == NULL || asks == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; i < count; i++)
		if (asks[i].key == NULL || asks[i].key_len == 0 || asks[i].key_len > KV_KEY_BYTES_MAX)
			return DOCA_ERROR_INVALID_VALUE;
	if (io->dev == NULL || io->link == NULL)
		return DOCA_ERROR_NOT_CONNECTED;
	while (count > 0) {
		uint32_t room = KV_AHEAD_MAX - ofs_value_io_held(io->link->values);
		uint32_t some = room < count ? room : count;

		if (some == 0)
			break;
		if (hold(io, asks, some) != 0)
			return DOCA_ERROR_IO_FAILED;
		asks += some;
		count -= some;
	}
	for (uint32_t i = 0; i < count; i++)
		asks[i].result = DOCA_ERROR_FULL;
	return DOCA_SUCCESS;
}
