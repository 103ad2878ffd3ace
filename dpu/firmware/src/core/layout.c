/*
 * layout.c: one allocation, cut into the core's tables.
 *
 * Model: the same walk counts (base NULL) and cuts, so that ofs_core_size_bytes returns exactly the
 * size used. Every table starts on a cache line.
 */
#include "internal.h"

#define ALIGN 64u
#define SIZE_MAX_BYTES (1ull << 40)

struct cut {
	unsigned char *base;
	uint64_t offset;
};

static void *
cut_table(struct cut *cut, uint64_t count, uint64_t size_bytes)
{
	void *table = cut->base ? cut->base + cut->offset : NULL;

	cut->offset += (count * size_bytes + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
	return table;
}

/* Cuts a table for the pointer; element size and type come from the pointer. */
#define CUT(pointer, count) ((pointer) = cut_table(cut, (count), sizeof(*(pointer))))

static uint32_t
power_of_two_above(uint64_t value)
{
	uint32_t power = 1;

	while (power < value)
		power <<= 1;
	return power;
}

static void
layout_blocks(struct ofs_core *core, struct cut *cut)
{
	uint64_t blocks = (uint64_t)core->config.chunk_max * core->config.layer_count;

	CUT(core->block_slot, blocks);
	CUT(core->block_shadow, blocks);
	CUT(core->block_ghost, blocks);
	CUT(core->block_queued, blocks);
	CUT(core->block_gone, blocks);
	CUT(core->block_flags, blocks);
	CUT(core->chunks, core->config.chunk_max);
	CUT(core->free_chunks, core->config.chunk_max);
	core->index_mask = power_of_two_above(2 * (uint64_t)core->config.chunk_max) - 1;
	CUT(core->index, (uint64_t)core->index_mask + 1);
}

static void
layout_sessions(struct ofs_core *core, struct cut *cut)
{
	const struct ofs_core_config *c = &core->config;
	uint64_t layers = (uint64_t)c->session_max * c->layer_count;
	uint64_t stride = power_of_two_above(c->session_chunk_max);

	core->link_shift = 0;
	while ((1ull << core->link_shift) < stride)
		core->link_shift++;
	core->row_words = (c->session_chunk_max + 63) / 64;
	CUT(core->sessions, c->session_max);
	CUT(core->free_sessions, c->session_max);
	CUT(core->session_chunks, (uint64_t)c->session_max * c->session_chunk_max);
	CUT(core->link_next, (uint64_t)c->session_max * stride);
	CUT(core->link_prev, (uint64_t)c->session_max * stride);
	CUT(core->layers, layers);
	CUT(core->calibrations, layers);
	CUT(core->averages, layers * c->session_chunk_max);
	CUT(core->levels, layers * c->session_chunk_max);
	CUT(core->chosen, layers * core->row_words);
	CUT(core->held, layers * core->row_words);
	CUT(core->asked, layers * core->row_words);
	CUT(core->lifted, layers * core->row_words);
	CUT(core->above, core->row_words);
	CUT(core->hint, core->row_words * 64);
	CUT(core->last_demands, layers * c->demand_max);
	CUT(core->pins, (uint64_t)c->session_max * c->demand_max);
	CUT(core->misses, c->demand_max);
	CUT(core->ends, c->demand_max);
	CUT(core->append_keys, c->session_chunk_max);
	CUT(core->predicted, c->session_chunk_max);
	CUT(core->best, c->session_chunk_max);
}

static void
layout_slots(struct ofs_core *core, struct cut *cut)
{
	const struct ofs_core_config *c = &core->config;

	core->used_words = (c->session_max + 63) / 64;
	CUT(core->slots, c->slot_count);
	CUT(core->free_slots, c->slot_count);
	CUT(core->random_slots, 2 * (uint64_t)c->slot_count);
	CUT(core->used_bits, (uint64_t)c->slot_count * core->used_words);
	CUT(core->shadows, c->slot_count);
	CUT(core->tenants, c->tenant_max);
	CUT(core->lists, (uint64_t)c->tenant_max * 2 * OFS_BUCKETS);
	CUT(core->occupied, (uint64_t)c->tenant_max * 2 * OFS_BUCKETS / 64);
	CUT(core->evict_sets, (uint64_t)c->tenant_max * 2);
	CUT(core->nodes, 2 * (uint64_t)c->slot_count);
	CUT(core->ledgers, c->tenant_max);
	CUT(core->parts, ofs_granular(core) ? c->slot_count : 0);
}

/* The most actions that one event can cause; the ring has room for two such events. */
static uint64_t
action_worst(const struct ofs_core_config *c)
{
	return 16 + c->slot_count + 3 * (uint64_t)c->demand_max + 2 * (uint64_t)c->io_max
		+ (uint64_t)c->session_max * c->demand_max;
}

static void
layout_rings(struct ofs_core *core, struct cut *cut)
{
	const struct ofs_core_config *c = &core->config;
	uint64_t waiters = (uint64_t)c->session_max * c->demand_max;
	uint64_t worst = action_worst(c);

	CUT(core->ios, c->io_max);
	CUT(core->free_ios, c->io_max);
	CUT(core->waiters, waiters);
	CUT(core->free_waiters, waiters);
	CUT(core->waiter_granules, ofs_granular(core) ? waiters : 0);
	CUT(core->queue, (uint64_t)c->tenant_max * c->queue_max);
	core->action_worst = (uint32_t)worst;
	core->action_max = (uint32_t)(2 * worst);
	CUT(core->actions, core->action_max);
	CUT(core->records, c->record_max);
	core->log_scratch_bytes = 0;
	if (c->log_size_bytes) {
		core->log_scratch_bytes = 512 + 10 * (uint64_t)c->demand_max
			+ (sizeof(struct ofs_chunk_keys) + sizeof(struct ofs_chunk_info)) * c->session_chunk_max
			+ c->queue_max * sizeof(struct ofs_guess) + worst * sizeof(struct ofs_action);
		CUT(core->log, c->log_size_bytes);
		CUT(core->log_scratch, core->log_scratch_bytes);
	}
}

uint64_t
ofs_core_layout(struct ofs_core *core, unsigned char *base)
{
	struct cut cut = {.base = base, .offset = 0};

	cut_table(&cut, 1, sizeof(*core));
	layout_blocks(core, &cut);
	layout_sessions(core, &cut);
	layout_slots(core, &cut);
	layout_rings(core, &cut);
	return cut.offset;
}

static int
in_range(uint64_t value, uint64_t low, uint64_t high)
{
	return value >= low && value <= high;
}

static int
check_config(const struct ofs_core_config *c)
{
	/* Each bound keeps a product of those below within 64 bits, and a block number within 32. */
	if (!in_range(c->tenant_max, 1, 1u << 12) || !in_range(c->session_max, 1, 1u << 16)
		|| !in_range(c->chunk_max, 1, 1u << 26) || !in_range(c->layer_count, 1, 1u << 10)
		|| !in_range(c->session_chunk_max, 1, 1u << 22) || !in_range(c->slot_count, 1, 1u << 28)
		|| !in_range(c->io_max, 1, 1u << 20) || !in_range(c->queue_max, 1, 1u << 24)
		|| !in_range(c->demand_max, 1, 1u << 20) || !in_range(c->block_size_bytes, 1, 1u << 30)
		|| !in_range(c->record_max, 0, 1u << 26) || !in_range(c->log_size_bytes, 0, 1u << 30))
		return -EINVAL;
	if ((uint64_t)c->chunk_max * c->layer_count >= OFS_NONE
		|| (uint64_t)c->session_max * c->session_chunk_max > 1ull << 31
		|| (uint64_t)c->session_max * c->demand_max > 1ull << 26 || action_worst(c) > 1ull << 29)
		return -EINVAL;
	if (c->granule_count > OFS_GRANULES_MAX
		|| (c->granule_count > 1
			&& (c->granule_size_bytes == 0
				|| (uint64_t)c->granule_count * c->granule_size_bytes > c->block_size_bytes)))
		return -EINVAL;
	return 0;
}

uint64_t
ofs_core_size_bytes(const struct ofs_core_config *config)
{
	struct ofs_core core = {.config = *config};
	uint64_t size_bytes;

	if (check_config(config))
		return 0;
	size_bytes = ofs_core_layout(&core, NULL);
	return size_bytes <= SIZE_MAX_BYTES ? size_bytes : 0;
}
