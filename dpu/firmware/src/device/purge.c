/*
 * purge.c: chooses the kept chunks to delete when the table of chunks or the store is full, or the
 * store's room falls below `room_percent`.
 *
 * Model: a chunk is kept while no session names it and the store has blocks of it. A tenant's
 * share of chunks and of the store is its share of the arena. A tenant may exceed its share while
 * there is room; when there is none, the tenant farthest over its share that has kept chunks
 * loses its coldest: those named by the fewest sessions, and of these the ones unnamed for longest.
 * If even the coldest were named often, the counts of all the tenant's chunks are lowered by one,
 * so that formerly popular chunks age out. The requesting tenant loses its own chunks only if no
 * tenant is over its share.
 *
 * Name counts start at the daemon's start and are not part of the core's decisions: the core only
 * gets the event that blocks are lost. An append that needs room loses nothing that it names: it
 * would find a hole where it was told that there is a block. While the drive refuses writes nothing
 * is purged for a put, which would be lost for nothing. Belongs to the reactor's thread.
 */
#include "heap.h"
#include "internal.h"

#include <string.h>

#define COLD_MAX 1024 /* entries per walk over the table */
#define NAMED_MAX 3
#define ROOM_RETRY_NS 20000000ull /* when nothing could go: a look walks the table */

/* The warmest has the lowest key; of equally warm chunks the lower number is the colder. */
struct ofs_cold {
	struct ofs_heap_key key;
	uint32_t chunk;
	uint32_t reserved;
};

/* A heap with the warmest at its root; after the walk, sorted from the coldest. */
struct ofs_cold_list {
	uint32_t count;
	struct ofs_cold chunks[COLD_MAX];
};

static void
cold_add(const struct ofs_device *device, struct ofs_cold_list *cold, uint32_t count_max,
	uint32_t chunk)
{
	const struct ofs_chunk_mark *mark = &device->marks.entries[chunk];
	struct ofs_cold one = {.chunk = chunk,
		.key = {.first = ~((uint64_t)mark->named << 62 | mark->used_ns),
			.second = ~(uint64_t)chunk}};

	if (cold->count < count_max)
		(void)ofs_heap_up(cold->chunks, sizeof(one), cold->count++, &one, NULL, NULL);
	else if (count_max > 0 && ofs_heap_before(&cold->chunks[0], &one))
		ofs_heap_down(cold->chunks, sizeof(one), cold->count, 0, &one, NULL, NULL);
}

static void
cold_sort(struct ofs_cold_list *cold)
{
	for (uint32_t left = cold->count; left > 1; left--) {
		struct ofs_cold warmest = cold->chunks[0], last = cold->chunks[left - 1];

		ofs_heap_down(cold->chunks, sizeof(last), left - 1, 0, &last, NULL, NULL);
		cold->chunks[left - 1] = warmest;
	}
}

void
ofs_device_chunks_held(const struct ofs_device *device, struct ofs_chunks_held *held)
{
	struct ofs_chunk_state state;

	memset(held, 0, device->tenant_count * sizeof(*held));
	for (uint32_t chunk = 0; chunk < device->config.core.chunk_max; chunk++) {
		if (ofs_core_chunk_state(device->core, chunk, &state) != 0)
			continue;
		held[state.tenant].chunks++;
		held[state.tenant].kept += state.kept && device->marks.entries[chunk].spared == 0;
		held[state.tenant].blocks += state.stored_layers;
	}
}

void
ofs_device_spare(struct ofs_device *device, uint32_t session, uint32_t count, bool folded,
	const struct ofs_key *contents, bool spared)
{
	uint32_t named = folded ? 1 : count, *looked = device->sessions.looked;
	struct ofs_chunk_state first;

	if (ofs_core_session_look(device->core, session, named, contents, looked) < 0)
		return;
	if (folded && ofs_core_chunk_state(device->core, looked[0], &first) != 0)
		return;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t chunk = looked[i];

		if (i >= named) {
			struct ofs_key key;

			ofs_fold_key(&first.store_key, i, &key);
			chunk = ofs_core_chunk_find(device->core, first.tenant, &key);
		}
		if (chunk != OFS_NONE)
			device->marks.entries[chunk].spared = spared;
	}
}

