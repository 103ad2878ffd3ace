/*
 * Values that will be retrieved: each is held, and its blocks announced, until a retrieve of the
 * key has ended or the time is long over.
 */
#include "internal.h"

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
			.hold_ns = asks[i].within_ns + STALE_NS,
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
