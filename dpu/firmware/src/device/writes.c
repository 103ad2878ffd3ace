/*
 * Writes to the store: puts of hosts, from a private copy, and flushes, from the dirty slot. Both
 * wait in their tenant's line, in order of arrival, until the tenant has its turn (issue.c).
 *
 * A flush that fails for lack of space or with an I/O error is parked and retried: its block was
 * acknowledged, and is given up only when no session refers to it any more.
 */
#include "internal.h"

#define FLUSH_RETRY_NS 50000000ull

static uint64_t
write_user(const struct ofs_device *device, uint32_t index)
{
	return ((uint64_t)device->writes.entries[index].kind << 56) | index;
}

void
ofs_device_count_refused(struct ofs_device *device, int rc)
{
	device->status.puts_failed++;
	device->status.puts_conflicting += rc == -EEXIST;
}

static void
answer_put(struct ofs_device *device, struct ofs_write *write, int rc)
{
	if (write->answered)
		return;
	write->answered = true;
	if (rc == 0)
		device->status.puts++;
	else
		ofs_device_count_refused(device, rc);
	ofs_device_complete(device, write->port, &write->sqe, rc);
}

/* A count for each tenant is also counted in the sum over all. */
static bool
sums_agree(const struct ofs_device *device)
{
	const struct ofs_writes *writes = &device->writes;
	uint32_t waiting = 0, parked = 0, dirty = 0;

	for (uint32_t i = 0; i < device->tenant_count; i++) {
		const struct ofs_device_tenant *tenant = &device->tenants[i];

		if (tenant->parked + tenant->flushes_sent > tenant->dirty)
			return false;
		waiting += tenant->writes.count;
		parked += tenant->parked;
		dirty += tenant->dirty;
	}
	return waiting == writes->waiting && parked == writes->parked && dirty == writes->dirty
		&& waiting + parked <= writes->live && writes->live + writes->free.count == writes->count;
}

/* The slot may be a victim again. */
static void
clean_slot(struct ofs_device *device, const struct ofs_write *write)
{
	const uint32_t *flush_of = device->tenants[write->tenant].flush_of;

	assert(flush_of[write->slot] == (uint32_t)(write - device->writes.entries));
	assert(device->tenants[write->tenant].dirty > 0 && device->writes.dirty > 0);
	device->tenants[write->tenant].flush_of[write->slot] = OFS_NONE;
	device->tenants[write->tenant].dirty--;
	device->writes.dirty--;
	ofs_device_after_event(device,
		ofs_core_block_clean(device->core, ofs_device_now_ns(device), write->chunk, write->layer));
}

/* The write has ended, successfully or not, and its table entry is free. */
static void
end_write(struct ofs_device *device, uint32_t index, int rc)
{
	struct ofs_write *write = &device->writes.entries[index];

	assert(write->state != OFS_WRITE_FREE && device->writes.live > 0);
	if (write->kind == OFS_IO_FLUSH) {
		clean_slot(device, write);
		device->status.puts_failed += rc != 0 && !write->cancelled;
	} else {
		answer_put(device, write, rc);
		if (write->bounce != OFS_NONE)
			ofs_fifo_give_first(&device->bounces.free, write->bounce);
		if (write->port != OFS_NONE)
			device->ports.entries[write->port].puts_in_flight--;
	}
	write->state = OFS_WRITE_FREE;
	device->writes.live--;
	ofs_fifo_give(&device->writes.free, index);
}

static void
park(struct ofs_device *device, struct ofs_write *write)
{
	assert(write->kind == OFS_IO_FLUSH && !write->cancelled);
	write->state = OFS_WRITE_PARKED;
	write->retry_ns = ofs_device_now_ns(device) + FLUSH_RETRY_NS;
	device->writes.parked++;
	device->tenants[write->tenant].parked++;
	device->status.flush_retries++;
}

