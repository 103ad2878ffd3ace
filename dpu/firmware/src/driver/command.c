/* Commands of the host: payload areas, submission, completion; see internal.h. */
#include "driver/internal.h"

#include <assert.h>

static void
give_back(struct ofs_driver *driver, uint32_t payload_index)
{
	struct ofs_pending *pending = &driver->pending[payload_index];

	assert(pending->used);
	if (pending->put_slot != OFS_NONE) {
		driver->free_put_slots[driver->free_put_slot_count++] = pending->put_slot;
		pending->put_slot = OFS_NONE;
	}
	pending->used = false;
	driver->free_payloads[driver->free_payload_count++] = payload_index;
}

void
ofs_command_collect(struct ofs_driver *driver)
{
	struct ofs_fabric *fabric = driver->fabric;
	struct ofs_cqe cqes[OFS_CQE_BATCH];
	int count = fabric->ops->poll(fabric, cqes, OFS_CQE_BATCH);

	for (int i = 0; i < count; i++) {
		struct ofs_pending *pending;

		if (cqes[i].payload_index >= fabric->port.entry_count)
			continue;
		pending = &driver->pending[cqes[i].payload_index];
		/* A completion nobody asked for: the answer to a tail that ran ahead, or a bug. */
		if (!pending->used || pending->done || pending->user != cqes[i].user)
			continue;
		if (pending->abandoned) {
			give_back(driver, cqes[i].payload_index);
			continue;
		}
		pending->done = true;
		pending->cqe = cqes[i];
	}
}

/* 0: look again; -ETIMEDOUT, -EPIPE. */
static int
wait_until(struct ofs_driver *driver, uint64_t deadline_ns)
{
	uint64_t now_ns = ofs_driver_now_ns(driver);

	if (now_ns >= deadline_ns)
		return -ETIMEDOUT;
	return driver->fabric->ops->wait(driver->fabric, deadline_ns - now_ns);
}

int
ofs_command_begin(struct ofs_driver *driver, uint64_t deadline_ns, uint32_t *payload_index)
{
	struct ofs_pending *pending;
	int rc = 0;

	ofs_command_collect(driver);
	while (driver->free_payload_count == 0 && rc == 0) {
		rc = wait_until(driver, deadline_ns);
		ofs_command_collect(driver);
	}
	if (driver->free_payload_count == 0)
		return rc;
	*payload_index = driver->free_payloads[--driver->free_payload_count];
	pending = &driver->pending[*payload_index];
	*pending = (struct ofs_pending){.used = true, .put_slot = OFS_NONE};
	return 0;
}

int
ofs_command_send(struct ofs_driver *driver, struct ofs_sqe *sqe, uint32_t payload_index,
	uint64_t deadline_ns)
{
	struct ofs_fabric *fabric = driver->fabric;
	struct ofs_pending *pending = &driver->pending[payload_index];
	int rc;

	sqe->payload_index = (uint16_t)payload_index;
	sqe->user = pending->user = ++driver->user_last;
	pending->done = false;
	/* Full only while the DPU has not yet taken commands that already have their answer. */
	while ((rc = fabric->ops->submit(fabric, sqe)) == -EAGAIN) {
		if (ofs_driver_now_ns(driver) >= deadline_ns) {
			rc = -ETIMEDOUT;
			break;
		}
		fabric->ops->pause(fabric, OFS_BACKOFF_NS_MIN);
	}
	if (rc != 0)
		give_back(driver, payload_index);
	return rc;
}

int
ofs_command_wait(struct ofs_driver *driver, uint32_t payload_index, uint64_t deadline_ns,
	struct ofs_cqe *cqe)
{
	struct ofs_pending *pending = &driver->pending[payload_index];
	int rc = 0;

	ofs_command_collect(driver);
	while (!pending->done && rc == 0) {
		rc = wait_until(driver, deadline_ns);
		ofs_command_collect(driver);
	}
	if (!pending->done) {
		ofs_command_abandon(driver, payload_index);
		return rc;
	}
	*cqe = pending->cqe;
	return 0;
}

void
ofs_command_end(struct ofs_driver *driver, uint32_t payload_index)
{
	give_back(driver, payload_index);
}

void
ofs_command_abandon(struct ofs_driver *driver, uint32_t payload_index)
{
	driver->pending[payload_index].abandoned = true;
}
