/*
 * work.c: derives the work totals from the events' counts.
 *
 * Model: an event counts its work with as few additions as possible (work.h). Totals that follow
 * from such a count are computed here, on request.
 */
#include "internal.h"

static void
lists_add(const struct ofs_tally *tally, struct ofs_work *work)
{
	for (uint32_t table = 0; table < OFS_TABLE_COUNT; table++) {
		for (uint32_t visits = 1; visits <= OFS_VISITS_MAX; visits++) {
			uint64_t count = tally->lists[table][visits];

			work->order_moves += count;
			work->table_bytes[table] += count * visits * OFS_LINK_BYTES;
			work->table_bytes[OFS_TABLE_ORDER] += count * sizeof(struct ofs_list);
		}
	}
}

int
ofs_core_work(const struct ofs_core *core, struct ofs_work *work)
{
	const struct ofs_tally *step = &core->tallies[OFS_EVENT_STEP];

	for (uint32_t type = 0; type < OFS_EVENT_COUNT; type++) {
		const struct ofs_tally *tally = &core->tallies[type];
		uint64_t *bytes = work[type].table_bytes;

		work[type] = tally->work;
		lists_add(tally, &work[type]);
		bytes[OFS_TABLE_SLOT] += (work[type].victims + tally->unpinned) * sizeof(struct ofs_slot);
		bytes[OFS_TABLE_QUEUE] += work[type].heap_moves * sizeof(struct ofs_candidate);
		bytes[OFS_TABLE_BLOCK] += work[type].heap_moves * sizeof(*core->block_queued);
		bytes[OFS_TABLE_SESSION] +=
			tally->unpinned * sizeof(*core->pins) + tally->demands * sizeof(*core->session_chunks);
		bytes[OFS_TABLE_BLOCK] += tally->demands * sizeof(*core->block_slot);
	}
	work[OFS_EVENT_STEP].table_bytes[OFS_TABLE_SESSION] +=
		step->work.events * sizeof(struct ofs_session);
	work[OFS_EVENT_STEP].table_bytes[OFS_TABLE_LAYER] +=
		step->work.events * sizeof(struct ofs_layer);
	return 0;
}
