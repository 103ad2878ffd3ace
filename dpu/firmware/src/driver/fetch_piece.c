/*
 * One piece of a fetch: as many demands as a STEP carries. It keeps one payload area throughout.
 * Its states:
 *
 *   begun     hits read one-sidedly, the STEP built -> flying, or due: the ring was full
 *   flying    until its completion; what lands meanwhile is read as it lands
 *   due       the DPU was busy: the same STEP again -> flying
 *             some blocks are still wanted: a new STEP for these -> flying
 *   ended     nothing is wanted, or the DPU refused the STEP
 */
#include "driver/internal.h"
#include "ofs_core.h"
#include "scores.h"

#include <assert.h>
#include <string.h>

/* Updates fetch->stall_ns: called when something that was waited for has ended. */
static void
note_stall(struct ofs_driver *driver, struct ofs_call *call)
{
	struct ofs_fetch *fetch = call->fetch;
	uint64_t copied_ns = fetch->copy_ns - call->stall_begin_copy_ns;
	uint64_t waited_ns = ofs_driver_now_ns(driver) - call->stall_begin_ns;

	if (call->stall_begin_ns != 0)
		fetch->stall_ns = waited_ns > copied_ns ? waited_ns - copied_ns : 0;
}

static void
fail(struct ofs_driver *driver, struct ofs_call *call, uint32_t first, uint32_t count, int rc)
{
	struct ofs_fetch *fetch = call->fetch;

	assert(first + count <= fetch->demand_count);
	for (uint32_t i = first; i < first + count; i++) {
		if (fetch->rcs[i] != OFS_WANTED)
			continue;
		fetch->rcs[i] = rc;
		fetch->ends[i] = 255;
		fetch->failed_count++;
		driver->stats.failed++;
	}
	note_stall(driver, call);
}

static void
prepare_read(const struct ofs_fetch *fetch, uint32_t demand, struct ofs_block_read *read)
{
	uint32_t row;

	read->demand = demand;
	read->key = fetch->keys[demand];
	read->granules = 0;
	if (fetch->granules != NULL) {
		read->granules = fetch->granules[demand];
		read->rows = fetch->target_index + fetch->granule_first[demand];
		read->sums = fetch->checksums + fetch->granule_first[demand];
		read->granule_stride_bytes = fetch->target_stride_bytes;
		read->target = fetch->target;
		return;
	}
	row = fetch->target_index[demand];
	read->target = fetch->target;
	if (fetch->spare != NULL && row >= fetch->target_rows) {
		read->target = fetch->spare;
		row -= fetch->target_rows;
	}
	read->target += (uint64_t)row * fetch->target_stride_bytes;
}

static void
accept(struct ofs_fetch *fetch, const struct ofs_block_read *read)
{
	fetch->rcs[read->demand] = 0;
	if (fetch->lengths != NULL)
		fetch->lengths[read->demand] = read->length;
	if (fetch->checksums != NULL && fetch->granules == NULL)
		fetch->checksums[read->demand] = read->checksum;
}

/* One-sided: reads the blocks that the directory names; those whose check passes are done, the rest
 * stay wanted. */
static int
read_hits(struct ofs_driver *driver, struct ofs_call *call, uint32_t first, uint32_t count)
{
	struct ofs_fetch *fetch = call->fetch;
	uint64_t start_ns = ofs_driver_now_ns(driver);
	int rc;

	for (uint32_t i = 0; i < count; i++)
		prepare_read(fetch, first + i, &driver->reads[i]);
	rc = ofs_reads_find(driver, driver->reads, count);
	for (uint32_t i = 0; i < count; i++) {
		struct ofs_block_read *read = &driver->reads[i];

		if (rc == 0 && read->rc == 0) {
			accept(fetch, read);
			fetch->hit_count++;
			driver->stats.hits++;
			driver->stats.remembered += read->remembered;
			continue;
		}
		if (rc == 0 && read->rc != -ENOENT) {
			fetch->torn_count++;
			driver->stats.torn++;
		}
		driver->stats.misses++;
	}
	fetch->copy_ns += ofs_driver_now_ns(driver) - start_ns;
	return rc;
}

