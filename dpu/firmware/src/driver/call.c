/*
 * Calls in flight, of every kind, advanced in the order they began; see internal.h.
 * Only ofs_calls_wait waits.
 */
#include "driver/internal.h"

#include <assert.h>

/* Ends what is left of the call with `rc`, immediately. */
static void
cancel(struct ofs_driver *driver, struct ofs_call *call, int rc)
{
	assert(call->state == OFS_CALL_RUNNING && call->begun <= call->count);
	while (call->commands != OFS_NONE) {
		uint32_t index = call->commands;
		struct ofs_pending *pending = &driver->pending[index];

		call->commands = pending->next;
		call->ops->fail(driver, call, pending->first, pending->count, rc);
		ofs_command_drop(driver, index);
	}
	call->ops->fail(driver, call, call->begun, call->count - call->begun, rc);
	call->rc = call->rc == 0 ? rc : call->rc;
	call->state = OFS_CALL_ENDED;
}

/* The first call of a side, in the table. */
static uint32_t
first_of(const struct ofs_driver *driver, enum ofs_call_side side)
{
	return side * driver->fabric->port.entry_count;
}

struct ofs_call *
ofs_call_open(struct ofs_driver *driver, enum ofs_call_side side, const struct ofs_call_ops *ops,
	uint32_t count, uint64_t timeout_ns, uint64_t *ticket)
{
	uint32_t first = first_of(driver, side), end = first + driver->fabric->port.entry_count;
	uint64_t now_ns = ofs_driver_now_ns(driver);

	for (uint32_t i = first; i < end; i++) {
		struct ofs_call *call = &driver->calls[i];

		if (call->state != OFS_CALL_FREE)
			continue;
		*call = (struct ofs_call){.state = OFS_CALL_RUNNING,
			.ops = ops,
			.count = count,
			.generation = call->generation + 1,
			.commands = OFS_NONE};
		call->deadline_ns = timeout_ns < OFS_NEVER_NS - now_ns ? now_ns + timeout_ns : OFS_NEVER_NS;
		assert(driver->running_count < first_of(driver, OFS_CALLS_SIDES));
		driver->running[driver->running_count++] = i;
		*ticket = (uint64_t)call->generation << 32 | i;
		return call;
	}
	return NULL;
}

void
ofs_call_add(struct ofs_driver *driver, struct ofs_call *call, uint32_t payload_index)
{
	assert(driver->pending[payload_index].used);
	assert(driver->pending[payload_index].next == OFS_NONE); /* it belongs to no other call */
	driver->pending[payload_index].next = call->commands;
	call->commands = payload_index;
}

int
ofs_call_send(struct ofs_driver *driver, uint32_t payload_index)
{
	int rc = ofs_command_send(driver, payload_index);

	/* Full only until the DPU has taken commands that it has already answered. */
	if (rc == -EAGAIN)
		ofs_call_pause(driver, payload_index);
	return rc == -EAGAIN ? 0 : rc;
}

void
ofs_call_pause(struct ofs_driver *driver, uint32_t payload_index)
{
	struct ofs_pending *pending = &driver->pending[payload_index];

	pending->due_ns = ofs_driver_now_ns(driver) + pending->pause_ns;
	pending->pause_ns =
		pending->pause_ns * 2 < OFS_BACKOFF_NS_MAX ? pending->pause_ns * 2 : OFS_BACKOFF_NS_MAX;
}

/* Handles every command of the call that was answered or is due. True if there was one. */
static bool
turn_commands(struct ofs_driver *driver, struct ofs_call *call, uint64_t now_ns)
{
	uint32_t *link = &call->commands;
	bool moved = false;

	while (*link != OFS_NONE) {
		uint32_t index = *link;
		struct ofs_pending *pending = &driver->pending[index];
		bool answered;
		int rc;

		assert(pending->used && !pending->abandoned);
		if (!pending->done && !pending->landed && (pending->flying || now_ns < pending->due_ns)) {
			link = &pending->next;
			continue;
		}
		moved = true;
		answered = pending->done || pending->landed;
		pending->done = pending->landed = false;
		rc = answered ? call->ops->answered(driver, call, index)
					  : call->ops->due(driver, call, index);
		if (rc == 0) {
			link = &pending->next;
			continue;
		}
		*link = pending->next;
		if (rc < 0) {
			call->ops->fail(driver, call, pending->first, pending->count, rc);
			call->rc = call->rc == 0 ? rc : call->rc;
		}
		ofs_command_drop(driver, index);
	}
	return moved;
}

