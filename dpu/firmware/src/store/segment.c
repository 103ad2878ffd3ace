/* Lanes and segments: where a record is appended, and how a segment becomes free again. */
#include "internal.h"

#include <assert.h>

uint32_t
ofs_lane_of(const struct ofs_store *store, uint32_t segment)
{
	const struct ofs_store_segment *of = &store->segments[segment];

	return of->tenant * store->config.layer_count + of->layer;
}

/* Takes a free segment for the lane and submits its header. */
static int
open_segment(struct ofs_store *store, uint32_t tenant, uint32_t layer)
{
	struct ofs_store_op *op = ofs_op_take(store, &store->header_free);
	uint32_t segment = store->free.first;
	struct ofs_store_segment *of = &store->segments[segment];
	int rc;

	if (op == NULL)
		return -EAGAIN;
	/* A segment is reused only when none of its earlier records is live or has I/O in flight. */
	assert(store->free.count > 0 && of->state == OFS_SEGMENT_FREE);
	assert(of->live == 0 && of->writing == 0 && of->pins == 0);
	of->tenant = tenant;
	of->layer = layer;
	of->sequence = store->sequence + 1;
	ofs_segment_header_fill(store, segment, OFS_HEADER_USED, op->buffer);
	rc = ofs_op_submit(store, op, OFS_STORAGE_WRITE, ofs_store_segment_offset(store, segment),
		op->buffer, store->storage->lba_size_bytes, OFS_LIFETIME_PLACE);
	if (rc != 0) {
		ofs_op_give(store, op);
		return rc;
	}
	store->sequence++;
	(void)ofs_list_take(store, &store->free);
	op->kind = OFS_STORE_HEADER;
	op->segment = segment;
	of->state = OFS_SEGMENT_OPEN;
	store->open_count++;
	store->taken += store->records_per_segment;
	of->header = OFS_WRITTEN_PENDING;
	of->next = 0;
	of->errors = 0;
	of->stuck = 0;
	of->waiters = OFS_NONE;
	store->lane_open[tenant * store->config.layer_count + layer] = segment;
	return 0;
}

int
ofs_lane_room(struct ofs_store *store, uint32_t tenant, uint32_t layer, int cleaner,
	uint32_t *record)
{
	uint32_t lane = tenant * store->config.layer_count + layer;
	uint32_t needs = cleaner ? 0 : ofs_clean_needs(store, lane);
	uint32_t segment = store->lane_open[lane];
	int rc;

	if (segment == OFS_NONE) {
		if (needs > 0)
			return -EAGAIN; /* the cleaner is about to open one from the reserve */
		if (store->free.count <= (cleaner ? 0 : store->config.reserve_segments))
			return cleaner ? -ENOSPC : ofs_clean_starve(store, lane);
		rc = open_segment(store, tenant, layer);
		if (rc != 0)
			return rc;
		segment = store->lane_open[lane];
	}
	if (store->records_per_segment - store->segments[segment].next <= needs)
		return -EAGAIN;
	*record = segment * store->records_per_segment + store->segments[segment].next;
	return 0;
}

void
ofs_lane_take(struct ofs_store *store, uint32_t record)
{
	uint32_t segment = record / store->records_per_segment;
	struct ofs_store_segment *of = &store->segments[segment];

	assert(of->state == OFS_SEGMENT_OPEN);
	assert(of->next == record % store->records_per_segment);
	of->next++;
	of->writing++;
	if (of->next == store->records_per_segment)
		ofs_segment_seal(store, segment);
}

void
ofs_segment_seal(struct ofs_store *store, uint32_t segment)
{
	struct ofs_store_segment *of = &store->segments[segment];

	if (of->state == OFS_SEGMENT_OPEN) {
		assert(store->lane_open[ofs_lane_of(store, segment)] == segment);
		store->lane_open[ofs_lane_of(store, segment)] = OFS_NONE;
		store->open_count--;
		store->taken -= store->records_per_segment - of->next;
		of->state = OFS_SEGMENT_SEALED;
		store->changes++;
	}
}

