/*
 * prefetch_window.c: sinks and the last window_blocks behind the decode position are staged once.
 *
 * Model: each is a candidate when the session begins to generate, and when it is appended; from
 * then on it is a block like any other. The HBM pool serves most demands for the window, so keeping
 * the window here as well would take slots from blocks that are demanded. Not counted against the
 * degree, which is for guesses; the need is spread over the first steps.
 */
#include "internal.h"

static void
window_propose(struct ofs_core *core, uint32_t session, uint32_t layer, const struct ofs_step *step)
{
	const struct ofs_session *s = &core->sessions[session];
	uint64_t need_ns = core->now_ns + OFS_BEGIN_STEPS * s->step_ns;
	uint32_t window = core->policy.window_blocks;
	uint32_t window_begin = window < s->count ? s->count - window : 0;
	struct ofs_layer *l = ofs_layer_of(core, session, layer);

	if (core->propose_max == 0)
		return;
	for (uint32_t i = step ? l->windowed : 0; i < s->count; i++) {
		if (i >= s->config.sink_blocks && i < window_begin)
			i = window_begin;
		if (i == s->count)
			break;
		ofs_queue_propose(core, session, layer, i, OFS_CAUSE_WINDOW, OFS_SCORE_HIGHEST, need_ns);
	}
	l->windowed = s->count;
}

const struct ofs_prefetch_ops ofs_prefetch_window = {
	.bits = OFS_PREFETCH_WINDOW,
	.observe = NULL, /* the window is known */
	.propose = window_propose,
};
