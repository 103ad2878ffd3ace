/* See support_oracle.h. */
#include "support_oracle.h"

#include <assert.h>
#include <stdlib.h>

void
oracle_open(struct oracle *oracle)
{
	oracle->count = 0;
	oracle->blocks = calloc(ORACLE_BLOCKS_MAX, sizeof(*oracle->blocks));
	assert(oracle->blocks != NULL);
}

void
oracle_close(struct oracle *oracle)
{
	free(oracle->blocks);
}

struct oracle_block *
oracle_find(struct oracle *oracle, const struct ofs_key *store_key, uint32_t layer)
{
	uint32_t bucket = (uint32_t)(store_key->lo ^ layer * 0x9e3779b9u) % ORACLE_BLOCKS_MAX;

	while (oracle->blocks[bucket].used) {
		struct oracle_block *block = &oracle->blocks[bucket];

		if (ofs_key_equal(&block->store_key, store_key) && block->layer == layer)
			return block;
		bucket = (bucket + 1) % ORACLE_BLOCKS_MAX;
	}
	assert(++oracle->count < ORACLE_BLOCKS_MAX / 2);
	oracle->blocks[bucket] =
		(struct oracle_block){.store_key = *store_key, .layer = layer, .used = true};
	return &oracle->blocks[bucket];
}
