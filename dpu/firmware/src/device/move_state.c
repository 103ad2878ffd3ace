/* A move's state as the rest of the reactor sees it, and the end of a failed move. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

bool
ofs_move_copies_idle(const struct ofs_move *move)
{
	for (uint32_t i = 0; i < OFS_MOVE_COPIES; i++)
		if (move->copies[i].state != OFS_COPY_FREE)
			return false;
	return true;
}

bool
ofs_move_copy_waits(const struct ofs_copy *copy)
{
	return copy->state == OFS_COPY_TO_READ || copy->state == OFS_COPY_TO_WRITE
		|| copy->state == OFS_COPY_TO_CHECK;
}

void
ofs_move_copies_drop(struct ofs_move *move)
{
	for (uint32_t i = 0; i < OFS_MOVE_COPIES; i++)
		if (ofs_move_copy_waits(&move->copies[i]))
			move->copies[i].state = OFS_COPY_FREE;
}

void
ofs_move_fail(struct ofs_device *device, int rc, const char *format, ...)
{
	struct ofs_move *move = &device->move;
	va_list arguments;

	if (move->step == OFS_STEP_CLOSE)
		return; /* only the first reason is reported */
	va_start(arguments, format);
	vsnprintf(move->status.error, sizeof(move->status.error), format, arguments);
	va_end(arguments);
	move->status.rc = rc;
	move->status.held_ns =
		ofs_device_move_holds(device) ? ofs_device_now_ns(device) - move->held_at_ns : 0;
	move->step = OFS_STEP_CLOSE;
	ofs_store_rest(move->store);
	ofs_move_copies_drop(move);
}

bool
ofs_device_move_holds(const struct ofs_device *device)
{
	return device->move.step >= OFS_STEP_LAST && device->move.step <= OFS_STEP_ERASE;
}

void
ofs_device_move_forget(struct ofs_device *device, const struct ofs_key *store_key, uint32_t layer)
{
	if (device->move.step != OFS_STEP_NONE && device->move.step != OFS_STEP_CLOSE)
		(void)ofs_store_delete(device->move.store, store_key, layer);
}

uint64_t
ofs_device_move_due_ns(const struct ofs_device *device, uint64_t now_ns)
{
	const struct ofs_move *move = &device->move;
	uint64_t due_ns;

	if (move->step == OFS_STEP_NONE)
		return UINT64_MAX;
	due_ns = move->storage->ops->due_ns(move->storage);
	return due_ns < now_ns + OFS_IO_SCAN_INTERVAL_NS ? due_ns : now_ns + OFS_IO_SCAN_INTERVAL_NS;
}
