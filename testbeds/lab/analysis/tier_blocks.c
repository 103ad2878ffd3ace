/*
 * tier_blocks.c: which tier has a block, and what moves.
 *
 * Model: `top` is the first tier that has the block; where copies are inclusive all below have it
 * too, so one number says it all. Each tier but the last has a list in the order of use: one table
 * of links for each where copies are inclusive, one for all of them where a block is in one list.
 */
#include <stdlib.h>

#include "tiers.h"

#define NEVER UINT64_MAX

/* The table of links that a tier's list is in; the list's two ends are one entry of it. */
static struct tier_link *
table_of(const struct tiers *t, uint32_t tier)
{
	return t->config.exclusive ? t->links : t->links + tier * (t->block_count + 1ull);
}

static uint32_t
ends_of(const struct tiers *t, uint32_t tier)
{
	return t->block_count + (t->config.exclusive ? tier : 0);
}

static uint64_t
link_count(const struct tiers *t)
{
	if (t->config.exclusive)
		return t->block_count + (uint64_t)t->last;
	return t->last * (t->block_count + 1ull);
}

static void
unlink_block(const struct tiers *t, uint32_t tier, uint32_t block)
{
	struct tier_link *links = table_of(t, tier);

	links[links[block].prev].next = links[block].next;
	links[links[block].next].prev = links[block].prev;
}

static void
link_newest(const struct tiers *t, uint32_t tier, uint32_t block)
{
	struct tier_link *links = table_of(t, tier);
	uint32_t ends = ends_of(t, tier), newest = links[ends].prev;

	links[block] = (struct tier_link){ends, newest};
	links[newest].next = block;
	links[ends].prev = block;
}

static void
enter(struct tiers *t, uint32_t tier, uint32_t block)
{
	if (tier != t->last)
		link_newest(t, tier, block);
	t->tiers[tier].stats.resident++;
}

static void
leave(struct tiers *t, uint32_t tier, uint32_t block)
{
	if (tier != t->last)
		unlink_block(t, tier, block);
	t->tiers[tier].stats.resident--;
	t->tiers[tier].stats.gone++;
}

/* It is copied there: when it has been, in ps. */
static uint64_t
copy_in(struct tiers *t, uint32_t tier, uint64_t now_ps, uint32_t block)
{
	t->tiers[tier].stats.writes++;
	return now_ps == TIER_UNTIMED ? 0 : tier_write(t, tier, now_ps, block);
}

/* What was used longest ago leaves the tier. */
static void
evict(struct tiers *t, uint32_t tier, uint64_t now_ps)
{
	uint32_t block = table_of(t, tier)[ends_of(t, tier)].next;

	if (!t->config.exclusive) {
		for (uint32_t above = t->top[block]; above <= tier; above++)
			leave(t, above, block);
		t->top[block] = (uint8_t)(tier + 1);
		return;
	}
	leave(t, tier, block);
	t->tiers[tier].stats.moves++;
	if (now_ps != TIER_UNTIMED)
		(void)tier_read(t, tier, now_ps, block);
	t->top[block] = (uint8_t)(tier + 1);
	enter(t, tier + 1, block);
	t->tiers[tier + 1].stats.demoted++;
	(void)copy_in(t, tier + 1, now_ps, block);
}

/* From that tier down, none holds more than it can. */
static void
settle(struct tiers *t, uint32_t from, uint64_t now_ps)
{
	for (uint32_t tier = from; tier < t->last; tier++)
		while (t->tiers[tier].stats.resident > t->tiers[tier].config.capacity_blocks)
			evict(t, tier, now_ps);
}

static void
touch(struct tiers *t, uint32_t block)
{
	uint32_t end = t->config.exclusive ? t->top[block] + 1u : t->last;

	for (uint32_t tier = t->top[block]; tier < end && tier < t->last; tier++) {
		unlink_block(t, tier, block);
		link_newest(t, tier, block);
	}
}

uint64_t
tier_place(struct tiers *t, uint64_t now_ps, uint64_t now_ns, uint32_t block)
{
	int known = t->top[block] != OFS_TIERS_NOWHERE;
	uint32_t first = t->config.place_last ? t->last : 0, end;
	uint64_t end_ps = 0;

	if (known) {
		first = t->top[block];
		touch(t, block);
	}
	end = t->config.exclusive ? first + 1 : t->last + 1;
	for (uint32_t tier = first; tier < end; tier++) {
		uint64_t copied_ps = copy_in(t, tier, now_ps, block);

		if (tier == first)
			end_ps = copied_ps;
		if (known)
			continue;
		enter(t, tier, block);
		t->tiers[tier].stats.placed++;
	}
	t->top[block] = (uint8_t)first;
	t->last_ns[block] = now_ns;
	settle(t, first, now_ps);
	return end_ps;
}

uint32_t
tier_found(struct tiers *t, uint32_t block)
{
	if (t->top[block] == OFS_TIERS_NOWHERE) {
		t->top[block] = (uint8_t)t->last; /* nobody wrote it here: it lies at the bottom */
		enter(t, t->last, block);
		t->tiers[t->last].stats.placed++;
	}
	return t->top[block];
}

void
tier_used(struct tiers *t, uint64_t now_ps, uint64_t now_ns, uint32_t block)
{
	uint32_t from = t->top[block], to = 0;
	uint64_t since_ns = t->last_ns[block] == NEVER ? NEVER : now_ns - t->last_ns[block];

	while (to < from && since_ns >= t->tiers[to].config.promote_ns)
		to++;
	touch(t, block);
	t->last_ns[block] = now_ns;
	if (to == from)
		return;
	if (t->config.exclusive)
		leave(t, from, block);
	for (uint32_t tier = to; tier < (t->config.exclusive ? to + 1 : from); tier++) {
		enter(t, tier, block);
		t->tiers[tier].stats.promoted++;
		(void)copy_in(t, tier, now_ps, block);
	}
	t->top[block] = (uint8_t)to;
	settle(t, to, now_ps);
}

int
tier_blocks_open(struct tiers *t)
{
	t->links = malloc((link_count(t) + 1) * sizeof(*t->links));
	t->top = malloc(t->block_count);
	t->last_ns = malloc(t->block_count * sizeof(*t->last_ns));
	if (t->links == NULL || t->top == NULL || t->last_ns == NULL)
		return -ENOMEM;
	return 0;
}

void
tier_blocks_reset(struct tiers *t)
{
	memset(t->top, OFS_TIERS_NOWHERE, t->block_count);
	for (uint32_t block = 0; block < t->block_count; block++)
		t->last_ns[block] = NEVER;
	for (uint32_t tier = 0; tier < t->last; tier++)
		table_of(t, tier)[ends_of(t, tier)] =
			(struct tier_link){ends_of(t, tier), ends_of(t, tier)};
}