/* Builds a piece's STEP from what read_hits left in driver->reads. The first carries the scores. */
static void
build_step(struct ofs_driver *driver, const struct ofs_fetch *fetch, uint32_t payload_index)
{
	struct ofs_pending *pending = &driver->pending[payload_index];
	uint8_t *payload = driver->fabric->ops->payload(driver->fabric, payload_index);
	uint8_t *seen = payload + ofs_payload_seen_offset(pending->count);
	bool first = pending->first == 0;

	pending->sqe = (struct ofs_sqe){.op = OFS_OP_STEP,
		.layer = (uint16_t)fetch->layer,
		.session = fetch->session,
		.step = fetch->step,
		/* Adds what was selected but is not demanded. */
		.selected_count =
			pending->count + (first ? fetch->selected_count - fetch->demand_count : 0),
		.demand_count = pending->count};
	if (pending->count > 0) {
		memcpy(payload, &fetch->ordinals[pending->first],
			pending->count * sizeof(fetch->ordinals[0]));
	}
	if (fetch->granules != NULL) {
		pending->sqe.flags |= OFS_STEP_GRANULES;
		memcpy(payload + ofs_payload_scores_offset(pending->count),
			&fetch->granules[pending->first], pending->count * sizeof(fetch->granules[0]));
	}
	/* OFS_SEEN_MISS is 0, as is the cause of nothing. */
	for (uint32_t i = 0; i < pending->count; i++)
		seen[i] = driver->reads[i].rc != 0 ? OFS_CAUSE_NONE : (uint8_t)driver->reads[i].cause;
	if (first && fetch->score_count > 0) {
		ofs_scores_pack(&driver->limits, fetch->scores, fetch->score_count, &pending->sqe,
			payload + ofs_step_scores_offset(&pending->sqe));
	}
}

static uint32_t
wanted_count(const struct ofs_fetch *fetch, const struct ofs_pending *pending)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < pending->count; i++)
		count += fetch->rcs[pending->first + i] == OFS_WANTED;
	return count;
}

static int
begin_piece(struct ofs_driver *driver, struct ofs_call *call)
{
	struct ofs_fetch *fetch = call->fetch;
	uint32_t demand_max = driver->fabric->port.demand_max;
	uint32_t left = fetch->demand_count - call->begun;
	uint32_t index = ofs_command_take(driver);
	struct ofs_pending *pending = &driver->pending[index];
	int rc;

	assert(index != OFS_NONE && call->begun <= fetch->demand_count);
	pending->first = call->begun;
	pending->count = left < demand_max ? left : demand_max;
	memset(driver->attempts + (size_t)index * demand_max, 0, pending->count);
	rc = read_hits(driver, call, pending->first, pending->count);
	if (rc == 0) {
		build_step(driver, fetch, index);
		if (call->stall_begin_ns == 0 && wanted_count(fetch, pending) > 0) {
			call->stall_begin_ns = ofs_driver_now_ns(driver);
			call->stall_begin_copy_ns = fetch->copy_ns;
		}
		rc = ofs_call_send(driver, index);
	}
	if (rc != 0) {
		ofs_command_drop(driver, index);
		return rc;
	}
	ofs_call_add(driver, call, index);
	call->begun += pending->count;
	call->owes_step = false;
	return 0;
}

static int
begin_more(struct ofs_driver *driver, struct ofs_call *call)
{
	int rc = 0;

	while (rc == 0 && driver->free_payload_count > 0
		&& (call->begun < call->fetch->demand_count || call->owes_step)) {
		rc = begin_piece(driver, call);
	}
	return rc;
}

/* Sends a STEP for what is still wanted of the piece. */
static int
due(struct ofs_driver *driver, struct ofs_call *call, uint32_t payload_index)
{
	struct ofs_fetch *fetch = call->fetch;
	struct ofs_pending *pending = &driver->pending[payload_index];
	uint32_t *asked = driver->asked + (size_t)payload_index * driver->fabric->port.demand_max;
	uint8_t *payload = driver->fabric->ops->payload(driver->fabric, payload_index);
	uint32_t count = 0;

	assert(!pending->flying);
	if (!pending->ask_again) /* the DPU did not take it: sent unchanged */
		return ofs_call_send(driver, payload_index);
	for (uint32_t i = 0; i < pending->count; i++) {
		uint32_t demand = pending->first + i;

		if (fetch->rcs[demand] == OFS_WANTED) {
			asked[count] = demand;
			memcpy(payload + (size_t)count * 4, &fetch->ordinals[demand], 4);
			count++;
		}
	}
	memset(payload + ofs_payload_seen_offset(count), OFS_CAUSE_NONE, count);
	pending->sqe.flags = OFS_STEP_RETRY | (pending->sqe.flags & OFS_STEP_GRANULES);
	for (uint32_t i = 0; i < count && fetch->granules != NULL; i++) {
		memcpy(payload + ofs_payload_scores_offset(count) + (size_t)i * 4,
			&fetch->granules[asked[i]], 4);
	}
	pending->sqe.selected_count = pending->sqe.demand_count = count;
	pending->sqe.score_count = 0;
	pending->ask_again = false;
	fetch->retry_count += count;
	driver->stats.retries += count;
	return ofs_call_send(driver, payload_index);
}

