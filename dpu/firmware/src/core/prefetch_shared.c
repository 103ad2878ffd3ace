/*
 * prefetch_shared.c: what other sessions on the same prefix attend to.
 *
 * Model: where the session's averages have no score yet, the prediction is the highest chance of a
 * demand over the sessions that refer to the same chunk, each by its own average and calibration.
 * This applies to the whole prefix when a session begins, and to nothing once the session's own
 * hints cover the context.
 */
#include "internal.h"

static uint16_t
sibling_best(const struct ofs_core *core, uint32_t session, uint32_t layer, uint32_t chunk)
{
	uint32_t mask = (1u << core->link_shift) - 1;
	uint16_t best = 0;

	ofs_work_touch(core, OFS_TABLE_CHUNK, sizeof(*core->chunks));
	for (uint32_t link = core->chunks[chunk].link; link != OFS_NONE; link = core->link_next[link]) {
		uint32_t other = link >> core->link_shift;

		ofs_work_touch(core, OFS_TABLE_CHUNK, OFS_LINK_BYTES);
		ofs_work_values(core, 1, sizeof(best));
		uint16_t chance = ofs_calibration_of(core, other, layer)
							  ->chance[ofs_class_of(core, other, layer, link & mask)];

		if (other != session && (link & mask) < ofs_layer_of(core, other, layer)->known
			&& chance > best)
			best = chance;
	}
	return best;
}

static void
shared_propose(struct ofs_core *core, uint32_t session, uint32_t layer, const struct ofs_step *step)
{
	const struct ofs_session *s = &core->sessions[session];
	const uint32_t *chunks = ofs_session_list(core, session);
	uint32_t known = ofs_layer_of(core, session, layer)->known;
	const struct ofs_guesses guesses = {
		.values = core->predicted,
		.count = s->count,
		.cause = OFS_CAUSE_SHARED,
	};

	(void)step;
	if (!s->shared || known >= s->count || core->proposed >= core->propose_max)
		return;
	memset(core->predicted, 0, known * sizeof(*core->predicted));
	for (uint32_t i = known; i < s->count; i++)
		core->predicted[i] = sibling_best(core, session, layer, chunks[i]);
	ofs_prefetch_best(core, session, layer, &guesses);
}

const struct ofs_prefetch_ops ofs_prefetch_shared = {
	.bits = OFS_PREFETCH_SHARED,
	.observe = NULL, /* prefetch_ema.c keeps the averages */
	.propose = shared_propose,
};
