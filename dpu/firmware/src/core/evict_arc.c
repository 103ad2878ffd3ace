/*
 * evict_arc.c: ARC (Megiddo, Modha, "ARC: a self-tuning, low overhead replacement cache", 2003).
 *
 * Model: T1 has the blocks used once, T2 those used again, least recently used first; the ghosts of
 * T1 are B1, those of T2 are B2. A demand for a ghost in B1 means that T1 should have been larger
 * and raises its target, one in B2 lowers it; the victim comes from T1 while that is above its
 * target. Each set has its T1 and T2; sizes, ghosts and target are per tenant, so that blocks of
 * generating sessions count too. T1 and B1 together never exceed the tenant's slots, all four never
 * twice as many. A guess does not count as a use: it moves no target, enters T1, and leaves no
 * ghost unless a demand hit it.
 *
 * The target is compared with a count for equality, so its rounding affects decisions. It is
 * rounded like a binary64 (53 bits, to nearest, ties to even), as in every ARC written with
 * doubles, and stored in integers: all its values are multiples of 2^-52 below 2^29.
 */
#include "evict.h"
#include "self_check.h"

#define T1 0
#define T2 1
#define ONE_SHIFT 52
#define QUOTIENT_SHIFT 82
#define SIGNIFICANT_BITS 53
#define USES_MAX 2

static uint32_t
bits_of(ofs_wide value)
{
	uint64_t high = (uint64_t)(value >> 64), low = (uint64_t)value;

	if (high)
		return 128 - (uint32_t)__builtin_clzll(high);
	return low ? 64 - (uint32_t)__builtin_clzll(low) : 0;
}

static ofs_wide
rounded(ofs_wide value)
{
	uint32_t bits = bits_of(value), shift;
	ofs_wide rest, half, kept;

	if (bits <= SIGNIFICANT_BITS)
		return value;
	shift = bits - SIGNIFICANT_BITS;
	half = (ofs_wide)1 << (shift - 1);
	rest = value & (2 * half - 1);
	kept = value >> shift;
	kept += rest > half || (rest == half && (kept & 1));
	return kept << shift;
}

/* max(other / own, 1) */
static ofs_wide
target_step(uint32_t other, uint32_t own)
{
	ofs_wide wide = (ofs_wide)other << QUOTIENT_SHIFT, quotient = wide / own;

	if (other <= own)
		return (ofs_wide)1 << ONE_SHIFT;
	quotient |= quotient * own != wide; /* the bits cut off still break a tie */
	return rounded(quotient) >> (QUOTIENT_SHIFT - ONE_SHIFT);
}

static void
arc_expect(struct ofs_core *core, uint32_t block, int demanded)
{
	struct ofs_tenant *t = &core->tenants[core->chunks[block % core->config.chunk_max].tenant];
	uint32_t once = t->ghosts[OFS_GHOST_ONCE].count, often = t->ghosts[OFS_GHOST_OFTEN].count;
	uint32_t list = ofs_ghost_expect(core, block);
	ofs_wide most = (ofs_wide)t->slot_count << ONE_SHIFT, target = t->arc_target, step;

	t->arc_often = list == OFS_GHOST_OFTEN;
	if (!demanded || list == OFS_NONE)
		return;
	if (list == OFS_GHOST_ONCE) {
		step = target_step(often, once);
		target = rounded(target + step);
		t->arc_target = target < most ? target : most;
	} else {
		step = target_step(once, often);
		t->arc_target = target > step ? rounded(target - step) : 0;
	}
}

/* The paper's bounds, enforced when the tables grow. */
static void
ghosts_trim(struct ofs_core *core, uint32_t tenant)
{
	const struct ofs_tenant *t = &core->tenants[tenant];
	uint32_t once = ofs_list_count(core, tenant, T1);
	uint32_t resident = once + ofs_list_count(core, tenant, T2);

	while (once + t->ghosts[OFS_GHOST_ONCE].count > t->slot_count
		&& ofs_ghost_drop(core, tenant, OFS_GHOST_ONCE))
		;
	while (resident + t->ghosts[OFS_GHOST_ONCE].count + t->ghosts[OFS_GHOST_OFTEN].count
				+ t->ghosts[OFS_GHOST_RETURNS].count
			> 2 * t->slot_count
		&& (ofs_ghost_drop(core, tenant, OFS_GHOST_OFTEN)
			|| ofs_ghost_drop(core, tenant, OFS_GHOST_RETURNS)))
		;
}

