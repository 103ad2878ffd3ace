/*
 * device/purge.h: deletes kept chunks for room or on request.
 *
 * Model: belongs to the reactor's thread. A mark is valid for the chunk whose key it has: if the
 * chunk number was reused since, it is stale.
 */
#ifndef OFS_DEVICE_PURGE_H
#define OFS_DEVICE_PURGE_H

#include "device.h"

#include <stdbool.h>

#define OFS_PURGE_BATCH 64 /* per batch: other work waits meanwhile */
#define OFS_HELD_MAX 512   /* tenants that are compared by their use */

/* How warm a chunk is. */
struct ofs_chunk_mark {
	struct ofs_key key; /* of the marked chunk */
	uint64_t used_ns;   /* when a session last named it */
	uint32_t named;     /* how often named since, up to a few */
	uint32_t spared;    /* what asks for room names it */
};

struct ofs_marks {
	struct ofs_chunk_mark *entries; /* [chunk_max] */
	uint64_t room_ns;               /* before that, no purge for the store's room */
	uint32_t keep_next;             /* the next chunk to check: keep.c */
};

/* A tenant's use of the core's table and of the store. */
struct ofs_chunks_held {
	uint32_t chunks;
	uint32_t kept;  /* and not spared */
	uint32_t named; /* by open sessions; counted only for a single tenant */
	uint64_t blocks;
};

/* purge.c */
/* Makes room for `tenant`, in the store or the table of chunks: at most a batch of chunks, or until
 * `blocks_max` blocks are deleted. False: no room can be made. */
bool ofs_device_purge(struct ofs_device *device, uint32_t tenant, bool of_store,
	uint64_t blocks_max);
/* Before a write of `tenant`: purges what the store's room lacks, if anything may go. Without it
 * the cleaner moves the rest of segments that the next purge would have emptied. */
void ofs_device_keep_room(struct ofs_device *device, uint32_t tenant);
/* Deletes the tenant's coldest `chunks` chunks, or until `blocks` blocks are deleted; returns the
 * number of chunks. */
uint32_t ofs_device_purge_own(struct ofs_device *device, uint32_t tenant, uint32_t chunks,
	uint64_t blocks);
/* Deletes the tenant's coldest `chunks` chunks, at most a batch, until it has no more than
 * `keep_blocks` of its `blocks` in the store; returns the number of chunks. */
uint32_t ofs_purge_coldest(struct ofs_device *device, uint32_t tenant, uint32_t chunks,
	uint64_t blocks, uint64_t keep_blocks);
/* `held` [tenant_count] */
void ofs_device_chunks_held(const struct ofs_device *device, struct ofs_chunks_held *held);
/* Deletes all blocks of a kept chunk in the store, and evicts its staged ones. */
void ofs_device_forget_chunk(struct ofs_device *device, uint32_t chunk,
	const struct ofs_chunk_state *state);
/* No purge takes what an append names, be it of one content (`folded`), while `spared`. */
void ofs_device_spare(struct ofs_device *device, uint32_t session, uint32_t count, bool folded,
	const struct ofs_key *contents, bool spared);
/* Whether the drive has ended its part of what the tenant deleted before `ticket` was given: 0 or
 * -EAGAIN. `ticket` 0: gives one for all until now. `left`: copies to wipe, also of later ones. */
int ofs_purge_wiped(struct ofs_device *device, uint32_t tenant, uint64_t *ticket, uint64_t *left);
/* A session names them, from now on (`named`) or until now. */
void ofs_device_mark_chunks(struct ofs_device *device, const struct ofs_chunk_info *infos,
	uint32_t count, bool named);

#endif
