/*
 * self_check.c: walk every table and recompute its counters. For tests: costs as much as it checks.
 *
 * Model: each check states one relation between two tables; the first that does not hold is named
 * on stderr with its number.
 */
#include <stdlib.h>

#include "internal.h"
#include "self_check.h"

static int
verify_slot(const struct ofs_core *core, uint32_t number)
{
	const struct ofs_slot *s = &core->slots[number];
	int holds = s->state == OFS_SLOT_PENDING || s->state == OFS_SLOT_READING
		|| s->state == OFS_SLOT_RESIDENT;
	const struct ofs_chunk *chunk;

	CHECK(holds || s->pins == 0, number);
	if (!holds)
		return 0;
	chunk = &core->chunks[s->chunk];
	CHECK(chunk->used, number);
	CHECK(s->generation != 0, number);
	CHECK(core->block_slot[ofs_block_of(core, s->chunk, s->layer)] == number, number);
	CHECK(s->state != OFS_SLOT_RESIDENT || (s->flags & OFS_FLAG_FILLING) || s->waiters == OFS_NONE,
		number);
	CHECK(!ofs_granular(core) || (core->parts[number].valid & core->parts[number].reading) == 0,
		number);
	CHECK(s->state != OFS_SLOT_RESIDENT || !ofs_granular(core) || core->parts[number].valid != 0,
		number);
	CHECK(s->state != OFS_SLOT_RESIDENT || s->set == chunk->tenant * 2 + (chunk->generating != 0),
		number);
	CHECK(core->block_queued[ofs_block_of(core, s->chunk, s->layer)] == OFS_NONE, number);
	return 0;
}

static int
verify_tenant(const struct ofs_core *core, uint32_t tenant)
{
	const struct ofs_tenant *t = &core->tenants[tenant];
	uint32_t by_state[5] = {0}, listed = 0, nodes = 0;

	for (uint32_t i = 0; i < t->slot_count; i++) {
		const struct ofs_slot *s = &core->slots[t->slot_base + i];

		CHECK(s->state <= OFS_SLOT_QUARANTINED, t->slot_base + i);
		by_state[s->state]++;
		if (s->state != OFS_SLOT_FREE && s->state != OFS_SLOT_QUARANTINED)
			CHECK(core->chunks[s->chunk].tenant == tenant, t->slot_base + i);
		if (verify_slot(core, t->slot_base + i))
			return -EFAULT;
	}
	CHECK(by_state[OFS_SLOT_FREE] == t->free_count, tenant);
	CHECK(by_state[OFS_SLOT_RESIDENT] == t->resident, tenant);
	for (uint32_t list = tenant * 2 * OFS_BUCKETS; list < (tenant + 1) * 2 * OFS_BUCKETS; list++)
		listed += core->lists[list].count;
	CHECK(listed == t->resident, tenant);
	for (uint32_t node = t->shadow_head; node != OFS_NONE; node = core->shadows[node].next) {
		uint32_t block = core->shadows[node].block;

		CHECK(block == OFS_NONE || core->block_shadow[block] == node, node);
		CHECK(++nodes <= t->shadow_count, tenant);
	}
	CHECK(nodes == t->shadow_count, tenant);
	return 0;
}

static int
verify_lists(const struct ofs_core *core)
{
	if (core->policy.eviction == OFS_EVICT_RANDOM)
		return 0;
	for (uint32_t i = 0; i < core->config.tenant_max * 2 * OFS_BUCKETS; i++) {
		const struct ofs_list *list = &core->lists[i];
		uint32_t count = 0, before = OFS_NONE;

		for (uint32_t slot = list->head; slot != OFS_NONE; slot = core->slots[slot].next) {
			const struct ofs_slot *s = &core->slots[slot];

			CHECK(s->state == OFS_SLOT_RESIDENT, slot);
			CHECK(s->set == i / OFS_BUCKETS && s->bucket == i % OFS_BUCKETS, slot);
			CHECK(s->prev == before, slot);
			CHECK(++count <= list->count, i);
			before = slot;
		}
		CHECK(count == list->count && list->tail == before, i);
		CHECK((core->occupied[i / 64] >> (i % 64) & 1) == (count != 0), i);
	}
	return 0;
}

static int
verify_chunk(const struct ofs_core *core, uint32_t number)
{
	const struct ofs_chunk *c = &core->chunks[number];
	uint32_t slots = 0, stored = 0, references = 0, generating = 0;
	uint32_t below = c->home == number ? 0 : c->references;

	if (!c->used)
		return 0;
	CHECK(ofs_index_peek(core, c->tenant, &c->key) == number, number);
	for (uint32_t layer = 0; layer < core->config.layer_count; layer++) {
		uint32_t block = ofs_block_of(core, number, layer);

		slots += core->block_slot[block] != OFS_NONE;
		stored += (core->block_flags[block] & OFS_BLOCK_STORED) != 0;
	}
	CHECK(slots == c->slots, number);
	CHECK(stored == c->stored, number);
	CHECK(c->home == number || c->stored == 0, number);
	for (uint32_t link = c->link; link != OFS_NONE; link = core->link_next[link]) {
		uint32_t session = link >> core->link_shift;
		uint32_t ordinal = link & ((1u << core->link_shift) - 1);

		CHECK(core->sessions[session].open, session);
		CHECK(ofs_session_list(core, session)[ordinal] == number, number);
		for (uint32_t layer = 0; layer < core->config.layer_count; layer++) {
			uint32_t slot = core->block_slot[ofs_block_of(core, number, layer)];
			const uint64_t *row = ofs_row_of(core, core->held, session, layer);

			CHECK((row[ordinal / 64] >> (ordinal % 64) & 1) == (slot != OFS_NONE), number);
		}
		references++;
		generating += core->sessions[session].generating;
	}
	CHECK(references == c->references && generating == c->generating, number);
	CHECK(below <= core->chunks[c->home].store_references, number);
	CHECK(c->home != number || c->references <= c->store_references, number);
	CHECK(c->references || c->home_references || c->slots || c->stored, number);
	return 0;
}

