/*
 * prefetch_shared.c: what other sessions on the same prefix attend to.
 *
 * Model: where the session's own averages have seen no score yet, the highest average of the
 * sessions that refer to the same chunk is its prediction. That is the whole prefix when a session
 * begins, and nothing once its own hints cover the context.
 */
#include "internal.h"

static void
shared_observe(struct ofs_core *core, const struct ofs_step *step)
{
	(void)core; /* the averages are kept by prefetch_ema.c, whoever asks for them */
	(void)step;
}

static uint16_t
sibling_best(const struct ofs_core *core, uint32_t session, uint32_t layer, uint32_t chunk)
{
	uint32_t mask = (1u << core->link_shift) - 1;
	uint16_t best = 0;

	for (uint32_t link = core->chunks[chunk].link; link != OFS_NONE;
		link = core->link_next[link]) {
		uint32_t other = link >> core->link_shift;
		uint16_t value = ofs_averages_of(core, other, layer)[link & mask];

		if (other != session && value > best)
			best = value;
	}
	return best;
}

static void
shared_propose(struct ofs_core *core, uint32_t session, uint32_t layer,
	const struct ofs_step *step)
{
	const struct ofs_session *s = &core->sessions[session];
	const uint32_t *chunks = ofs_session_list(core, session);
	uint32_t known = ofs_layer_of(core, session, layer)->known;

	(void)step;
	if (!s->shared || known >= s->count || core->proposed >= core->propose_max)
		return;
	memcpy(core->predicted, ofs_averages_of(core, session, layer),
		known * sizeof(*core->predicted));
	for (uint32_t i = known; i < s->count; i++)
		core->predicted[i] = sibling_best(core, session, layer, chunks[i]);
	ofs_prefetch_best(core, session, layer, core->predicted, known, OFS_CAUSE_SHARED);
}

const struct ofs_prefetch_ops ofs_prefetch_shared = {
	.bits = OFS_PREFETCH_SHARED,
	.observe = shared_observe,
	.propose = shared_propose,
};
