/*
 * calibrate.c: the measured probability of a demand, given a block's average.
 *
 * Model: averages of different layers are not comparable (where the selection is stable, blocks
 * with high ones are served by the HBM pool and never demanded), so none is used directly. Per
 * (session, layer) an average falls into one of OFS_LEVELS levels; sinks and window, which are
 * selected by rule and not by score, are a class of their own. Every CALIBRATION_STEPS steps the
 * classes of all ordinals are noted; CALIBRATION_STEPS later each counts as an exposure of its
 * class, and as demanded if it was demanded meanwhile. Their ratio, with PRIOR_EXPOSURES exposures
 * of the neighbouring levels as a prior, is the probability of a demand within CALIBRATION_STEPS.
 * It ranks prefetch candidates and victims. A session begins with the counts of the sibling that
 * has the most. Nothing here can fail; the cost is a constant per ordinal and CALIBRATION_STEPS
 * steps.
 */
#include "internal.h"

/*
 * About as long as the least likely block stays in an arena of twice the selection. Within 16 steps
 * everything that is demanded at all would be demanded with certainty, and the order would be lost.
 */
#define CALIBRATION_STEPS 4
#define PRIOR_EXPOSURES 8
#define NEIGHBOURS 16 /* levels on each side of the widest neighbourhood */
/* Counts are halved after this many rounds, about a thousand steps: a layer may change
 * behaviour. */
#define CALIBRATION_ROUNDS 256

/*
 * 1 % + 30 % (level / 64)^3: weak, rising, and the same on every machine. For blocks selected by
 * rule one half: either all of them are demanded, or almost none where an HBM pool serves them.
 */
static uint32_t
prior_of(uint32_t level)
{
	if (level == OFS_LEVEL_TRIVIAL)
		return 32768;
	return 655 + (uint32_t)(19661ull * level * level * level >> 18);
}

/* OFS_OCTAVE buckets per octave: the exponent, then the three bits below the leading one. */
uint32_t
ofs_chance_bucket(uint32_t chance)
{
	uint32_t octave;

	if (chance == 0)
		return 0;
	octave = 31 - (uint32_t)__builtin_clz(chance);
	return OFS_OCTAVE * octave + ((chance * OFS_OCTAVE >> octave) & (OFS_OCTAVE - 1));
}

/* The bucket of the odds p / (1 - p). */
uint32_t
ofs_odds_bucket(uint32_t chance)
{
	return ofs_chance_bucket((chance << 16) / (OFS_SCORE_HIGHEST + 1 - chance));
}

/* The bucket of a block that no hint has named yet. */
uint32_t
ofs_bucket_unknown(void)
{
	return ofs_chance_bucket(prior_of(OFS_LEVELS / 2));
}

/* Prefix sums of the counts, so that the sum over any range of levels is a difference. */
struct sums {
	uint64_t exposure[OFS_LEVELS + 1], demanded[OFS_LEVELS + 1];
};

/*
 * A level seen too rarely to count is estimated from its neighbours: 33 levels are the prior of the
 * 9 in their middle, those 9 of the 3, and those 3 of the level itself.
 */
static uint64_t
level_chance(const struct sums *sums, uint32_t level)
{
	uint64_t chance = prior_of(level);

	for (uint32_t near = NEIGHBOURS;; near /= 4) {
		uint32_t first = level < near ? 0 : level - near;
		uint32_t end = level + near < OFS_LEVELS ? level + near + 1 : OFS_LEVELS;
		uint64_t exposure = sums->exposure[end] - sums->exposure[first];
		uint64_t demanded = sums->demanded[end] - sums->demanded[first];

		chance = ((demanded << 16) + PRIOR_EXPOSURES * chance) / (exposure + PRIOR_EXPOSURES);
		if (near == 0)
			return chance;
	}
}

static void
chance_set(struct ofs_calibration *c, uint32_t class, uint64_t chance)
{
	c->chance[class] = (uint16_t)(chance < OFS_SCORE_HIGHEST ? chance : OFS_SCORE_HIGHEST);
	c->bucket[class] = (uint8_t)ofs_chance_bucket(c->chance[class]);
}

static void
tables_update(struct ofs_calibration *c)
{
	uint64_t trivial = ((uint64_t)c->demanded[OFS_LEVEL_TRIVIAL] << 16)
		+ PRIOR_EXPOSURES * prior_of(OFS_LEVEL_TRIVIAL);
	struct sums sums;

	sums.exposure[0] = sums.demanded[0] = 0;
	for (uint32_t level = 0; level < OFS_LEVELS; level++) {
		sums.exposure[level + 1] = sums.exposure[level] + c->exposure[level];
		sums.demanded[level + 1] = sums.demanded[level] + c->demanded[level];
	}
	for (uint32_t level = 0; level < OFS_LEVELS; level++)
		chance_set(c, level, level_chance(&sums, level));
	chance_set(c, OFS_LEVEL_TRIVIAL, trivial / (c->exposure[OFS_LEVEL_TRIVIAL] + PRIOR_EXPOSURES));
}

static const struct ofs_calibration *
sibling_of(const struct ofs_core *core, uint32_t session, uint32_t layer)
{
	uint32_t tenant = core->sessions[session].config.tenant;
	const struct ofs_calibration *best = NULL;

	for (uint32_t other = 0; other < core->config.session_max; other++) {
		const struct ofs_session *s = &core->sessions[other];
		const struct ofs_calibration *c = ofs_calibration_of(core, other, layer);

		if (other != session && s->open && s->config.tenant == tenant
			&& c->exposures > (best ? best->exposures : 0))
			best = c;
	}
	return best;
}