static bool
turn_call(struct ofs_driver *driver, struct ofs_call *call, uint64_t now_ns)
{
	bool moved;
	uint32_t before = call->begun;

	assert(call->state == OFS_CALL_RUNNING);
	moved = turn_commands(driver, call, now_ns);
	if (call->rc == 0 && now_ns < call->deadline_ns)
		call->rc = call->ops->begin_more(driver, call);
	moved |= call->begun != before;
	if (call->rc != 0) { /* commands already sent continue; no more are begun */
		call->ops->fail(driver, call, call->begun, call->count - call->begun, call->rc);
		call->begun = call->count;
	}
	if (call->commands == OFS_NONE && call->begun == call->count
		&& (!call->owes_step || call->rc != 0))
		call->state = OFS_CALL_ENDED;
	else if (now_ns >= call->deadline_ns)
		cancel(driver, call, -ETIMEDOUT);
	else if (call->rc == -EPIPE)
		cancel(driver, call, -EPIPE);
	return moved || call->state == OFS_CALL_ENDED;
}

static void
forget_ended(struct ofs_driver *driver)
{
	uint32_t kept_count = 0;

	for (uint32_t i = 0; i < driver->running_count; i++)
		if (driver->calls[driver->running[i]].state == OFS_CALL_RUNNING)
			driver->running[kept_count++] = driver->running[i];
	driver->running_count = kept_count;
}

bool
ofs_calls_turn(struct ofs_driver *driver)
{
	bool moved = ofs_command_collect(driver) > 0;
	uint64_t now_ns;

	if (driver->running_count == 0)
		return moved;
	now_ns = ofs_driver_now_ns(driver);
	for (uint32_t i = 0; i < driver->running_count; i++)
		moved |= turn_call(driver, &driver->calls[driver->running[i]], now_ns);
	forget_ended(driver);
	return moved;
}

/* The earliest time at which a turn has something to do without an answer. */
static uint64_t
next_due_ns(const struct ofs_driver *driver)
{
	uint64_t next_ns = OFS_NEVER_NS;

	for (uint32_t i = 0; i < driver->running_count; i++) {
		const struct ofs_call *call = &driver->calls[driver->running[i]];

		next_ns = call->deadline_ns < next_ns ? call->deadline_ns : next_ns;
		for (uint32_t index = call->commands; index != OFS_NONE;) {
			const struct ofs_pending *pending = &driver->pending[index];

			if (!pending->flying && pending->due_ns < next_ns)
				next_ns = pending->due_ns;
			index = pending->next;
		}
	}
	return next_ns;
}

/* Returns 0 to look again, or the error that ended the connection and with it all running calls. */
static int
wait(struct ofs_driver *driver, uint64_t timeout_ns)
{
	int rc = driver->fabric->ops->wait(driver->fabric, timeout_ns);

	if (rc == 0 || rc == -ETIMEDOUT)
		return 0;
	/* Answers count, even from a daemon that has died since. */
	(void)ofs_calls_turn(driver);
	for (uint32_t i = 0; i < driver->running_count; i++)
		cancel(driver, &driver->calls[driver->running[i]], rc);
	forget_ended(driver);
	return rc;
}

int
ofs_calls_wait(struct ofs_driver *driver, uint64_t until_ns)
{
	uint64_t next_ns = next_due_ns(driver);
	uint64_t now_ns = ofs_driver_now_ns(driver);
	int rc = 0;

	if (now_ns >= until_ns)
		return -ETIMEDOUT;
	next_ns = next_ns < until_ns ? next_ns : until_ns;
	if (next_ns <= now_ns)
		return 0;
	if (driver->flying_count == 0)
		driver->fabric->ops->pause(driver->fabric, next_ns - now_ns);
	else
		rc = wait(driver, next_ns - now_ns);
	return rc;
}

