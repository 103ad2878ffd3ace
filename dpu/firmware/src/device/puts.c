/*
 * Puts: blocks that hosts write.
 *
 * write-through: the put waits in the window until the store has room, is copied and checked, and
 * answered when the store has it. write-back: it is copied into a slot and answered immediately;
 * the flush follows, and until it is done the slot is dirty and cannot be a victim. If there is no
 * slot, too many are dirty, or a failed flush of the tenant waits, the put is written through
 * instead: slower, and answered with the store's result.
 */
#include "internal.h"

static void
refuse(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe, int rc)
{
	ofs_device_count_refused(device, rc);
	ofs_device_complete(device, port, sqe, rc);
}

static void
queue_flush(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	const struct ofs_chunk_info *chunk, uint32_t slot)
{
	uint32_t tenant = device->ports.entries[port].tenant;
	struct ofs_write *write = ofs_device_queue_write(device, OFS_IO_FLUSH, tenant, sqe, chunk);

	assert(device->tenants[tenant].flush_of[slot] == OFS_NONE); /* one flush of a dirty slot */
	write->slot = slot;
	device->tenants[tenant].flush_of[slot] = (uint32_t)(write - device->writes.entries);
	device->writes.dirty++;
	device->tenants[tenant].dirty++;
}

/* Copies into a slot, publishes, answers, flushes later. Returns whether a slot was free. */
static bool
stage_back(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	const struct ofs_chunk_info *chunk)
{
	const struct ofs_device_tenant *tenant = &device->tenants[device->ports.entries[port].tenant];
	struct ofs_key block_key;
	uint32_t generation;
	uint32_t slot;
	int rc;

	if (!ofs_device_quota_stage(device, device->ports.entries[port].tenant))
		return false;
	rc = ofs_core_block_stage(device->core, ofs_device_now_ns(device), chunk->chunk, sqe->layer,
		&slot, &generation);
	ofs_device_after_event(device,
		rc); /* the victim is retracted before its bytes are overwritten */
	if (rc != 0)
		return false;
	if (ofs_region_trailer(tenant->region, slot)->generation != generation) {
		ofs_device_fill_slot(device, port, sqe, slot);
		ofs_block_key(&chunk->key, sqe->layer, &block_key);
		if (ofs_region_publish(tenant->region, &block_key, slot, generation, OFS_CAUSE_WRITE, 0)
			< 0)
			device->status.publish_overflow++;
	}
	/* A block that was there already has the same bytes (check_staged), and one flush is enough. */
	if (tenant->flush_of[slot] == OFS_NONE)
		queue_flush(device, port, sqe, chunk, slot);
	device->status.puts++;
	ofs_device_complete(device, port, sqe, 0);
	return true;
}

/*
 * Whether staging memory has other bytes under the block's name, or a read in flight may bring
 * some: those of a block that was deleted or has expired. They must not be read in place of the new
 * ones.
 */
static int
check_staged(const struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	const struct ofs_chunk_info *chunk)
{
	uint32_t slot;
	int rc = ofs_core_block_slot(device->core, chunk->chunk, sqe->layer, &slot);

	if (rc == 1) {
		const struct ofs_region *region =
			device->tenants[device->ports.entries[port].tenant].region;

		if (ofs_region_trailer(region, slot)->checksum == sqe->checksum)
			return 0;
		return ofs_checksum(ofs_device_put_window(device, port, sqe), sqe->length) == sqe->checksum
			? -EEXIST
			: -EBADMSG;
	}
	if (rc == 0 && ofs_store_position(device->store, &chunk->store_key, sqe->layer) == UINT64_MAX)
		return -EAGAIN;
	return 0;
}

/* 0, or the reason why this put is refused before anything was done. */
static int
check_put(const struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe)
{
	int rc = ofs_device_check_session(device, port, sqe->session);

	if (rc != 0)
		return rc;
	if (sqe->ordinal >= device->sessions.entries[sqe->session].chunk_count
		|| sqe->layer >= device->config.core.layer_count || sqe->length == 0
		|| sqe->length > device->config.store.payload_size_bytes
		|| ofs_device_put_window(device, port, sqe) == NULL || !ofs_device_is_piece(device, sqe)) {
		return -EINVAL;
	}
	if (device->ports.entries[port].puts_in_flight >= device->config.put_slot_count)
		return -EBUSY; /* a host that uses a put slot twice at the same time */
	return device->draining ? -ESHUTDOWN : 0;
}

bool
ofs_device_put(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe)
{
	const struct ofs_chunk_info *chunk;
	struct ofs_write *write;
	int rc = check_put(device, port, sqe);

	if (rc != 0) {
		refuse(device, port, sqe, rc);
		return false;
	}
	chunk = &device->sessions.entries[sqe->session].chunks[sqe->ordinal];
	rc = check_staged(device, port, sqe, chunk);
	if (rc == 0 && !ofs_device_admit(device, sqe->session, &chunk->store_key, sqe->layer))
		rc = -EDQUOT;
	if (rc != 0) {
		refuse(device, port, sqe, rc);
		return rc == -EBADMSG || rc == -EEXIST; /* only the checksum tells that */
	}
	if (device->config.write_mode == OFS_WRITE_BACK) {
		if (ofs_checksum(ofs_device_put_window(device, port, sqe), sqe->length) != sqe->checksum) {
			refuse(device, port, sqe, -EBADMSG);
			return true;
		}
		if (ofs_store_conflicts(device->store, &chunk->store_key, sqe->layer, sqe->checksum,
				ofs_clock_unix_s(&device->clock))) {
			refuse(device, port, sqe, -EEXIST);
			return true;
		}
		if (stage_back(device, port, sqe, chunk))
			return true;
	}
	device->ports.entries[port].puts_in_flight++;
	write =
		ofs_device_queue_write(device, OFS_IO_PUT, device->ports.entries[port].tenant, sqe, chunk);
	write->port = port;
	return true;
}