/* The tenant to purge: the one that has most for its slots, of those with any chunk kept. */
static uint32_t
choose(const struct ofs_device *device, const struct ofs_chunks_held *held, bool of_store)
{
	uint64_t best_used = 0, best_slots = 1;
	uint32_t best = OFS_NONE;

	for (uint32_t i = 0; i < device->tenant_count; i++) {
		uint64_t used = of_store ? held[i].blocks : held[i].chunks;
		uint64_t slots = device->tenants[i].slot_count;

		if (held[i].kept > 0 && used * best_slots > best_used * slots) {
			best = i;
			best_used = used;
			best_slots = slots;
		}
	}
	return best;
}

/* The tenant's part of `total` is larger than its part of the arena's slots. */
static bool
is_over(const struct ofs_device *device, uint32_t tenant, uint64_t used, uint64_t total)
{
	uint64_t slots = 0;

	for (uint32_t i = 0; i < device->tenant_count; i++)
		slots += device->tenants[i].slot_count;
	return used * slots > total * device->tenants[tenant].slot_count;
}

static void
forget_block(struct ofs_device *device, const struct ofs_chunk_state *state, uint32_t layer)
{
	ofs_device_after_event(device,
		ofs_core_block_forget(device->core, ofs_device_now_ns(device), state->tenant,
			&state->store_key, layer));
}

void
ofs_device_forget_chunk(struct ofs_device *device, uint32_t chunk,
	const struct ofs_chunk_state *state)
{
	uint32_t gone = 0;

	for (uint32_t layer = 0; layer < device->config.core.layer_count; layer++) {
		ofs_device_move_forget(device, &state->store_key, layer);
		if (ofs_store_delete(device->store, &state->store_key, layer) != 0)
			continue;
		gone++;
		/* Also evicts a staged copy that is not pinned, to free the chunk. */
		if (ofs_core_block_drop(device->core, ofs_device_now_ns(device), chunk, layer) == 0)
			ofs_device_act(device);
		forget_block(device, state, layer);
	}
	/* Blocks that the core takes for stored and that the store does not have, as after a failed
	 * write over an expired block, must be dropped: otherwise the chunk would always be the coldest
	 * and never be freed. */
	for (uint32_t layer = 0; gone < state->stored_layers && layer < device->config.core.layer_count;
		 layer++) {
		forget_block(device, state, layer);
	}
}

uint32_t
ofs_purge_coldest(struct ofs_device *device, uint32_t tenant, uint32_t chunks, uint64_t blocks,
	uint64_t keep_blocks)
{
	struct ofs_cold_list cold;
	struct ofs_chunk_state state;
	uint32_t count_max = chunks < COLD_MAX ? chunks : COLD_MAX, count = 0;
	bool often;

	cold.count = 0;
	for (uint32_t chunk = 0; chunk < device->config.core.chunk_max; chunk++)
		if (ofs_core_chunk_state(device->core, chunk, &state) == 0 && state.kept
			&& state.tenant == tenant && device->marks.entries[chunk].spared == 0)
			cold_add(device, &cold, count_max, chunk);
	cold_sort(&cold);
	often = cold.count > 0 && blocks > keep_blocks;
	for (; count < cold.count && blocks > keep_blocks; count++) {
		often = often && device->marks.entries[cold.chunks[count].chunk].named > 0;
		if (ofs_core_chunk_state(device->core, cold.chunks[count].chunk, &state) != 0)
			continue;
		ofs_device_forget_chunk(device, cold.chunks[count].chunk, &state);
		blocks -= state.stored_layers < blocks ? state.stored_layers : blocks;
	}
	for (uint32_t chunk = 0; often && chunk < device->config.core.chunk_max; chunk++)
		if (ofs_core_chunk_state(device->core, chunk, &state) == 0 && state.tenant == tenant
			&& device->marks.entries[chunk].named > 0)
			device->marks.entries[chunk].named--;
	return count;
}

