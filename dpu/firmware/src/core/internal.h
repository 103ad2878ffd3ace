/*
 * internal.h: what the files of the decision core share: accessors of the tables, and the calls.
 *
 * Model: tables.h. Functions here assert what the public calls have checked; only those named
 * `..._check` refuse input.
 */
#ifndef OFS_CORE_INTERNAL_H
#define OFS_CORE_INTERNAL_H

#include <assert.h>
#include <string.h>

#include "tables.h"
#include "work.h"

static inline uint32_t
ofs_block_of(const struct ofs_core *core, uint32_t chunk, uint32_t layer)
{
	return layer * core->config.chunk_max + chunk;
}

static inline uint32_t *
ofs_session_list(const struct ofs_core *core, uint32_t session)
{
	return core->session_chunks + (size_t)session * core->config.session_chunk_max;
}

static inline struct ofs_layer *
ofs_layer_of(const struct ofs_core *core, uint32_t session, uint32_t layer)
{
	return core->layers + (size_t)session * core->config.layer_count + layer;
}

static inline uint16_t *
ofs_averages_of(const struct ofs_core *core, uint32_t session, uint32_t layer)
{
	return core->averages
		+ ((size_t)session * core->config.layer_count + layer) * core->config.session_chunk_max;
}

static inline uint8_t *
ofs_levels_of(const struct ofs_core *core, uint32_t session, uint32_t layer)
{
	return core->levels
		+ ((size_t)session * core->config.layer_count + layer) * core->config.session_chunk_max;
}

static inline struct ofs_calibration *
ofs_calibration_of(const struct ofs_core *core, uint32_t session, uint32_t layer)
{
	return core->calibrations + (size_t)session * core->config.layer_count + layer;
}

/* A row of bits, one for each ordinal, of one layer of one session. */
static inline uint64_t *
ofs_row_of(const struct ofs_core *core, uint64_t *rows, uint32_t session, uint32_t layer)
{
	return rows + ((size_t)session * core->config.layer_count + layer) * core->row_words;
}

static inline int
ofs_block_is_stored(const struct ofs_core *core, uint32_t chunk, uint32_t layer)
{
	uint32_t home = core->chunks[chunk].home;

	return core->block_flags[ofs_block_of(core, home, layer)] & OFS_BLOCK_STORED;
}

/* First ordinal of the window at the end of the context. */
static inline uint32_t
ofs_window_begin(const struct ofs_session *s)
{
	return s->config.window_blocks < s->count ? s->count - s->config.window_blocks : 0;
}

/* Outside the sinks and the window, which every selection contains anyway. */
static inline int
ofs_is_nontrivial(const struct ofs_session *s, uint32_t ordinal)
{
	return ordinal >= s->config.sink_blocks && ordinal < ofs_window_begin(s);
}

/* The class under which the calibration counts an ordinal. */
static inline uint32_t
ofs_class_of(const struct ofs_core *core, uint32_t session, uint32_t layer, uint32_t ordinal)
{
	if (!ofs_is_nontrivial(&core->sessions[session], ordinal))
		return OFS_LEVEL_TRIVIAL;
	return ofs_averages_of(core, session, layer)[ordinal] >> OFS_LEVEL_SHIFT;
}

/* Demands may name parts of blocks. */
static inline int
ofs_granular(const struct ofs_core *core)
{
	return core->config.granule_count > 1;
}

/* May not be evicted now. */
static inline int
ofs_slot_is_held(const struct ofs_slot *slot)
{
	return slot->pins != 0 || (slot->flags & (OFS_FLAG_DIRTY | OFS_FLAG_FILLING));
}

/* The session has used the slot's current block. */
static inline void
ofs_slot_used(struct ofs_core *core, uint32_t slot, uint32_t session)
{
	core->used_bits[(size_t)slot * core->used_words + session / 64] |= 1ull << (session % 64);
	core->slots[slot].used_by = core->sessions[session].serial;
	ofs_work_touch(core, OFS_TABLE_SLOT, sizeof(*core->slots) + sizeof(*core->used_bits));
}

/* Called only inside the core, so no call goes through the linkage table of a shared object. */
#pragma GCC visibility push(hidden)

/* core.c */
int ofs_event_enter(struct ofs_core *core, uint64_t now_ns, enum ofs_event_type type);
void ofs_action_slot(struct ofs_core *core, uint32_t type, uint32_t slot);
void ofs_action_complete(struct ofs_core *core, uint32_t tenant, uint32_t waiter, uint32_t index,
	int rc, uint32_t slot);
