/* bound_pool.c: the memory behind bound_pool.h. */
#include <stdlib.h>
#include <string.h>

#include "bound_pool.h"

int
bound_pool_open(struct bound_pool *pool, uint32_t block_count, uint32_t bucket_count)
{
	uint64_t count = bucket_count;
	int missing;

	memset(pool, 0, sizeof(*pool));
	pool->link = malloc(((size_t)block_count + 1) * sizeof(*pool->link));
	pool->head = malloc((size_t)bucket_count * sizeof(*pool->head));
	missing = pool->link == NULL || pool->head == NULL;
	do {
		count = (count + 63) / 64;
		pool->levels[pool->level_count] = calloc(count, sizeof(uint64_t));
		missing |= pool->levels[pool->level_count++] == NULL;
	} while (count > 1);
	if (missing) {
		bound_pool_close(pool);
		return -ENOMEM;
	}
	memset(pool->head, 0xff, (size_t)bucket_count * sizeof(*pool->head));
	return 0;
}

void
bound_pool_close(struct bound_pool *pool)
{
	free(pool->link);
	free(pool->head);
	for (uint32_t level = 0; level < pool->level_count; level++)
		free(pool->levels[level]);
	memset(pool, 0, sizeof(*pool));
}