static void
arc_add(struct ofs_core *core, uint32_t slot)
{
	struct ofs_slot *s = &core->slots[slot];

	if (s->frequency == 0 && !(s->flags & OFS_FLAG_FRESH))
		s->frequency = 1;
	if (ofs_ghost_returned(core, ofs_block_of(core, s->chunk, s->layer)))
		s->frequency++;
	ofs_list_push(core, slot, s->frequency == USES_MAX ? T2 : T1);
	ghosts_trim(core, s->set >> 1);
}

static void
arc_remove(struct ofs_core *core, uint32_t slot, int evicted)
{
	const struct ofs_slot *s = &core->slots[slot];

	ofs_list_remove(core, slot);
	if (evicted && s->frequency > 0)
		ofs_ghost_push(core, ofs_block_of(core, s->chunk, s->layer),
			s->bucket == T1 ? OFS_GHOST_ONCE : OFS_GHOST_OFTEN);
}

static void
arc_use(struct ofs_core *core, uint32_t slot)
{
	struct ofs_slot *s = &core->slots[slot];

	if (s->frequency < USES_MAX)
		s->frequency++;
	else if (s->next == OFS_NONE)
		return;
	ofs_list_move(core, slot, s->frequency == USES_MAX ? T2 : T1);
}

static void
arc_rescore(struct ofs_core *core, uint32_t slot)
{
	(void)core;
	(void)slot;
}

static uint32_t
arc_victim(struct ofs_core *core, uint32_t set)
{
	const struct ofs_tenant *t = &core->tenants[set >> 1];
	ofs_wide once = (ofs_wide)ofs_list_count(core, set >> 1, T1) << ONE_SHIFT;
	uint32_t bucket = T2, slot;

	if (once > t->arc_target || (once != 0 && once == t->arc_target && t->arc_often)
		|| ofs_list_count(core, set >> 1, T2) == 0)
		bucket = T1;
	slot = ofs_list_victim(core, set, bucket);
	return slot != OFS_NONE ? slot : ofs_list_victim(core, set, bucket == T1 ? T2 : T1);
}

static int
arc_verify(const struct ofs_core *core, uint32_t tenant)
{
	const struct ofs_tenant *t = &core->tenants[tenant];
	uint32_t once = ofs_list_count(core, tenant, T1);
	uint32_t all = once + ofs_list_count(core, tenant, T2);

	for (uint32_t i = 0; i < t->slot_count; i++) {
		const struct ofs_slot *s = &core->slots[t->slot_base + i];

		if (s->state != OFS_SLOT_RESIDENT)
			continue;
		CHECK(s->frequency <= USES_MAX, t->slot_base + i);
		CHECK((s->bucket == T2) == (s->frequency == USES_MAX), t->slot_base + i);
		CHECK(s->frequency > 0 || (s->flags & OFS_FLAG_FRESH), t->slot_base + i);
	}
	CHECK(once + t->ghosts[OFS_GHOST_ONCE].count <= t->slot_count, tenant);
	for (uint32_t list = 0; list < OFS_GHOST_LISTS; list++)
		all += t->ghosts[list].count;
	CHECK(all <= 2 * t->slot_count, tenant);
	CHECK(t->arc_target <= (ofs_wide)t->slot_count << ONE_SHIFT, tenant);
	return 0;
}

const struct ofs_evict_ops ofs_evict_arc = {
	.expect = arc_expect,
	.add = arc_add,
	.remove = arc_remove,
	.use = arc_use,
	.rescore = arc_rescore,
	.victim = arc_victim,
	.verify = arc_verify,
};
