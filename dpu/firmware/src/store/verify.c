/* A recount for tests: counts again everything that the store counts as it runs. */
#include "internal.h"

#include <stdlib.h>

static int
segment_agrees(const struct ofs_store *store, uint32_t segment)
{
	const struct ofs_store_segment *of = &store->segments[segment];
	uint32_t first = segment * store->records_per_segment;
	uint32_t live = 0;
	uint32_t writing = 0;

	for (uint32_t i = first; i < first + store->records_per_segment; i++) {
		uint8_t state = store->records[i].state;

		live += state == OFS_RECORD_LIVE || state == OFS_RECORD_CONDEMNED;
		writing += state == OFS_RECORD_WRITING;
		if (state != OFS_RECORD_FREE && of->state == OFS_SEGMENT_FREE)
			return 0;
	}
	if (of->state == OFS_SEGMENT_OPEN && store->lane_open[ofs_lane_of(store, segment)] != segment)
		return 0;
	return live == of->live && writing == of->writing;
}

/* Every live record is found by its key, or the record found is being written to replace it. */
static int
record_agrees(const struct ofs_store *store, uint32_t record)
{
	const struct ofs_store_record *of = &store->records[record];
	uint32_t layer = store->segments[record / store->records_per_segment].layer;
	uint32_t found;

	if (of->state != OFS_RECORD_LIVE)
		return 1;
	found = ofs_store_index_find(store, &of->key, layer);
	return found == record
		|| (found != OFS_NONE && store->records[found].state == OFS_RECORD_WRITING
			&& store->ops[store->records[found].op].old == record);
}

/* Each copy to be wiped is counted once, for the tenant whose segment contains it. */
static int
wipes_agree(const struct ofs_store *store)
{
	uint64_t *wanted = calloc(store->super.tenant_max, sizeof(*wanted));
	int agree = wanted != NULL;

	for (uint32_t i = 0; agree && i < store->record_count; i++) {
		uint8_t wipe = store->records[i].wipe;

		if (wipe == OFS_WIPE_WANTED || wipe == OFS_WIPE_FLYING)
			wanted[store->segments[i / store->records_per_segment].tenant]++;
	}
	for (uint32_t tenant = 0; agree && tenant < store->super.tenant_max; tenant++)
		agree = wanted[tenant] == ofs_store_wiping(store, tenant);
	free(wanted);
	return agree;
}

/* Blocks of each tenant: live ones in its segments, and first writes in flight. */
static int
tenants_agree(const struct ofs_store *store)
{
	uint64_t *blocks = calloc(store->super.tenant_max, sizeof(*blocks));
	int agree = blocks != NULL;

	for (uint32_t i = 0; agree && i < store->segment_count; i++)
		if (store->segments[i].live > 0)
			blocks[store->segments[i].tenant] += store->segments[i].live;
	for (uint32_t i = 0; agree && i < store->op_count; i++)
		if (store->ops[i].kind == OFS_STORE_PUT && store->ops[i].old == OFS_NONE
			&& store->records[store->ops[i].record].op == i) {
			blocks[store->segments[store->ops[i].record / store->records_per_segment].tenant]++;
		}
	for (uint32_t tenant = 0; agree && tenant < store->super.tenant_max; tenant++)
		agree = blocks[tenant] == store->tenant_blocks[tenant];
	free(blocks);
	return agree;
}

/* Copies form rings of one block, without those that are wiped. */
static int
copies_agree(const struct ofs_store *store)
{
	for (uint32_t i = 0; i < store->record_count; i++) {
		const struct ofs_store_record *of = &store->records[i];
		const struct ofs_store_record *next = &store->records[of->copy_next];

		if (next->copy_before != i || (of->wipe != OFS_WIPE_NO && of->copy_next != i)
			|| !ofs_key_equal(&next->key, &of->key)) {
			return 0;
		}
	}
	return 1;
}

int
ofs_store_verify(const struct ofs_store *store)
{
	uint64_t blocks = 0;
	uint32_t indexed = 0;
	uint32_t free_count = 0;
	uint32_t used = 0;
	uint32_t open_count = 0;

	for (uint32_t i = 0; i < store->segment_count; i++) {
		if (!segment_agrees(store, i))
			return 1;
		blocks += store->segments[i].live;
		open_count += store->segments[i].state == OFS_SEGMENT_OPEN;
		free_count += store->segments[i].state == OFS_SEGMENT_FREE;
	}
	for (uint32_t i = 0; i < store->record_count; i++)
		if (!record_agrees(store, i))
			return 2;
	for (uint32_t i = 0; i <= store->index_mask; i++) {
		uint32_t record = store->index[i];

		if (record == OFS_NONE)
			continue;
		indexed++;
		if (store->records[record].state == OFS_RECORD_FREE
			|| store->records[record].state == OFS_RECORD_DEAD) {
			return 3;
		}
	}
	for (uint32_t i = 0; i < store->op_count; i++)
		used += store->ops[i].kind != OFS_STORE_IDLE;
	if (blocks != store->stats.blocks)
		return 4;
	if (free_count != store->free.count)
		return 5;
	if (used != store->ops_used)
		return 6;
	if (!wipes_agree(store))
		return 8;
	if (!copies_agree(store))
		return 9;
	if (!tenants_agree(store))
		return 10;
	if (ofs_store_taken(store) != store->taken || open_count != store->open_count)
		return 11;
	return indexed > store->record_count ? 7 : 0;
}