void
ofs_lane_written(struct ofs_store *store, uint32_t segment)
{
	assert(store->segments[segment].writing > 0 && store->taken > 0);
	store->segments[segment].writing--;
	store->taken--;
}

uint64_t
ofs_store_taken(const struct ofs_store *store)
{
	uint64_t taken = 0;

	for (uint32_t i = 0; i < store->segment_count; i++) {
		const struct ofs_store_segment *of = &store->segments[i];

		taken += of->writing;
		if (of->state == OFS_SEGMENT_OPEN)
			taken += store->records_per_segment - of->next;
		else if (of->state == OFS_SEGMENT_RETIRED)
			taken += store->records_per_segment;
	}
	return taken;
}

uint64_t
ofs_store_blocks_max(const struct ofs_store *store)
{
	uint32_t layers = store->config.layer_count;
	uint64_t segments = store->segment_count - store->config.reserve_segments;

	/* The first layers have a block more than the others if a segment is left for each of them. */
	return segments / layers * layers * store->records_per_segment + segments % layers;
}

uint64_t
ofs_store_lacks(const struct ofs_store *store)
{
	const struct ofs_store_config *config = &store->config;
	uint64_t room = (uint64_t)store->record_count * config->room_percent / 100;
	uint64_t wanted = room + store->stats.blocks + store->taken
		+ (uint64_t)config->reserve_segments * store->records_per_segment;

	/* Less than a segment of each lane is in segments that die, and none is free by it. */
	if (room == 0 || room / store->records_per_segment < store->lane_count
		|| wanted <= store->record_count) {
		return 0;
	}
	return wanted - store->record_count + (uint64_t)store->open_count * store->records_per_segment;
}

static void
make_free(struct ofs_store *store, uint32_t segment)
{
	struct ofs_store_segment *of = &store->segments[segment];
	uint32_t first = segment * store->records_per_segment;

	assert(of->state == OFS_SEGMENT_DYING && of->marked);
	assert(of->live == 0 && of->writing == 0 && of->pins == 0);
	for (uint32_t i = 0; i < store->records_per_segment; i++)
		ofs_record_reset(store, first + i);
	of->state = OFS_SEGMENT_FREE;
	of->header = OFS_WRITTEN_NO;
	of->marked = 0;
	store->changes++;
	/* At the end of the list: this spreads wear, and a bad segment is not reused immediately. */
	ofs_list_put(store, &store->free, segment);
}

void
ofs_segment_settle(struct ofs_store *store, uint32_t segment)
{
	struct ofs_store_segment *of = &store->segments[segment];

	if ((of->state != OFS_SEGMENT_OPEN && of->state != OFS_SEGMENT_SEALED) || of->live > 0
		|| of->writing > 0 || of->pins > 0 || of->header == OFS_WRITTEN_PENDING
		|| of->listed != OFS_LISTED_NO || (of->next == 0 && of->header != OFS_WRITTEN_FAILED)) {
		return;
	}
	ofs_segment_seal(store, segment);
	if (store->config.erase && ofs_wipe_rest(store, segment))
		return;
	ofs_clean_freed(store, segment);
	store->stats.segments_reclaimed++;
	/* The mark keeps the next open from finding the dead records; it is needed even if the header
	 * write failed, since that may have reached the device. The mark must complete before the
	 * segment is reused: two writes of one place have no order. */
	of->state = OFS_SEGMENT_DYING;
	of->errors = 0;
	ofs_list_put(store, &store->dying, segment);
	ofs_segment_mark_step(store);
}

/*
 * Discards a dead segment's records, but only once its mark is on the medium, and with it every
 * copy that replaced a record here: after a power cut each live block is still in at least one
 * place. A store that is not durable keeps no such order, and discards nothing. The header is kept,
 * for the mark in it. A segment that cannot be discarded becomes free all the same.
 */
