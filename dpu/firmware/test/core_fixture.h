/* core_fixture.h: one constructor for a small core; a test sets only the fields that it needs. */
#ifndef OFS_CORE_FIXTURE_H
#define OFS_CORE_FIXTURE_H

#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "ofs_core.h"

#define FIXTURE_ACTIONS 4096

struct fixture {
	struct ofs_core *core;
	uint32_t tenant, session;
	struct ofs_action actions[FIXTURE_ACTIONS];
	int action_count;
	struct ofs_chunk_info infos[256];
};

static inline struct ofs_core_config
fixture_config(uint32_t slot_count)
{
	return (struct ofs_core_config){
		.seed = 1,
		.tenant_max = 2,
		.session_max = 4,
		.chunk_max = 512,
		.session_chunk_max = 256,
		.layer_count = 1,
		.slot_count = slot_count,
		.block_size_bytes = 4096,
		.io_max = 64,
		.queue_max = 64,
		.demand_max = 64,
	};
}

static inline struct ofs_policy
fixture_policy(uint32_t eviction)
{
	return (struct ofs_policy){
		.eviction = eviction,
		.ema_shift = 1,
		.residency_percent = 100,
		.degree_max = 8,
		.prefetch_in_flight_max = 8,
	};
}

static inline void
fixture_take(struct fixture *f)
{
	f->action_count = ofs_core_actions(f->core, f->actions, FIXTURE_ACTIONS);
	assert(f->action_count >= 0 && f->action_count < FIXTURE_ACTIONS);
}

/* Answer every read of the last event with `rc`; the actions of the answers are not kept. */
static inline void
fixture_answer(struct fixture *f, uint64_t now_ns, int rc)
{
	static struct ofs_action taken[FIXTURE_ACTIONS];

	for (int i = 0; i < f->action_count; i++) {
		if (f->actions[i].type != OFS_ACTION_READ)
			continue;
		assert(ofs_core_io_done(f->core, now_ns, f->actions[i].io, rc) == 0);
		ofs_core_actions(f->core, taken, FIXTURE_ACTIONS);
	}
	assert(ofs_core_verify(f->core) == 0);
}

static inline uint8_t
fixture_demand(struct fixture *f, uint64_t now_ns, uint32_t ordinal)
{
	struct ofs_step step = {
		.session = f->session,
		.selected_count = 1,
		.demand_count = 1,
		.demands = &ordinal,
	};
	uint8_t end = 255;

	assert(ofs_core_step(f->core, now_ns, &step, &end) == 0);
	assert(ofs_core_verify(f->core) == 0);
	fixture_take(f);
	return end;
}

/* A session of `chunk_count` chunks that the store has, from here on the one of the fixture. */
static inline void
fixture_session(struct fixture *f, uint64_t step_ns, uint32_t chunk_count)
{
	struct ofs_session_config session = {.tenant = f->tenant,
		.step_ns = step_ns,
		.select_blocks = 4};
	struct ofs_core_config config;
	struct ofs_policy policy;
	struct ofs_key contents[256];

	assert(ofs_core_describe(f->core, &config, &policy) == 0);
	assert(ofs_core_session_open(f->core, 0, &session, &f->session) == 0);
	for (uint32_t i = 0; i < chunk_count; i++)
		contents[i] = (struct ofs_key){i + 1, 7};
	assert(ofs_core_session_append(f->core, 0, f->session, chunk_count, contents, f->infos) == 0);
	for (uint32_t i = 0; i < chunk_count; i++)
		for (uint32_t layer = 0; layer < config.layer_count; layer++)
			assert(ofs_core_block_stored(f->core, 0, f->infos[i].chunk, layer) == 0);
	assert(ofs_core_verify(f->core) == 0);
}

static inline void
fixture_open(struct fixture *f, const struct ofs_core_config *config,
	const struct ofs_policy *policy, uint32_t chunk_count)
{
	struct ofs_tenant_config tenant = {{1, 2}, config->slot_count, 1};

	assert(ofs_core_open(&f->core, config, policy) == 0);
	assert(ofs_core_tenant_add(f->core, 0, &tenant, &f->tenant) == 0);
	fixture_session(f, 1000000, chunk_count);
}

#endif
