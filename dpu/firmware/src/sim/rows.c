/*
 * rows.c: what happened in every layer of every step.
 *
 * Model: a batch slot has a growing array of rows. The rows of the current step follow the counted
 * ones, one for each layer, because a read may belong to any layer of it; they are counted when the
 * next step begins or the session ends, and then no longer change.
 */
#include <stdlib.h>

#include "engine.h"

#define ROWS_FIRST_STEPS 16

/* Adds empty rows for the batch slot's current step. */
int
ofs_sim_rows_open(struct ofs_engine *engine, uint32_t batch_slot)
{
	struct ofs_batch_slot *p = &engine->batch_slots[batch_slot];
	uint32_t layers = engine->layer_count, needed = p->row_count + layers;

	if (needed > p->row_max) {
		uint32_t max = p->row_max ? 2 * p->row_max : ROWS_FIRST_STEPS * layers;
		struct ofs_row *rows;

		if (needed > INT32_MAX / 2)
			return -ENOSPC;
		rows = realloc(p->rows, (size_t)max * sizeof(*rows));
		if (rows == NULL)
			return -ENOMEM;
		p->rows = rows;
		p->row_max = max;
	}
	memset(p->rows + p->row_count, 0, layers * sizeof(*p->rows));
	for (uint32_t layer = 0; layer < layers; layer++) {
		struct ofs_row *row = &p->rows[p->row_count + layer];

		row->session = batch_slot;
		row->step = p->step;
		row->layer = (uint16_t)layer;
	}
	return 0;
}

/* The step is over: its rows no longer change. */
void
ofs_sim_rows_end(struct ofs_engine *engine, uint32_t batch_slot)
{
	engine->batch_slots[batch_slot].row_count += engine->layer_count;
}

/* The row of the current step. */
struct ofs_row *
ofs_sim_row(struct ofs_engine *engine, uint32_t batch_slot, uint32_t layer)
{
	return &engine->batch_slots[batch_slot].rows[engine->batch_slots[batch_slot].row_count + layer];
}

static uint16_t
difference(uint64_t before, uint64_t after)
{
	return (uint16_t)(after - before < UINT16_MAX ? after - before : UINT16_MAX);
}

/* What the core counted in the one event between the two. */
void
ofs_sim_row_step(struct ofs_row *row, const struct ofs_ledger *before,
	const struct ofs_ledger *after)
{
	for (uint32_t end = 0; end < OFS_END_COUNT; end++) {
		row->ends[end] = difference(before->ends[end], after->ends[end]);
		row->nontrivial_ends[end] =
			difference(before->nontrivial_ends[end], after->nontrivial_ends[end]);
	}
	row->nontrivial = difference(before->nontrivial, after->nontrivial);
	row->shadow_misses = difference(before->shadow_misses, after->shadow_misses);
	row->pollution = difference(before->pollution, after->pollution);
}

void
ofs_sim_row_read(struct ofs_engine *engine, const struct ofs_action *action)
{
	struct ofs_row *row;
	uint32_t batch_slot;

	if (action->session == OFS_NONE || engine->batch_slot_of[action->session] == OFS_NONE)
		return;
	batch_slot = engine->batch_slot_of[action->session];
	row = ofs_sim_row(engine, batch_slot, action->layer);
	if (ofs_cause_is_prefetch(action->cause))
		row->prefetch_reads++;
	else
		row->demand_reads++;
}

int
ofs_engine_rows(struct ofs_engine *engine, uint32_t batch_slot, struct ofs_row *rows, int max)
{
	struct ofs_batch_slot *p;
	uint32_t count, left;

	if (batch_slot >= engine->config.batch_slot_max || max < 0)
		return -EINVAL;
	p = &engine->batch_slots[batch_slot];
	if (rows == NULL)
		return (int)p->row_count;
	count = p->row_count < (uint32_t)max ? p->row_count : (uint32_t)max;
	if (count == 0)
		return 0;
	left = p->row_count - count + (p->running ? engine->layer_count : 0);
	memcpy(rows, p->rows, count * sizeof(*rows));
	memmove(p->rows, p->rows + count, left * sizeof(*rows));
	p->row_count -= count;
	return (int)count;
}
