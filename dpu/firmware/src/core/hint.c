/*
 * hint.c: the host's hints ahead of demands: scores with a step, and guesses.
 *
 * Model: of a step's scores the core uses what the policy allows: the best of a layer, their upper
 * byte, one step in several. All others count as 0, or as no hint, whether or not the host sent
 * them: so a host that sends only what is used gets the same decisions.
 *
 * The host also names blocks that a layer will demand in this step of the session or a later one.
 * Absent ones become candidates like the core's own, but do not count in the degree or in the
 * feedback that sets it; staged ones are kept longer. A guess applies to one run of its layer and
 * expires when the layer has run that step. All guesses of a call are checked before any is used.
 */
#include "internal.h"

_Static_assert(sizeof(struct ofs_guess) == 16, "the log and Python hold guesses of 16 bytes");

#define SCORE_BYTES 2

/*
 * Size over the fabric. The best of a layer are sent with their ordinals, unless sending all scores
 * is shorter.
 */
static uint64_t
scores_size_bytes(const struct ofs_policy *policy, uint32_t count, uint32_t packed)
{
	uint64_t score = policy->hint_score_bits == 8 ? 1 : SCORE_BYTES;
	uint64_t best = policy->hint_scores_max * (score + (count <= 1u << 16 ? 2 : 4));

	if (!packed)
		return (uint64_t)count * SCORE_BYTES;
	return policy->hint_scores_max && best < count * score ? best : count * score;
}

/* Keeps the scores above the cut and the first at it, `rank` in total; the others become 0. */
static void
best_kept(uint16_t *scores, uint32_t count, uint32_t rank)
{
	uint32_t cut = ofs_rank_cut(scores, count, rank), above = 0;

	for (uint32_t i = 0; i < count; i++)
		above += scores[i] > cut;
	for (uint32_t i = 0; i < count; i++)
		if (scores[i] == cut && above < rank)
			above++;
		else if (scores[i] <= cut)
			scores[i] = 0;
}

/* `kept`: the step, with the part of its hint that the policy uses. */
void
ofs_hint_limit(struct ofs_core *core, const struct ofs_step *step, struct ofs_step *kept)
{
	const struct ofs_policy *policy = &core->policy;
	uint32_t every = policy->hint_every_steps ? policy->hint_every_steps : 1;
	uint32_t count = step->score_count, packed = step->flags & OFS_STEP_PACKED;
	int due = step->step % every == 0;

	*kept = *step;
	if (count == 0 || step->flags & OFS_STEP_RETRY)
		return;
	if (due || !packed)
		core->ledgers[core->sessions[step->session].config.tenant].hint_bytes +=
			step->hint_bytes ? step->hint_bytes : scores_size_bytes(policy, count, packed);
	kept->score_count = due ? count : 0;
	if (!due || (policy->hint_scores_max == 0 && policy->hint_score_bits != 8))
		return;
	memcpy(core->hint, step->scores, count * sizeof(*core->hint));
	kept->scores = core->hint;
	if (policy->hint_scores_max && policy->hint_scores_max < count)
		best_kept(core->hint, count, policy->hint_scores_max);
	for (uint32_t i = 0; policy->hint_score_bits == 8 && i < count; i++)
		if (core->hint[i])
			core->hint[i] |= 0xff; /* 0 still means no score */
}

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

/* When the layer should begin, at the session's pace so far; never in the past. */
static uint64_t
need_of(const struct ofs_core *core, const struct ofs_session *s, const struct ofs_guess *guess)
{
	/* The time of a first step is unknown: the guess then ends when its layer runs. */
	uint64_t begin_ns = s->stepped ? s->step_begin_ns : core->now_ns + OFS_BEGIN_STEPS * s->step_ns;
	uint64_t need_ns = begin_ns + guess->steps * s->step_ns + guess->layer * s->layer_ns;

	return need_ns > core->now_ns ? need_ns : core->now_ns;
}

/* The host's guess names a block that is resident or in flight: it is kept longer. */
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
	/* The layer has already run the session's current step: that step is over for it. */
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
	core->ledgers[core->sessions[session].config.tenant].hint_bytes += count * sizeof(*guesses);
	for (uint32_t i = 0; i < count; i++)
		guess_take(core, session, &guesses[i]);
	ofs_pump(core);
	ofs_log_event(core, OFS_EVENT_HINT, now_ns, 0, in, 2, NULL, 0);
	return 0;
}
