/*
 * replay.h: a decision log, event by event.
 *
 * Model: a replay owns a copy of the log and a fresh core, and moves one event at a time: it feeds
 * the event to the core and shows both, the input and what was decided. Between two events the
 * caller may look at the core's counters. The bytes are untrusted: each record is checked before it
 * is read, and no log, however made, does more than end the replay. The first event whose outcome
 * is not the logged one is the last: from there the core is another. One thread owns a replay.
 */
#ifndef OFS_REPLAY_H
#define OFS_REPLAY_H

#include "ofs_core.h"

/* cdef: order 2 */
/* cdef: begin */
/* One event and the decisions that followed. What it points to is good until the next call. */
struct ofs_replay_event {
	uint64_t offset; /* of its record in the log */
	uint64_t now_ns;
	uint32_t type; /* enum ofs_event_type */
	int32_t rc;    /* what the core answers; the rest is what it decides now, not what was logged */
	uint32_t agreed;      /* 0: the log has another answer, other outputs or other actions */
	uint32_t input_bytes; /* of the event's arguments, as logged */
	uint32_t action_count;
	uint32_t end_count;    /* of a step that was let in: its demands; else 0 */
	uint32_t answer_bytes; /* the core's outputs besides rc: a session's number, chunk infos */
	const void *input;
	const void *answer;
	const struct ofs_action *actions; /* [action_count] */
	const uint8_t *ends;              /* [end_count] enum ofs_end */
	const struct ofs_step *step;      /* the input, where it is a step; else NULL */
};
struct ofs_replay;

/* The log's bytes are copied. -EBADMSG: it does not begin as a log of this version does. */
int ofs_replay_open(struct ofs_replay **out, const void *log, uint64_t size_bytes);
void ofs_replay_close(struct ofs_replay *replay);
/* 1: the next event was run; 0: none is left, or the last did not agree; -EBADMSG: torn. */
int ofs_replay_next(struct ofs_replay *replay, struct ofs_replay_event *event);
/* The core as it is after the last event, to be looked at: ofs_core_ledger, ofs_core_work. */
const struct ofs_core *ofs_replay_core(const struct ofs_replay *replay);
/* cdef: end */

#endif
