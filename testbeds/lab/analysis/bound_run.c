/*
 * bound_run.c: a buffer that knows what is needed when: alone (Belady), or with capped prefetch.
 *
 * Why no way of reading on demand needs fewer reads than Belady's, rows and all: take a schedule
 * and its first victim v that is needed before the block w that is needed last. Evict w instead,
 * and do what the schedule does with v and w exchanged. When v is needed the old one
 * reads it for some x; the new one has it, and has x where the old one has w. From there each reads
 * once what only the other has, or less, so the new one never reads more. The same holds up to
 * every row: a block that is needed after it counts like one that is needed never.
 *
 * Prefetch fetches what is needed soonest of all that is absent; its victim is what is needed last,
 * if that is needed later than what comes. What is needed soonest is found by two means. The
 * *frontier* is how far the rows have been looked at, in order of time, and all that was absent
 * fetched. A *hole* is a block evicted since, although a row before the frontier needs it: room was
 * made for a block that decode wrote. So what is absent and needed before the frontier is exactly
 * the holes; where there is none, the first absent block of the frontier row is needed soonest, and
 * that row is when. Each demand is looked at once by the frontier and once by its row, and again
 * only where room was made at the cost of the frontier row itself.
 *
 * A block that decode has not written yet is passed over: it cannot be read ahead, and comes by
 * itself. After that it is like any other.
 *
 * Prefetch never costs hits. Let c have replaced v, c needed before v. Where reading on
 * demand would have read c for some x, there is now nothing to read, and x stands where v would:
 * that is one read less, and at most one more later, for v. So hits(clairvoyant) >= hits(Belady).
 */
#include <stdlib.h>
#include <string.h>

#include "bound_pool.h"

enum state {
	STATE_NEW = 0, /* never demanded */
	STATE_RESIDENT = 1,
	STATE_ABSENT = 2
};

struct run {
	const struct ofs_bound_demands *demands;
	const struct ofs_bound_cap *cap; /* NULL: no prefetch */
	struct ofs_bound_result *result;
	struct bound_pool resident; /* all in the buffer but those of the row at hand */
	struct bound_pool holes;
	uint8_t *state; /* [blocks] */
	uint32_t slots, used;
	int bypass;
	uint64_t credit;
	uint32_t frontier; /* position in time */
	uint64_t looked;   /* demands of the frontier row that need no look */
};

static inline uint32_t
row_at(const struct run *run, uint32_t time)
{
	return run->demands->order ? run->demands->order[time] : time;
}

/* Decode writes the block at its first demand. */
static inline int
is_unwritten(const struct run *run, uint64_t i)
{
	return run->state[run->demands->demands[i]] == STATE_NEW
		&& (run->demands->marks[i] & OFS_BOUND_WRITTEN);
}

static void
evict_from(struct run *run, uint32_t bucket)
{
	uint32_t block = bound_pool_pop(&run->resident, bucket);

	run->state[block] = STATE_ABSENT;
	run->used--;
	if (bucket < run->frontier)
		bound_pool_push(&run->holes, bucket, block);
	else if (bucket == run->frontier)
		run->looked = 0;
}

static void
make_room(struct run *run, uint32_t coming)
{
	while (run->used + coming > run->slots)
		evict_from(run, bound_pool_last(&run->resident));
}

static void
serve(struct run *run, uint32_t time)
{
	const struct ofs_bound_demands *demands = run->demands;
	uint32_t row = row_at(run, time), hits = 0, nontrivial_hits = 0, coming = 0;
	uint64_t first = demands->offsets[row], end = demands->offsets[row + 1];

	for (uint64_t i = first; i < end; i++) {
		uint32_t resident = run->state[demands->demands[i]] == STATE_RESIDENT;
		uint32_t hit = resident || is_unwritten(run, i);

		hits += hit;
		nontrivial_hits += hit & demands->marks[i] & OFS_BOUND_NONTRIVIAL;
		coming += !resident;
	}
	/* Its blocks were needed now: out of reach for a victim until they are put back. */
	bound_pool_clear(&run->resident, time);
	bound_pool_clear(&run->holes, time);
	if (!run->bypass)
		make_room(run, coming);
	for (uint64_t i = first; i < end; i++) {
		run->state[demands->demands[i]] = STATE_RESIDENT;
		bound_pool_push(&run->resident, demands->next[i], demands->demands[i]);
	}
	run->used += coming;
	make_room(run, 0);
	run->result->reads += end - first - hits;
	run->result->hits[row] = (uint16_t)hits;
	run->result->nontrivial_hits[row] = (uint16_t)nontrivial_hits;
}

