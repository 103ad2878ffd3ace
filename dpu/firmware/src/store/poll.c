/* The two calls that drive a store: poll returns completions, tick handles time. */
#include "internal.h"

#include <assert.h>

static void
dispatch(struct ofs_store *store, const struct ofs_io_done *done)
{
	struct ofs_store_op *op = &store->ops[done->user];

	assert(done->user < store->op_count && store->flying > 0);
	store->flying--;
	switch ((enum ofs_store_op_kind)op->kind) {
	case OFS_STORE_PUT:
		ofs_put_done(store, op, done->result);
		break;
	case OFS_STORE_GET:
		ofs_get_done(store, op, done->result);
		break;
	case OFS_STORE_HEADER:
		ofs_segment_header_done(store, op, done->result);
		break;
	case OFS_STORE_MARK:
		ofs_segment_mark_done(store, op, done->result);
		break;
	case OFS_STORE_DISCARD:
		ofs_segment_discard_done(store, op, done->result);
		break;
	case OFS_STORE_WIPE:
		ofs_wipe_done(store, op, done->result);
		break;
	case OFS_STORE_MOVE_READ:
	case OFS_STORE_MOVE_WRITE:
		ofs_clean_done(store, op, done->result);
		break;
	case OFS_STORE_FORWARD:
		ofs_forward_done(store, op, done->result);
		break;
	case OFS_STORE_IDLE:
	case OFS_STORE_JOINED:
	case OFS_STORE_MOVE_READY:
		assert(!"the storage completed what was not in flight");
	}
}

int
ofs_store_poll(struct ofs_store *store, struct ofs_store_done *done, int max)
{
	struct ofs_io_done ended[OFS_DRAIN_BATCH];
	int count = store->flying == 0 ? 0 : ofs_storage_poll(store->storage, ended, OFS_DRAIN_BATCH);
	int given = 0;
	struct ofs_store_op *failed;

	for (int i = 0; i < count; i++)
		dispatch(store, &ended[i]);
	while ((failed = ofs_part_resume(store)) != NULL)
		ofs_get_done(store, failed, -EIO);
	if (!store->closing) {
		ofs_wipe_step(store);
		ofs_segment_mark_step(store);
		ofs_clean_step(store);
	}
	while (given < max && store->ready.count > 0) {
		struct ofs_store_op *op = &store->ops[store->ready.first];

		store->ready.first = op->next;
		store->ready.count--;
		done[given].user = op->user;
		done[given].rc = op->rc;
		done[given++].length = op->length;
		ofs_op_give(store, op);
	}
	return given;
}

int
ofs_store_tick(struct ofs_store *store, uint64_t now_s, struct ofs_store_entry *entries, int max)
{
	uint32_t looked =
		store->record_count < OFS_EXPIRE_SCAN_MAX ? store->record_count : OFS_EXPIRE_SCAN_MAX;
	int count = 0;

	store->now_s = now_s;
	while (looked-- > 0 && count < max) {
		uint32_t record = store->expire_cursor;
		uint8_t state = store->records[record].state;

		store->expire_cursor = record + 1 == store->record_count ? 0 : record + 1;
		if ((state == OFS_RECORD_LIVE || state == OFS_RECORD_CONDEMNED)
			&& ofs_record_expired(store, record, now_s)) {
			ofs_store_entry_fill(store, record, &entries[count]);
			store->stats.expired += state == OFS_RECORD_LIVE;
			ofs_record_drop(store, record);
			/* A block that is being rewritten is not lost. */
			count += ofs_store_index_find(store, &entries[count].store_key, entries[count].layer)
				== OFS_NONE;
		}
	}
	if (!store->closing) {
		ofs_wipe_again(store);
		ofs_wipe_step(store);
		ofs_segment_mark_step(store);
		ofs_clean_step(store);
	}
	return count;
}

uint32_t
ofs_store_in_flight(const struct ofs_store *store)
{
	return store->ops_used + store->wipe_listed + store->dying.count;
}

uint32_t
ofs_store_marking(const struct ofs_store *store, uint32_t tenant)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < store->segment_count; i++) {
		const struct ofs_store_segment *of = &store->segments[i];
		int ends = (of->state == OFS_SEGMENT_OPEN || of->state == OFS_SEGMENT_SEALED)
			&& of->live == 0 && of->next > 0; /* ends with the last I/O */

		count += (ends || of->state == OFS_SEGMENT_DYING) && of->tenant == tenant;
	}
	return count;
}

int
ofs_store_has_room(const struct ofs_store *store)
{
	return store->op_free != OFS_NONE
		&& store->storage->stats.in_flight < store->storage->queue_depth_max;
}

void
ofs_store_stats_get(const struct ofs_store *store, struct ofs_store_stats *stats)
{
	*stats = store->stats;
	stats->bytes_live = stats->blocks * store->record_size_bytes;
	stats->segments_free = store->free.count;
	stats->segments_total = store->segment_count;
	stats->blocks_lacking = ofs_store_lacks(store);
	stats->refuses_writes = (uint64_t)ofs_store_refuses(store);
}

uint32_t
ofs_store_record_size_bytes(const struct ofs_store *store)
{
	return store->record_size_bytes;
}
