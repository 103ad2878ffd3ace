/* One record's life: WRITING -> LIVE -> DEAD, and the counts that follow it. */
#include "internal.h"

#include <assert.h>

void
ofs_record_enliven(struct ofs_store *store, uint32_t record)
{
	struct ofs_store_record *of = &store->records[record];

	assert(of->state != OFS_RECORD_LIVE && of->state != OFS_RECORD_CONDEMNED);
	of->state = OFS_RECORD_LIVE;
	of->op = OFS_NONE;
	store->segments[record / store->records_per_segment].live++;
	store->stats.blocks++;
}

void
ofs_record_mark_dead(struct ofs_store *store, uint32_t record)
{
	struct ofs_store_record *of = &store->records[record];

	if (of->state == OFS_RECORD_LIVE || of->state == OFS_RECORD_CONDEMNED) {
		assert(store->segments[record / store->records_per_segment].live > 0);
		store->segments[record / store->records_per_segment].live--;
		store->stats.blocks--;
	}
	of->state = OFS_RECORD_DEAD;
	of->op = OFS_NONE;
	store->changes++;
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
