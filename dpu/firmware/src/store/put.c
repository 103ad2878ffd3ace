/* Writing: a put finds room in its lane, is one I/O, and ends when its header is written too. */
#include "internal.h"

#include <assert.h>

/* The op ends at the next poll: there is nothing to write. */
static int
end_at_once(struct ofs_store *store, uint64_t user)
{
	struct ofs_store_op *op = ofs_op_take(store, &store->op_free);

	if (op == NULL)
		return -EAGAIN;
	op->kind = OFS_STORE_JOINED;
	op->user = user;
	ofs_op_ready(store, op, 0);
	return 0;
}

/* Whether a later open of the store finds the record until `expire_s`. */
static int
lasts(const struct ofs_store *store, uint32_t record, uint64_t expire_s)
{
	uint64_t written_s = store->records[record].written_s;

	return written_s == 0 || (expire_s != 0 && expire_s <= written_s);
}

/* The same block is being written: both puts end with that write, not before. */
static int
join(struct ofs_store *store, uint32_t record, uint64_t user, uint64_t expire_s)
{
	struct ofs_store_op *writer = &store->ops[store->records[record].op];
	struct ofs_store_op *op;

	assert(writer->kind == OFS_STORE_PUT && writer->record == record);
	if (!lasts(store, record, expire_s))
		return -EAGAIN;
	op = ofs_op_take(store, &store->op_free);
	if (op == NULL)
		return -EAGAIN;
	op->kind = OFS_STORE_JOINED;
	op->user = user;
	op->next = writer->joined;
	writer->joined = ofs_op_index(store, op);
	return 0;
}

int
ofs_put_send(struct ofs_store *store, struct ofs_store_op *op, uint32_t tenant, uint32_t layer,
	const struct ofs_key *key, uint64_t expire_s)
{
	int cleaner = op->kind == OFS_STORE_MOVE_READY;
	struct ofs_store_record *of;
	uint32_t record;
	int rc;

	if (store->config.codec != 0
		&& store->storage->stats.in_flight >= store->storage->queue_depth_max) {
		return -EAGAIN; /* checked before coding, which would be wasted */
	}
	rc = ofs_lane_room(store, tenant, layer, cleaner, &record);
	if (rc != 0)
		return rc;
	of = &store->records[record];
	assert(of->state == OFS_RECORD_FREE && of->copy_next == record);
	of->key = *key;
	of->sequence = store->sequence + 1;
	of->expire_s = expire_s;
	/* The expiry on the device is a little later, so that not every renewal has to be written. */
	of->written_s = expire_s == 0 ? 0 : expire_s + store->config.ttl_s / OFS_RENEWALS_UNWRITTEN;
	of->checksum = ofs_store_trailer(store, op->buffer)->checksum;
	of->verified = 0;
	ofs_record_prepare(store, op, record);
	rc = ofs_record_submit(store, op, OFS_STORAGE_WRITE, record);
	if (rc != 0)
		return rc;
	store->sequence++;
	of->state = OFS_RECORD_WRITING;
	of->op = ofs_op_index(store, op);
	op->record = record;
	op->kind = cleaner ? OFS_STORE_MOVE_WRITE : OFS_STORE_PUT;
	if (!cleaner)
		ofs_record_count_spared(store, record);
	ofs_lane_take(store, record);
	return 0;
}

static int
put_new(struct ofs_store *store, uint32_t tenant, const struct ofs_key *key, uint32_t layer,
	void *memory, uint64_t user, uint32_t old, uint64_t expire_s)
{
	struct ofs_store_op *op = ofs_op_take(store, &store->op_free);
	int rc;

	if (op == NULL)
		return -EAGAIN;
	op->kind = OFS_STORE_PUT;
	op->user = user;
	op->buffer = memory;
	op->old = old;
	rc = ofs_put_send(store, op, tenant, layer, key, expire_s);
	if (rc != 0) {
		ofs_op_give(store, op);
		return rc;
	}
	if (old == OFS_NONE) {
		store->tenant_blocks[tenant]++;
		ofs_store_index_insert(store, op->record);
	} else {
		/* The old record stays live, and its segment in place, until the new one is safe. */
		store->segments[old / store->records_per_segment].pins++;
		ofs_copies_join(store, op->record, old);
		ofs_store_index_replace(store, old, op->record);
	}
	return 0;
}

int
ofs_store_put(struct ofs_store *store, uint32_t tenant, const struct ofs_key *store_key,
	uint32_t layer, void *record, uint64_t user, uint64_t now_s)
{
	return ofs_store_put_until(store, tenant, store_key, layer, record, user,
		store->config.ttl_s == 0 ? 0 : now_s + store->config.ttl_s, now_s);
}

