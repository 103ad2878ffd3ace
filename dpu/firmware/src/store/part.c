/*
 * Reads of a part of a record: the requested granules, and its last logical block, which has their
 * checksums (granules.h). The bytes between are not read.
 *
 * Model: an op reads a few stretches of its record, each with its own I/O; it ends with the last of
 * them. An op that the device has no room for is stalled, and a later poll sends the rest. A *fill*
 * reads granules into a slot that has the last logical block already and that others may read
 * meanwhile: only the granules are written there. If a record has no checksums of granules (it is
 * older, or coded), the whole record is read instead, and they are computed.
 */
#include "granules.h"
#include "internal.h"

#include <assert.h>
#include <string.h>

/* The next stretch of the record to read from `*from` on; 0: none is left. */
static int
next_stretch(const struct ofs_store *store, const struct ofs_store_op *op, uint32_t *from,
	uint32_t *size_bytes)
{
	uint32_t count = store->config.granule_count;
	uint32_t first = *from / op->granule_bytes;
	uint32_t past;

	while (first < count && (op->granules >> first & 1) == 0)
		first++;
	for (past = first; past < count && (op->granules >> past & 1) != 0;)
		past++;
	*from = first * op->granule_bytes;
	*size_bytes = (past - first) * op->granule_bytes;
	if (op->fill)
		return past > first;
	if (past == count) /* the last logical block follows the last granule */
		*size_bytes += store->storage->lba_size_bytes;
	return 1;
}

/* Sends what has not been sent. 0, or the error; I/O already sent continues. */
static int
send_stretches(struct ofs_store *store, struct ofs_store_op *op)
{
	uint64_t offset = ofs_store_record_offset(store, op->record);
	uint32_t past = store->record_size_bytes;
	uint32_t size_bytes;
	int rc = 0;

	assert(op->granule_bytes > 0 && op->next_from <= past);
	while (op->next_from < past) {
		uint32_t from = op->next_from;

		if (!next_stretch(store, op, &from, &size_bytes)) {
			op->next_from = past;
			return 0;
		}
		rc = ofs_op_submit(store, op, OFS_STORAGE_READ, offset + from, op->buffer + from,
			size_bytes, 0);
		if (rc != 0)
			return rc;
		op->stretches++;
		op->expected_bytes += size_bytes;
		op->next_from = from + size_bytes;
	}
	return 0;
}

static void
stall(struct ofs_store *store, struct ofs_store_op *op)
{
	assert(!op->stalled);
	op->stalled = 1;
	ofs_op_append(store, &store->stalled, op);
}

/* -EAGAIN: nothing was sent. A later poll sends what the device refused after the first I/O. */
static int
begin(struct ofs_store *store, struct ofs_store_op *op)
{
	int rc = send_stretches(store, op);

	if (rc == -EAGAIN && op->stretches > 0)
		stall(store, op);
	else if (rc != 0 && op->stretches > 0)
		op->failed = 1;
	return op->stretches > 0 ? 0 : rc;
}

/* A record that is coded, or not cut into granules, is read whole, whatever was requested. */
static int
came_whole(const struct ofs_store_op *op, const struct ofs_trailer *trailer)
{
	return op->granule_bytes != 0
		? ofs_granules_match(ofs_granules_behind(trailer), op->buffer, op->granules)
		: ofs_checksum(op->buffer, trailer->length) == trailer->checksum;
}

int
ofs_part_submit(struct ofs_store *store, struct ofs_store_op *op, uint32_t granules, int fill)
{
	const struct ofs_trailer *trailer = ofs_store_trailer(store, op->buffer);
	const struct ofs_store_record *of = &store->records[op->record];
	uint32_t count = store->config.granule_count;
	uint32_t lba = store->storage->lba_size_bytes;
	uint32_t length = fill ? trailer->length : store->config.payload_size_bytes;

	if (fill && of->checksum != trailer->checksum)
		return -ESTALE; /* the slot's part is of other bytes */
	op->granule_bytes = ofs_granule_size_bytes(length, count, lba);
	op->granules = granules;
	op->fill = (uint8_t)fill;
	if (fill && (of->coded_bytes != 0 || op->granule_bytes == 0)) {
		if (!came_whole(op, trailer))
			return -ESTALE;
		store->segments[op->record / store->records_per_segment].pins--;
		op->length = length;
		ofs_op_ready(store, op, 0);
		return 0;
	}
	if (!fill && (of->coded_bytes != 0 || of->untabled)) {
		op->granules = 0;
		return ofs_record_submit(store, op, OFS_STORAGE_READ, op->record);
	}
	return begin(store, op);
}

struct ofs_store_op *
ofs_part_resume(struct ofs_store *store)
{
	while (store->stalled.count > 0) {
		struct ofs_store_op *op = &store->ops[store->stalled.first];
		uint32_t next = op->next;
		int rc;

		assert(op->stalled && op->kind == OFS_STORE_GET);
		rc = op->granules != 0 ? send_stretches(store, op)
							   : ofs_record_submit(store, op, OFS_STORAGE_READ, op->record);

		if (rc == -EAGAIN)
			return NULL;
		op->stalled = 0;
		op->next = OFS_NONE;
		store->stalled.first = next;
		store->stalled.count--;
		op->failed |= rc != 0;
		if (rc != 0 && op->stretches == 0) { /* nothing in flight will end it */
			op->stretches = 1;
			return op;
		}
	}
	return NULL;
}

int
ofs_part_goes_on(struct ofs_store_op *op, int64_t result)
{
	if (op->granules == 0)
		return 0;
	assert(op->stretches > 0);
	op->stretches--;
	op->failed |= result < 0;
	op->got_bytes += result > 0 ? (uint64_t)result : 0;
	return op->stretches > 0 || op->stalled;
}

int
ofs_part_take(struct ofs_store *store, struct ofs_store_op *op)
{
	const struct ofs_store_record *of = &store->records[op->record];
	const struct ofs_trailer *trailer = ofs_store_trailer(store, op->buffer);
	const struct ofs_granule_table *table = ofs_granules_behind(trailer);

	if (!op->fill
		&& (!ofs_trailer_belongs(store, trailer, op->record) || trailer->sequence != of->sequence
			|| !ofs_key_equal(&trailer->store_key, &of->key)))
		return 0;
	if (!ofs_granules_agree(table, trailer, store->config.granule_count)
		|| table->granule_bytes != op->granule_bytes)
		return op->fill ? 0 : -EAGAIN;
	return ofs_granules_match(table, op->buffer, op->granules);
}

int
ofs_part_read_whole(struct ofs_store *store, struct ofs_store_op *op)
{
	int rc;

	store->records[op->record].untabled = 1;
	op->granules = op->stretches = 0;
	rc = ofs_record_submit(store, op, OFS_STORAGE_READ, op->record);
	if (rc == -EAGAIN) {
		stall(store, op);
		rc = 0;
	}
	return rc;
}

void
ofs_part_complete(struct ofs_store *store, const struct ofs_store_op *op)
{
	struct ofs_trailer *trailer = ofs_store_trailer(store, op->buffer);
	uint32_t count = store->config.granule_count;

	if (count > 1 && !ofs_granules_agree(ofs_granules_behind(trailer), trailer, count))
		ofs_granules_fill(trailer, op->buffer, count, store->storage->lba_size_bytes);
}
