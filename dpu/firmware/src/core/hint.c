/*
 * hint.c: guesses made by the host.
 *
 * Model: the host names blocks that a layer will demand in this step of the session or a later one.
 * Absent ones become candidates like the core's own, but beside the degree and outside the feedback
 * that sets it; staged ones are kept longer. A guess is for one run of its layer: once the layer
 * has run that step it means nothing. All guesses of a call are checked before the first acts.
 */
#include "internal.h"

_Static_assert(sizeof(struct ofs_guess) == 16, "the log and Python hold guesses of 16 bytes");

static int
hint_check(const struct ofs_core *core, uint32_t session, const struct ofs_guess *guesses,
	uint32_t count)
{
	if (ofs_session_check(core, session) || count > core->config.queue_max)
		return -EINVAL;
	for (uint32_t i = 0; i < count; i++)
		if (guesses[i].layer >= core->config.layer_count
			|| guesses[i].ordinal >= core->sessions[session].count
			|| guesses[i].cause >= OFS_CAUSE_COUNT || !ofs_cause_is_prefetch(guesses[i].cause))
			return -EINVAL;
	return 0;
}

/* When the layer should begin, as the session has paced so far; never in the past. */
static uint64_t
need_of(const struct ofs_core *core, const struct ofs_session *s, const struct ofs_guess *guess)
{
	/* When a first step comes nobody knows: there the layer's own run ends the guess. */
	uint64_t begin_ns = s->stepped ? s->step_begin_ns : core->now_ns + OFS_BEGIN_STEPS * s->step_ns;
	uint64_t need_ns = begin_ns + guess->steps * s->step_ns + guess->layer * s->layer_ns;

	return need_ns > core->now_ns ? need_ns : core->now_ns;
}

/* The host speaks for a block that is there or on its way: it stays longer. */
static void
staged_kept(struct ofs_core *core, uint32_t slot, uint32_t session, const struct ofs_guess *guess)
{
	if (core->policy.eviction == OFS_EVICT_SCORE)
		ofs_score_lift(core, slot, session, guess->ordinal, ofs_chance_bucket(guess->probability));
	else if (core->slots[slot].state == OFS_SLOT_RESIDENT)
		core->evict->use(core, slot);
}

static void
guess_take(struct ofs_core *core, uint32_t session, const struct ofs_guess *guess)
{
	const struct ofs_session *s = &core->sessions[session];
	const struct ofs_layer *layer = ofs_layer_of(core, session, guess->layer);
	uint32_t chunk = ofs_session_list(core, session)[guess->ordinal];
	uint32_t slot = core->block_slot[ofs_block_of(core, chunk, guess->layer)];
	/* The layer has run the step the session is in: that step is over for it. */
	uint32_t ran = layer->stamp && s->stepped && layer->step == s->step;
	int over = ran && guess->steps == 0;

	core->tally->work.ranked++;
	ofs_work_touch(core, OFS_TABLE_SESSION, sizeof(chunk));
	ofs_work_touch(core, OFS_TABLE_BLOCK, sizeof(slot) + sizeof(*core->block_flags));
	ofs_work_touch(core, OFS_TABLE_LAYER, sizeof(*layer));
	if (slot != OFS_NONE) {
		if (!over)
			staged_kept(core, slot, session, guess);
		return;
	}
	if (!ofs_block_is_stored(core, chunk, guess->layer))
		return;
	if (over)
		ofs_fate_add(core, s->config.tenant, guess->cause, OFS_FATE_DROPPED);
	else
		ofs_queue_hint(core, session, guess, layer->stamp + guess->steps - ran,
			need_of(core, s, guess));
}

int
ofs_core_hint(struct ofs_core *core, uint64_t now_ns, uint32_t session,
	const struct ofs_guess *guesses, uint32_t count)
{
	uint32_t head[2] = {session, count};
	struct ofs_bytes in[2] = {{head, sizeof(head)}, {guesses, count * sizeof(*guesses)}};
	int rc = hint_check(core, session, guesses, count);

	if (rc || (rc = ofs_event_enter(core, now_ns, OFS_EVENT_HINT)))
		return rc;
	for (uint32_t i = 0; i < count; i++)
		guess_take(core, session, &guesses[i]);
	ofs_pump(core);
	ofs_log_event(core, OFS_EVENT_HINT, now_ns, 0, in, 2, NULL, 0);
	return 0;
}
