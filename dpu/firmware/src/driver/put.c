/* Put: blocks of one layer into the put window, as many in parallel as it has slots. */
#include "driver/internal.h"

#include <assert.h>

static void
fail(struct ofs_driver *driver, struct ofs_call *call, uint32_t first, uint32_t count, int rc)
{
	(void)driver;
	assert(first + count <= call->put->count);
	for (uint32_t i = first; i < first + count; i++)
		call->put->rcs[i] = rc;
}

static int
answered(struct ofs_driver *driver, struct ofs_call *call, uint32_t payload_index)
{
	struct ofs_pending *pending = &driver->pending[payload_index];
	int rc = pending->cqe.rc;

	if (pending->flying) /* a put has no results that could land before it ends */
		return 0;
	if (rc == -EAGAIN || rc == -EBUSY) {
		pending->due_ns = ofs_driver_now_ns(driver) + OFS_BACKOFF_NS_MIN;
		return 0; /* its bytes are still in the window */
	}
	call->put->rcs[pending->first] = rc;
	if (rc == 0) {
		driver->stats.puts++;
		driver->stats.bytes_put += call->put->length_bytes;
	}
	return 1; /* what the store refuses is said block by block, and ends no call */
}

/* The DPU did not take it, and its bytes are still in the window: sent unchanged. */
static int
due(struct ofs_driver *driver, struct ofs_call *call, uint32_t payload_index)
{
	(void)call;
	return ofs_call_send(driver, payload_index);
}

/* Copies block `call->begun` into the window and sends it. */
static int
begin_block(struct ofs_driver *driver, struct ofs_call *call)
{
	struct ofs_fabric *fabric = driver->fabric;
	const struct ofs_put *put = call->put;
	const uint8_t *source = put->source + call->begun * put->source_stride_bytes;
	uint32_t index = ofs_command_take(driver);
	struct ofs_pending *pending = &driver->pending[index];
	int rc;

	assert(index != OFS_NONE && driver->free_put_slot_count > 0 && call->begun < put->count);
	pending->put_slot = driver->free_put_slots[--driver->free_put_slot_count];
	pending->first = call->begun;
	pending->count = 1;
	pending->sqe = (struct ofs_sqe){.op = OFS_OP_PUT,
		.layer = (uint16_t)put->layer,
		.session = put->session,
		.ordinal = put->ordinals[call->begun],
		.put_slot = pending->put_slot,
		.length = put->length_bytes};
	rc = fabric->ops->write_put(fabric, pending->put_slot, source, put->length_bytes,
		&pending->sqe.checksum);
	pending->due_ns = OFS_NEVER_NS; /* until it is sent */
	if (rc == 0)
		rc = ofs_call_send(driver, index);
	if (rc != 0) {
		ofs_command_drop(driver, index);
		return rc;
	}
	if (put->checksums != NULL)
		put->checksums[call->begun] = pending->sqe.checksum;
	ofs_call_add(driver, call, index);
	call->begun++;
	return 0;
}

static int
begin_more(struct ofs_driver *driver, struct ofs_call *call)
{
	int rc = 0;

	while (rc == 0 && call->begun < call->put->count && driver->free_put_slot_count > 0
		&& driver->free_payload_count > 0) {
		rc = begin_block(driver, call);
	}
	return rc;
}

const struct ofs_call_ops ofs_put_ops = {
	.begin_more = begin_more,
	.answered = answered,
	.due = due,
	.fail = fail,
};

int
ofs_put_begin(struct ofs_driver *driver, enum ofs_call_side side, const struct ofs_put *put,
	uint64_t *ticket)
{
	struct ofs_call *call;

	if (put->layer > UINT16_MAX || put->length_bytes == 0
		|| put->length_bytes > driver->fabric->region.payload_size_bytes
		|| (put->count > 0 && (put->ordinals == NULL || put->source == NULL || put->rcs == NULL))) {
		return -EINVAL;
	}
	call = ofs_call_open(driver, side, &ofs_put_ops, put->count, put->timeout_ns, ticket);
	if (call == NULL)
		return -EAGAIN;
	call->put = put;
	for (uint32_t i = 0; i < put->count; i++)
		put->rcs[i] = OFS_WANTED;
	(void)ofs_calls_turn(driver);
	return 0;
}

int
ofs_driver_put_begin(struct ofs_driver *driver, const struct ofs_put *put, uint64_t *ticket)
{
	return ofs_put_begin(driver, OFS_CALLS_HOST, put, ticket);
}

int
ofs_driver_put_end(struct ofs_driver *driver, uint64_t ticket)
{
	return ofs_call_end(driver, ticket, &ofs_put_ops);
}

int
ofs_driver_put(struct ofs_driver *driver, const struct ofs_put *put)
{
	uint64_t ticket;
	int rc = ofs_driver_put_begin(driver, put, &ticket);

	return rc != 0 ? rc : ofs_driver_put_end(driver, ticket);
}
