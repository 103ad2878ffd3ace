/*
 * Put windows: copying a host's bytes out of its window. Every byte there may change at any time:
 * the device keeps its copy, and the copy is what was checked.
 */
#include "granules.h"
#include "internal.h"

#include <string.h>

void *
ofs_device_put_window(const struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe)
{
	return ofs_port_put_slot(device->ports.entries[port].port, sqe->put_slot);
}

/* Zero unless it is a piece of a value, so that no tag of another block is left there. */
void
ofs_device_fill_tag(const struct ofs_trailer *trailer, const struct ofs_key *store_key,
	const struct ofs_value_name *value)
{
	struct ofs_value_tag *tag = ofs_value_tag_behind(trailer);

	memset(tag, 0, sizeof(*tag));
	if (value->generation == 0)
		return;
	*tag = (struct ofs_value_tag){.magic = OFS_VALUE_MAGIC,
		.generation = value->generation,
		.length = value->length,
		.key = value->key};
	tag->check = ofs_value_tag_check(tag, trailer, store_key);
	if (value->name_bytes == 0)
		return;
	tag->name_bytes = value->name_bytes;
	tag->name = value->name;
	tag->name_check = ofs_value_tag_name_check(tag);
}

/* Only what the command says of the trailer comes from the host, and that was checked. */
static void
fill_trailer(struct ofs_device *device, uint8_t *record, const struct ofs_sqe *sqe,
	const struct ofs_key *store_key, const struct ofs_value_name *value)
{
	struct ofs_trailer *trailer =
		(struct ofs_trailer *)(record + device->config.store.payload_size_bytes);

	*trailer = (struct ofs_trailer){.length = sqe->length, .checksum = sqe->checksum};
	ofs_device_fill_tag(trailer, store_key, value);
	ofs_device_fill_granules(device, record, trailer);
}

int
ofs_device_copy_put(struct ofs_device *device, struct ofs_write *write)
{
	uint32_t payload_size_bytes = device->config.store.payload_size_bytes;
	uint32_t bounce = ofs_fifo_take(&device->bounces.free);
	const struct ofs_sqe *sqe = &write->sqe;
	uint8_t *record;

	assert(write->kind == OFS_IO_PUT && write->port != OFS_NONE); /* or its window is not ours */
	if (bounce == OFS_NONE)
		return -EAGAIN;
	assert(sqe->length <= payload_size_bytes && bounce < device->bounces.count);
	record = (uint8_t *)device->bounces.memory.base + (uint64_t)bounce * device->record_size_bytes;
	if (ofs_checksum_copy(record, ofs_device_put_window(device, write->port, sqe), sqe->length)
		!= sqe->checksum) {
		ofs_fifo_give_first(&device->bounces.free, bounce);
		return -EBADMSG;
	}
	/* Bytes of another tenant's block must not reach this one's slots. */
	memset(record + sqe->length, 0, payload_size_bytes - sqe->length);
	fill_trailer(device, record, sqe, &write->store_key, &write->value);
	write->bounce = bounce;
	return 0;
}

/*
 * The slot has just been assigned to the block: its bytes come from the window. A host that changes
 * them after the check corrupts only its own block, which then fails its checksum on every read.
 */
void
ofs_device_fill_slot(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	uint32_t slot)
{
	struct ofs_region *region = device->tenants[device->ports.entries[port].tenant].region;
	const struct ofs_device_session *session = &device->sessions.entries[sqe->session];
	uint8_t *record = ofs_region_slot(region, slot);

	assert(sqe->length <= device->config.store.payload_size_bytes);
	memcpy(record, ofs_device_put_window(device, port, sqe), sqe->length);
	fill_trailer(device, record, sqe, &session->chunks[sqe->ordinal].store_key,
		ofs_device_value_of(device, sqe->session));
}

/* If the bytes do not match the checksum, no part of them may pass as valid. */
void
ofs_device_fill_granules(const struct ofs_device *device, const uint8_t *record,
	struct ofs_trailer *trailer)
{
	uint32_t count = device->config.store.granule_count;

	if (count < 2)
		return;
	if (ofs_checksum(record, trailer->length) == trailer->checksum)
		ofs_granules_fill(trailer, record, count, device->storage->lba_size_bytes);
	else
		ofs_granules_void(trailer);
}
