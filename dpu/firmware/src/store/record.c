/*
 * The states of one record, WRITING -> LIVE -> DEAD, and the counts that follow them.
 *
 * Model: all copies of one block that an open could find form one ring of records: the one that is
 * read, those that it replaced while their segments are not marked free, and one that is being
 * written. When the block is deleted, each of the ring is *wanted*, until it is wiped (wipe.c) or
 * its segment's mark is on the device. A place in which an open could find nothing is in no ring.
 */
#include "internal.h"

#include <assert.h>

/* ---- lists of segments ---- */

void
ofs_list_put(struct ofs_store *store, struct ofs_store_list *list, uint32_t segment)
{
	assert(segment < store->segment_count && list->count < store->segment_count);
	store->segments[segment].link = OFS_NONE;
	if (list->count == 0)
		list->first = segment;
	else
		store->segments[list->last].link = segment;
	list->last = segment;
	list->count++;
}

uint32_t
ofs_list_take(struct ofs_store *store, struct ofs_store_list *list)
{
	uint32_t segment = list->first;

	assert(list->count > 0);
	list->first = store->segments[segment].link;
	list->count--;
	return segment;
}

/* ---- one record ---- */

void
ofs_record_enliven(struct ofs_store *store, uint32_t record)
{
	struct ofs_store_record *of = &store->records[record];
	struct ofs_store_segment *segment = &store->segments[record / store->records_per_segment];

	assert(of->state == OFS_RECORD_WRITING);
	assert(segment->live < store->records_per_segment);
	of->state = OFS_RECORD_LIVE;
	of->op = OFS_NONE;
	segment->live++;
	store->tenant_blocks[segment->tenant]++;
	store->stats.blocks++;
}

void
ofs_record_mark_dead(struct ofs_store *store, uint32_t record)
{
	struct ofs_store_record *of = &store->records[record];
	struct ofs_store_segment *segment = &store->segments[record / store->records_per_segment];

	if (of->state == OFS_RECORD_LIVE || of->state == OFS_RECORD_CONDEMNED) {
		assert(segment->live > 0 && store->tenant_blocks[segment->tenant] > 0);
		assert(store->stats.blocks > 0);
		segment->live--;
		store->tenant_blocks[segment->tenant]--;
		store->stats.blocks--;
	}
	of->state = OFS_RECORD_DEAD;
	of->op = OFS_NONE;
	store->changes++;
	if (of->wipe == OFS_WIPE_WANTED)
		ofs_wipe_list(store, record / store->records_per_segment);
}

int
ofs_record_expired(const struct ofs_store *store, uint32_t record, uint64_t now_s)
{
	const struct ofs_store_record *of = &store->records[record];

	return of->state == OFS_RECORD_CONDEMNED || (of->expire_s != 0 && of->expire_s <= now_s);
}

void
ofs_store_entry_fill(const struct ofs_store *store, uint32_t record, struct ofs_store_entry *entry)
{
	const struct ofs_store_record *of = &store->records[record];
	const struct ofs_store_segment *segment = &store->segments[record / store->records_per_segment];

	entry->store_key = of->key;
	entry->layer = segment->layer;
	entry->tenant = segment->tenant;
	entry->sequence = of->sequence;
	entry->expire_s = of->expire_s;
}

/* ---- the copies of one block ---- */

void
ofs_copies_join(struct ofs_store *store, uint32_t record, uint32_t other)
{
	struct ofs_store_record *of = &store->records[record];
	struct ofs_store_record *to = &store->records[other];

	assert(of->copy_next == record && record != other);
	of->copy_next = to->copy_next;
	of->copy_before = other;
	store->records[to->copy_next].copy_before = record;
	to->copy_next = record;
}

static void
leave(struct ofs_store *store, uint32_t record)
{
	struct ofs_store_record *of = &store->records[record];

	assert(store->records[of->copy_before].copy_next == record);
	assert(store->records[of->copy_next].copy_before == record);
	store->records[of->copy_before].copy_next = of->copy_next;
	store->records[of->copy_next].copy_before = of->copy_before;
	of->copy_next = of->copy_before = record;
}

void
ofs_record_reset(struct ofs_store *store, uint32_t record)
{
	leave(store, record);
	store->records[record] = (struct ofs_store_record){.copy_next = record, .copy_before = record};
}

/* ---- records to wipe ---- */

static struct ofs_store_wipes *
wipes_of(const struct ofs_store *store, uint32_t record)
{
	return &store->wipes[store->segments[record / store->records_per_segment].tenant];
}

void
ofs_wipe_list(struct ofs_store *store, uint32_t segment)
{
	struct ofs_store_segment *of = &store->segments[segment];

	if (of->listed != OFS_LISTED_NO
		|| (of->state != OFS_SEGMENT_OPEN && of->state != OFS_SEGMENT_SEALED)) {
		return; /* a dying segment: its mark does it */
	}
	of->listed = OFS_LISTED_WIPE;
	of->wipe_cursor = 0;
	ofs_list_put(store, &store->wipes[of->tenant].segments, segment);
	store->wipe_listed++;
}

static void
want(struct ofs_store *store, uint32_t record)
{
	struct ofs_store_record *of = &store->records[record];
	struct ofs_store_segment *segment = &store->segments[record / store->records_per_segment];
	struct ofs_store_wipes *wipes = wipes_of(store, record);

	leave(store, record);
	if (of->wipe == OFS_WIPE_NO && !segment->marked) {
		of->wipe = OFS_WIPE_WANTED;
		of->wipe_turn = wipes->turn & 1;
		wipes->wanted[of->wipe_turn]++;
		segment->wipe_cursor = 0;
	}
	/* A record being written is wiped once that write has ended. */
	if (of->state != OFS_RECORD_WRITING)
		ofs_record_mark_dead(store, record);
}

void
ofs_wipe_ended(struct ofs_store *store, uint32_t record)
{
	struct ofs_store_record *of = &store->records[record];
	struct ofs_store_wipes *wipes = wipes_of(store, record);

	assert(of->wipe == OFS_WIPE_WANTED || of->wipe == OFS_WIPE_FLYING);
	assert(wipes->wanted[of->wipe_turn] > 0);
	wipes->wanted[of->wipe_turn]--;
	of->wipe = OFS_WIPE_DONE;
}

void
ofs_copies_wipe(struct ofs_store *store, uint32_t record)
{
	uint32_t next;

	while ((next = store->records[record].copy_next) != record)
		want(store, next);
	want(store, record);
}

int
ofs_wipe_rest(struct ofs_store *store, uint32_t segment)
{
	uint32_t first = segment * store->records_per_segment;
	int left = 0;

	for (uint32_t i = first; i < first + store->segments[segment].next; i++) {
		if (store->records[i].wipe == OFS_WIPE_NO)
			want(store, i);
		left |= store->records[i].wipe != OFS_WIPE_DONE;
	}
	return left;
}

void
ofs_wipe_marked(struct ofs_store *store, uint32_t segment)
{
	uint32_t first = segment * store->records_per_segment;

	assert(store->segments[segment].state == OFS_SEGMENT_DYING);
	store->segments[segment].marked = 1;
	for (uint32_t i = first; i < first + store->records_per_segment; i++) {
		leave(store, i);
		if (store->records[i].wipe == OFS_WIPE_WANTED)
			ofs_wipe_ended(store, i);
	}
}