/* May a block be read that is needed at `bucket`? If so, there is room for it. */
static int
may_fetch(struct run *run, uint32_t bucket)
{
	if (run->cap->credits && run->credit < OFS_BOUND_CREDIT_ONE)
		return 0;
	if (run->used == run->slots) {
		uint32_t last = bound_pool_last(&run->resident);

		if (last <= bucket)
			return 0;
		evict_from(run, last);
	}
	return 1;
}

static void
fetch(struct run *run, uint32_t bucket, uint32_t block)
{
	run->used++;
	run->state[block] = STATE_RESIDENT;
	bound_pool_push(&run->resident, bucket, block);
	run->credit -= run->cap->credits ? OFS_BOUND_CREDIT_ONE : 0;
	run->result->reads++;
	run->result->prefetched++;
}

static void
prefetch(struct run *run)
{
	const struct ofs_bound_demands *demands = run->demands;

	while (!bound_pool_is_empty(&run->holes)) {
		uint32_t bucket = bound_pool_first(&run->holes);

		if (!may_fetch(run, bucket))
			return;
		fetch(run, bucket, bound_pool_pop(&run->holes, bucket));
	}
	/* From here on every victim is needed behind the frontier: there will be no hole. */
	for (; run->frontier < demands->row_count; run->frontier++, run->looked = 0) {
		uint32_t row = row_at(run, run->frontier);
		uint64_t end = demands->offsets[row + 1];

		for (uint64_t i = demands->offsets[row] + run->looked; i < end; i++, run->looked++) {
			uint32_t block = demands->demands[i];

			if (run->state[block] == STATE_RESIDENT || is_unwritten(run, i))
				continue;
			if (!may_fetch(run, run->frontier))
				return;
			fetch(run, run->frontier, block);
		}
	}
}

static void
earn(struct run *run, uint32_t time)
{
	if (run->cap->credits == NULL)
		return;
	run->credit += run->cap->credits[row_at(run, time)];
	run->credit = run->credit < run->cap->burst ? run->credit : run->cap->burst;
}

static void
run_all(struct run *run)
{
	run->result->reads = run->result->prefetched = 0;
	if (run->cap)
		prefetch(run);
	for (uint32_t time = 0; time < run->demands->row_count; time++) {
		serve(run, time);
		if (run->cap == NULL)
			continue;
		if (run->frontier <= time) {
			run->frontier = time + 1;
			run->looked = 0;
		}
		earn(run, time);
		prefetch(run);
	}
}

static int
run_open(struct run *run)
{
	const struct ofs_bound_demands *demands = run->demands;
	uint32_t bucket_count = demands->row_count + 1;
	int rc = 0;

	if (run->slots == 0)
		return -EINVAL;
	for (uint32_t row = 0; row < demands->row_count && !run->bypass; row++)
		if (demands->offsets[row + 1] - demands->offsets[row] > run->slots)
			return -EINVAL;
	run->state = calloc((size_t)demands->block_count + 1, 1);
	if (run->state == NULL)
		return -ENOMEM;
	rc = bound_pool_open(&run->resident, demands->block_count, bucket_count);
	if (rc == 0)
		rc = bound_pool_open(&run->holes, demands->block_count, bucket_count);
	return rc;
}

static int
run_whole(struct run *run)
{
	int rc = run_open(run);

	if (rc == 0)
		run_all(run);
	bound_pool_close(&run->resident);
	bound_pool_close(&run->holes);
	free(run->state);
	return rc;
}

int
ofs_bound_belady(const struct ofs_bound_demands *demands, uint32_t slots, int bypass,
	struct ofs_bound_result *result)
{
	struct run run = {.demands = demands, .result = result, .slots = slots, .bypass = bypass};

	return run_whole(&run);
}

int
ofs_bound_clairvoyant(const struct ofs_bound_demands *demands, uint32_t slots,
	const struct ofs_bound_cap *cap, struct ofs_bound_result *result)
{
	struct run run = {
		.demands = demands,
		.cap = cap,
		.result = result,
		.slots = slots,
		.credit = cap->lead,
	};

	return run_whole(&run);
}
