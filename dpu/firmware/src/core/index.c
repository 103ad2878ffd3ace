/*
 * index.c: from a 128-bit chunk key to its dense number.
 *
 * Model: open addressing with linear probes in a table at most half full; an entry is a chunk
 * number, its key is stored with the chunk. Keys are outputs of a keyed hash: their low bits are
 * used as the hash, and without the secret no one can crowd a bucket. A probe is bounded; an
 * insertion that would exceed the bound is refused like a full table. Removal shifts entries back,
 * so there are no tombstones and probes do not grow with age.
 */
#include "internal.h"

static inline uint32_t
bucket_of(const struct ofs_core *core, const struct ofs_key *key)
{
	return (uint32_t)key->lo & core->index_mask;
}

static inline uint32_t
index_search(const struct ofs_core *core, uint32_t tenant, const struct ofs_key *key,
	uint32_t *probes)
{
	uint32_t bucket = bucket_of(core, key);

	for (uint32_t probe = 0; probe < OFS_INDEX_PROBE_MAX; probe++) {
		uint32_t entry = core->index[bucket];
		const struct ofs_chunk *chunk;

		*probes = probe + 1;
		if (entry == 0)
			return OFS_NONE;
		chunk = &core->chunks[entry - 1];
		if (chunk->tenant == tenant && ofs_key_equal(&chunk->key, key))
			return entry - 1;
		bucket = (bucket + 1) & core->index_mask;
	}
	return OFS_NONE;
}

/* Counts every entry visited, and the chunks of all but an empty one. */
static void
count_probes(const struct ofs_core *core, uint32_t probes, uint32_t chunks)
{
	core->tally->work.probes += probes;
	ofs_work_touch(core, OFS_TABLE_INDEX, probes * sizeof(*core->index));
	ofs_work_touch(core, OFS_TABLE_CHUNK, chunks * sizeof(*core->chunks));
}

uint32_t
ofs_index_find(const struct ofs_core *core, uint32_t tenant, const struct ofs_key *key)
{
	uint32_t probes = 0, chunk = index_search(core, tenant, key, &probes);

	count_probes(core, probes, chunk == OFS_NONE ? probes - 1 : probes);
	return chunk;
}

uint32_t
ofs_index_peek(const struct ofs_core *core, uint32_t tenant, const struct ofs_key *key)
{
	uint32_t probes;

	return index_search(core, tenant, key, &probes);
}

int
ofs_index_insert(struct ofs_core *core, uint32_t chunk)
{
	uint32_t bucket = bucket_of(core, &core->chunks[chunk].key);

	for (uint32_t probe = 0; probe < OFS_INDEX_PROBE_MAX; probe++) {
		if (core->index[bucket] == 0) {
			core->index[bucket] = chunk + 1;
			count_probes(core, probe + 1, 1);
			return 0;
		}
		bucket = (bucket + 1) & core->index_mask;
	}
	return -ENOSPC;
}

void
ofs_index_remove(struct ofs_core *core, uint32_t chunk)
{
	uint32_t hole = bucket_of(core, &core->chunks[chunk].key), probes = 1, chunks = 1;

	for (; core->index[hole] != chunk + 1; probes++) {
		assert(core->index[hole] != 0);
		hole = (hole + 1) & core->index_mask;
	}
	core->index[hole] = 0;
	/* Moves back every later entry of the run that may fill the hole. */
	for (uint32_t bucket = (hole + 1) & core->index_mask; core->index[bucket] != 0;
		 bucket = (bucket + 1) & core->index_mask) {
		uint32_t entry = core->index[bucket];
		uint32_t home = bucket_of(core, &core->chunks[entry - 1].key);

		chunks++;
		if (((bucket - home) & core->index_mask) >= ((bucket - hole) & core->index_mask)) {
			core->index[hole] = entry;
			core->index[bucket] = 0;
			hole = bucket;
		}
	}
	count_probes(core, probes + chunks, chunks); /* those visited, and the empty one */
}
