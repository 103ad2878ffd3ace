/*
 * Puts: from a host's put window to the store, and back from dirty slots (write-back).
 *
 * write-through: the record goes to the store as it stands in the put window; the host hears of it when
 * the store does. write-back: the record is copied into a slot and acknowledged; the flush follows, and
 * until it is done the slot is dirty and cannot be a victim. When no slot or too many dirty
 * ones are there, a put of a write-back device goes through instead: slower, never lost.
 */
#include "internal.h"

#include <assert.h>
#include <string.h>

static uint64_t
write_user(const struct ofs_device *device, uint32_t index)
{
	return ((uint64_t)device->writes[index].kind << 56) | index;
}

static void
end_write(struct ofs_device *device, uint32_t index)
{
	struct ofs_write *write = &device->writes[index];
	uint32_t port = write->port;

	if (write->kind == OFS_IO_PUT) {
		device->ports[port].puts_in_flight--;
		if (device->ports[port].closing) {
			(void)ofs_device_port_release(device, port);
		}
	} else {
		device->dirty_blocks--;
	}
	write->used = false;
	device->writes_live--;
	ofs_fifo_give(&device->free_writes, index);
}

static void
answer_put(struct ofs_device *device, struct ofs_write *write, int rc)
{
	if (write->answered) {
		return;
	}
	write->answered = true;
	if (rc == 0) {
		device->status.puts++;
	} else {
		device->status.puts_failed++;
	}
	ofs_device_complete(device, write->port, &write->sqe, rc, 0, NULL);
}

void
ofs_device_write_done(struct ofs_device *device, uint32_t index, int rc)
{
	struct ofs_write *write = &device->writes[index];
	uint64_t now_ns = ofs_device_now_ns(device);

	assert(index < device->write_count && write->used);
	if (rc == -ENOSPC) {
		device->status.store_full++;
	}
	if (rc == 0) {
		(void)ofs_core_block_stored(device->core, now_ns, write->chunk, write->layer);
	}
	if (write->kind == OFS_IO_FLUSH) {
		(void)ofs_core_block_clean(device->core, now_ns, write->chunk, write->layer);
		if (rc != 0) {
			device->status.puts_failed++;
		}
	} else {
		answer_put(device, write, rc);
	}
	end_write(device, index);
	ofs_device_act(device);
}

/* Submits what waits, in order, until the store is busy. */
bool
ofs_device_retry_writes(struct ofs_device *device)
{
	uint64_t now_s = ofs_clock_unix_s(&device->clock);
	bool busy = false;
	uint32_t index;

	while ((index = ofs_fifo_first(&device->pending_writes)) != OFS_NONE) {
		struct ofs_write *write = &device->writes[index];
		int rc = ofs_store_put(device->store, write->tenant, &write->store_key, write->layer,
			write->record, write_user(device, index), now_s);

		if (rc == -EAGAIN) {
			break;
		}
		(void)ofs_fifo_take(&device->pending_writes);
		busy = true;
		if (rc < 0) {
			ofs_device_write_done(device, index, rc);
		} else {
			write->submitted = true;
		}
	}
	return busy;
}

/* The next write to the store of this block; the caller has set record and kind. */
static struct ofs_write *
queue_write(struct ofs_device *device, uint32_t kind, uint32_t port, const struct ofs_sqe *sqe,
	const struct ofs_chunk_info *chunk, void *record)
{
	uint32_t index = ofs_fifo_take(&device->free_writes);
	struct ofs_write *write = &device->writes[index];

	assert(index != OFS_NONE); /* sized for every port's put window and every dirty block */
	*write = (struct ofs_write){.used = true, .kind = kind, .port = port, .sqe = *sqe,
		.tenant = device->ports[port].tenant, .chunk = chunk->chunk, .layer = sqe->layer,
		.record = record, .store_key = chunk->store_key,
		.deadline_ns = ofs_device_now_ns(device) + device->config.io_timeout_ns};
	device->writes_live++;
	ofs_fifo_give(&device->pending_writes, index);
	return write;
}

/* Copy into a slot, publish, acknowledge, flush later. Returns whether a slot could be had. */
static bool
stage_back(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	const struct ofs_chunk_info *chunk, const uint8_t *record)
{
	struct ofs_region *region = device->tenants[device->ports[port].tenant].region;
	struct ofs_key block_key;
	uint32_t generation;
	uint32_t slot;

	if (device->dirty_blocks >= device->config.dirty_blocks_max ||
		ofs_core_block_stage(device->core, ofs_device_now_ns(device), chunk->chunk,
			sqe->layer, &slot, &generation) != 0) {
		return false;
	}
	ofs_device_act(device); /* the victim is retracted before its bytes are overwritten */
	memcpy(ofs_region_slot(region, slot), record, sqe->length);
	*ofs_region_trailer(region, slot) = *(const struct ofs_trailer *)
		(record + device->config.store.payload_size_bytes);
	ofs_block_key(&chunk->key, sqe->layer, &block_key);
	if (ofs_region_publish(region, &block_key, slot, generation, OFS_CAUSE_WRITE) < 0) {
		device->status.publish_overflow++;
	}
	device->dirty_blocks++;
	(void)queue_write(device, OFS_IO_FLUSH, port, sqe, chunk, ofs_region_slot(region, slot));
	device->status.puts++;
	ofs_device_complete(device, port, sqe, 0, 0, NULL);
	return true;
}

/* 0, or why this put is refused before anything was done. */
static int
check_put(const struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe)
{
	const struct ofs_device_session *session;

	if (sqe->session >= device->config.core.session_max) {
		return -EINVAL;
	}
	session = &device->sessions[sqe->session];
	if (!session->used || session->port != port) {
		return -EPERM;
	}
	if (sqe->ordinal >= session->chunk_count || sqe->layer >= device->config.core.layer_count ||
		sqe->length == 0 || sqe->length > device->config.store.payload_size_bytes ||
		ofs_port_put_slot(device->ports[port].port, sqe->put_slot) == NULL) {
		return -EINVAL;
	}
	if (device->ports[port].puts_in_flight >= device->config.put_slot_count) {
		return -EBUSY; /* a host that uses a put slot twice at once */
	}
	return device->draining ? -ESHUTDOWN : 0;
}

void
ofs_device_put(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe)
{
	const struct ofs_chunk_info *chunk;
	struct ofs_trailer *trailer;
	uint8_t *record;
	int rc = check_put(device, port, sqe);

	if (rc != 0) {
		device->status.puts_failed++;
		ofs_device_complete(device, port, sqe, rc, 0, NULL);
		return;
	}
	chunk = &device->sessions[sqe->session].chunks[sqe->ordinal];
	record = ofs_port_put_slot(device->ports[port].port, sqe->put_slot);
	if (ofs_checksum(record, sqe->length) != sqe->checksum) {
		device->status.puts_failed++;
		ofs_device_complete(device, port, sqe, -EBADMSG, 0, NULL);
		return;
	}
	trailer = (struct ofs_trailer *)(record + device->config.store.payload_size_bytes);
	memset(trailer, 0, sizeof(*trailer));
	trailer->length = sqe->length;
	trailer->checksum = sqe->checksum;
	if (device->config.write_mode == OFS_WRITE_BACK &&
		stage_back(device, port, sqe, chunk, record)) {
		return;
	}
	device->ports[port].puts_in_flight++;
	(void)queue_write(device, OFS_IO_PUT, port, sqe, chunk, record);
}
