/* Does the engine read no further than a slab reaches, and let go of it before it asks again? */
#include <stdlib.h>

#include "core_fixture.h"
#include "drive.h"
#include "ofs_sim.h"

#define LAYERS 3u
#define WIDTH 4u
#define STEPS 12u
#define CHUNKS 16u
#define GUESSES 2u

/* A slab whose arrays are each exactly as long as it says: ASan sees a byte too many. */
struct cut_slab {
	uint32_t *selected;
	uint8_t *served;
	uint16_t *scores;
	uint64_t *offsets;
	struct ofs_guess *guesses;
};

static uint32_t
draw(uint64_t *state, uint32_t below)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33) % below;
}

static void
cut_free(struct cut_slab *cut)
{
	free(cut->selected);
	free(cut->served);
	free(cut->scores);
	free(cut->offsets);
	free(cut->guesses);
	memset(cut, 0, sizeof(*cut));
}

static struct ofs_slab
cut_fill(struct cut_slab *cut, uint32_t first, uint32_t steps)
{
	uint32_t rows = steps * LAYERS;

	cut_free(cut);
	cut->selected = malloc(rows * WIDTH * sizeof(*cut->selected));
	cut->served = malloc(rows * WIDTH);
	cut->scores = malloc(rows * CHUNKS * sizeof(*cut->scores));
	cut->offsets = malloc((rows + 1) * sizeof(*cut->offsets));
	cut->guesses = malloc(rows * GUESSES * sizeof(*cut->guesses));
	for (uint32_t row = 0; row < rows; row++) {
		uint64_t state = (uint64_t)first * LAYERS + row + 1;
		uint32_t base = draw(&state, CHUNKS / WIDTH);

		for (uint32_t i = 0; i < WIDTH; i++) {
			cut->selected[row * WIDTH + i] = i * (CHUNKS / WIDTH) + base;
			cut->served[row * WIDTH + i] = draw(&state, 3) == 0;
		}
		for (uint32_t i = 0; i < CHUNKS; i++)
			cut->scores[row * CHUNKS + i] = (uint16_t)draw(&state, 65536);
		for (uint32_t i = 0; i < GUESSES; i++)
			cut->guesses[row * GUESSES + i] =
				(struct ofs_guess){.layer = (uint16_t)draw(&state, LAYERS),
					.ordinal = draw(&state, CHUNKS),
					.steps = (uint16_t)draw(&state, 3),
					.probability = (uint16_t)draw(&state, 65536),
					.cause = OFS_CAUSE_LOOKAHEAD};
		cut->offsets[row] = row * GUESSES;
	}
	cut->offsets[rows] = rows * GUESSES;
	return (struct ofs_slab){.step_count = steps,
		.last = first + steps == STEPS,
		.width = WIDTH,
		.selected = cut->selected,
		.served = cut->served,
		.scores = cut->scores,
		.score_stride = CHUNKS,
		.score_count = CHUNKS,
		.guess_offsets = cut->offsets,
		.guesses = cut->guesses};
}

static void
open_core(struct fixture *f)
{
	struct ofs_core_config config = fixture_config(20);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_SCORE);

	config.layer_count = LAYERS;
	config.demand_max = WIDTH;
	config.io_max = 4;
	policy.prefetchers = OFS_PREFETCH_EMA;
	policy.lease_ns = 1000000;
	fixture_open(f, &config, &policy, CHUNKS);
}

