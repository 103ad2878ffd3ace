/*
 * Records whose payload is coded. Place and trailer are as in every other record, but only the
 * logical blocks before the trailer that the coded payload needs are written and read. Callers do
 * not see this: puts and gets pass the payload uncoded.
 *
 * A caller's op has its own memory for the coded bytes; the cleaner moves records without decoding
 * them. A payload that would not save a logical block is written uncoded.
 */
#include "codec.h"
#include "internal.h"

#include <stdlib.h>
#include <string.h>

int
ofs_coded_open(struct ofs_store *store)
{
	uint64_t size_bytes = (uint64_t)store->config.io_max * store->record_size_bytes;
	int rc;

	store->codes = store->super.version == OFS_STORE_VERSION_CODED;
	if (!store->codes)
		return 0;
	store->plain = malloc(store->config.payload_size_bytes);
	if (store->plain == NULL)
		return -ENOMEM;
	rc = ofs_dma_alloc(&store->coded, &store->config.memory, size_bytes, NULL);
	if (rc != 0)
		return rc;
	rc = ofs_storage_register_memory(store->storage, store->coded.base, store->coded.size_bytes);
	store->coded_registered = rc == 0;
	return rc;
}

/* Only when no I/O is in flight. */
void
ofs_coded_close(struct ofs_store *store)
{
	if (store->coded_registered) {
		(void)ofs_storage_unregister_memory(store->storage, store->coded.base,
			store->coded.size_bytes);
	}
	ofs_dma_free(&store->coded);
}

/* Bytes skipped at the start of the place, before the payload. */
static uint32_t
skipped(const struct ofs_store *store, uint32_t coded_bytes)
{
	uint32_t lba = store->storage->lba_size_bytes;

	if (coded_bytes == 0)
		return 0;
	return store->config.payload_size_bytes - (coded_bytes + lba - 1) / lba * lba;
}

uint32_t
ofs_record_io_bytes(const struct ofs_store *store, uint32_t record)
{
	return store->record_size_bytes - skipped(store, store->records[record].coded_bytes);
}

static uint8_t *
io_memory(const struct ofs_store *store, const struct ofs_store_op *op, uint32_t record)
{
	return store->records[record].coded_bytes == 0 ? op->buffer : op->coded;
}

int
ofs_record_submit(struct ofs_store *store, const struct ofs_store_op *op, int io, uint32_t record)
{
	uint32_t skip = skipped(store, store->records[record].coded_bytes);
	uint32_t tenant = store->segments[record / store->records_per_segment].tenant;

	return ofs_op_submit(store, op, io, ofs_store_record_offset(store, record) + skip,
		io_memory(store, op, record) + skip, ofs_record_io_bytes(store, record),
		OFS_LIFETIME_TENANT + tenant);
}

/* Codes the payload in op->buffer into the memory its I/O uses. Returns its size; 0 if coding saves
 * nothing. */
static uint32_t
code_payload(struct ofs_store *store, const struct ofs_store_op *op)
{
	uint32_t room = store->config.payload_size_bytes - store->storage->lba_size_bytes;
	int64_t size_bytes;
	uint8_t *to;

	if (store->config.codec == OFS_CODEC_OFF)
		return 0;
	size_bytes = ofs_codec_encode(store->config.codec, op->buffer,
		ofs_store_trailer(store, op->buffer)->length, store->plain, room);
	if (size_bytes < 0)
		return 0;
	to = op->coded + skipped(store, (uint32_t)size_bytes);
	memcpy(to, store->plain, (size_t)size_bytes);
	memset(to + size_bytes, 0,
		(size_t)(op->coded + store->config.payload_size_bytes - to) - (size_t)size_bytes);
	return (uint32_t)size_bytes;
}

void
ofs_record_prepare(struct ofs_store *store, const struct ofs_store_op *op, uint32_t record)
{
	struct ofs_store_record *of = &store->records[record];
	struct ofs_trailer *trailer = ofs_store_trailer(store, op->buffer);

	if (op->kind == OFS_STORE_MOVE_READY) {
		of->coded_bytes = store->records[op->old].coded_bytes;
		ofs_trailer_fill(store, trailer, record, of->coded_bytes);
		return;
	}
	of->coded_bytes = code_payload(store, op);
	ofs_trailer_fill(store, trailer, record, 0);
	if (of->coded_bytes > 0) {
		memcpy(ofs_store_trailer(store, op->coded), trailer, store->storage->lba_size_bytes);
		ofs_trailer_fill(store, ofs_store_trailer(store, op->coded), record, of->coded_bytes);
	}
}

void
ofs_record_count_spared(struct ofs_store *store, uint32_t record)
{
	if (store->records[record].coded_bytes > 0) {
		store->stats.puts_coded++;
		store->stats.put_bytes_spared +=
			store->record_size_bytes - ofs_record_io_bytes(store, record);
	}
}

int
ofs_record_intact(const struct ofs_store *store, const uint8_t *bytes, uint32_t record,
	uint8_t *plain)
{
	const struct ofs_trailer *trailer = ofs_store_trailer(store, bytes);
	const struct ofs_store_record *of = &store->records[record];

	if (!ofs_trailer_belongs(store, trailer, record) || trailer->sequence != of->sequence
		|| !ofs_key_equal(&trailer->store_key, &of->key)
		|| ofs_trailer_coded_bytes(trailer) != of->coded_bytes) {
		return 0;
	}
	if (of->coded_bytes == 0)
		return trailer->checksum == ofs_checksum(bytes, trailer->length);
	return ofs_codec_decode(bytes + skipped(store, of->coded_bytes), of->coded_bytes, plain,
			   trailer->length)
		== trailer->length
		&& trailer->checksum == ofs_checksum(plain, trailer->length);
}

int
ofs_record_take(struct ofs_store *store, const struct ofs_store_op *op)
{
	const uint8_t *from = io_memory(store, op, op->record);
	struct ofs_trailer *trailer = ofs_store_trailer(store, op->buffer);

	if (!ofs_record_intact(store, from, op->record, op->buffer))
		return 0;
	if (from != op->buffer) {
		*trailer = *ofs_store_trailer(store, from);
		ofs_trailer_fill(store, trailer, op->record, 0);
	}
	return 1;
}
