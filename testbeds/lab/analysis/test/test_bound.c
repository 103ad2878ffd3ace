/*
 * Do the bounds stay inside their arrays for any demands, refuse those they cannot serve, and give
 * the counts that follow by hand?
 */
#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "ofs_bound.h"

#define ROWS_MAX 5000
#define WIDTH_MAX 9
#define BLOCKS_MAX 64

static uint32_t demands[ROWS_MAX * WIDTH_MAX], next[ROWS_MAX * WIDTH_MAX], order[ROWS_MAX];
static uint64_t offsets[ROWS_MAX + 1], credits[ROWS_MAX];
static uint8_t marks[ROWS_MAX * WIDTH_MAX];
static uint16_t hits[ROWS_MAX], nontrivial_hits[ROWS_MAX];
static uint64_t random_state = 1;

static uint32_t
random_below(uint32_t limit)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state % limit);
}

static struct ofs_bound_demands
given(uint32_t row_count, uint32_t block_count)
{
	return (struct ofs_bound_demands){
		.row_count = row_count,
		.block_count = block_count,
		.offsets = offsets,
		.demands = demands,
		.marks = marks,
		.next = next,
	};
}

static uint64_t
total_of(const uint16_t *counts, uint32_t row_count)
{
	uint64_t total = 0;

	for (uint32_t row = 0; row < row_count; row++)
		total += counts[row];
	return total;
}

/* Rows of random distinct blocks, served in random order. */
static struct ofs_bound_demands
draw(void)
{
	uint32_t row_count = random_below(ROWS_MAX + 1);
	uint32_t block_count = WIDTH_MAX + random_below(BLOCKS_MAX - WIDTH_MAX + 1);
	struct ofs_bound_demands drawn = given(row_count, block_count);

	for (uint32_t row = 0; row < row_count; row++) {
		uint32_t width = random_below(WIDTH_MAX + 1), first = random_below(block_count);
		uint32_t other = random_below(row + 1);

		offsets[row + 1] = offsets[row] + width;
		for (uint32_t i = 0; i < width; i++) {
			demands[offsets[row] + i] = (first + i * 7) % block_count;
			marks[offsets[row] + i] =
				(uint8_t)random_below(2) | (demands[offsets[row] + i] % 8 ? 0 : OFS_BOUND_WRITTEN);
		}
		/* A stride of 7 meets a block twice only where 7 divides the count. */
		if (block_count % 7 == 0)
			offsets[row + 1] = offsets[row] + (width > 0);
		order[row] = order[other];
		order[other] = row;
		credits[row] = random_below(2 * OFS_BOUND_CREDIT_ONE);
	}
	if (random_below(2))
		drawn.order = order;
	return drawn;
}

static void
test_any_demands(void)
{
	for (int turn = 0; turn < 200; turn++) {
		struct ofs_bound_demands drawn = draw();
		uint32_t slots = WIDTH_MAX + random_below(BLOCKS_MAX);
		struct ofs_bound_result result = {.hits = hits, .nontrivial_hits = nontrivial_hits};
		struct ofs_bound_cap cap = {credits, random_below(3) * OFS_BOUND_CREDIT_ONE,
			random_below(20) * OFS_BOUND_CREDIT_ONE};
		uint64_t count, alone, bypass, capped, endless;

		assert(ofs_bound_next(&drawn) == 0);
		count = offsets[drawn.row_count];
		assert(ofs_bound_compulsory(&drawn, &result) == 0);
		endless = total_of(hits, drawn.row_count);
		assert(result.reads == count - endless);
		assert(ofs_bound_belady(&drawn, slots, 0, &result) == 0);
		alone = total_of(hits, drawn.row_count);
		assert(result.reads == count - alone && result.prefetched == 0);
		assert(ofs_bound_belady(&drawn, slots, 1, &result) == 0);
		bypass = total_of(hits, drawn.row_count);
		assert(ofs_bound_clairvoyant(&drawn, slots, &cap, &result) == 0);
		capped = total_of(hits, drawn.row_count);
		assert(result.reads == count - capped + result.prefetched);
		assert(total_of(nontrivial_hits, drawn.row_count) <= capped);
		assert(alone <= bypass && bypass <= endless && alone <= capped);
		assert(slots < drawn.block_count || alone == endless);
		cap.credits = NULL;
		assert(ofs_bound_clairvoyant(&drawn, slots, &cap, &result) == 0);
		for (uint32_t row = 0; row < drawn.row_count; row++)
			assert(hits[row] == offsets[row + 1] - offsets[row]);
	}
}

