/* Reading, deleting and looking up. */
#include "internal.h"

#include <assert.h>

/* The readable record of a key: during a rewrite, the one being replaced. OFS_NONE: none yet. */
static uint32_t
readable(const struct ofs_store *store, uint32_t record)
{
	uint32_t old;

	if (store->records[record].state != OFS_RECORD_WRITING)
		return record;
	assert(store->ops[store->records[record].op].record == record);
	old = store->ops[store->records[record].op].old;
	return old != OFS_NONE && store->records[old].state == OFS_RECORD_LIVE ? old : OFS_NONE;
}

static int
get(struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer, void *record,
	const struct ofs_store_part *part, uint64_t user, uint64_t now_s)
{
	uint32_t found = ofs_store_index_find(store, store_key, layer);
	struct ofs_store_op *op;
	int rc;

	store->now_s = now_s;
	if (found == OFS_NONE)
		return -ENOENT;
	found = readable(store, found);
	if (found == OFS_NONE)
		return -EAGAIN;
	if (ofs_record_expired(store, found, now_s))
		return -ENOENT;
	op = ofs_op_take(store, &store->op_free);
	if (op == NULL)
		return -EAGAIN;
	op->kind = OFS_STORE_GET;
	op->user = user;
	op->buffer = record;
	op->record = found;
	store->segments[found / store->records_per_segment].pins++;
	rc = part == NULL || part->granules == 0
		? ofs_record_submit(store, op, OFS_STORAGE_READ, found)
		: ofs_part_submit(store, op, part->granules, part->fill);
	if (rc != 0) {
		store->segments[found / store->records_per_segment].pins--;
		ofs_op_give(store, op);
		return rc;
	}
	store->stats.gets++;
	store->stats.gets_in_part += op->granules != 0;
	return 0;
}

int
ofs_store_get(struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer,
	void *record, uint64_t user, uint64_t now_s)
{
	return get(store, store_key, layer, record, NULL, user, now_s);
}

int
ofs_store_get_part(struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer,
	void *record, const struct ofs_store_part *part, uint64_t user, uint64_t now_s)
{
	if (part->granules != 0
		&& (store->config.granule_count < 2
			|| (uint64_t)part->granules >> store->config.granule_count != 0))
		return -EINVAL;
	/* The whole record is one stretch, with one checksum. */
	if (part->granules != 0 && !part->fill
		&& part->granules == UINT32_MAX >> (32 - store->config.granule_count))
		part = NULL;
	return get(store, store_key, layer, record, part, user, now_s);
}

void
ofs_record_drop(struct ofs_store *store, uint32_t record)
{
	uint32_t segment = record / store->records_per_segment;

	assert(store->records[record].state == OFS_RECORD_LIVE
		|| store->records[record].state == OFS_RECORD_CONDEMNED);
	/* While the block is being rewritten, the index names the new record. */
	if (ofs_store_index_find(store, &store->records[record].key, store->segments[segment].layer)
		== record) {
		ofs_store_index_remove(store, record);
		ofs_copies_wipe(store, record);
	} else {
		ofs_record_mark_dead(store, record);
	}
	ofs_segment_settle(store, segment);
}

/* Takes what was read and checks it, as ofs_part_take. */
static int
take(struct ofs_store *store, struct ofs_store_op *op)
{
	if (op->granules != 0)
		return ofs_part_take(store, op);
	if (!ofs_record_take(store, op))
		return 0;
	store->records[op->record].verified = 1;
	ofs_part_complete(store, op);
	return 1;
}

void
ofs_get_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result)
{
	uint32_t segment = op->record / store->records_per_segment;
	struct ofs_store_record *of = &store->records[op->record];
	struct ofs_trailer *trailer = ofs_store_trailer(store, op->buffer);
	int32_t rc;
	int right;

	if (ofs_part_goes_on(op, result))
		return;
	if (op->granules != 0)
		rc = op->failed || op->got_bytes != op->expected_bytes ? -EIO : 0;
	else
		rc = ofs_store_rc(result, ofs_record_io_bytes(store, op->record)) == 0 ? 0 : -EIO;
	right = rc == 0 ? take(store, op) : 0;
	if (right == -EAGAIN && ofs_part_read_whole(store, op) == 0)
		return;
	/* The pin kept the place from being reused: the bytes read are those of the record. */
	assert(store->segments[segment].pins > 0 && of->state != OFS_RECORD_FREE);
	store->segments[segment].pins--;
	if (rc != 0) {
		store->stats.io_errors++;
	} else if (right == 1) {
		op->length = trailer->length;
	} else if (right == -EAGAIN) {
		rc = -EIO; /* nor can the whole be read */
	} else if (of->wipe != OFS_WIPE_NO) {
		rc = -ENOENT; /* deleted, and overwritten, during the read */
	} else {
		rc = -EBADMSG;
		store->stats.checks_failed++;
		if (of->state == OFS_RECORD_LIVE || of->state == OFS_RECORD_CONDEMNED)
			ofs_record_drop(store, op->record);
	}
	/* Nothing may be read one-sidedly from this slot until it is published. */
	if (!op->fill) {
		trailer->generation = 0;
		trailer->cause = 0;
	}
	ofs_op_ready(store, op, rc);
	ofs_segment_settle(store, segment);
}

uint64_t
ofs_store_position(const struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer)
{
	uint32_t found = ofs_store_index_find(store, store_key, layer);

	return found == OFS_NONE ? UINT64_MAX : found;
}

int
ofs_store_delete(struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer)
{
	uint32_t found = ofs_store_index_find(store, store_key, layer);

	if (found == OFS_NONE)
		return -ENOENT;
	store->stats.deletes++;
	if (store->records[found].state == OFS_RECORD_WRITING) {
		struct ofs_store_op *op = &store->ops[store->records[found].op];

		assert(op->record == found && !op->dropped);
		ofs_store_index_remove(store, found);
		op->dropped = 1;
		ofs_copies_wipe(store, found);
	} else {
		ofs_record_drop(store, found);
	}
	return 0;
}

int
ofs_store_scan(struct ofs_store *store, uint64_t *cursor, struct ofs_store_entry *entries, int max)
{
	int count = 0;

	while (count < max && *cursor < store->record_count) {
		uint32_t record = (uint32_t)(*cursor)++;

		if (store->records[record].state == OFS_RECORD_LIVE)
			ofs_store_entry_fill(store, record, &entries[count++]);
	}
	return count;
}