static void
send_discards(struct ofs_store *store)
{
	while (store->marked.count > 0 && store->discarding < OFS_DISCARDS_MAX) {
		struct ofs_store_op *op = ofs_op_take(store, &store->header_free);
		uint32_t segment = store->marked.first;
		int rc;

		if (op == NULL)
			return;
		rc = ofs_op_submit(store, op, OFS_STORAGE_DISCARD,
			ofs_store_segment_offset(store, segment) + store->storage->lba_size_bytes, NULL,
			store->records_per_segment * store->record_size_bytes, OFS_LIFETIME_PLACE);
		if (rc != 0)
			ofs_op_give(store, op);
		if (rc == -EAGAIN)
			return;
		(void)ofs_list_take(store, &store->marked);
		if (rc != 0) {
			make_free(store, segment);
			continue;
		}
		op->kind = OFS_STORE_DISCARD;
		op->segment = segment;
		store->discarding++;
	}
}

void
ofs_segment_discard_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result)
{
	assert(store->discarding > 0);
	store->stats.segments_discarded += result >= 0;
	store->discarding--;
	make_free(store, op->segment);
	ofs_op_give(store, op);
}

void
ofs_segment_mark_step(struct ofs_store *store)
{
	send_discards(store);
	while (store->dying.count > 0) {
		struct ofs_store_op *op = ofs_op_take(store, &store->header_free);
		uint32_t segment = store->dying.first;

		if (op == NULL)
			return;
		ofs_segment_header_fill(store, segment, OFS_HEADER_FREE, op->buffer);
		if (ofs_op_submit(store, op, OFS_STORAGE_WRITE, ofs_store_segment_offset(store, segment),
				op->buffer, store->storage->lba_size_bytes, OFS_LIFETIME_PLACE)
			!= 0) {
			ofs_op_give(store, op);
			return;
		}
		(void)ofs_list_take(store, &store->dying);
		op->kind = OFS_STORE_MARK;
		op->segment = segment;
	}
}

/* If a mark cannot be written, neither could a header: the segment waits until writes succeed. */
void
ofs_segment_mark_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result)
{
	uint32_t segment = op->segment;
	int32_t rc = ofs_store_rc(result, store->storage->lba_size_bytes);

	assert(store->segments[segment].state == OFS_SEGMENT_DYING);
	ofs_op_give(store, op);
	store->refused = rc == -EIO ? store->refused + 1 : 0;
	if (rc != 0) {
		store->stats.io_errors++;
		store->segments[segment].errors++;
		ofs_list_put(store, &store->unmarked, segment);
		return;
	}
	ofs_wipe_marked(store, segment);
	if (store->storage->discards && store->config.durable) {
		ofs_list_put(store, &store->marked, segment);
		send_discards(store);
	} else {
		make_free(store, segment);
	}
}

void
ofs_segment_header_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result)
{
	uint32_t segment = op->segment;
	struct ofs_store_segment *of = &store->segments[segment];
	uint32_t waiter = of->waiters;
	int32_t rc = ofs_store_rc(result, store->storage->lba_size_bytes);

	assert(of->header == OFS_WRITTEN_PENDING); /* which keeps the segment from being settled */
	ofs_op_give(store, op);
	of->header = rc == 0 ? OFS_WRITTEN_YES : OFS_WRITTEN_FAILED;
	of->waiters = OFS_NONE;
	if (rc != 0) {
		store->stats.io_errors++;
		ofs_segment_seal(store, segment);
	} else {
		store->refused = 0;
	}
	while (waiter != OFS_NONE) {
		struct ofs_store_op *put = &store->ops[waiter];

		waiter = put->next;
		put->rc = put->rc != 0 ? put->rc : rc;
		ofs_put_settle(store, put);
	}
	ofs_segment_settle(store, segment);
}
