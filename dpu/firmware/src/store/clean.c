/*
 * The cleaner: when free segments fall to the reserve, or a lane has no room, it empties one
 * segment at a time: it reads a live block, checks it, writes it to the end of its lane, and points
 * the index there. At most OFS_CLEAN_OPS moves are in flight. Its pins keep the victim from being
 * freed during a move; the old record stays live until the new one is safe, so that a kill in
 * between loses nothing. The victim therefore changes only after the last move out of the previous
 * one has ended.
 *
 * Model: a state machine. `next_states` lists which event may occur in which state, and only
 * move_on writes state and victim. A move is one of the cleaner's ops, whose kind is its own state:
 * MOVE_READ, MOVE_READY (waits for room), MOVE_WRITE.
 */
#include "internal.h"

#include <assert.h>

enum clean_event {
	CHOSEN,    /* a victim was found */
	LOOKED_AT, /* all of its places were visited */
	NO_ROOM,   /* a move cannot be placed, now or later */
	LEFT,      /* the last move has ended, and the segment still has live records */
	FREED,     /* it has none, and the segment returns to the free ones */
	EVENTS
};

/* 0: the event cannot occur. */
static const uint8_t next_states[OFS_CLEAN_STATES][EVENTS] = {
	[OFS_CLEAN_IDLE] = {[CHOSEN] = OFS_CLEAN_EMPTYING},
	[OFS_CLEAN_EMPTYING] =
		{[LOOKED_AT] = OFS_CLEAN_ENDING, [NO_ROOM] = OFS_CLEAN_ENDING, [FREED] = OFS_CLEAN_IDLE},
	[OFS_CLEAN_ENDING] =
		{[NO_ROOM] = OFS_CLEAN_ENDING, [LEFT] = OFS_CLEAN_IDLE, [FREED] = OFS_CLEAN_IDLE},
};

static void
move_on(struct ofs_store *store, enum clean_event event, uint32_t victim)
{
	struct ofs_store_clean *clean = &store->clean;
	uint32_t next = next_states[clean->state][event];

	assert(next != 0);
	assert(next != OFS_CLEAN_IDLE || (clean->flying == 0 && clean->placed == 0));
	if (event == CHOSEN) {
		assert(store->segments[victim].state == OFS_SEGMENT_SEALED);
		clean->cursor = 0;
	} else if (event == LEFT) {
		/* The other records expire by themselves or cannot be read: trying again gains nothing. */
		store->segments[victim].stuck = 1;
	}
	clean->state = next;
	clean->victim = next == OFS_CLEAN_IDLE ? OFS_NONE : victim;
}

void
ofs_clean_open(struct ofs_store *store)
{
	store->clean.state = OFS_CLEAN_IDLE;
	store->clean.victim = OFS_NONE;
	store->clean.hopeless = UINT64_MAX;
	store->clean.hopeless_lane = OFS_NONE;
}

uint32_t
ofs_clean_needs(const struct ofs_store *store, uint32_t lane)
{
	const struct ofs_store_clean *clean = &store->clean;
	uint32_t live;

	if (clean->victim == OFS_NONE || ofs_lane_of(store, clean->victim) != lane)
		return 0;
	live = store->segments[clean->victim].live;
	return live > clean->placed ? live - clean->placed : 0;
}

/* 1: a victim was found; 0: none, but a segment frees itself soon; -1: no space can be gained. */
static int
choose(struct ofs_store *store, uint32_t lane)
{
	struct ofs_store_clean *clean = &store->clean;
	uint32_t victim;
	int soon;

	if (clean->hopeless == store->changes && clean->hopeless_lane == lane)
		return -1;
	victim = ofs_clean_victim(store, lane, &soon);
	if (victim != OFS_NONE) {
		move_on(store, CHOSEN, victim);
		return 1;
	}
	if (soon)
		return 0;
	clean->hopeless = store->changes;
	clean->hopeless_lane = lane;
	return -1;
}

int
ofs_clean_starve(struct ofs_store *store, uint32_t lane)
{
	if (ofs_store_refuses(store))
		return -EIO; /* neither a move nor a mark would be written */
	if (store->clean.state != OFS_CLEAN_IDLE)
		return -EAGAIN;
	return choose(store, lane) >= 0 ? -EAGAIN : -ENOSPC;
}

static void
end_move(struct ofs_store *store, struct ofs_store_op *op)
{
	uint32_t segment = op->old / store->records_per_segment;

	assert(segment == store->clean.victim && store->clean.flying > 0);
	assert(store->segments[segment].pins > 0);
	store->clean.flying--;
	store->segments[segment].pins--;
	ofs_op_give(store, op);
	ofs_segment_settle(store, segment);
}

