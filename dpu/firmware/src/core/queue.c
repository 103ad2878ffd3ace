/*
 * queue.c: prefetch candidates waiting for their turn.
 *
 * Model: one heap per tenant, so that no tenant can crowd out another; first the earliest deadline,
 * then the most probable, then the oldest. A block is in it at most once. A candidate whose
 * deadline has passed, or whose layer has run the step it was meant for, is dropped: the guess has
 * expired. The core's own guesses are for the layer's next step. The window is proposed once, and
 * no step supersedes it. pump.c decides when the first of a heap is read.
 */
#include "internal.h"

static inline struct ofs_candidate *
heap_of(const struct ofs_core *core, uint32_t tenant)
{
	return core->queue + (size_t)tenant * core->config.queue_max;
}

static inline void
candidate_moved(void *owner, const void *item, uint32_t position)
{
	struct ofs_core *core = (struct ofs_core *)owner;

	core->tally->work.heap_moves++;
	core->block_queued[((const struct ofs_candidate *)item)->block] = position;
}

static void
heap_sift_down(struct ofs_core *core, uint32_t tenant, uint32_t position,
	const struct ofs_candidate *candidate)
{
	ofs_heap_down(heap_of(core, tenant), sizeof(*candidate), core->tenants[tenant].queue_count,
		position, candidate, candidate_moved, core);
}

/* Writes the candidate to the position, then sifts it into place. */
static void
heap_sift(struct ofs_core *core, uint32_t tenant, uint32_t position,
	const struct ofs_candidate *candidate)
{
	struct ofs_candidate *heap = heap_of(core, tenant);

	position = ofs_heap_up(heap, sizeof(*heap), position, candidate, candidate_moved, core);
	heap_sift_down(core, tenant, position, candidate);
}

static void
heap_remove(struct ofs_core *core, uint32_t tenant, uint32_t position)
{
	struct ofs_candidate *heap = heap_of(core, tenant);
	uint32_t last = --core->tenants[tenant].queue_count;

	assert(position <= last && core->block_queued[heap[position].block] == position);
	core->block_queued[heap[position].block] = OFS_NONE;
	if (position != last) {
		struct ofs_candidate moved = heap[last];

		heap_sift(core, tenant, position, &moved);
	}
}

static void
candidate_drop(struct ofs_core *core, uint32_t tenant, uint32_t position)
{
	uint32_t cause = heap_of(core, tenant)[position].cause;

	heap_remove(core, tenant, position);
	ofs_fate_add(core, tenant, cause, OFS_FATE_DROPPED);
}

/* The need, less the margin learnt from late reads. */
static uint64_t
deadline_of(const struct ofs_core *core, uint32_t tenant, uint64_t need_ns)
{
	uint64_t margin_ns = core->tenants[tenant].margin_ns;
	uint64_t slack_ns = (need_ns - core->now_ns) / 2;

	return need_ns - (margin_ns < slack_ns ? margin_ns : slack_ns);
}

/* 1: it is queued, or was dropped for lack of room; 0: the queued one serves as well. */
static uint32_t
candidate_enter(struct ofs_core *core, uint32_t tenant, uint32_t layer,
	struct ofs_candidate *candidate)
{
	struct ofs_tenant *t = &core->tenants[tenant];
	uint32_t position = core->block_queued[candidate->block];

	if (position != OFS_NONE) {
		const struct ofs_candidate *old = &heap_of(core, tenant)[position];

		assert(position < t->queue_count && old->block == candidate->block);
		/* From the same session, not superseded, and for no later step. */
		if (old->session == candidate->session && old->stamp <= candidate->stamp
			&& old->stamp >= ofs_layer_of(core, old->session, layer)->stamp)
			return 0;
	} else if (t->queue_count == core->config.queue_max) {
		ofs_fate_add(core, tenant, candidate->cause, OFS_FATE_DROPPED);
		return 1;
	} else {
		if (t->queue_count == 0 && t->pass < core->queue_pass)
			t->pass = core->queue_pass; /* no credit for having been idle */
		position = t->queue_count++;
	}
	/* The most probable first, then the oldest; 2^48 candidates last for years. */
	candidate->key.second =
		(uint64_t)(UINT16_MAX - candidate->probability) << 48 | core->queue_sequence++;
	heap_sift(core, tenant, position, candidate);
	return 1;
}