bool
ofs_device_purge(struct ofs_device *device, uint32_t tenant, bool of_store, uint64_t blocks_max)
{
	struct ofs_chunks_held held[OFS_HELD_MAX];
	uint64_t total = of_store ? 0 : device->config.core.chunk_max;
	uint32_t victim, count;

	if (device->tenant_count > OFS_HELD_MAX || (of_store && ofs_store_refuses(device->store)))
		return false;
	ofs_device_chunks_held(device, held);
	for (uint32_t i = 0; of_store && i < device->tenant_count; i++)
		total += held[i].blocks;
	victim = choose(device, held, of_store);
	if (victim == OFS_NONE)
		return false;
	if (!is_over(device, victim, of_store ? held[victim].blocks : held[victim].chunks, total))
		victim = tenant;
	if (held[victim].kept == 0)
		return false;
	count = ofs_purge_coldest(device, victim, OFS_PURGE_BATCH,
		held[victim].blocks < blocks_max ? held[victim].blocks : blocks_max, 0);
	device->tenants[victim].purged += count;
	return count > 0;
}

void
ofs_device_keep_room(struct ofs_device *device, uint32_t tenant)
{
	uint64_t lacks = ofs_store_lacks(device->store), now_ns = ofs_device_now_ns(device);

	if (lacks > 0 && now_ns >= device->marks.room_ns
		&& !ofs_device_purge(device, tenant, true, lacks)) {
		device->marks.room_ns = now_ns + ROOM_RETRY_NS;
	}
}

uint32_t
ofs_device_purge_own(struct ofs_device *device, uint32_t tenant, uint32_t chunks, uint64_t blocks)
{
	uint32_t count = ofs_purge_coldest(device, tenant, chunks, blocks, 0);

	device->tenants[tenant].purged += count;
	return count;
}

/* A ticket is of one store, which its upper bits identify. After a move, the new store either has
 * nothing of what was deleted in the old one, or counts it among its own deletes. */
int
ofs_purge_wiped(struct ofs_device *device, uint32_t tenant, uint64_t *ticket, uint64_t *left)
{
	uint64_t store = (uint64_t)(device->stores_left & 0xffff) << 48;
	uint64_t turn = *ticket & 0xffffffffffffull;
	const struct ofs_move *move = &device->move;
	int rc;

	if (tenant >= device->tenant_count)
		return -EINVAL;
	*left = ofs_store_wiping(device->store, tenant);
	if (turn != 0 && (*ticket ^ turn) != store) {
		rc = *left == 0 ? 0 : -EAGAIN;
	} else {
		rc = ofs_store_wiped(device->store, tenant, &turn);
		*ticket = store | turn;
	}
	/* A move may switch over at any moment: the target's copies are deleted too. */
	if (move->step != OFS_STEP_NONE && move->step != OFS_STEP_CLOSE
		&& ofs_store_wiping(move->store, tenant) > 0) {
		*left += ofs_store_wiping(move->store, tenant);
		rc = -EAGAIN;
	}
	return rc;
}

static int
wiped(struct ofs_device *device, uint32_t tenant, uint64_t *ticket, uint64_t *left)
{
	return ofs_purge_wiped(device, tenant, ticket, left);
}

OFS_DEVICE_CALL(wiped, (uint32_t, tenant), (uint64_t *, ticket), (uint64_t *, left));

void
ofs_device_mark_chunks(struct ofs_device *device, const struct ofs_chunk_info *infos,
	uint32_t count, bool named)
{
	uint64_t now_ns = ofs_device_now_ns(device);

	for (uint32_t i = 0; i < count; i++) {
		uint32_t home = ofs_core_chunk_home(device->core, infos[i].chunk);
		struct ofs_chunk_mark *mark = &device->marks.entries[home];

		assert(home < device->config.core.chunk_max);
		/* A number that was reused since names another chunk. */
		if (!ofs_key_equal(&mark->key, &infos[i].store_key))
			*mark = (struct ofs_chunk_mark){.key = infos[i].store_key};
		else if (named && mark->named < NAMED_MAX)
			mark->named++;
		mark->used_ns = now_ns;
	}
}
