/* Commands on values: each names many, and is answered at once. */
#include "driver/internal.h"

#include <assert.h>
#include <string.h>

/* Sends the command in this area and waits for its answer. */
static int
answered(struct ofs_driver *driver, uint32_t index, uint64_t deadline_ns)
{
	const struct ofs_pending *pending = &driver->pending[index];
	int rc;

	/* Full only until the DPU has taken commands that it has already answered. */
	while ((rc = ofs_command_send(driver, index)) == -EAGAIN
		&& ofs_driver_now_ns(driver) < deadline_ns) {
		driver->fabric->ops->pause(driver->fabric, OFS_BACKOFF_NS_MIN);
	}
	while (rc == 0 && !pending->done)
		rc = ofs_calls_turn(driver) ? 0 : ofs_calls_wait(driver, deadline_ns);
	return pending->done ? pending->cqe.rc : rc == -EAGAIN ? -ETIMEDOUT : rc;
}

/* An area for a command; OFS_NONE: none became free, and `rc` says why. */
static uint32_t
take(struct ofs_driver *driver, uint64_t deadline_ns, int *rc)
{
	uint32_t index;

	*rc = 0;
	while ((index = ofs_command_take(driver)) == OFS_NONE && *rc == 0)
		*rc = ofs_calls_turn(driver) ? 0 : ofs_calls_wait(driver, deadline_ns);
	return index;
}

int
ofs_command_run(struct ofs_driver *driver, const struct ofs_sqe *sqe, uint64_t deadline_ns)
{
	uint32_t index;
	int rc;

	index = take(driver, deadline_ns, &rc);
	if (index == OFS_NONE)
		return rc;
	driver->pending[index].sqe = *sqe;
	rc = answered(driver, index, deadline_ns);
	ofs_command_drop(driver, index);
	return rc;
}

/* ---- a command on values is a call, of as many commands of the ring as it takes ---- */

static uint32_t
batch_of(const struct ofs_driver *driver)
{
	const struct ofs_port_header *port = &driver->fabric->port;

	return ofs_values_max(port->demand_max, port->score_max);
}

static void
fail(struct ofs_driver *driver, struct ofs_call *call, uint32_t first, uint32_t count, int rc)
{
	(void)driver;
	assert(first + count <= call->asking->count);
	for (uint32_t i = first; i < first + count; i++)
		call->asking->told[i].rc = rc;
}

static int
take_told(struct ofs_driver *driver, struct ofs_call *call, uint32_t payload_index)
{
	const struct ofs_pending *pending = &driver->pending[payload_index];
	const struct ofs_result *results;

	if (pending->flying) /* nothing of it lands before it ends */
		return 0;
	if (pending->cqe.rc != 0)
		return pending->cqe.rc;
	results = driver->fabric->ops->results(driver->fabric, &pending->cqe);
	if (results == NULL || pending->cqe.count != 2 * pending->count)
		return -EPROTO;
	memcpy(call->asking->told + pending->first, results,
		pending->count * sizeof(*call->asking->told));
	return 1;
}

static int
due(struct ofs_driver *driver, struct ofs_call *call, uint32_t payload_index)
{
	(void)call;
	return ofs_call_send(driver, payload_index);
}

static int
begin_more(struct ofs_driver *driver, struct ofs_call *call)
{
	const struct ofs_asking *asking = call->asking;
	uint32_t batch = batch_of(driver);
	int rc = 0;

	while (rc == 0 && call->begun < asking->count && driver->free_payload_count > 0) {
		uint32_t left = asking->count - call->begun;
		uint32_t index = ofs_command_take(driver);
		struct ofs_pending *pending = &driver->pending[index];

		pending->first = call->begun;
		pending->count = left < batch ? left : batch;
		pending->sqe = (struct ofs_sqe){.op = OFS_OP_VALUES,
			.flags = (uint16_t)asking->verb,
			.demand_count = pending->count};
		memcpy(driver->fabric->ops->payload(driver->fabric, index), asking->asks + call->begun,
			pending->count * sizeof(*asking->asks));
		rc = ofs_call_send(driver, index);
		if (rc != 0) {
			ofs_command_drop(driver, index);
			break;
		}
		ofs_call_add(driver, call, index);
		call->begun += pending->count;
	}
	return rc;
}

static const struct ofs_call_ops ask_ops = {
	.begin_more = begin_more,
	.answered = take_told,
	.due = due,
	.fail = fail,
};

int
ofs_ask_begin(struct ofs_driver *driver, enum ofs_call_side side, const struct ofs_asking *asking,
	uint64_t *ticket)
{
	struct ofs_call *call;

	if (batch_of(driver) == 0)
		return -ENOTSUP;
	call = ofs_call_open(driver, side, &ask_ops, asking->count, asking->timeout_ns, ticket);
	if (call == NULL)
		return -EAGAIN;
	call->asking = asking;
	for (uint32_t i = 0; i < asking->count; i++)
		asking->told[i] = (struct ofs_value_told){.rc = OFS_WANTED};
	(void)ofs_calls_turn(driver);
	return 0;
}

int
ofs_ask_end(struct ofs_driver *driver, uint64_t ticket)
{
	return ofs_call_end(driver, ticket, &ask_ops);
}

int
ofs_ask_cancel(struct ofs_driver *driver, uint64_t ticket)
{
	return ofs_call_cancel(driver, ticket, &ask_ops);
}

int
ofs_driver_values(struct ofs_driver *driver, const struct ofs_asking *asking)
{
	uint64_t ticket;
	int rc = ofs_ask_begin(driver, OFS_CALLS_HOST, asking, &ticket);

	return rc != 0 ? rc : ofs_ask_end(driver, ticket);
}
