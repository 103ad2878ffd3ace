/*
 * keep.c: drops kept chunks that no session has named for `policy.keep_minutes`.
 *
 * Model: keeping a chunk occupies the drive; after `policy.keep_minutes` without a session that
 * names it, that costs more than computing it again. The daemon's loop calls this periodically;
 * each call walks a part of the table of chunks, and all of it within a minute or two. For a chunk
 * not named since the start, the time counts from the start. As with a purge, the core is notified
 * of lost blocks. Belongs to the reactor's thread.
 */
#include "internal.h"

#define LOOK_MIN 4096 /* entries of the table in one turn, or its LOOK_PART-th part if larger */
#define LOOK_PART 128
#define DROP_MAX 256 /* chunks in one turn: other work waits meanwhile */
#define MINUTE_NS 60000000000ull

static uint64_t
named_ns(const struct ofs_device *device, uint32_t chunk, const struct ofs_chunk_state *state)
{
	const struct ofs_chunk_mark *mark = &device->marks.entries[chunk];

	return ofs_key_equal(&mark->key, &state->store_key) ? mark->used_ns : device->opened_ns;
}

static int
drop_idle(struct ofs_device *device, uint32_t *dropped)
{
	uint64_t keep_ns = device->config.policy.keep_minutes * MINUTE_NS;
	uint32_t chunk_max = device->config.core.chunk_max;
	uint32_t part = chunk_max / LOOK_PART > LOOK_MIN ? chunk_max / LOOK_PART : LOOK_MIN;
	uint64_t now_ns = ofs_device_now_ns(device);

	*dropped = 0;
	if (keep_ns == 0)
		return 0;
	for (uint32_t looked = 0; looked < part && looked < chunk_max && *dropped < DROP_MAX;
		 looked++) {
		uint32_t chunk = device->marks.keep_next;
		struct ofs_chunk_state state;

		device->marks.keep_next = (chunk + 1) % chunk_max;
		if (ofs_core_chunk_state(device->core, chunk, &state) != 0 || !state.kept
			|| now_ns - named_ns(device, chunk, &state) < keep_ns) {
			continue;
		}
		ofs_device_forget_chunk(device, chunk, &state);
		++*dropped;
	}
	device->status.chunks_idle += *dropped;
	return 0;
}

OFS_DEVICE_CALL(drop_idle, (uint32_t *, dropped));
