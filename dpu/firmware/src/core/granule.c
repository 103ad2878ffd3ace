/*
 * granule.c: slots that hold a part of their block.
 *
 * Model: a block is cut into granules, a demand names some of them, and only those are read. A slot
 * records which it has (`valid`), which the read in flight brings (`reading`), and which are
 * demanded (`wanted`). Absent granules are read into the same slot while it stays resident and
 * published: hosts read only valid granules there. At most one read of a slot is in flight; demands
 * that name more wait, and their granules are read after it. Prefetches and writes bring whole
 * blocks. Without granules (config.granule_count below 2) every mask is 0, which means the whole.
 */
#include "internal.h"

static uint32_t
all_of(const struct ofs_core *core)
{
	return UINT32_MAX >> (OFS_GRANULES_MAX - core->config.granule_count);
}

uint32_t
ofs_granules_asked(const struct ofs_core *core, const struct ofs_step *step, uint32_t i)
{
	if (!ofs_granular(core))
		return 0;
	return step->granules != NULL && step->granules[i] != 0 ? step->granules[i] : all_of(core);
}

int
ofs_granules_check(const struct ofs_core *core, const struct ofs_step *step)
{
	if (step->granules == NULL)
		return 0;
	if (!ofs_granular(core))
		return -EINVAL;
	for (uint32_t i = 0; i < step->demand_count; i++)
		if (step->granules[i] & ~all_of(core))
			return -EINVAL;
	return 0;
}

uint32_t
ofs_part_valid(const struct ofs_core *core, uint32_t slot)
{
	return ofs_granular(core) ? core->parts[slot].valid : 0;
}

int
ofs_part_covers(const struct ofs_core *core, uint32_t slot, uint32_t granules)
{
	if (!ofs_granular(core))
		return 1;
	return ((granules != 0 ? granules : all_of(core)) & ~core->parts[slot].valid) == 0;
}

int
ofs_part_comes(const struct ofs_core *core, uint32_t slot, uint32_t granules)
{
	const struct ofs_part *part = &core->parts[slot];

	return part->reading != 0 && (granules & ~(part->valid | part->reading)) == 0;
}

void
ofs_part_want(struct ofs_core *core, uint32_t slot, uint32_t granules)
{
	if (ofs_granular(core))
		core->parts[slot].wanted |= granules;
}

static uint32_t
count_of(uint32_t granules)
{
	return (uint32_t)__builtin_popcount(granules);
}

/* The granules that demands waiting for the slot name; demands that have ended no longer count. */
static uint32_t
waited_for(const struct ofs_core *core, uint32_t slot)
{
	uint32_t last = core->slots[slot].waiters, number = last, granules = 0;

	assert(last != OFS_NONE);
	do {
		granules |= core->waiter_granules[number];
		number = core->waiters[number].next;
	} while (number != last);
	return granules;
}

uint64_t
ofs_part_begin(struct ofs_core *core, uint32_t slot, struct ofs_action *action)
{
	struct ofs_ledger *ledger = &core->ledgers[action->tenant];
	uint64_t block_bytes = core->config.block_size_bytes;
	uint64_t granule_bytes = core->config.granule_size_bytes;
	uint64_t wanted_bytes, size_bytes;
	struct ofs_part *part;

	if (!ofs_granular(core))
		return block_bytes;
	part = &core->parts[slot];
	if (part->valid != 0)
		part->wanted = waited_for(core, slot);
	else if (part->wanted == 0)
		part->wanted = all_of(core);
	part->reading = part->wanted & ~part->valid;
	assert(part->reading != 0);
	action->granules = part->reading;
	action->held = part->valid;
	wanted_bytes = count_of(part->reading) * granule_bytes;
	size_bytes = wanted_bytes;
	if (part->valid == 0) /* and the block's metadata, once */
		size_bytes += block_bytes - core->config.granule_count * granule_bytes;
	if (part->valid == 0 && ofs_cause_is_prefetch(core->slots[slot].cause))
		return size_bytes;
	ledger->demand_bytes_wanted += wanted_bytes;
	if (part->valid == 0)
		ledger->demand_bytes_spared += block_bytes - size_bytes;
	else if (ledger->demand_bytes_spared >= size_bytes)
		ledger->demand_bytes_spared -= size_bytes; /* read after all */
	return size_bytes;
}

void
ofs_part_arrive(struct ofs_core *core, uint32_t slot, int read)
{
	struct ofs_part *part;

	if (!ofs_granular(core))
		return;
	part = &core->parts[slot];
	assert(!read || part->reading != 0);
	part->valid = read ? part->reading : all_of(core);
	part->reading = 0;
}