/* Runs the session in slabs of `steps`, taking rows at every stop; returns when it ended. */
static uint64_t
run_cut(uint32_t steps, struct ofs_row *rows)
{
	struct ofs_timing_config device = {.side = "nvme", .hit_ps = 500000};
	struct ofs_engine_config config = {.batch_slot_max = 1,
		.append_steps = 5,
		.compute_ns = 10000,
		.retry_ns = 1000};
	struct ofs_engine_state state;
	struct ofs_engine *engine;
	struct cut_slab cut = {0};
	uint32_t batch_slot, fed = 0, taken = 0;
	struct fixture f;
	int what;

	device.nvme = test_drive;
	assert(ofs_timing_open(&config.timing, &device) == 0);
	open_core(&f);
	assert(ofs_engine_open(&engine, f.core, &config) == 0);
	assert(ofs_engine_start(engine, 0, f.session, 10, 5, NULL, 0) == 0);
	while ((what = ofs_engine_run(engine, &batch_slot)) > 0) {
		assert(batch_slot == 0);
		taken += (uint32_t)ofs_engine_rows(engine, 0, rows + taken, (int)(STEPS * LAYERS - taken));
		assert(ofs_core_verify(f.core) == 0);
		if (what == OFS_ENGINE_ENDED) {
			assert(ofs_core_session_close(f.core, 1, f.session) == 0);
			cut_free(&cut);
			continue;
		}
		struct ofs_slab slab = cut_fill(&cut, fed, steps < STEPS - fed ? steps : STEPS - fed);

		assert(ofs_engine_feed(engine, 0, &slab) == 0);
		assert(ofs_engine_feed(engine, 0, &slab) == -EBUSY);
		fed += slab.step_count;
	}
	assert(what == OFS_ENGINE_IDLE && fed == STEPS && taken == STEPS * LAYERS);
	ofs_engine_describe(engine, &state);
	ofs_engine_close(engine);
	config.timing->ops->close(config.timing);
	ofs_core_close(f.core);
	return state.now_ns;
}

static void
test_slabs_are_read_within_and_let_go(void)
{
	struct ofs_row whole[STEPS * LAYERS], cut[STEPS * LAYERS];
	uint64_t end_ns = run_cut(STEPS, whole);

	for (uint32_t steps = 1; steps < STEPS; steps += 2) {
		assert(run_cut(steps, cut) == end_ns);
		assert(memcmp(whole, cut, sizeof(whole)) == 0);
	}
}

static void
test_what_the_engine_refuses(void)
{
	struct ofs_timing_config device = {.side = "free"};
	struct ofs_engine_config config = {.batch_slot_max = 1};
	struct ofs_slab none = {0};
	struct ofs_engine *engine;
	struct fixture f;

	open_core(&f);
	assert(ofs_engine_open(&engine, f.core, &config) == -EINVAL); /* no timing */
	assert(ofs_timing_open(&config.timing, &device) == 0);
	assert(ofs_engine_open(&engine, f.core, &config) == 0);
	assert(ofs_engine_start(engine, 1, f.session, 0, 0, NULL, 0) == -EINVAL);
	assert(ofs_engine_start(engine, 0, f.session + 1, 0, 0, NULL, 0) == -EINVAL);
	assert(ofs_engine_start(engine, 0, f.session, 2, UINT64_MAX, NULL, 0) == -EINVAL);
	assert(ofs_engine_feed(engine, 0, &none) == -EINVAL);
	assert(ofs_engine_start(engine, 0, f.session, 0, 0, NULL, 0) == 0);
	assert(ofs_engine_start(engine, 0, f.session, 0, 0, NULL, 0) == -EBUSY);
	assert(ofs_engine_feed(engine, 0, &none) == -EINVAL); /* no step, and not the last */
	assert(ofs_engine_rows(engine, 0, NULL, -1) == -EINVAL);
	ofs_engine_close(engine);
	config.timing->ops->close(config.timing);
	ofs_core_close(f.core);
}

static void
test_a_pool_of_one_selection(void)
{
	uint32_t selected[4][2] = {{0, 1}, {1, 2}, {0, OFS_NONE}, {2, 0}};
	uint8_t expected[4][2] = {{0, 0}, {1, 0}, {0, 0}, {1, 1}}, served[4][2];
	uint32_t held[2];
	struct ofs_pool *pool;

	assert(ofs_pool_open(&pool, 1, 3, 2) == 0);
	assert(ofs_pool_serve(pool, 4, 2, selected[0], served[0]) == 0);
	assert(memcmp(served, expected, sizeof(served)) == 0);
	ofs_pool_held(pool, held);
	assert(held[0] == 2 && held[1] == 0);
	selected[3][1] = 3;
	assert(ofs_pool_serve(pool, 4, 2, selected[0], served[0]) == -EINVAL);
	assert(ofs_pool_serve(pool, 1, 3, selected[0], served[0]) == -EINVAL);
	ofs_pool_close(pool);
	assert(ofs_pool_open(&pool, 0, 3, 2) == -EINVAL);
}

int
main(void)
{
	test_slabs_are_read_within_and_let_go();
	test_what_the_engine_refuses();
	test_a_pool_of_one_selection();
	return 0;
}