int ofs_session_check(const struct ofs_core *core, uint32_t session);
int ofs_block_check(const struct ofs_core *core, uint32_t chunk, uint32_t layer);
/* layout.c: cuts every table from the core's allocation; with base NULL it only counts. */
uint64_t ofs_core_layout(struct ofs_core *core, unsigned char *base);

/* index.c */
uint32_t ofs_index_find(const struct ofs_core *core, uint32_t tenant, const struct ofs_key *key);
/* The same, outside an event: no work is counted. */
uint32_t ofs_index_peek(const struct ofs_core *core, uint32_t tenant, const struct ofs_key *key);
int ofs_index_insert(struct ofs_core *core, uint32_t chunk);
void ofs_index_remove(struct ofs_core *core, uint32_t chunk);

/* chunk.c */
int ofs_chunk_create(struct ofs_core *core, uint32_t tenant, const struct ofs_key *key,
	uint32_t home, uint32_t *chunk);
void ofs_chunk_maybe_free(struct ofs_core *core, uint32_t chunk);
void ofs_chunk_link(struct ofs_core *core, uint32_t chunk, uint32_t session, uint32_t ordinal);
void ofs_chunk_unlink(struct ofs_core *core, uint32_t chunk, uint32_t session, uint32_t ordinal);
uint32_t ofs_chunk_ordinal(const struct ofs_core *core, uint32_t chunk, uint32_t session);
void ofs_chunk_generating(struct ofs_core *core, uint32_t chunk, int change);
void ofs_chunk_info_get(const struct ofs_core *core, uint32_t chunk, struct ofs_chunk_info *info);
void ofs_block_unstore(struct ofs_core *core, uint32_t home, uint32_t layer);

/* arena.c. Takes a slot for the block; `candidate` NULL: for a demand or a write. */
uint32_t ofs_slot_take(struct ofs_core *core, uint32_t tenant, uint32_t block,
	const struct ofs_candidate *candidate);
void ofs_slot_assign(struct ofs_core *core, uint32_t slot, uint32_t chunk, uint32_t layer,
	uint32_t cause, uint32_t serial);
void ofs_slot_arrive(struct ofs_core *core, uint32_t slot, int publish);
void ofs_slot_evict(struct ofs_core *core, uint32_t slot, int by_prefetch);
void ofs_slot_release(struct ofs_core *core, uint32_t slot, int quarantine);
void ofs_session_pin(struct ofs_core *core, uint32_t session, uint32_t slot);
void ofs_session_unpin(struct ofs_core *core, uint32_t session);
void ofs_lease_begin(struct ofs_core *core, uint32_t session);
void ofs_lease_end(struct ofs_core *core, uint32_t session);

/* calibrate.c */
uint32_t ofs_chance_bucket(uint32_t chance);
uint32_t ofs_odds_bucket(uint32_t chance);
uint32_t ofs_bucket_unknown(void);
void ofs_calibration_open(struct ofs_core *core, uint32_t session);
int ofs_calibration_demands(struct ofs_core *core, const struct ofs_step *step);
void ofs_calibration_note(struct ofs_core *core, uint32_t session, uint32_t layer);
int ofs_calibration_verify(const struct ofs_core *core, uint32_t session);

/* score.c: the score of a resident block is the highest over the sessions that share it. */
void ofs_score_update(struct ofs_core *core, uint32_t slot, uint32_t session, uint32_t ordinal,
	uint32_t score);
void ofs_score_arrive(struct ofs_core *core, uint32_t slot);
void ofs_score_leave(struct ofs_core *core, uint32_t slot, uint32_t session);
void ofs_score_appended(struct ofs_core *core, uint32_t session, uint32_t old_count);
void ofs_score_lift(struct ofs_core *core, uint32_t slot, uint32_t session, uint32_t ordinal,
	uint32_t score);
void ofs_score_settle(struct ofs_core *core, uint32_t session, uint32_t layer);
uint32_t ofs_session_score(const struct ofs_core *core, uint32_t session, uint32_t layer,
	uint32_t ordinal);

