/*
 * score.c: the score that a resident block carries under score eviction.
 *
 * Model: the bucket of its probability of a demand (calibrate.c), the highest over the sessions
 * that refer to the chunk, with the session that holds it.
 * A rise is taken at once; only when the holder itself falls are the others asked again, which
 * keeps the maximum exact at a constant cost in the usual case.
 */
#include "internal.h"

uint32_t
ofs_session_score(const struct ofs_core *core, uint32_t session, uint32_t layer,
	uint32_t ordinal)
{
	uint32_t average = ofs_averages_of(core, session, layer)[ordinal];

	if (ordinal >= ofs_layer_of(core, session, layer)->known)
		return ofs_bucket_unknown();
	return ofs_calibration_of(core, session, layer)->bucket[average >> OFS_LEVEL_SHIFT];
}

static void
score_set(struct ofs_core *core, uint32_t slot, uint32_t session, uint32_t score)
{
	struct ofs_slot *s = &core->slots[slot];

	s->owner = session;
	if (s->score == score)
		return;
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
	for (; link != OFS_NONE; link = core->link_next[link]) {
		uint32_t other = link >> core->link_shift;
		uint32_t value = ofs_session_score(core, other, s->layer, link & mask);

		if (value >= *score) {
			*score = value;
			*session = other;
		}
	}
}

void
ofs_score_recompute(struct ofs_core *core, uint32_t slot)
{
	uint32_t session, score;

	score_best(core, slot, &session, &score);
	/* Before it is in a list there is nothing to move. */
	core->slots[slot].owner = session;
	core->slots[slot].score = (uint16_t)score;
}

void
ofs_score_update(struct ofs_core *core, uint32_t slot, uint32_t session, uint32_t ordinal,
	uint32_t score)
{
	const struct ofs_slot *s = &core->slots[slot];
	uint32_t link = (session << core->link_shift) + ordinal;
	uint32_t holder;

	/* Alone, the session is the maximum. */
	if (score >= s->score || (core->link_next[link] & core->link_prev[link]) == OFS_NONE) {
		score_set(core, slot, session, score);
	} else if (s->owner == session || s->owner == OFS_NONE) {
		score_best(core, slot, &holder, &score);
		score_set(core, slot, holder, score);
	}
}

/* The host guesses a demand: until the layer's next step the block is worth what he says. */
void
ofs_score_lift(struct ofs_core *core, uint32_t slot, uint32_t session, uint32_t ordinal,
	uint32_t score)
{
	const struct ofs_slot *s = &core->slots[slot];

	if (score <= s->score)
		return;
	ofs_row_of(core, core->lifted, session, s->layer)[ordinal / 64] |= 1ull << (ordinal % 64);
	ofs_layer_of(core, session, s->layer)->lifted = 1;
	score_set(core, slot, session, score);
}

/* The layer steps: what the session's guesses have lifted is worth what was measured. */
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

			if (core->slots[slot].state == OFS_SLOT_RESIDENT)
				ofs_score_update(core, slot, session, i,
					ofs_session_score(core, session, layer, i));
		}
	}
}

/* A session left or came: nothing is assumed about the holder. */
void
ofs_score_refresh(struct ofs_core *core, uint32_t slot)
{
	uint32_t holder, score;

	score_best(core, slot, &holder, &score);
	score_set(core, slot, holder, score);
}

/* Chunks were appended: resident blocks of them have one session more. */
void
ofs_score_appended(struct ofs_core *core, uint32_t session, uint32_t old_count)
{
	const uint32_t *chunks = ofs_session_list(core, session);
	uint32_t count = core->sessions[session].count;

	if (core->policy.eviction != OFS_EVICT_SCORE)
		return;
	for (uint32_t i = old_count; i < count; i++) {
		for (uint32_t layer = 0; layer < core->config.layer_count
			&& core->chunks[chunks[i]].slots; layer++) {
			uint32_t slot = core->block_slot[ofs_block_of(core, chunks[i], layer)];

			if (slot != OFS_NONE && core->slots[slot].state == OFS_SLOT_RESIDENT)
				ofs_score_refresh(core, slot);
		}
	}
}
