/*
 * Which segment to empty. Moving its live records takes places elsewhere in its lane, so emptying
 * it pays only if its lane has a whole segment's worth of empty places (then one segment becomes
 * free for all lanes), or if that lane itself has no room.
 */
#include "internal.h"

#include <string.h>

/* Empty places of each lane that moves can reclaim; 1 if some segment frees itself soon. */
static int
count_gaps(struct ofs_store *store)
{
	int soon = 0;

	memset(store->lane_gap, 0, store->lane_count * sizeof(*store->lane_gap));
	for (uint32_t i = 0; i < store->segment_count; i++) {
		const struct ofs_store_segment *segment = &store->segments[i];
		uint32_t *gap;

		if (segment->state == OFS_SEGMENT_DYING && segment->errors < OFS_SEGMENT_ERRORS_MAX)
			soon = 1;
		if (segment->state != OFS_SEGMENT_OPEN && segment->state != OFS_SEGMENT_SEALED)
			continue;
		gap = &store->lane_gap[ofs_lane_of(store, i)];
		if (segment->live == 0 && segment->next > 0)
			soon |= segment->listed != OFS_LISTED_AGAIN;
		else if (segment->state == OFS_SEGMENT_OPEN)
			*gap += store->records_per_segment - segment->next;
		else if (!segment->stuck)
			*gap += store->records_per_segment - segment->live - segment->writing;
	}
	return soon;
}

uint32_t
ofs_clean_victim(struct ofs_store *store, uint32_t wanted, int *soon)
{
	uint32_t best = OFS_NONE;

	*soon = count_gaps(store);
	for (uint32_t i = 0; i < store->segment_count; i++) {
		const struct ofs_store_segment *segment = &store->segments[i];
		uint32_t lane;
		uint32_t open;
		uint32_t room;

		if (segment->state != OFS_SEGMENT_SEALED || segment->writing > 0 || segment->stuck
			|| segment->live == 0 || segment->live == store->records_per_segment) {
			continue;
		}
		lane = ofs_lane_of(store, i);
		if (lane != wanted && store->lane_gap[lane] < store->records_per_segment)
			continue;
		open = store->lane_open[lane];
		room = open == OFS_NONE ? 0 : store->records_per_segment - store->segments[open].next;
		if (segment->live > room && store->free.count == 0)
			continue;
		if (best == OFS_NONE || segment->live < store->segments[best].live)
			best = i;
	}
	return best;
}