static void
test_counts_by_hand(void)
{
	/* {0 1} {2} {0} {1} {2} in two slots: 2 replaces 1, then 1 replaces 0. */
	static const uint32_t rows[] = {0, 1, 2, 0, 1, 2};
	static const uint64_t starts[] = {0, 2, 3, 4, 5, 6};
	struct ofs_bound_demands demand = given(5, 3);
	struct ofs_bound_result result = {.hits = hits, .nontrivial_hits = nontrivial_hits};
	uint64_t earned[5] = {OFS_BOUND_CREDIT_ONE, 0, 0, 0, 0};
	struct ofs_bound_cap cap = {earned, 0, OFS_BOUND_CREDIT_ONE};

	for (int i = 0; i < 6; i++) {
		demands[i] = rows[i];
		offsets[i] = starts[i];
		marks[i] = i == 5 ? OFS_BOUND_NONTRIVIAL : 0;
	}
	assert(ofs_bound_next(&demand) == 0);
	assert(next[0] == 2 && next[1] == 3 && next[2] == 4 && next[5] == 5);
	assert(ofs_bound_belady(&demand, 2, 0, &result) == 0);
	assert(result.reads == 4 && hits[2] == 1 && hits[3] == 0 && hits[4] == 1);
	assert(nontrivial_hits[2] == 0 && nontrivial_hits[4] == 1);
	assert(ofs_bound_clairvoyant(&demand, 2, &cap, &result) == 0);
	assert(result.reads == 4 && result.prefetched == 1 && hits[1] == 1);
	/* Block 2 is written by decode: its first demand is no read, its second is one if it went. */
	marks[2] = OFS_BOUND_WRITTEN;
	assert(ofs_bound_next(&demand) == -EINVAL);
	marks[5] = OFS_BOUND_WRITTEN;
	assert(ofs_bound_next(&demand) == 0);
	assert(ofs_bound_belady(&demand, 2, 0, &result) == 0);
	assert(result.reads == 3 && hits[1] == 1);
}

static void
test_what_is_refused(void)
{
	struct ofs_bound_demands demand = given(1, 4);
	struct ofs_bound_result result = {.hits = hits, .nontrivial_hits = nontrivial_hits};

	offsets[0] = 0;
	offsets[1] = 3;
	demands[0] = 1;
	demands[1] = 2;
	demands[2] = 1;
	assert(ofs_bound_next(&demand) == -EINVAL);
	demands[2] = 4;
	assert(ofs_bound_next(&demand) == -EINVAL);
	demands[2] = 3;
	assert(ofs_bound_next(&demand) == 0);
	assert(ofs_bound_belady(&demand, 2, 0, &result) == -EINVAL);
	assert(ofs_bound_belady(&demand, 0, 1, &result) == -EINVAL);
	assert(ofs_bound_belady(&demand, 2, 1, &result) == 0);
	order[0] = 1;
	demand.order = order;
	assert(ofs_bound_next(&demand) == -EINVAL);
	demand.order = NULL;
	offsets[1] = 65536;
	assert(ofs_bound_next(&demand) == -EINVAL);
}

int
main(void)
{
	test_any_demands();
	test_counts_by_hand();
	test_what_is_refused();
	return 0;
}
