/*
 * Answers to hosts: one completion for every command, and the steps that still wait for blocks.
 * Landed blocks of a step are reported once per turn of the reactor; its last demand answers the
 * step immediately, except on a modelled device, which has to transfer the blocks first.
 */
#include "internal.h"

static int
answer(struct ofs_device *device, uint32_t port, struct ofs_cqe *cqe, const struct ofs_sqe *sqe,
	const struct ofs_result *results)
{
	assert(device->ports.entries[port].used);
	if (ofs_device_is_fenced(device)) {
		if (cqe->rc == -EINPROGRESS)
			return -EKEYEXPIRED; /* the host learns of it when the command ends */
		device->status.fenced++;
		cqe->rc = -EKEYEXPIRED;
	}
	cqe->user = sqe->user;
	cqe->op = sqe->op;
	cqe->payload_index = sqe->payload_index;
	/* A timed command needs the current time; for any other the turn's time is precise enough. */
	cqe->now_ns = sqe->sent_ns != 0 ? ofs_device_now_ns(device) : device->reactor.turn_ns;
	return ofs_port_complete(device->ports.entries[port].port, cqe, results);
}

void
ofs_device_complete(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe, int rc)
{
	struct ofs_cqe cqe = {.rc = rc};
	int pushed;

	if (port != OFS_NONE) {
		/* The port checked the indexes when it returned the command. */
		pushed = answer(device, port, &cqe, sqe, NULL);
		assert(pushed == 0);
	}
}

void
ofs_device_complete_with(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	uint32_t count, const struct ofs_result *results)
{
	struct ofs_cqe cqe = {.count = count};
	int pushed = answer(device, port, &cqe, sqe, results);

	assert(pushed == 0); /* as above */
	(void)pushed;
}

uint32_t
ofs_device_take_waiter(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	uint8_t **ends)
{
	uint32_t index = ofs_fifo_take(&device->waiters.free);
	struct ofs_waiter *waiter;

	assert(index != OFS_NONE); /* one for every submission entry of every port */
	waiter = &device->waiters.entries[index];
	assert(!waiter->used && sqe->demand_count <= device->config.core.demand_max);
	waiter->used = true;
	device->ports.entries[port].steps_waiting++;
	device->tenants[device->ports.entries[port].tenant].demands_waiting += sqe->demand_count;
	waiter->port = port;
	waiter->sqe = *sqe;
	waiter->remaining = sqe->demand_count;
	waiter->landed_count = waiter->reported_count = waiter->to_hand = 0;
	waiter->handing = false;
	waiter->taken_ns = sqe->sent_ns == 0 ? 0 : ofs_device_now_ns(device);
	waiter->issued_ns = 0;
	*ends = waiter->ends;
	return index;
}

void
ofs_device_drop_waiter(struct ofs_device *device, uint32_t index)
{
	struct ofs_waiter *waiter = &device->waiters.entries[index];

	assert(waiter->used && device->ports.entries[waiter->port].steps_waiting > 0);
	waiter->used = false;
	device->ports.entries[waiter->port].steps_waiting--;
	device->tenants[device->ports.entries[waiter->port].tenant].demands_waiting -=
		waiter->sqe.demand_count;
	ofs_fifo_give(&device->waiters.free, index);
}

void
ofs_device_drop_waiters(struct ofs_device *device, uint32_t port)
{
	for (uint32_t i = 0; i < device->waiters.count; i++)
		if (device->waiters.entries[i].used && device->waiters.entries[i].port == port)
			ofs_device_drop_waiter(device, i);
}

/* Results [reported, landed) of a step; `rc` says whether they are the last. */
static int
report(struct ofs_device *device, struct ofs_waiter *waiter, int rc)
{
	struct ofs_cqe cqe = {.rc = rc, .first = waiter->reported_count, .count = waiter->landed_count};

	return answer(device, waiter->port, &cqe, &waiter->sqe, waiter->results);
}

/* Answers the step once all of its demands have ended; before that, a modelled device transfers the
 * blocks that have landed, a batch at a time. */
static void
go_on(struct ofs_device *device, uint32_t index)
{
	struct ofs_waiter *waiter = &device->waiters.entries[index];
	int pushed;

	assert(waiter->used && waiter->landed_count + waiter->remaining == waiter->sqe.demand_count);
	if (waiter->handing)
		return;
	if (device->paced.pace != NULL && waiter->to_hand > 0) {
		waiter->handing = ofs_device_hold_hits(device, index, waiter->to_hand);
		waiter->to_hand = 0;
	}
	if (waiter->handing || waiter->remaining > 0)
		return;
	pushed = report(device, waiter, 0);
	assert(pushed == 0);
	ofs_device_step_ended(device, waiter);
	ofs_device_note_command(device, waiter);
	ofs_device_drop_waiter(device, index);
}

void
ofs_device_handed(struct ofs_device *device, uint32_t index)
{
	assert(device->waiters.entries[index].handing);
	device->waiters.entries[index].handing = false;
	go_on(device, index);
}

void
ofs_device_begin_waiter(struct ofs_device *device, uint32_t index, const uint8_t *seen)
{
	struct ofs_waiter *waiter = &device->waiters.entries[index];

	/* The core has only queued its decisions: nothing can have landed before. */
	assert(waiter->landed_count == 0 && waiter->remaining == waiter->sqe.demand_count);
	for (uint32_t i = 0; i < waiter->sqe.demand_count; i++) {
		if (seen[i] == OFS_SEEN_MISS)
			continue;
		waiter->results[waiter->landed_count++] =
			(struct ofs_result){.slot = OFS_NONE, .demand = (uint16_t)i, .end = waiter->ends[i]};
		waiter->remaining--;
		waiter->to_hand++;
	}
	waiter->waited = waiter->remaining;
	go_on(device, index);
}

void
ofs_device_land(struct ofs_device *device, uint32_t index, const struct ofs_result *result)
{
	struct ofs_waiter *waiter = &device->waiters.entries[index];

	assert(waiter->used && waiter->remaining > 0);
	assert(result->demand < waiter->sqe.demand_count);
	if (device->reads.landing_issued_ns != 0) {
		waiter->issued_ns = device->reads.landing_issued_ns;
		waiter->ended_ns = device->reads.landing_ended_ns;
	}
	waiter->results[waiter->landed_count] = *result;
	waiter->results[waiter->landed_count++].end = waiter->ends[result->demand];
	waiter->to_hand += result->rc == 0;
	if (--waiter->remaining == 0 && device->paced.pace == NULL) {
		go_on(device, index);
	} else if (!waiter->queued) {
		waiter->queued = true;
		ofs_fifo_give(&device->waiters.landed, index);
	}
}

void
ofs_device_tell_landed(struct ofs_device *device)
{
	uint32_t index;

	while ((index = ofs_fifo_take(&device->waiters.landed)) != OFS_NONE) {
		struct ofs_waiter *waiter = &device->waiters.entries[index];

		assert(waiter->queued);
		waiter->queued = false;
		if (!waiter->used)
			continue;
		/* Without room the host learns of it with the next answer. */
		if (waiter->remaining > 0 && waiter->landed_count > waiter->reported_count
			&& report(device, waiter, -EINPROGRESS) == 0) {
			waiter->reported_count = waiter->landed_count;
		}
		go_on(device, index); /* all that landed in this turn is transferred together */
	}
}
