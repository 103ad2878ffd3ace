/* Answers to hosts: one completion for every command, and the steps that still wait for blocks. */
#include "internal.h"

void
ofs_device_complete(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe, int rc,
	uint32_t count, const struct ofs_result *results)
{
	struct ofs_cqe cqe = {.user = sqe->user,
		.rc = rc,
		.op = sqe->op,
		.payload_index = sqe->payload_index,
		.count = count,
		.now_ns = ofs_device_now_ns(device)};

	int pushed;

	if (port != OFS_NONE) {
		/* The port checked the indexes when it handed the command out. */
		pushed = ofs_port_complete(device->ports[port].port, &cqe, results);
		assert(pushed == 0);
	}
}

struct ofs_waiter *
ofs_device_take_waiter(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	uint32_t missing, uint32_t *index)
{
	struct ofs_waiter *waiter;

	*index = ofs_fifo_take(&device->free_waiters);
	assert(*index != OFS_NONE); /* one for every submission entry of every port */
	waiter = &device->waiters[*index];
	waiter->used = true;
	device->ports[port].steps_waiting++;
	waiter->port = port;
	waiter->sqe = *sqe;
	waiter->count = sqe->demand_count;
	waiter->remaining = missing;
	return waiter;
}

void
ofs_device_drop_waiter(struct ofs_device *device, uint32_t index)
{
	struct ofs_waiter *waiter = &device->waiters[index];

	waiter->used = false;
	device->ports[waiter->port].steps_waiting--;
	ofs_fifo_give(&device->free_waiters, index);
}

void
ofs_device_finish_waiter(struct ofs_device *device, uint32_t index)
{
	struct ofs_waiter *waiter = &device->waiters[index];

	assert(waiter->used && waiter->remaining == 0);
	ofs_device_complete(device, waiter->port, &waiter->sqe, 0, waiter->count, waiter->results);
	ofs_device_drop_waiter(device, index);
}