/* Writes what was read to the end of its lane, as soon as there is room. */
static void
place(struct ofs_store *store, struct ofs_store_op *op)
{
	uint32_t segment = op->old / store->records_per_segment;
	const struct ofs_store_segment *from = &store->segments[segment];
	const struct ofs_store_record *old = &store->records[op->old];
	int rc;

	assert(op->kind == OFS_STORE_MOVE_READY);
	if (old->state != OFS_RECORD_LIVE) {
		end_move(store, op);
		return;
	}
	rc = ofs_put_send(store, op, from->tenant, from->layer, &old->key, old->expire_s);
	if (rc == 0) {
		ofs_copies_join(store, op->record, op->old);
		store->clean.placed++;
	} else if (rc != -EAGAIN) {
		move_on(store, NO_ROOM, segment);
		end_move(store, op);
	}
}

static void
start_moves(struct ofs_store *store)
{
	struct ofs_store_clean *clean = &store->clean;
	uint32_t first = clean->victim * store->records_per_segment;
	uint32_t layer = store->segments[clean->victim].layer;

	while (clean->cursor < store->records_per_segment) {
		uint32_t record = first + clean->cursor;
		struct ofs_store_record *of = &store->records[record];
		struct ofs_store_op *op;

		/* What is expired or being rewritten frees its place without a move. */
		if (of->state != OFS_RECORD_LIVE || ofs_record_expired(store, record, store->now_s)
			|| ofs_store_index_find(store, &of->key, layer) != record) {
			clean->cursor++;
			continue;
		}
		op = ofs_op_take(store, &store->clean_free);
		if (op == NULL)
			return;
		if (ofs_record_submit(store, op, OFS_STORAGE_READ, record) != 0) {
			ofs_op_give(store, op);
			return;
		}
		op->kind = OFS_STORE_MOVE_READ;
		op->old = record;
		store->segments[clean->victim].pins++;
		clean->flying++;
		clean->cursor++;
	}
	move_on(store, LOOKED_AT, clean->victim);
}

void
ofs_clean_step(struct ofs_store *store)
{
	struct ofs_store_clean *clean = &store->clean;

	if (clean->state == OFS_CLEAN_IDLE
		&& (store->free.count > store->config.reserve_segments || ofs_store_refuses(store)
			|| choose(store, OFS_NONE) != 1)) {
		return;
	}
	for (uint32_t i = store->op_count - OFS_CLEAN_OPS; i < store->op_count; i++)
		if (store->ops[i].kind == OFS_STORE_MOVE_READY)
			place(store, &store->ops[i]);
	if (clean->state == OFS_CLEAN_EMPTYING)
		start_moves(store);
	if (clean->state == OFS_CLEAN_ENDING && clean->flying == 0)
		move_on(store, LEFT, clean->victim);
}

void
ofs_clean_freed(struct ofs_store *store, uint32_t segment)
{
	if (store->clean.state != OFS_CLEAN_IDLE && store->clean.victim == segment)
		move_on(store, FREED, segment);
}

static void
read_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result)
{
	struct ofs_store_record *old = &store->records[op->old];

	if (ofs_store_rc(result, ofs_record_io_bytes(store, op->old)) != 0) {
		store->stats.io_errors++;
		end_move(store, op);
	} else if (old->state != OFS_RECORD_LIVE) {
		end_move(store, op); /* deleted, and perhaps overwritten, during the read */
	} else if (!ofs_record_intact(store, op->buffer, op->old, store->plain)) {
		store->stats.checks_failed++;
		old->state = OFS_RECORD_CONDEMNED;
		end_move(store, op);
	} else {
		op->kind = OFS_STORE_MOVE_READY;
		place(store, op);
	}
}

void
ofs_clean_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result)
{
	if (op->kind == OFS_STORE_MOVE_READ)
		read_done(store, op, result);
	else
		ofs_put_done(store, op, result);
}

void
ofs_clean_written(struct ofs_store *store, struct ofs_store_op *op)
{
	uint32_t segment = op->record / store->records_per_segment;
	uint32_t layer = store->segments[segment].layer;
	struct ofs_store_record *old = &store->records[op->old];

	assert(store->clean.placed > 0);
	store->clean.placed--;
	ofs_lane_written(store, segment);
	if (op->rc == 0 && old->state == OFS_RECORD_LIVE
		&& ofs_store_index_find(store, &old->key, layer) == op->old) {
		ofs_store_index_replace(store, op->old, op->record);
		ofs_record_enliven(store, op->record);
		store->records[op->record].verified = 1;
		store->records[op->record].expire_s = old->expire_s; /* perhaps renewed meanwhile */
		ofs_record_mark_dead(store, op->old);
		store->stats.blocks_moved++;
	} else {
		ofs_record_mark_dead(store, op->record);
	}
	end_move(store, op);
	ofs_segment_settle(store, segment);
}
