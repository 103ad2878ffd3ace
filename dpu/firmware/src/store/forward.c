/*
 * Handing a store's blocks over to another store: puts that keep an expiry, a sync, and the record
 * on the old device that says where its blocks are now. The record is one write of a few logical
 * blocks with a checksum: if it is whole, the other store has taken over; otherwise it counts as
 * absent.
 */
#include "internal.h"

#include <assert.h>
#include <string.h>

_Static_assert(OFS_STORE_FORWARD_OFFSET + OFS_STORE_FORWARD_LBA_MAX <= OFS_STORE_COPY_OFFSET,
	"the record lies between the superblocks");

uint32_t
ofs_store_forward_size_bytes(const struct ofs_store *store)
{
	uint32_t lba = store->storage->lba_size_bytes;

	return (uint32_t)(sizeof(struct ofs_store_forward) + lba - 1) / lba * lba;
}

void
ofs_store_forward_fill(const struct ofs_store *store, const struct ofs_store *next,
	const struct ofs_storage_config *where, uint64_t now_s, void *lbas)
{
	struct ofs_store_forward *forward = lbas;

	memset(lbas, 0, ofs_store_forward_size_bytes(store));
	forward->magic = OFS_FORWARD_MAGIC;
	forward->uuid = store->super.uuid;
	forward->next = next->super.uuid;
	forward->size_bytes = where->size_bytes;
	forward->moved_s = now_s;
	memcpy(forward->backend, where->backend, sizeof(forward->backend));
	memcpy(forward->inner, where->inner, sizeof(forward->inner));
	memcpy(forward->path, where->path, sizeof(forward->path));
	forward->checksum = ofs_checksum(forward, offsetof(struct ofs_store_forward, checksum));
}

static int
submit(struct ofs_store *store, int io, void *lbas, uint64_t user)
{
	struct ofs_store_op *op = ofs_op_take(store, &store->op_free);
	struct ofs_io request = {.op = (uint16_t)io};
	int rc;

	if (op == NULL)
		return -EAGAIN;
	op->user = user;
	op->length = lbas == NULL ? 0 : ofs_store_forward_size_bytes(store);
	op->kind = OFS_STORE_FORWARD;
	request.user = ofs_op_index(store, op);
	if (lbas != NULL) {
		request.offset = OFS_STORE_FORWARD_OFFSET;
		request.buffer = lbas;
		request.size_bytes = op->length;
		request.flags = OFS_STORAGE_DURABLE;
	}
	rc = ofs_storage_submit(store->storage, &request);
	if (rc != 0) {
		ofs_op_give(store, op);
		return rc;
	}
	store->flying++;
	return 0;
}

int
ofs_store_forward_write(struct ofs_store *store, void *lbas, uint64_t user)
{
	if (store->storage->lba_size_bytes > OFS_STORE_FORWARD_LBA_MAX)
		return -EINVAL;
	return submit(store, OFS_STORAGE_WRITE, lbas, user);
}

int
ofs_store_sync(struct ofs_store *store, uint64_t user)
{
	return submit(store, OFS_STORAGE_SYNC, NULL, user);
}

void
ofs_forward_done(struct ofs_store *store, struct ofs_store_op *op, int64_t result)
{
	int32_t rc = result < 0 ? (int32_t)result : ofs_store_rc(result, op->length);

	store->stats.io_errors += rc != 0;
	ofs_op_ready(store, op, rc);
}

int
ofs_store_forwarded(struct ofs_store *store, struct ofs_store_forward *forward)
{
	int rc = 0;

	memset(forward, 0, sizeof(*forward));
	if (store->storage->lba_size_bytes > OFS_STORE_FORWARD_LBA_MAX)
		return 0;
	for (int tries = 0; tries < OFS_READ_TRIES; tries++) {
		rc = ofs_store_io(store, OFS_STORAGE_READ, OFS_STORE_FORWARD_OFFSET, store->scratch,
			ofs_store_forward_size_bytes(store));
		if (rc == -ETIMEDOUT)
			return rc;
		if (rc != 0)
			continue;
		memcpy(forward, store->scratch, sizeof(*forward));
		if (forward->magic == OFS_FORWARD_MAGIC
			&& forward->checksum
				== ofs_checksum(forward, offsetof(struct ofs_store_forward, checksum))) {
			return ofs_key_equal(&forward->uuid, &store->super.uuid);
		}
		if (forward->magic == 0)
			return 0; /* nothing was ever written here; else the read may have been corrupted */
	}
	return rc;
}

int
ofs_store_renew(struct ofs_store *store, const struct ofs_key *store_key, uint32_t layer,
	uint64_t expire_s)
{
	uint32_t found = ofs_store_index_find(store, store_key, layer);

	if (found == OFS_NONE)
		return -ENOENT;
	store->records[found].expire_s = expire_s;
	return 0;
}

uint64_t
ofs_store_segments_needed(const struct ofs_store *store, uint32_t *lanes)
{
	uint64_t needed = store->config.reserve_segments + 1u;

	memset(lanes, 0, store->lane_count * sizeof(*lanes));
	for (uint32_t i = 0; i < store->segment_count; i++)
		if (store->segments[i].live > 0)
			lanes[ofs_lane_of(store, i)] += store->segments[i].live;
	for (uint32_t i = 0; i < store->lane_count; i++)
		needed += (lanes[i] + store->records_per_segment - 1u) / store->records_per_segment;
	return needed;
}

uint32_t
ofs_store_lane_count(const struct ofs_store *store)
{
	return store->lane_count;
}

void
ofs_store_rest(struct ofs_store *store)
{
	store->closing = 1;
}
