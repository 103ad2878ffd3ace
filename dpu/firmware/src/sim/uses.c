/*
 * uses.c: how much of a block was used before it left the arena.
 *
 * Model: a slab may say which units of a block a selection reads. They are gathered from the
 * block's first demand to its retraction, and counted there. What the HBM pool serves is no use.
 */
#include <stdlib.h>

#include "engine.h"

static size_t
block_count(const struct ofs_engine *engine)
{
	return (size_t)engine->layer_count * engine->core_config.chunk_max;
}

static uint64_t *
used_of(const struct ofs_engine *engine, uint32_t chunk, uint32_t layer)
{
	return &engine->used[(size_t)layer * engine->core_config.chunk_max + chunk];
}

int
ofs_sim_uses_open(struct ofs_engine *engine)
{
	if (engine->used == NULL)
		engine->used = calloc(block_count(engine), sizeof(*engine->used));
	return engine->used ? 0 : -ENOMEM;
}

/* The demands of row `at` of the slab. */
void
ofs_sim_uses_add(struct ofs_engine *engine, const struct ofs_batch_slot *p, uint64_t at)
{
	const struct ofs_slab *slab = &p->slab;
	uint64_t first = at * slab->width;

	for (uint64_t i = first; i < first + slab->width && slab->selected[i] != OFS_NONE; i++)
		if (slab->served == NULL || !slab->served[i])
			*used_of(engine, ofs_core_session_chunk(engine->core, p->session, slab->selected[i]),
				p->layer) |= slab->units[i];
}

void
ofs_sim_uses_end(struct ofs_engine *engine, const struct ofs_action *retract)
{
	uint64_t *used = used_of(engine, retract->chunk, retract->layer);

	engine->gone[__builtin_popcountll(*used)]++;
	*used = 0;
}

void
ofs_engine_uses(const struct ofs_engine *engine, uint64_t uses[2][65])
{
	memcpy(uses[0], engine->gone, sizeof(engine->gone));
	memset(uses[1], 0, sizeof(engine->gone));
	for (size_t block = 0; engine->used && block < block_count(engine); block++)
		if (engine->used[block])
			uses[1][__builtin_popcountll(engine->used[block])]++;
}