static void
accept_or_try_later(struct ofs_driver *driver, struct ofs_call *call, uint32_t payload_index,
	const struct ofs_block_read *read)
{
	const struct ofs_pending *pending = &driver->pending[payload_index];
	uint8_t *attempts = driver->attempts + (size_t)payload_index * driver->fabric->port.demand_max;

	assert(read->demand - pending->first < pending->count);
	if (read->rc == 0) {
		accept(call->fetch, read);
		return;
	}
	call->fetch->torn_count++;
	driver->stats.torn++;
	if (++attempts[read->demand - pending->first] >= OFS_READ_ATTEMPTS_MAX)
		fail(driver, call, read->demand, 1, read->rc);
}

/* 1: a block to be read; 0: it ended or stays wanted; -EPROTO: not a result of this STEP. */
static int
take_result(struct ofs_driver *driver, struct ofs_call *call, uint32_t payload_index,
	struct ofs_result result, struct ofs_block_read *read)
{
	struct ofs_fetch *fetch = call->fetch;
	const struct ofs_pending *pending = &driver->pending[payload_index];
	const uint32_t *asked = driver->asked + (size_t)payload_index * driver->fabric->port.demand_max;
	bool again = (pending->sqe.flags & OFS_STEP_RETRY) != 0;
	uint32_t demand;

	if (result.demand >= pending->sqe.demand_count)
		return -EPROTO;
	demand = again ? asked[result.demand] : pending->first + result.demand;
	assert(demand - pending->first < pending->count);
	if (!again)
		fetch->ends[demand] = result.end < OFS_END_COUNT ? (uint8_t)result.end : 255;
	if (fetch->rcs[demand] != OFS_WANTED || result.rc == -EAGAIN)
		return 0;
	if (result.rc != 0) {
		fail(driver, call, demand, 1, result.rc);
		return 0;
	}
	prepare_read(fetch, demand, read);
	read->slot = result.slot < driver->fabric->region.slot_count ? result.slot : OFS_NONE;
	read->generation = result.generation;
	return 1;
}

/*
 * Reads the slots that the results from `pending->taken` on name; blocks that are torn or were
 * answered -EAGAIN stay wanted.
 */
static int
take_results(struct ofs_driver *driver, struct ofs_call *call, uint32_t payload_index)
{
	struct ofs_pending *pending = &driver->pending[payload_index];
	const struct ofs_result *results = driver->fabric->ops->results(driver->fabric, &pending->cqe);
	uint64_t start_ns = ofs_driver_now_ns(driver);
	uint32_t count = pending->cqe.count;
	uint32_t read_count = 0;
	int rc = 0;

	if (results == NULL || count > pending->sqe.demand_count)
		return -EPROTO;
	for (; pending->taken < count && rc >= 0; pending->taken++) {
		rc = take_result(driver, call, payload_index, results[pending->taken],
			&driver->reads[read_count]);
		read_count += rc > 0;
	}
	if (rc >= 0)
		rc = ofs_reads_run(driver, driver->reads, read_count, true);
	for (uint32_t i = 0; i < read_count && rc == 0; i++)
		accept_or_try_later(driver, call, payload_index, &driver->reads[i]);
	call->fetch->copy_ns += ofs_driver_now_ns(driver) - start_ns;
	note_stall(driver, call);
	return rc;
}

static int
answered(struct ofs_driver *driver, struct ofs_call *call, uint32_t payload_index)
{
	struct ofs_pending *pending = &driver->pending[payload_index];
	int rc = pending->cqe.rc;

	assert(pending->flying == (rc == -EINPROGRESS)); /* a command that has ended has one answer */
	if (rc == -EINPROGRESS)
		return take_results(driver, call, payload_index);
	if (rc == -EBUSY || rc == -EAGAIN) { /* a busy answer does not end a demand */
		ofs_call_pause(driver, payload_index);
		return 0;
	}
	if (rc == 0 && pending->cqe.count != pending->sqe.demand_count)
		rc = -EPROTO;
	if (rc == 0)
		rc = take_results(driver, call, payload_index);
	if (rc != 0)
		return rc;
	if (wanted_count(call->fetch, pending) == 0)
		return 1;
	pending->ask_again = true;
	ofs_call_pause(driver, payload_index);
	return 0;
}

const struct ofs_call_ops ofs_fetch_ops = {
	.begin_more = begin_more,
	.answered = answered,
	.due = due,
	.fail = fail,
};
