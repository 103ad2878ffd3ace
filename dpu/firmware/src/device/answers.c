/*
 * Answers to hosts: one completion for every command, and the steps that still wait for blocks.
 * What has landed of a step is reported once per turn of the reactor; the last demand answers it at
 * once.
 */
#include "internal.h"

static int
answer(struct ofs_device *device, uint32_t port, struct ofs_cqe *cqe, const struct ofs_sqe *sqe,
	const struct ofs_result *results)
{
	cqe->user = sqe->user;
	cqe->op = sqe->op;
	cqe->payload_index = sqe->payload_index;
	/* Whoever times a command wants the moment; for any other the turn's time will do. */
	cqe->now_ns = sqe->sent_ns != 0 ? ofs_device_now_ns(device) : device->turn_ns;
	return ofs_port_complete(device->ports[port].port, cqe, results);
}

void
ofs_device_complete(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe, int rc)
{
	struct ofs_cqe cqe = {.rc = rc};
	int pushed;

	if (port != OFS_NONE) {
		/* The port checked the indexes when it handed the command out. */
		pushed = answer(device, port, &cqe, sqe, NULL);
		assert(pushed == 0);
	}
}

uint32_t
ofs_device_take_waiter(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	uint8_t **ends)
{
	uint32_t index = ofs_fifo_take(&device->free_waiters);
	struct ofs_waiter *waiter;

	assert(index != OFS_NONE); /* one for every submission entry of every port */
	waiter = &device->waiters[index];
	waiter->used = true;
	device->ports[port].steps_waiting++;
	waiter->port = port;
	waiter->sqe = *sqe;
	waiter->remaining = sqe->demand_count;
	waiter->landed_count = waiter->reported_count = 0;
	*ends = waiter->ends;
	return index;
}

void
ofs_device_drop_waiter(struct ofs_device *device, uint32_t index)
{
	struct ofs_waiter *waiter = &device->waiters[index];

	waiter->used = false;
	device->ports[waiter->port].steps_waiting--;
	ofs_fifo_give(&device->free_waiters, index);
}

/* Results [reported, landed) of a step: `rc` says whether they are the last. */
static int
report(struct ofs_device *device, struct ofs_waiter *waiter, int rc)
{
	struct ofs_cqe cqe = {.rc = rc, .first = waiter->reported_count, .count = waiter->landed_count};

	return answer(device, waiter->port, &cqe, &waiter->sqe, waiter->results);
}

void
ofs_device_finish_waiter(struct ofs_device *device, uint32_t index)
{
	int pushed = report(device, &device->waiters[index], 0);

	assert(pushed == 0);
	ofs_device_drop_waiter(device, index);
}

/* All its demands have ended. */
static void
served(struct ofs_device *device, uint32_t index)
{
	if (device->pace == NULL || device->waiters[index].sqe.demand_count == 0
		|| !ofs_device_hold_hits(device, index)) {
		ofs_device_finish_waiter(device, index);
	}
}

void
ofs_device_begin_waiter(struct ofs_device *device, uint32_t index, const uint8_t *seen)
{
	struct ofs_waiter *waiter = &device->waiters[index];

	for (uint32_t i = 0; i < waiter->sqe.demand_count; i++) {
		if (seen[i] == OFS_SEEN_MISS)
			continue;
		waiter->results[waiter->landed_count++] =
			(struct ofs_result){.slot = OFS_NONE, .demand = (uint16_t)i, .end = waiter->ends[i]};
		waiter->remaining--;
	}
	if (waiter->remaining == 0)
		served(device, index);
}

void
ofs_device_land(struct ofs_device *device, uint32_t index, const struct ofs_result *result)
{
	struct ofs_waiter *waiter = &device->waiters[index];

	assert(waiter->used && waiter->remaining > 0);
	waiter->results[waiter->landed_count] = *result;
	waiter->results[waiter->landed_count++].end = waiter->ends[result->demand];
	if (--waiter->remaining == 0) {
		served(device, index);
	} else if (!waiter->queued) {
		waiter->queued = true;
		ofs_fifo_give(&device->landed, index);
	}
}

void
ofs_device_tell_landed(struct ofs_device *device)
{
	uint32_t index;

	while ((index = ofs_fifo_take(&device->landed)) != OFS_NONE) {
		struct ofs_waiter *waiter = &device->waiters[index];

		waiter->queued = false;
		/* Without room the host learns of it with the next. */
		if (waiter->used && waiter->landed_count > waiter->reported_count
			&& report(device, waiter, -EINPROGRESS) == 0) {
			waiter->reported_count = waiter->landed_count;
		}
	}
}