static int
verify_queue(const struct ofs_core *core, uint32_t tenant)
{
	const struct ofs_candidate *heap = core->queue + (size_t)tenant * core->config.queue_max;
	uint32_t count = core->tenants[tenant].queue_count;

	for (uint32_t position = 0; position < count; position++) {
		const struct ofs_candidate *parent = &heap[position ? (position - 1) / 2 : 0];

		CHECK(core->block_queued[heap[position].block] == position, position);
		CHECK(core->block_slot[heap[position].block] == OFS_NONE, position);
		CHECK(core->sessions[heap[position].session].open, position);
		CHECK(position == 0 || ofs_heap_before(parent, &heap[position]), position);
	}
	return 0;
}

static int
verify_reads(const struct ofs_core *core)
{
	uint32_t used = 0, prefetches = 0, pins = 0, held = 0;

	for (uint32_t io = 0; io < core->config.io_max; io++) {
		const struct ofs_slot *slot = &core->slots[core->ios[io].slot];

		if (!core->ios[io].used)
			continue;
		used++;
		CHECK(slot->state == OFS_SLOT_READING || (slot->flags & OFS_FLAG_FILLING), io);
		CHECK(slot->generation == core->ios[io].generation, io);
		prefetches += (slot->flags & OFS_FLAG_PREFETCH) != 0;
	}
	CHECK(used == core->io_in_flight, used);
	CHECK(used + core->free_io_count == core->config.io_max, used);
	CHECK(prefetches == core->prefetch_in_flight, prefetches);
	for (uint32_t slot = 0; slot < core->config.slot_count; slot++)
		held += core->slots[slot].pins;
	for (uint32_t session = 0; session < core->config.session_max; session++) {
		const struct ofs_pin *pin = core->pins + (size_t)session * core->config.demand_max;

		for (uint32_t i = 0; i < core->sessions[session].pin_count; i++)
			pins += core->slots[pin[i].slot].generation == pin[i].generation
				&& core->slots[pin[i].slot].pins > 0;
	}
	CHECK(pins == held, held);
	return 0;
}

static uint32_t
is_to_settle(const struct ofs_core *core, const struct ofs_slot *s, uint32_t ordinal)
{
	const uint64_t *row = ofs_row_of(core, core->lifted, s->owner, s->layer);

	return row[ordinal / 64] >> (ordinal % 64) & 1;
}

/* The slot's score is the highest of its sessions now, or its owner's higher guess. */
static int
verify_scores(const struct ofs_core *core)
{
	uint32_t mask = (1u << core->link_shift) - 1;

	if (core->policy.eviction != OFS_EVICT_SCORE)
		return 0;
	for (uint32_t number = 0; number < core->config.slot_count; number++) {
		const struct ofs_slot *s = &core->slots[number];
		uint32_t best = 0, link, settles = 0, lifted = s->flags & OFS_FLAG_LIFTED;

		if (s->state != OFS_SLOT_RESIDENT && !lifted)
			continue;
		for (link = core->chunks[s->chunk].link; link != OFS_NONE; link = core->link_next[link]) {
			uint32_t value =
				ofs_session_score(core, link >> core->link_shift, s->layer, link & mask);

			best = value > best ? value : best;
			if (link >> core->link_shift == s->owner)
				settles = is_to_settle(core, s, link & mask);
		}
		CHECK(!lifted || settles, number);
		if (s->state != OFS_SLOT_RESIDENT)
			continue;
		CHECK(lifted ? s->score > best : s->score == best, number);
		CHECK(s->bucket == s->score, number);
	}
	return 0;
}

int
ofs_core_verify(const struct ofs_core *core)
{
	uint32_t used = 0, counted = 0;

	for (uint32_t tenant = 0; tenant < core->tenant_count; tenant++)
		counted += core->tenants[tenant].chunk_count;
	for (uint32_t tenant = 0; tenant < core->tenant_count; tenant++)
		if (verify_tenant(core, tenant) || verify_queue(core, tenant)
			|| ofs_evict_verify(core, tenant))
			return -EFAULT;
	for (uint32_t chunk = 0; chunk < core->config.chunk_max; chunk++) {
		used += core->chunks[chunk].used;
		if (verify_chunk(core, chunk))
			return -EFAULT;
	}
	CHECK(used + core->free_chunk_count == core->config.chunk_max, used);
	CHECK(used == counted, used);
	for (uint32_t session = 0; session < core->config.session_max; session++)
		CHECK(!core->sessions[session].open || ofs_calibration_verify(core, session) == 0, session);
	if (verify_lists(core) || verify_reads(core) || verify_scores(core))
		return -EFAULT;
	return 0;
}
