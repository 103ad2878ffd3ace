/*
 * score.c: the score of a resident block under score eviction.
 *
 * Model: the bucket of its probability of a demand (calibrate.c), the highest over the sessions
 * that refer to the chunk, and the session it comes from (the owner). A rise is applied
 * immediately; only a fall of the owner's score makes the others be compared again, which keeps the
 * maximum exact at a constant cost in the usual case. A guess of the host may lift the score above
 * that, from the read until its layer runs.
 */
#include "internal.h"

uint32_t
ofs_session_score(const struct ofs_core *core, uint32_t session, uint32_t layer, uint32_t ordinal)
{
	uint32_t class = ofs_class_of(core, session, layer, ordinal);

	if (class != OFS_LEVEL_TRIVIAL && ordinal >= ofs_layer_of(core, session, layer)->known)
		return ofs_bucket_unknown();
	return ofs_calibration_of(core, session, layer)->bucket[class];
}

/* A slot without a block yet is in no order. */
static void
score_set(struct ofs_core *core, uint32_t slot, uint32_t session, uint32_t score)
{
	struct ofs_slot *s = &core->slots[slot];

	s->owner = session;
	if (s->score == score)
		return;
	assert(score < OFS_BUCKETS);
	s->score = (uint16_t)score;
	if (s->state == OFS_SLOT_RESIDENT)
		core->evict->rescore(core, slot);
}

static void
score_best(const struct ofs_core *core, uint32_t slot, uint32_t *session, uint32_t *score)
{
	const struct ofs_slot *s = &core->slots[slot];
	uint32_t mask = (1u << core->link_shift) - 1;
	uint32_t link = core->chunks[s->chunk].link;

	*session = OFS_NONE;
	*score = 0;
	ofs_work_touch(core, OFS_TABLE_CHUNK, sizeof(*core->chunks));
	for (; link != OFS_NONE; link = core->link_next[link]) {
		uint32_t other = link >> core->link_shift;
		uint32_t value = ofs_session_score(core, other, s->layer, link & mask);

		ofs_work_touch(core, OFS_TABLE_CHUNK, OFS_LINK_BYTES);
		ofs_work_values(core, 1, sizeof(*core->averages));
		if (value >= *score) {
			*score = value;
			*session = other;
		}
	}
}

/* The block arrives, or eviction starts over: it is in no list yet, so nothing has to move. */
void
ofs_score_arrive(struct ofs_core *core, uint32_t slot)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t session, score;

	score_best(core, slot, &session, &score);
	if ((s->flags & OFS_FLAG_LIFTED) && s->score > score)
		return;
	s->flags &= (uint8_t)~OFS_FLAG_LIFTED;
	s->owner = session;
	s->score = (uint16_t)score;
}

/* For a resident block, with nothing assumed about the owner. */
static void
score_refresh(struct ofs_core *core, uint32_t slot)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t session, score;

	score_best(core, slot, &session, &score);
	if ((s->flags & OFS_FLAG_LIFTED) && s->score > score)
		return;
	s->flags &= (uint8_t)~OFS_FLAG_LIFTED;
	score_set(core, slot, session, score);
}

/* The session's measured score changed; its own guess is settled first. */
void
ofs_score_update(struct ofs_core *core, uint32_t slot, uint32_t session, uint32_t ordinal,
	uint32_t score)
{
	struct ofs_slot *s = &core->slots[slot];
	uint32_t link = (session << core->link_shift) + ordinal;
	uint32_t holder;

	/* Alone, the session is the maximum. */
	if (score >= s->score || (core->link_next[link] & core->link_prev[link]) == OFS_NONE) {
		s->flags &= (uint8_t)~OFS_FLAG_LIFTED;
		score_set(core, slot, session, score);
	} else if (s->owner == session || s->owner == OFS_NONE) {
		score_best(core, slot, &holder, &score);
		score_set(core, slot, holder, score);
	}
}

/* The host guesses a demand: until the layer's next step the guess is the block's score. */
void
ofs_score_lift(struct ofs_core *core, uint32_t slot, uint32_t session, uint32_t ordinal,
	uint32_t score)
{
	struct ofs_slot *s = &core->slots[slot];

	if (score <= s->score)
		return;
	ofs_row_of(core, core->lifted, session, s->layer)[ordinal / 64] |= 1ull << (ordinal % 64);
	ofs_layer_of(core, session, s->layer)->lifted = 1;
	s->flags |= OFS_FLAG_LIFTED;
	score_set(core, slot, session, score);
}

/* A guess of the session has expired: the measured score applies. */
static void
lift_end(struct ofs_core *core, uint32_t slot)
{
	struct ofs_slot *s = &core->slots[slot];

	s->flags &= (uint8_t)~OFS_FLAG_LIFTED;
	if (s->state == OFS_SLOT_RESIDENT)
		score_refresh(core, slot);
	else
		score_set(core, slot, OFS_NONE, 0);
}

/* The layer steps: this is the run that the session's guesses were for. */
void
ofs_score_settle(struct ofs_core *core, uint32_t session, uint32_t layer)
{
	const uint32_t *chunks = ofs_session_list(core, session);
	const uint64_t *held = ofs_row_of(core, core->held, session, layer);
	uint64_t *lifted = ofs_row_of(core, core->lifted, session, layer);

	if (!ofs_layer_of(core, session, layer)->lifted)
		return;
	ofs_layer_of(core, session, layer)->lifted = 0;
	for (uint32_t word = 0; word < core->row_words; word++) {
		uint64_t bits = held[word] & lifted[word];

		lifted[word] = 0;
		for (; bits; bits &= bits - 1) {
			uint32_t i = word * 64 + (uint32_t)__builtin_ctzll(bits);
			uint32_t slot = core->block_slot[ofs_block_of(core, chunks[i], layer)];
			const struct ofs_slot *s = &core->slots[slot];

			assert(slot != OFS_NONE); /* `held` says that the block has one */
			core->tally->work.rescored++;
			ofs_work_touch(core, OFS_TABLE_SLOT, sizeof(*s));
			/* It may have been evicted since, or another session may have guessed higher. */
			if ((s->flags & OFS_FLAG_LIFTED) && s->owner == session)
				lift_end(core, slot);
		}
	}
}

/* The session has left the chunk; its number will be reused. */
void
ofs_score_leave(struct ofs_core *core, uint32_t slot, uint32_t session)
{
	if (core->slots[slot].owner == session)
		lift_end(core, slot);
}

/* Chunks were appended: their resident blocks have one session more, others leave its window. */
void
ofs_score_appended(struct ofs_core *core, uint32_t session, uint32_t old_count)
{
	const struct ofs_session *s = &core->sessions[session];
	const uint32_t *chunks = ofs_session_list(core, session);
	uint32_t window = s->config.window_blocks;

	if (core->policy.eviction != OFS_EVICT_SCORE)
		return;
	for (uint32_t i = window < old_count ? old_count - window : 0; i < s->count; i++) {
		if (i < old_count && !ofs_is_nontrivial(s, i))
			continue;
		for (uint32_t layer = 0; layer < core->config.layer_count && core->chunks[chunks[i]].slots;
			 layer++) {
			uint32_t slot = core->block_slot[ofs_block_of(core, chunks[i], layer)];

			if (slot != OFS_NONE && core->slots[slot].state == OFS_SLOT_RESIDENT)
				score_refresh(core, slot);
		}
	}
}
