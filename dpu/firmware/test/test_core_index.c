/* Does the index find exactly the keys that were inserted, when keys crowd one bucket? */
#include "core/internal.h"
#include "core_fixture.h"

static struct ofs_core *
open_core(uint32_t chunk_max)
{
	struct ofs_core_config config = fixture_config(4);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct ofs_tenant_config tenant = {{1, 2}, 2, 1};
	struct ofs_core *core;
	uint32_t number;

	config.chunk_max = chunk_max;
	assert(ofs_core_open(&core, &config, &policy) == 0);
	assert(ofs_core_tenant_add(core, 0, &tenant, &number) == 0);
	assert(ofs_core_tenant_add(core, 0, &tenant, &number) == 0);
	return core;
}

/* A store key restored for a tenant is a chunk under exactly that key. */
static uint32_t
put(struct ofs_core *core, uint32_t tenant, uint64_t lo, uint64_t hi)
{
	struct ofs_key key = {lo, hi};
	uint32_t chunk;
	int rc = ofs_core_block_restore(core, 0, tenant, &key, 0, &chunk);

	return rc == 0 ? chunk : OFS_NONE;
}

static void
test_crowded_keys(void)
{
	struct ofs_core *core = open_core(512);
	uint32_t chunks[400];
	uint64_t state = 7;

	/* Sixteen buckets for 400 keys: long runs, which removal must not break. */
	for (uint32_t i = 0; i < 400; i++)
		chunks[i] = put(core, 0, i % 16, i);
	for (uint32_t round = 0; round < 400; round++) {
		uint32_t i;
		struct ofs_key key;

		state = state * 6364136223846793005ull + 1442695040888963407ull;
		i = (uint32_t)(state >> 33) % 400;
		key = (struct ofs_key){i % 16, i};
		if (chunks[i] != OFS_NONE) {
			assert(ofs_core_block_forget(core, 0, 0, &key, 0) == 0);
			chunks[i] = OFS_NONE;
		} else {
			chunks[i] = put(core, 0, i % 16, i);
		}
		for (uint32_t j = 0; j < 400; j++) {
			key = (struct ofs_key){j % 16, j};
			assert(ofs_index_find(core, 0, &key) == chunks[j]);
		}
	}
	assert(ofs_core_verify(core) == 0);
	ofs_core_close(core);
}

static void
test_tenants_do_not_meet(void)
{
	struct ofs_core *core = open_core(16);
	struct ofs_key key = {5, 6};
	uint32_t first = put(core, 0, 5, 6), second = put(core, 1, 5, 6);

	assert(first != second);
	assert(ofs_index_find(core, 0, &key) == first && ofs_index_find(core, 1, &key) == second);
	ofs_core_close(core);
}

static void
test_full_and_crowded_are_refused(void)
{
	struct ofs_core *core = open_core(4);

	for (uint32_t i = 0; i < 4; i++)
		assert(put(core, 0, i, 1) != OFS_NONE);
	assert(put(core, 0, 9, 1) == OFS_NONE);
	assert(ofs_core_verify(core) == 0);
	ofs_core_close(core);
	core = open_core(2 * OFS_INDEX_PROBE_MAX);
	for (uint32_t i = 0; i < OFS_INDEX_PROBE_MAX; i++)
		assert(put(core, 0, 3, i) != OFS_NONE);
	assert(put(core, 0, 3, 1u << 20) == OFS_NONE); /* a probe is bounded, whatever the keys */
	assert(put(core, 0, 1u << 11, 1) != OFS_NONE);
	assert(ofs_core_verify(core) == 0);
	ofs_core_close(core);
}

int
main(void)
{
	test_crowded_keys();
	test_tenants_do_not_meet();
	test_full_and_crowded_are_refused();
	return 0;
}
