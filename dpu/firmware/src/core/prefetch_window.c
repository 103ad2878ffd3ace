/*
 * prefetch_window.c: sinks and the last window_blocks behind the decode position stay staged.
 *
 * Model: absent ones are candidates at the highest probability. Under score eviction membership is
 * part of a block's score (score.c), so that here only blocks that leave the window are rescored;
 * under the others every step counts as a use.
 */
#include "internal.h"

struct spans {
	uint32_t sink_end, window_begin, count;
};

static struct spans
window_spans(const struct ofs_core *core, uint32_t session)
{
	const struct ofs_session *s = &core->sessions[session];
	uint32_t window = core->policy.window_blocks;
	struct spans spans = { s->config.sink_blocks, 0, s->count };

	if (spans.sink_end > s->count)
		spans.sink_end = s->count;
	if (window < s->count)
		spans.window_begin = s->count - window;
	if (spans.window_begin < spans.sink_end)
		spans.window_begin = spans.sink_end;
	return spans;
}

static void
window_use(struct ofs_core *core, uint32_t block)
{
	uint32_t slot = core->block_slot[block];

	if (slot != OFS_NONE && core->slots[slot].state == OFS_SLOT_RESIDENT)
		core->evict->use(core, slot);
}

static void
window_observe(struct ofs_core *core, const struct ofs_step *step)
{
	const uint32_t *chunks = ofs_session_list(core, step->session);
	uint32_t base = ofs_block_of(core, 0, step->layer);
	struct spans spans;

	if (!(core->policy.prefetchers & OFS_PREFETCH_WINDOW)
		|| core->policy.eviction == OFS_EVICT_SCORE)
		return;
	spans = window_spans(core, step->session);
	for (uint32_t i = 0; i < spans.sink_end; i++)
		window_use(core, base + chunks[i]);
	for (uint32_t i = spans.window_begin; i < spans.count; i++)
		window_use(core, base + chunks[i]);
}

static void
window_propose(struct ofs_core *core, uint32_t session, uint32_t layer,
	const struct ofs_step *step)
{
	uint64_t need_ns = core->now_ns + core->sessions[session].step_ns;
	const uint32_t *chunks = ofs_session_list(core, session);
	uint32_t base = ofs_block_of(core, 0, layer);
	struct spans spans = window_spans(core, session);

	(void)step;
	for (uint32_t i = 0; i < spans.count; i++) {
		if (i == spans.sink_end && i < spans.window_begin)
			i = spans.window_begin;
		if (i >= spans.count)
			break;
		if (core->block_slot[base + chunks[i]] == OFS_NONE
			&& ofs_queue_propose(core, session, layer, i, OFS_CAUSE_WINDOW,
				OFS_SCORE_HIGHEST, need_ns))
			return;
	}
}

/* Chunks were appended: under score eviction, what they pushed out of the window is rescored. */
void
ofs_window_appended(struct ofs_core *core, uint32_t session, uint32_t old_count)
{
	const uint32_t *chunks = ofs_session_list(core, session);
	uint32_t count = core->sessions[session].count, window = core->policy.window_blocks;
	uint32_t begin = old_count > window ? old_count - window : 0;

	if (core->policy.eviction != OFS_EVICT_SCORE)
		return;
	for (uint32_t i = begin; i < count; i++) {
		for (uint32_t layer = 0; layer < core->config.layer_count
			&& core->chunks[chunks[i]].slots; layer++) {
			uint32_t slot = core->block_slot[ofs_block_of(core, chunks[i], layer)];

			if (slot != OFS_NONE && core->slots[slot].state == OFS_SLOT_RESIDENT)
				ofs_score_refresh(core, slot);
		}
	}
}

const struct ofs_prefetch_ops ofs_prefetch_window = {
	.bits = OFS_PREFETCH_WINDOW,
	.observe = window_observe,
	.propose = window_propose,
};
