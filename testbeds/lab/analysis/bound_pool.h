/*
 * bound_pool.h: blocks ordered by when they are needed next, for the bounds.
 *
 * Model: one bucket of blocks for every position in time, and one for "never". A tree of 64-bit
 * words over the buckets finds the first or last that holds any block in a few steps. A block
 * leaves its bucket in two ways only: from the head of the first or last one, or with all others of
 * the bucket when their time has come. So a singly linked list is enough, and every operation takes
 * a bounded number of steps, however many blocks there are. Memory is taken at open, nothing fails
 * later.
 */
#ifndef OFS_BOUND_POOL_H
#define OFS_BOUND_POOL_H

#include <assert.h>

#include "ofs_bound.h"

#define BOUND_LEVEL_MAX 6 /* 64^6 > 2^32 buckets */

struct bound_pool {
	uint32_t level_count;
	uint32_t *link; /* [blocks] the next one of its bucket */
	uint32_t *head; /* [buckets] */
	uint64_t
		*levels[BOUND_LEVEL_MAX]; /* a bit is set where the word or bucket below is not empty */
};

int bound_pool_open(struct bound_pool *pool, uint32_t block_count, uint32_t bucket_count);
void bound_pool_close(struct bound_pool *pool);

static inline int
bound_pool_is_empty(const struct bound_pool *pool)
{
	return pool->levels[pool->level_count - 1][0] == 0;
}

/* The last bucket that holds a block; the pool must hold one. */
static inline uint32_t
bound_pool_last(const struct bound_pool *pool)
{
	uint64_t position = 0;

	for (uint32_t level = pool->level_count; level-- > 0;) {
		uint64_t word = pool->levels[level][position];

		assert(word != 0);
		position = position * 64 + 63 - (uint64_t)__builtin_clzll(word);
	}
	return (uint32_t)position;
}

/* The first bucket that holds a block; the pool must hold one. */
static inline uint32_t
bound_pool_first(const struct bound_pool *pool)
{
	uint64_t position = 0;

	for (uint32_t level = pool->level_count; level-- > 0;) {
		uint64_t word = pool->levels[level][position];

		assert(word != 0);
		position = position * 64 + (uint64_t)__builtin_ctzll(word);
	}
	return (uint32_t)position;
}

static inline void
bound_pool_push(struct bound_pool *pool, uint32_t bucket, uint32_t block)
{
	uint64_t position = bucket;

	pool->link[block] = pool->head[bucket];
	pool->head[bucket] = block;
	if (pool->link[block] != OFS_NONE)
		return;
	for (uint32_t level = 0; level < pool->level_count; level++, position /= 64) {
		uint64_t *word = &pool->levels[level][position / 64];
		uint64_t before = *word;

		*word |= 1ull << (position % 64);
		if (before)
			return;
	}
}

/* All blocks of the bucket leave it. */
static inline void
bound_pool_clear(struct bound_pool *pool, uint32_t bucket)
{
	uint64_t position = bucket;

	if (pool->head[bucket] == OFS_NONE)
		return;
	pool->head[bucket] = OFS_NONE;
	for (uint32_t level = 0; level < pool->level_count; level++, position /= 64) {
		uint64_t *word = &pool->levels[level][position / 64];

		*word &= ~(1ull << (position % 64));
		if (*word)
			return;
	}
}

/* The block that came last to a bucket that holds one. */
static inline uint32_t
bound_pool_pop(struct bound_pool *pool, uint32_t bucket)
{
	uint32_t block = pool->head[bucket];

	if (pool->link[block] == OFS_NONE)
		bound_pool_clear(pool, bucket);
	else
		pool->head[bucket] = pool->link[block];
	return block;
}

#endif
