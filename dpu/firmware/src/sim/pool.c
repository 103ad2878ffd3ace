/*
 * pool.c: which selected blocks an HBM pool would have had.
 *
 * Model: a list per layer of the ordinals in the pool, the one selected longest ago first, threaded
 * through a table with an entry for each ordinal and one for the ends. It stores names, not bytes.
 */
#include <stdlib.h>

#include "ofs_sim.h"

#define SIZE_MAX_ENTRIES (1ull << 32)

struct link {
	uint32_t next, prev; /* OFS_NONE: the pool does not have it */
};

struct ofs_pool {
	uint32_t layer_count, block_count, pool_blocks;
	struct link *links; /* [layer_count][block_count + 1] */
	uint32_t *held;     /* [layer_count] */
};

int
ofs_pool_open(struct ofs_pool **out, uint32_t layer_count, uint32_t block_count,
	uint32_t pool_blocks)
{
	uint64_t ends = (uint64_t)block_count + 1;
	struct ofs_pool *pool;

	if (layer_count == 0 || block_count == 0 || layer_count * ends > SIZE_MAX_ENTRIES)
		return -EINVAL;
	pool = calloc(1, sizeof(*pool));
	if (pool == NULL)
		return -ENOMEM;
	pool->layer_count = layer_count;
	pool->block_count = block_count;
	pool->pool_blocks = pool_blocks;
	pool->links = malloc(layer_count * ends * sizeof(*pool->links));
	pool->held = calloc(layer_count, sizeof(*pool->held));
	if (pool->links == NULL || pool->held == NULL) {
		ofs_pool_close(pool);
		return -ENOMEM;
	}
	for (uint64_t i = 0; i < layer_count * ends; i++)
		pool->links[i] = (struct link){OFS_NONE, OFS_NONE};
	for (uint64_t layer = 0; layer < layer_count; layer++)
		pool->links[layer * ends + block_count] = (struct link){block_count, block_count};
	*out = pool;
	return 0;
}

void
ofs_pool_close(struct ofs_pool *pool)
{
	free(pool->links);
	free(pool->held);
	free(pool);
}

static void
leave(struct link *links, uint32_t ordinal)
{
	links[links[ordinal].prev].next = links[ordinal].next;
	links[links[ordinal].next].prev = links[ordinal].prev;
	links[ordinal] = (struct link){OFS_NONE, OFS_NONE};
}

static void
come_last(struct link *links, uint32_t ends, uint32_t ordinal)
{
	uint32_t last = links[ends].prev;

	links[ordinal] = (struct link){ends, last};
	links[last].next = ordinal;
	links[ends].prev = ordinal;
}

/* First those in the pool, so that none of them is evicted for another of the same selection. */
static void
row_serve(struct ofs_pool *pool, uint32_t layer, uint32_t width, const uint32_t *selected,
	uint8_t *served)
{
	uint32_t ends = pool->block_count, count = 0;
	struct link *links = pool->links + (uint64_t)layer * (ends + 1ull);

	for (; count < width && selected[count] != OFS_NONE; count++) {
		served[count] = links[selected[count]].next != OFS_NONE;
		if (served[count]) {
			leave(links, selected[count]);
			come_last(links, ends, selected[count]);
		}
	}
	for (uint32_t i = count; i < width; i++)
		served[i] = 0;
	if (pool->pool_blocks == 0)
		return;
	for (uint32_t i = 0; i < count; i++) {
		if (links[selected[i]].next != OFS_NONE)
			continue;
		if (pool->held[layer] == pool->pool_blocks)
			leave(links, links[ends].next);
		else
			pool->held[layer]++;
		come_last(links, ends, selected[i]);
	}
}

int
ofs_pool_serve(struct ofs_pool *pool, uint32_t step_count, uint32_t width, const uint32_t *selected,
	uint8_t *served)
{
	uint64_t rows = (uint64_t)step_count * pool->layer_count;

	if (pool->pool_blocks && width > pool->pool_blocks)
		return -EINVAL;
	for (uint64_t i = 0; i < rows * width; i++)
		if (selected[i] >= pool->block_count && selected[i] != OFS_NONE)
			return -EINVAL;
	for (uint64_t row = 0; row < rows; row++)
		row_serve(pool, (uint32_t)(row % pool->layer_count), width, selected + row * width,
			served + row * width);
	return 0;
}

void
ofs_pool_held(const struct ofs_pool *pool, uint32_t *ordinals)
{
	uint32_t ends = pool->block_count;

	for (uint32_t layer = 0; layer < pool->layer_count; layer++) {
		const struct link *links = pool->links + (uint64_t)layer * (ends + 1ull);
		uint32_t *row = ordinals + (uint64_t)layer * pool->pool_blocks, count = 0;

		for (uint32_t i = links[ends].next; i != ends; i = links[i].next)
			row[count++] = i;
		for (; count < pool->pool_blocks; count++)
			row[count] = OFS_NONE;
	}
}
