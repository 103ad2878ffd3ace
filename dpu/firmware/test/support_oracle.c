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
	uint32_t place = (uint32_t)(store_key->lo ^ layer * 0x9e3779b9u) % ORACLE_BLOCKS_MAX;

	while (oracle->blocks[place].used) {
		struct oracle_block *block = &oracle->blocks[place];

		if (ofs_key_equal(&block->store_key, store_key) && block->layer == layer)
			return block;
		place = (place + 1) % ORACLE_BLOCKS_MAX;
	}
	assert(++oracle->count < ORACLE_BLOCKS_MAX / 2);
	oracle->blocks[place] =
		(struct oracle_block){.store_key = *store_key, .layer = layer, .used = true};
	return &oracle->blocks[place];
}