void
ofs_device_write_done(struct ofs_device *device, uint32_t index, int rc)
{
	struct ofs_write *write = &device->writes.entries[index];
	uint32_t chunk;

	assert(index < device->writes.count && write->state != OFS_WRITE_FREE);
	if (write->state == OFS_WRITE_SENT) {
		(void)ofs_device_stage_end(device, OFS_STAGE_WRITE_SERVICE, write->stage_ns);
		ofs_device_issue_ended(device, write->tenant);
		device->tenants[write->tenant].flushes_sent -= write->kind == OFS_IO_FLUSH;
	}
	write->stage_ns = 0; /* a retried flush is not timed again */
	if (rc == -ENOSPC)
		device->status.store_full++;
	/* By its key: the session may be closed and its chunk's number reused; and a block that was
	 * deleted while it was written is not there. */
	if (rc == 0
		&& ofs_store_position(device->store, &write->store_key, write->layer) != UINT64_MAX) {
		ofs_device_after_event(device,
			ofs_core_block_restore(device->core, ofs_device_now_ns(device), write->tenant,
				&write->store_key, write->layer, &chunk));
	}
	if (write->kind == OFS_IO_FLUSH && (rc == -EIO || rc == -ENOSPC) && !write->cancelled) {
		park(device, write);
		return;
	}
	end_write(device, index, rc);
}

static void
line_give(struct ofs_device *device, uint32_t index)
{
	ofs_fifo_give(&device->tenants[device->writes.entries[index].tenant].writes, index);
	device->writes.waiting++;
}

static uint32_t
line_take(struct ofs_device *device, uint32_t tenant)
{
	assert(device->writes.waiting > 0);
	device->writes.waiting--;
	return ofs_fifo_take(&device->tenants[tenant].writes);
}

static void *
record_of(const struct ofs_device *device, const struct ofs_write *write)
{
	if (write->kind == OFS_IO_FLUSH)
		return ofs_region_slot(device->tenants[write->tenant].region, write->slot);
	return (uint8_t *)device->bounces.memory.base
		+ (uint64_t)write->bounce * device->record_size_bytes;
}

/* 0: the store has accepted it; -EAGAIN: later; else its result. */
static int
send(struct ofs_device *device, uint32_t index, uint64_t now_s)
{
	struct ofs_write *write = &device->writes.entries[index];

	if (write->kind == OFS_IO_PUT && write->bounce == OFS_NONE) {
		int rc = ofs_device_copy_put(device, write);

		if (rc != 0)
			return rc;
	}
	return ofs_store_put(device->store, write->tenant, &write->store_key, write->layer,
		record_of(device, write), write_user(device, index), now_s);
}

int
ofs_device_begin_write(struct ofs_device *device, uint32_t tenant, uint64_t now_s)
{
	uint32_t index = ofs_fifo_first(&device->tenants[tenant].writes);
	struct ofs_write *write = &device->writes.entries[index];
	int rc;

	assert(index != OFS_NONE && write->state == OFS_WRITE_PENDING);
	rc = ofs_device_move_holds(device) ? -EAGAIN : ofs_device_quota_put(device, write);
	if (rc == 0)
		ofs_device_keep_room(device, tenant);
	rc = rc == 0 ? send(device, index, now_s) : rc;
	if (rc == -ENOSPC && ofs_device_purge(device, tenant, true, UINT64_MAX))
		rc = -EAGAIN; /* when the cleaner has made room for it */

	if (rc == -EAGAIN)
		return rc;
	(void)line_take(device, tenant);
	if (rc != 0) {
		ofs_device_write_done(device, index, rc);
		return rc;
	}
	write->state = OFS_WRITE_SENT;
	device->tenants[tenant].flushes_sent += write->kind == OFS_IO_FLUSH;
	write->stage_ns = ofs_device_stage_end(device, OFS_STAGE_WRITE_QUEUE, write->stage_ns);
	return 0;
}