void
ofs_calibration_open(struct ofs_core *core, uint32_t session)
{
	for (uint32_t layer = 0; layer < core->config.layer_count; layer++) {
		struct ofs_calibration *c = ofs_calibration_of(core, session, layer);
		const struct ofs_calibration *sibling = sibling_of(core, session, layer);

		ofs_work_touch(core, OFS_TABLE_LAYER, core->config.session_max * sizeof(*c));
		if (sibling) {
			*c = *sibling;
		} else if (c->exposures > 0 || c->chance[OFS_LEVEL_TRIVIAL] == 0) {
			/* It has counts, or has never been used: without counts the tables stay the same. */
			memset(c, 0, sizeof(*c));
			tables_update(c);
		}
		c->noted = c->steps = 0;
	}
}

static void
counts_halve(struct ofs_calibration *c)
{
	c->exposures = 0;
	for (uint32_t level = 0; level < OFS_CLASSES; level++) {
		c->exposure[level] /= 2;
		c->demanded[level] /= 2;
		c->exposures += c->exposure[level];
	}
}

static void
round_end(struct ofs_core *core, uint32_t session, uint32_t layer, struct ofs_calibration *c)
{
	const uint64_t *asked = ofs_row_of(core, core->asked, session, layer);
	const uint8_t *levels = ofs_levels_of(core, session, layer);

	ofs_work_values(core, c->noted, sizeof(*levels));
	ofs_work_touch(core, OFS_TABLE_LAYER, sizeof(*c) + core->row_words * sizeof(*asked));
	for (uint32_t i = 0; i < c->noted; i++)
		c->exposure[levels[i]]++;
	for (uint32_t word = 0; word * 64 < c->noted; word++) {
		for (uint64_t bits = asked[word]; bits; bits &= bits - 1) {
			uint32_t i = word * 64 + (uint32_t)__builtin_ctzll(bits);

			if (i < c->noted)
				c->demanded[levels[i]]++;
		}
	}
	c->exposures += c->noted;
	if (c->exposures > (uint64_t)CALIBRATION_ROUNDS * c->noted)
		counts_halve(c);
	c->noted = c->steps = 0;
	tables_update(c);
}

/* Runs before the step's scores are applied. 1: a round ended, and the tables changed. */
int
ofs_calibration_demands(struct ofs_core *core, const struct ofs_step *step)
{
	struct ofs_calibration *c = ofs_calibration_of(core, step->session, step->layer);
	uint64_t *asked = ofs_row_of(core, core->asked, step->session, step->layer);

	if (c->noted == 0)
		return 0;
	ofs_work_touch(core, OFS_TABLE_LAYER, step->demand_count * sizeof(*asked));
	for (uint32_t i = 0; i < step->demand_count; i++)
		asked[step->demands[i] / 64] |= 1ull << (step->demands[i] % 64);
	if (++c->steps < CALIBRATION_STEPS)
		return 0;
	round_end(core, step->session, step->layer, c);
	return 1;
}

/* Runs after the step's scores were applied: notes the classes unless a round is in progress. */
void
ofs_calibration_note(struct ofs_core *core, uint32_t session, uint32_t layer)
{
	struct ofs_calibration *c = ofs_calibration_of(core, session, layer);
	const struct ofs_session *s = &core->sessions[session];
	const uint16_t *averages = ofs_averages_of(core, session, layer);
	uint8_t *levels = ofs_levels_of(core, session, layer);
	uint32_t known = ofs_layer_of(core, session, layer)->known;

	if (c->noted || known == 0)
		return;
	ofs_work_values(core, known, sizeof(*averages) + sizeof(*levels));
	for (uint32_t i = 0; i < known; i++)
		levels[i] = (uint8_t)(averages[i] >> OFS_LEVEL_SHIFT);
	for (uint32_t i = 0; i < s->config.sink_blocks && i < known; i++)
		levels[i] = OFS_LEVEL_TRIVIAL;
	for (uint32_t i = ofs_window_begin(s); i < known; i++)
		levels[i] = OFS_LEVEL_TRIVIAL;
	memset(ofs_row_of(core, core->asked, session, layer), 0, core->row_words * 8);
	c->noted = known;
}

/* The tables follow from the counts, and the counts add up. For ofs_core_verify. */
int
ofs_calibration_verify(const struct ofs_core *core, uint32_t session)
{
	for (uint32_t layer = 0; layer < core->config.layer_count; layer++) {
		const struct ofs_calibration *c = ofs_calibration_of(core, session, layer);
		struct ofs_calibration again = *c;
		uint64_t exposures = 0;

		tables_update(&again);
		for (uint32_t level = 0; level < OFS_CLASSES; level++) {
			exposures += c->exposure[level];
			if (c->demanded[level] > c->exposure[level])
				return -EFAULT;
		}
		if (memcmp(again.chance, c->chance, sizeof(c->chance))
			|| memcmp(again.bucket, c->bucket, sizeof(c->bucket)) || exposures != c->exposures
			|| c->noted > ofs_layer_of(core, session, layer)->known
			|| c->steps >= CALIBRATION_STEPS)
			return -EFAULT;
	}
	return 0;
}
