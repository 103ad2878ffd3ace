/* Commands of the host: payload areas, submission, completion; see internal.h. */
#include "driver/internal.h"

#include <assert.h>

static void
give_back(struct ofs_driver *driver, uint32_t payload_index)
{
	struct ofs_pending *pending = &driver->pending[payload_index];

	assert(pending->used && !pending->flying);
	assert(driver->free_payload_count < driver->fabric->port.entry_count);
	if (pending->put_slot != OFS_NONE)
		driver->free_put_slots[driver->free_put_slot_count++] = pending->put_slot;
	pending->used = false;
	driver->free_payloads[driver->free_payload_count++] = payload_index;
}

/* 1 if a call waits for it. */
static uint32_t
take_in(struct ofs_driver *driver, struct ofs_pending *pending, const struct ofs_cqe *cqe)
{
	if (cqe->rc == -EINPROGRESS) {
		/* Completions may overtake each other: this one may report less than is known. */
		if (pending->abandoned || cqe->count <= pending->taken
			|| (pending->landed && cqe->count <= pending->cqe.count)) {
			return 0;
		}
		pending->landed = true;
		pending->cqe = *cqe;
		return 1;
	}
	assert(pending->used && driver->flying_count > 0);
	pending->flying = false;
	driver->flying_count--;
	if (pending->abandoned) {
		give_back(driver, cqe->payload_index);
		return 1;
	}
	pending->done = true;
	pending->cqe = *cqe;
	if (pending->sqe.sent_ns != 0)
		(void)ofs_driver_stage_end(driver, OFS_STAGE_ANSWER, cqe->now_ns);
	return 1;
}

uint32_t
ofs_command_collect(struct ofs_driver *driver)
{
	struct ofs_fabric *fabric = driver->fabric;
	struct ofs_cqe cqes[OFS_CQE_BATCH];
	int count = fabric->ops->poll(fabric, cqes, OFS_CQE_BATCH);
	uint32_t taken_count = 0;

	for (int i = 0; i < count; i++) {
		struct ofs_pending *pending;

		if (cqes[i].payload_index >= fabric->port.entry_count)
			continue;
		pending = &driver->pending[cqes[i].payload_index];
		/* An unsolicited completion: the answer to a tail that ran ahead, or a bug. */
		if (!pending->flying || pending->sqe.user != cqes[i].user)
			continue;
		taken_count += take_in(driver, pending, &cqes[i]);
	}
	return taken_count;
}

uint32_t
ofs_command_take(struct ofs_driver *driver)
{
	uint32_t payload_index;

	if (driver->free_payload_count == 0)
		return OFS_NONE;
	payload_index = driver->free_payloads[--driver->free_payload_count];
	assert(!driver->pending[payload_index].used);
	driver->pending[payload_index] = (struct ofs_pending){.used = true,
		.next = OFS_NONE,
		.put_slot = OFS_NONE,
		.pause_ns = OFS_BACKOFF_NS_MIN};
	return payload_index;
}

/* Only these are timed: a command without a payload takes no longer than reading the clock. */
static bool
moves_blocks(const struct ofs_sqe *sqe)
{
	return sqe->op == OFS_OP_STEP || sqe->op == OFS_OP_PUT;
}

int
ofs_command_send(struct ofs_driver *driver, uint32_t payload_index)
{
	struct ofs_fabric *fabric = driver->fabric;
	struct ofs_pending *pending = &driver->pending[payload_index];
	int rc;

	assert(pending->used && !pending->flying); /* the DPU may read the area in flight */
	pending->sqe.payload_index = (uint16_t)payload_index;
	pending->sqe.user = ++driver->user_last;
	pending->sqe.sent_ns =
		moves_blocks(&pending->sqe) ? ofs_driver_stage_begin(driver, OFS_STAGE_RING_WAIT) : 0;
	pending->done = pending->landed = false;
	pending->taken = 0;
	rc = fabric->ops->submit(fabric, &pending->sqe);
	if (rc == 0) {
		pending->flying = true;
		driver->flying_count++;
	}
	return rc;
}

void
ofs_command_drop(struct ofs_driver *driver, uint32_t payload_index)
{
	struct ofs_pending *pending = &driver->pending[payload_index];

	assert(!pending->abandoned);
	if (pending->flying)
		pending->abandoned = true;
	else
		give_back(driver, payload_index);
}