struct ofs_write *
ofs_device_queue_write(struct ofs_device *device, uint32_t kind, uint32_t tenant,
	const struct ofs_sqe *sqe, const struct ofs_chunk_info *chunk)
{
	uint32_t index = ofs_fifo_take(&device->writes.free);
	struct ofs_write *write = &device->writes.entries[index];
	uint64_t now_ns = ofs_device_now_ns(device);

	assert(index != OFS_NONE); /* the table is sized for all that there can be; see device.c */
	assert(write->state == OFS_WRITE_FREE);
	*write = (struct ofs_write){.state = OFS_WRITE_PENDING,
		.kind = kind,
		.port = OFS_NONE,
		.tenant = tenant,
		.chunk = chunk->chunk,
		.layer = sqe->layer,
		.bounce = OFS_NONE,
		.store_key = chunk->store_key,
		.value = *ofs_device_value_of(device, sqe->session),
		.sqe = *sqe,
		.deadline_ns = now_ns + device->config.io_timeout_ns,
		.stage_ns = ofs_device_stage_begin(device, OFS_STAGE_WRITE_QUEUE, now_ns)};
	device->writes.live++;
	line_give(device, index);
	return write;
}

/* Removes the cancelled ones from the waiting lines, and keeps the others in order. */
static void
sweep(struct ofs_device *device)
{
	for (uint32_t tenant = 0; tenant < device->tenant_count; tenant++) {
		uint32_t count = device->tenants[tenant].writes.count;

		while (count-- > 0) {
			uint32_t index = line_take(device, tenant);

			if (device->writes.entries[index].cancelled)
				end_write(device, index, -ECANCELED);
			else
				line_give(device, index);
		}
	}
}

static void
unpark(struct ofs_device *device, uint32_t index)
{
	assert(device->writes.entries[index].state == OFS_WRITE_PARKED && device->writes.parked > 0);
	device->writes.entries[index].state = OFS_WRITE_PENDING;
	device->writes.parked--;
	device->tenants[device->writes.entries[index].tenant].parked--;
	line_give(device, index);
}

/* The put's host no longer waits. */
static void
abandon(struct ofs_device *device, struct ofs_write *write)
{
	assert(write->kind == OFS_IO_PUT && device->ports.entries[write->port].puts_in_flight > 0);
	device->ports.entries[write->port].puts_in_flight--;
	write->port = OFS_NONE;
	write->answered = true;
	write->cancelled = true;
}

bool
ofs_device_scan_writes(struct ofs_device *device, uint64_t now_ns)
{
	bool busy = false;

	for (uint32_t i = 0; i < device->writes.count && device->writes.live > 0; i++) {
		struct ofs_write *write = &device->writes.entries[i];

		if (write->state == OFS_WRITE_PARKED && now_ns >= write->retry_ns) {
			unpark(device, i);
			busy = true;
		} else if (write->state != OFS_WRITE_FREE && write->kind == OFS_IO_PUT && !write->answered
			&& now_ns >= write->deadline_ns) {
			/* The host gets the answer, and may reuse its window: nothing is copied after this, and
			 * the write in the store no longer counts against the host. */
			answer_put(device, write, -ETIMEDOUT);
			abandon(device, write);
			busy = true;
		}
	}
	if (busy)
		sweep(device);
	assert(!busy || sums_agree(device));
	return busy;
}

void
ofs_device_abandon_puts(struct ofs_device *device, uint32_t port)
{
	for (uint32_t i = 0; i < device->writes.count; i++) {
		struct ofs_write *write = &device->writes.entries[i];

		if (write->state != OFS_WRITE_FREE && write->port == port)
			abandon(device, write);
	}
	sweep(device);
}

static bool
session_names(const struct ofs_device_session *session, const struct ofs_key *store_key)
{
	for (uint32_t i = 0; i < session->chunk_count; i++)
		if (ofs_key_equal(&session->chunks[i].store_key, store_key))
			return true;
	return false;
}

void
ofs_device_cancel_writes(struct ofs_device *device, uint32_t tenant,
	const struct ofs_device_session *session)
{
	for (uint32_t i = 0; i < device->writes.count; i++) {
		struct ofs_write *write = &device->writes.entries[i];

		if ((write->state != OFS_WRITE_PENDING && write->state != OFS_WRITE_PARKED)
			|| write->tenant != tenant
			|| ofs_core_store_references(device->core, tenant, &write->store_key) > 0
			|| (session != NULL && !session_names(session, &write->store_key))) {
			continue;
		}
		write->cancelled = true;
		if (write->state == OFS_WRITE_PARKED)
			unpark(device, i);
	}
	sweep(device);
}