int
ofs_store_put_until(struct ofs_store *store, uint32_t tenant, const struct ofs_key *store_key,
	uint32_t layer, void *record, uint64_t user, uint64_t expire_s, uint64_t now_s)
{
	const struct ofs_trailer *trailer = ofs_store_trailer(store, record);
	uint32_t length = trailer->length;
	uint32_t found;
	int rc;

	if (tenant >= store->config.tenant_max || layer >= store->config.layer_count || length == 0
		|| length > store->config.payload_size_bytes) {
		return -EINVAL;
	}
	store->now_s = now_s;
	found = ofs_store_index_find(store, store_key, layer);
	if (found != OFS_NONE && store->segments[found / store->records_per_segment].tenant != tenant)
		return -EINVAL; /* a key names a block of one tenant */
	if (found != OFS_NONE && store->records[found].state != OFS_RECORD_WRITING
		&& ofs_record_expired(store, found, now_s)) {
		store->stats.expired += store->records[found].state == OFS_RECORD_LIVE;
		ofs_record_drop(store, found);
		found = OFS_NONE;
	}
	if (found != OFS_NONE && store->records[found].checksum != trailer->checksum)
		return -EEXIST;
	if (found != OFS_NONE && store->records[found].state == OFS_RECORD_WRITING) {
		rc = join(store, found, user, expire_s);
	} else if (found != OFS_NONE && store->records[found].verified
		&& lasts(store, found, expire_s)) {
		rc = end_at_once(store, user);
	} else {
		rc = put_new(store, tenant, store_key, layer, record, user, found, expire_s);
		found = OFS_NONE;
	}
	if (rc == 0 && found != OFS_NONE && expire_s != 0)
		store->records[found].expire_s = expire_s;
	store->stats.puts += rc == 0;
	return rc;
}

uint64_t
ofs_store_blocks_of(const struct ofs_store *store, uint32_t tenant)
{
	return tenant < store->super.tenant_max ? store->tenant_blocks[tenant] : 0;
}

int
ofs_store_conflicts(const struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer,
	uint64_t checksum, uint64_t now_s)
{
	uint32_t found = ofs_store_index_find(store, store_key, layer);

	return found != OFS_NONE && store->records[found].checksum != checksum
		&& (store->records[found].state == OFS_RECORD_WRITING
			|| !ofs_record_expired(store, found, now_s));
}

void
ofs_put_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result)
{
	uint32_t segment = op->record / store->records_per_segment;
	struct ofs_store_segment *of = &store->segments[segment];

	assert(of->writing > 0);
	op->rc = ofs_store_rc(result, ofs_record_io_bytes(store, op->record));
	if (op->rc != 0) {
		store->stats.io_errors++;
		of->errors++;
		if (of->errors >= OFS_SEGMENT_ERRORS_MAX)
			ofs_segment_seal(store, segment);
	} else {
		store->refused = 0;
	}
	if (of->header == OFS_WRITTEN_PENDING) {
		op->next = of->waiters;
		of->waiters = ofs_op_index(store, op);
		return;
	}
	if (of->header == OFS_WRITTEN_FAILED && op->rc == 0)
		op->rc = -EIO;
	ofs_put_settle(store, op);
}

/* Ends a put in the tables: the new record becomes live, or the old one is live again. */
static void
put_conclude(struct ofs_store *store, struct ofs_store_op *op)
{
	uint32_t old = op->old;
	int old_lives = old != OFS_NONE && store->records[old].state == OFS_RECORD_LIVE;

	assert(store->records[op->record].state == OFS_RECORD_WRITING);
	assert(old == OFS_NONE || store->segments[old / store->records_per_segment].pins > 0);
	if (old == OFS_NONE)
		store->tenant_blocks[store->segments[op->record / store->records_per_segment].tenant]--;
	if (op->dropped) {
		ofs_record_mark_dead(store, op->record);
	} else if (op->rc == 0) {
		ofs_record_enliven(store, op->record);
		store->records[op->record].verified = 1;
		if (old_lives)
			ofs_record_mark_dead(store, old);
	} else if (old_lives) {
		ofs_store_index_replace(store, op->record, old);
		ofs_record_mark_dead(store, op->record);
	} else {
		/* A write that failed may have reached the device all the same. */
		ofs_store_index_remove(store, op->record);
		ofs_record_mark_dead(store, op->record);
		ofs_copies_wipe(store, op->record);
	}
	if (old != OFS_NONE) {
		store->segments[old / store->records_per_segment].pins--;
		ofs_segment_settle(store, old / store->records_per_segment);
	}
}

void
ofs_put_settle(struct ofs_store *store, struct ofs_store_op *op)
{
	uint32_t segment = op->record / store->records_per_segment;
	uint32_t joined = op->joined;

	if (op->kind == OFS_STORE_MOVE_WRITE) {
		ofs_clean_written(store, op);
		return;
	}
	assert(op->kind == OFS_STORE_PUT);
	ofs_lane_written(store, segment);
	put_conclude(store, op);
	ofs_op_ready(store, op, op->rc);
	while (joined != OFS_NONE) {
		struct ofs_store_op *other = &store->ops[joined];

		joined = other->next;
		ofs_op_ready(store, other, op->rc);
	}
	ofs_segment_settle(store, segment);
}
