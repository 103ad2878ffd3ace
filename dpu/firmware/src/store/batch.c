/*
 * Blocking I/O for open and close; nothing else in the store blocks. A simulated clock is moved to
 * the next completion, since nothing else moves it meanwhile.
 */
#include "clock_wait.h"
#include "internal.h"

#include <string.h>

enum { DEPTH_MAX = 64, IDLE_SPINS_MAX = 200 };

#define PATIENCE_NS 10000000000ull /* longer than a device's own retries */
#define NAP_NS 1000000ull

int
ofs_store_wait(struct ofs_store *store, struct ofs_patience *patience)
{
	struct ofs_storage *storage = store->storage;
	uint64_t due_ns = storage->ops->due_ns(storage);
	uint64_t now_ns = ofs_clock_now_ns(storage->clock);
	uint64_t until_ns;
	int fd;

	if (ofs_clock_is_sim(storage->clock)) {
		if (due_ns == UINT64_MAX)
			return -ETIMEDOUT;
		if (due_ns > now_ns)
			ofs_clock_advance_to(storage->clock, due_ns);
		return 0;
	}
	if (patience->idle++ == 0)
		patience->since_ns = now_ns;
	else if (now_ns - patience->since_ns > PATIENCE_NS)
		return -ETIMEDOUT;
	fd = storage->ops->wait_fd(storage);
	if (patience->idle > IDLE_SPINS_MAX) {
		until_ns = now_ns + NAP_NS;
		(void)ofs_clock_wait(storage->clock, &fd, 1, due_ns < until_ns ? due_ns : until_ns);
	}
	return 0;
}

int
ofs_store_io(struct ofs_store *store, int io, uint64_t offset, void *buffer, uint32_t size_bytes)
{
	struct ofs_io request = {
		.offset = offset,
		.buffer = buffer,
		.size_bytes = size_bytes,
		.op = (uint16_t)io,
		.flags = io == OFS_STORAGE_WRITE ? OFS_STORAGE_DURABLE : 0,
	};
	struct ofs_patience patience = {0};
	struct ofs_io_done done;
	int rc = ofs_storage_submit(store->storage, &request);

	if (rc != 0)
		return rc;
	store->flying++;
	while (ofs_storage_poll(store->storage, &done, 1) == 0) {
		rc = ofs_store_wait(store, &patience);
		if (rc != 0)
			return rc;
	}
	store->flying--;
	return ofs_store_rc(done.result, size_bytes);
}

struct slot {
	uint64_t offset;
	uint32_t item;
	uint32_t tries;
	uint8_t flying;
};

static int
send(struct ofs_store *store, const struct ofs_batch *batch, struct slot *slots, uint32_t i)
{
	struct ofs_io request = {
		.user = i,
		.offset = slots[i].offset,
		.size_bytes = batch->size_bytes,
		.buffer = store->scratch + (size_t)i * batch->size_bytes,
		.op = OFS_STORAGE_READ,
	};
	int rc = ofs_storage_submit(store->storage, &request);

	if (rc == 0) {
		slots[i].tries++;
		slots[i].flying = 1;
		store->flying++;
	}
	return rc;
}

/* Fills free slots, starting with reads to repeat. 0 or the device's refusal. */
static int
fill(struct ofs_store *store, const struct ofs_batch *batch, struct slot *slots, int *more)
{
	for (uint32_t i = 0; i < batch->depth; i++) {
		int rc;

		if (slots[i].flying)
			continue;
		if (slots[i].item == OFS_NONE) {
			*more = *more && batch->next(store, batch->context, &slots[i].item, &slots[i].offset);
			if (!*more) {
				slots[i].item = OFS_NONE;
				continue;
			}
			slots[i].tries = 0;
		}
		rc = send(store, batch, slots, i);
		if (rc == -EAGAIN)
			return 0;
		if (rc != 0)
			return rc;
	}
	return 0;
}

static void
take(struct ofs_store *store, const struct ofs_batch *batch, struct slot *slots,
	const struct ofs_io_done *done)
{
	struct slot *slot = &slots[done->user];
	const uint8_t *bytes = store->scratch + (size_t)done->user * batch->size_bytes;
	int last = slot->tries >= OFS_READ_TRIES;
	int failed = done->result != (int64_t)batch->size_bytes;

	slot->flying = 0;
	store->flying--;
	if (failed) {
		store->stats.io_errors++;
		if (!last)
			return;
	}
	if (!batch->seen(store, batch->context, slot->item, failed ? NULL : bytes, last) || last)
		slot->item = OFS_NONE;
}

static int
empty(const struct slot *slots)
{
	for (int i = 0; i < DEPTH_MAX; i++)
		if (slots[i].item != OFS_NONE)
			return 0;
	return 1;
}

int
ofs_batch_read(struct ofs_store *store, const struct ofs_batch *shape)
{
	struct ofs_batch batch = *shape;
	struct slot slots[DEPTH_MAX];
	struct ofs_io_done done[DEPTH_MAX];
	struct ofs_patience patience = {0};
	int more = 1;
	int count;
	int rc;

	memset(slots, 0, sizeof(slots));
	batch.depth = (uint32_t)(store->scratch_size_bytes / batch.size_bytes);
	batch.depth = batch.depth < DEPTH_MAX ? batch.depth : DEPTH_MAX;
	for (int i = 0; i < DEPTH_MAX; i++)
		slots[i].item = OFS_NONE;
	for (;;) {
		rc = fill(store, &batch, slots, &more);
		if (rc != 0 || (!more && store->flying == 0 && empty(slots)))
			return rc;
		count = ofs_storage_poll(store->storage, done, DEPTH_MAX);
		for (int i = 0; i < count; i++)
			take(store, &batch, slots, &done[i]);
		if (count > 0)
			patience.idle = 0;
		else if (ofs_store_wait(store, &patience) != 0)
			return -ETIMEDOUT;
	}
}