/* io.c */
void ofs_read_start(struct ofs_core *core, uint32_t slot, uint32_t session, uint64_t deadline_ns);
void ofs_read_issue(struct ofs_core *core, uint32_t slot, uint32_t session, uint64_t deadline_ns);
void ofs_read_pending(struct ofs_core *core);
/* OFS_NONE if all sessions that waited have closed. */
uint32_t ofs_read_first_asker(const struct ofs_core *core, uint32_t slot);
int ofs_wait_add(struct ofs_core *core, uint32_t slot, uint32_t session,
	const struct ofs_step *step, uint32_t index, int late);
void ofs_wait_cancel(struct ofs_core *core, uint32_t slot, uint32_t session);
void ofs_read_raise(struct ofs_core *core, uint32_t slot);
/* Unlinks the ring of waiters in order; those of `session` (OFS_NONE: all) end with rc. */
void ofs_wait_end(struct ofs_core *core, uint32_t slot, uint32_t session, int rc);

/* granule.c: slots that have a part of their block. */
/* The granules that demand `i` of the step names; 0 without granules. */
uint32_t ofs_granules_asked(const struct ofs_core *core, const struct ofs_step *step, uint32_t i);
int ofs_granules_check(const struct ofs_core *core, const struct ofs_step *step);
/* The granules a slot has; 0 without granules. */
uint32_t ofs_part_valid(const struct ofs_core *core, uint32_t slot);
/* Whether it has all of `granules`; and whether the read in flight brings the ones it lacks. */
int ofs_part_covers(const struct ofs_core *core, uint32_t slot, uint32_t granules);
int ofs_part_comes(const struct ofs_core *core, uint32_t slot, uint32_t granules);
/* A demand needs these of a slot whose block is being read. */
void ofs_part_want(struct ofs_core *core, uint32_t slot, uint32_t granules);
/* Begins a read of the wanted granules and names them in its action; returns its size in bytes. */
uint64_t ofs_part_begin(struct ofs_core *core, uint32_t slot, struct ofs_action *action);
/* The slot becomes resident: with what was read, or (`read` 0) written whole. */
void ofs_part_arrive(struct ofs_core *core, uint32_t slot, int read);
/* partial_fill.c: the end of a read into a slot that is already resident. */
void ofs_fill_done(struct ofs_core *core, uint32_t slot);
void ofs_fill_failed(struct ofs_core *core, uint32_t slot, int rc);
/* Demands that named more than has arrived: the rest is read too, or they are to retry. */
void ofs_part_go_on(struct ofs_core *core, uint32_t slot);

/* shadow.c: 1 when a demand-only LRU of the same size misses. */
int ofs_shadow_touch(struct ofs_core *core, uint32_t tenant, uint32_t block);
void ofs_shadow_forget(struct ofs_core *core, uint32_t block);

/* ledger.c */
uint32_t ofs_end_of_cause(uint32_t cause);
void ofs_fate_add(struct ofs_core *core, uint32_t tenant, uint32_t cause, uint32_t fate);
void ofs_slot_fate(struct ofs_core *core, uint32_t slot, uint32_t fate);
void ofs_record_add(struct ofs_core *core, uint32_t session, const struct ofs_step *step,
	const uint8_t *ends);
uint32_t ofs_log2(uint64_t value);

/* queue.c */
int ofs_queue_propose(struct ofs_core *core, uint32_t session, uint32_t layer, uint32_t ordinal,
	uint32_t cause, uint32_t probability, uint64_t need_ns);
void ofs_queue_hint(struct ofs_core *core, uint32_t session, const struct ofs_guess *guess,
	uint32_t stamp, uint64_t need_ns);
void ofs_queue_cancel(struct ofs_core *core, uint32_t block);
void ofs_queue_cancel_session(struct ofs_core *core, uint32_t session);
void ofs_queue_drop_stale(struct ofs_core *core, uint32_t tenant);
/* Of the tenants that have candidates, the one whose turn is next. */
struct ofs_candidate ofs_queue_first(const struct ofs_core *core, uint32_t tenant);
void ofs_queue_drop_first(struct ofs_core *core, uint32_t tenant);
void ofs_queue_remove_first(struct ofs_core *core, uint32_t tenant);

/* hint.c */
void ofs_hint_limit(struct ofs_core *core, const struct ofs_step *step, struct ofs_step *kept);

/* pump.c */
void ofs_pump(struct ofs_core *core);

/* feedback.c */
void ofs_feedback_fate(struct ofs_core *core, uint32_t tenant, uint32_t fate);
void ofs_feedback_reset(struct ofs_core *core, uint32_t tenant);

#pragma GCC visibility pop

#include "evict.h"
#include "log.h"
#include "prefetch.h"

#endif
