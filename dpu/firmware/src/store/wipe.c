/*
 * Wipes deleted blocks, so that the next open does not find them.
 *
 * Model: a copy of a deleted block that an open could find is *wanted* (record.c): its trailer must
 * be overwritten by one that names nothing (with `erase` also its payload), or, if its segment has
 * no live record, the segment marked free with one write. Segments with wanted records are in a
 * list of their tenant; the tenants take turns, with at most OFS_WIPE_OPS writes in flight. A
 * failed write is retried after a second: until it succeeds, waits for the delete continue, and the
 * segment is not reused.
 *
 * A wait has a ticket: copies wanted later count under another turn, so that no wait includes later
 * deletes.
 */
#include "internal.h"

#include <assert.h>

/* ---- the writes ---- */

static int
send(struct ofs_store *store, uint32_t record)
{
	struct ofs_store_op *op = ofs_op_take(store, &store->wipe_free);
	uint64_t offset = ofs_store_record_offset(store, record);
	uint32_t before = store->config.erase ? store->config.payload_size_bytes : 0;
	int rc;

	/* Live records, and those being written, are not overwritten. */
	assert(store->records[record].state == OFS_RECORD_DEAD);
	assert(store->records[record].wipe == OFS_WIPE_WANTED);
	if (op == NULL)
		return -EAGAIN;
	ofs_trailer_fill_wiped(store, (struct ofs_trailer *)(op->buffer + before), record);
	rc = ofs_op_submit(store, op, OFS_STORAGE_WRITE,
		offset + store->config.payload_size_bytes - before, op->buffer,
		before + store->storage->lba_size_bytes, OFS_LIFETIME_PLACE);
	if (rc != 0) {
		ofs_op_give(store, op);
		return rc;
	}
	op->kind = OFS_STORE_WIPE;
	op->record = record;
	store->records[record].wipe = OFS_WIPE_FLYING;
	store->segments[record / store->records_per_segment].pins++;
	return 0;
}

/* All that is wanted of the segment is in flight; 0: there is no room for more. */
static int
send_all(struct ofs_store *store, uint32_t segment)
{
	struct ofs_store_segment *of = &store->segments[segment];

	for (; of->wipe_cursor < of->next; of->wipe_cursor++) {
		uint32_t record = segment * store->records_per_segment + of->wipe_cursor;

		if (store->records[record].wipe == OFS_WIPE_WANTED
			&& store->records[record].state == OFS_RECORD_DEAD && send(store, record) != 0) {
			return 0;
		}
	}
	return 1;
}

static struct ofs_store_wipes *
next_tenant(struct ofs_store *store)
{
	do
		store->wipe_tenant = (store->wipe_tenant + 1) % store->super.tenant_max;
	while (store->wipes[store->wipe_tenant].segments.count == 0);
	return &store->wipes[store->wipe_tenant];
}

void
ofs_wipe_step(struct ofs_store *store)
{
	while (store->wipe_listed > 0) {
		struct ofs_store_wipes *wipes = next_tenant(store);
		uint32_t segment = wipes->segments.first;
		struct ofs_store_segment *of = &store->segments[segment];
		/* Its mark is one write, once nothing reads in it any more. */
		int dies = of->live == 0 && of->writing == 0 && !store->config.erase;

		assert(of->listed == OFS_LISTED_WIPE && of->tenant == store->wipe_tenant);
		if (dies)
			ofs_segment_seal(store, segment); /* nothing may become live in it */
		else if (!send_all(store, segment))
			return;
		(void)ofs_list_take(store, &wipes->segments);
		of->listed = OFS_LISTED_NO;
		store->wipe_listed--;
		ofs_segment_settle(store, segment);
	}
}

void
ofs_wipe_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result)
{
	uint32_t record = op->record;
	uint32_t segment = record / store->records_per_segment;
	struct ofs_store_segment *of = &store->segments[segment];
	uint32_t before = store->config.erase ? store->config.payload_size_bytes : 0;
	int32_t rc = ofs_store_rc(result, before + store->storage->lba_size_bytes);

	assert(of->pins > 0 && store->records[record].wipe == OFS_WIPE_FLYING);
	ofs_op_give(store, op);
	of->pins--;
	store->refused = rc == -EIO ? store->refused + 1 : 0;
	if (rc == 0) {
		ofs_wipe_ended(store, record);
		store->stats.wiped++;
	} else {
		store->stats.io_errors++;
		store->records[record].wipe = OFS_WIPE_WANTED;
		of->wipe_cursor = 0;
		if (of->listed == OFS_LISTED_NO) {
			of->listed = OFS_LISTED_AGAIN;
			ofs_list_put(store, &store->again, segment);
		}
	}
	ofs_segment_settle(store, segment);
}

void
ofs_wipe_again(struct ofs_store *store)
{
	if (store->again_s == store->now_s)
		return;
	store->again_s = store->now_s;
	while (store->again.count > 0) {
		uint32_t segment = ofs_list_take(store, &store->again);

		assert(store->segments[segment].listed == OFS_LISTED_AGAIN);
		store->segments[segment].listed = OFS_LISTED_NO;
		ofs_wipe_list(store, segment);
	}
	while (store->unmarked.count > 0)
		ofs_list_put(store, &store->dying, ofs_list_take(store, &store->unmarked));
}

/* ---- waits ---- */

uint64_t
ofs_store_wiping(const struct ofs_store *store, uint32_t tenant)
{
	return (uint64_t)store->wipes[tenant].wanted[0] + store->wipes[tenant].wanted[1];
}

int
ofs_store_wiped(struct ofs_store *store, uint32_t tenant, uint64_t *ticket)
{
	struct ofs_store_wipes *wipes = &store->wipes[tenant];

	if (*ticket == 0)
		*ticket = wipes->turn;
	/* A turn ends when a ticket waits for it, and all wipes of the turn before have ended. */
	if (wipes->turn == *ticket && wipes->wanted[(*ticket + 1) & 1] == 0)
		wipes->turn++;
	if (wipes->turn == *ticket)
		return -EAGAIN;
	return wipes->turn > *ticket + 1 || wipes->wanted[*ticket & 1] == 0 ? 0 : -EAGAIN;
}