/* 0: counted against the degree or of no use; -1: the degree of this step is used up. */
int
ofs_queue_propose(struct ofs_core *core, uint32_t session, uint32_t layer, uint32_t ordinal,
	uint32_t cause, uint32_t probability, uint64_t need_ns)
{
	uint32_t chunk = ofs_session_list(core, session)[ordinal];
	uint32_t block = ofs_block_of(core, chunk, layer);
	uint32_t tenant = core->sessions[session].config.tenant;
	uint32_t counted = cause != OFS_CAUSE_WINDOW; /* the window is proposed once, whole */
	struct ofs_candidate candidate = {
		.key.first = deadline_of(core, tenant, need_ns),
		.block = block,
		.session = session,
		.stamp = ofs_layer_of(core, session, layer)->stamp,
		.probability = (uint16_t)probability,
		.cause = (uint8_t)cause,
	};

	if (counted && core->proposed >= core->propose_max)
		return -1;
	ofs_work_touch(core, OFS_TABLE_SESSION, sizeof(chunk));
	ofs_work_touch(core, OFS_TABLE_BLOCK, sizeof(*core->block_slot) + sizeof(*core->block_flags));
	if (core->block_slot[block] != OFS_NONE || !ofs_block_is_stored(core, chunk, layer))
		return 0;
	core->proposed += candidate_enter(core, tenant, layer, &candidate) & counted;
	return 0;
}

/* The host's guess of an absent, stored block: unlike the core's own, not bounded by the degree. */
void
ofs_queue_hint(struct ofs_core *core, uint32_t session, const struct ofs_guess *guess,
	uint32_t stamp, uint64_t need_ns)
{
	uint32_t tenant = core->sessions[session].config.tenant;
	uint32_t chunk = ofs_session_list(core, session)[guess->ordinal];
	struct ofs_candidate candidate = {
		.key.first = deadline_of(core, tenant, need_ns),
		.block = ofs_block_of(core, chunk, guess->layer),
		.session = session,
		.stamp = stamp,
		.probability = guess->probability,
		.cause = guess->cause,
		.hinted = 1,
	};

	candidate_enter(core, tenant, guess->layer, &candidate);
}

/* A demand, a write or the end of the chunk came before the candidate's turn. */
void
ofs_queue_cancel(struct ofs_core *core, uint32_t block)
{
	uint32_t tenant = core->chunks[block % core->config.chunk_max].tenant;

	candidate_drop(core, tenant, core->block_queued[block]);
}

void
ofs_queue_cancel_session(struct ofs_core *core, uint32_t session)
{
	uint32_t tenant = core->sessions[session].config.tenant;
	struct ofs_candidate *heap = heap_of(core, tenant);
	struct ofs_tenant *t = &core->tenants[tenant];
	uint32_t kept = 0, count = t->queue_count;

	for (uint32_t position = 0; position < count; position++) {
		struct ofs_candidate candidate = heap[position];

		if (candidate.session == session) {
			core->block_queued[candidate.block] = OFS_NONE;
			ofs_fate_add(core, tenant, candidate.cause, OFS_FATE_DROPPED);
		} else {
			core->tally->work.heap_moves++;
			heap[kept] = candidate;
			core->block_queued[candidate.block] = kept++;
		}
	}
	t->queue_count = kept;
	for (uint32_t position = kept / 2; position-- > 0;) {
		struct ofs_candidate candidate = heap[position];

		heap_sift_down(core, tenant, position, &candidate);
	}
}

static int
is_stale(const struct ofs_core *core, const struct ofs_candidate *candidate)
{
	uint32_t layer = candidate->block / core->config.chunk_max;

	return candidate->key.first < core->now_ns
		|| ((candidate->cause != OFS_CAUSE_WINDOW || candidate->hinted)
			&& candidate->stamp < ofs_layer_of(core, candidate->session, layer)->stamp);
}

void
ofs_queue_drop_stale(struct ofs_core *core, uint32_t tenant)
{
	while (core->tenants[tenant].queue_count > 0 && is_stale(core, &heap_of(core, tenant)[0]))
		candidate_drop(core, tenant, 0);
}

struct ofs_candidate
ofs_queue_first(const struct ofs_core *core, uint32_t tenant)
{
	return heap_of(core, tenant)[0];
}

void
ofs_queue_drop_first(struct ofs_core *core, uint32_t tenant)
{
	candidate_drop(core, tenant, 0);
}

void
ofs_queue_remove_first(struct ofs_core *core, uint32_t tenant)
{
	heap_remove(core, tenant, 0);
}