static struct ofs_call *
find_call(struct ofs_driver *driver, uint64_t ticket, const struct ofs_call_ops *ops)
{
	uint32_t index = (uint32_t)ticket;
	struct ofs_call *call;

	if (index >= first_of(driver, OFS_CALLS_SIDES))
		return NULL;
	call = &driver->calls[index];
	if (call->state == OFS_CALL_FREE || call->generation != (uint32_t)(ticket >> 32)
		|| call->ops != ops) {
		return NULL;
	}
	return call;
}

int
ofs_call_end(struct ofs_driver *driver, uint64_t ticket, const struct ofs_call_ops *ops)
{
	struct ofs_call *call = find_call(driver, ticket, ops);

	if (call == NULL)
		return -EBADF;
	while (call->state == OFS_CALL_RUNNING)
		if (!ofs_calls_turn(driver))
			(void)ofs_calls_wait(driver, OFS_NEVER_NS);
	assert(call->commands == OFS_NONE); /* it uses none of its areas */
	call->state = OFS_CALL_FREE;
	return call->rc;
}

int
ofs_call_cancel(struct ofs_driver *driver, uint64_t ticket, const struct ofs_call_ops *ops)
{
	struct ofs_call *call = find_call(driver, ticket, ops);

	if (call == NULL)
		return -EBADF;
	if (call->state == OFS_CALL_RUNNING) {
		cancel(driver, call, -ETIMEDOUT);
		forget_ended(driver);
	}
	call->state = OFS_CALL_FREE;
	return 0;
}

/* Tickets of calls of a side that have ended since they were last reported. */
static uint32_t
ended_calls(struct ofs_driver *driver, enum ofs_call_side side, uint64_t *tickets, uint32_t max)
{
	uint32_t first = first_of(driver, side), end = first + driver->fabric->port.entry_count;
	uint32_t count = 0;

	for (uint32_t i = first; i < end && count < max; i++) {
		struct ofs_call *call = &driver->calls[i];

		if (call->state == OFS_CALL_ENDED && !call->reported) {
			call->reported = true;
			tickets[count++] = (uint64_t)call->generation << 32 | i;
		}
	}
	return count;
}

static bool
has_running(const struct ofs_driver *driver, enum ofs_call_side side)
{
	uint32_t first = first_of(driver, side), count = driver->fabric->port.entry_count;

	for (uint32_t i = 0; i < driver->running_count; i++)
		if (driver->running[i] - first < count)
			return true;
	return false;
}

int
ofs_calls_poll(struct ofs_driver *driver, enum ofs_call_side side, uint64_t timeout_ns,
	uint64_t *tickets, uint32_t max)
{
	uint64_t now_ns = ofs_driver_now_ns(driver);
	uint64_t until_ns = timeout_ns < OFS_NEVER_NS - now_ns ? now_ns + timeout_ns : OFS_NEVER_NS;
	uint32_t count;

	if (!ofs_calls_turn(driver) && timeout_ns == 0 && driver->running_count > 0) {
		(void)wait(driver, 0); /* a dead daemon shows on the fabric, not by its silence */
		(void)ofs_calls_turn(driver);
	}
	while ((count = ended_calls(driver, side, tickets, max)) == 0 && has_running(driver, side)
		&& ofs_driver_now_ns(driver) < until_ns) {
		if (!ofs_calls_turn(driver))
			(void)ofs_calls_wait(driver, until_ns);
	}
	return (int)count;
}

int
ofs_driver_poll(struct ofs_driver *driver, uint64_t timeout_ns, uint64_t *tickets, uint32_t max)
{
	return ofs_calls_poll(driver, OFS_CALLS_HOST, timeout_ns, tickets, max);
}

uint32_t
ofs_driver_calls_max(const struct ofs_driver *driver)
{
	return driver->fabric->port.entry_count;
}
