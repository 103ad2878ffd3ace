/*
 * The copies of a move: each copies one block. The block is read from the old store, which checks
 * it; written to the new one; and read back from there, which checks it again, and its checksum
 * must equal the one read first. What cannot begin because a store is busy begins at a later turn.
 * A block that fails its check in the old store is dropped there too: a miss, as for any host.
 */
#include "internal.h"

#include <string.h>

static uint64_t
user_of(uint32_t index)
{
	return ((uint64_t)OFS_IO_MOVE << 56) | index;
}

static const struct ofs_trailer *
trailer_of(const struct ofs_device *device, const struct ofs_copy *copy)
{
	uint32_t payload_size_bytes = device->config.store.payload_size_bytes;

	return (const struct ofs_trailer *)(copy->record + payload_size_bytes);
}

static bool
stands(const struct ofs_device *device, const struct ofs_copy *copy)
{
	return ofs_store_position(device->store, &copy->entry.store_key, copy->entry.layer)
		!= UINT64_MAX;
}

/* The block is copied; if it was deleted meanwhile, the copy is deleted too. */
static void
finish(struct ofs_device *device, struct ofs_copy *copy, bool copied)
{
	struct ofs_move *move = &device->move;

	copy->state = OFS_COPY_FREE;
	if (!stands(device, copy))
		(void)ofs_store_delete(move->store, &copy->entry.store_key, copy->entry.layer);
	else
		move->status.blocks_copied += copied;
}

/* The block failed its check, and the old store has dropped it. */
static void
lose(struct ofs_device *device, struct ofs_copy *copy)
{
	device->status.check_failures++;
	device->move.status.blocks_lost++;
	ofs_device_after_event(device,
		ofs_core_block_forget(device->core, ofs_device_now_ns(device), copy->entry.tenant,
			&copy->entry.store_key, copy->entry.layer));
	copy->state = OFS_COPY_FREE;
}

/* Submits the next I/O of the copy; its state advances once the store has taken it. */
static int
begin(struct ofs_device *device, uint32_t index, uint64_t now_s)
{
	struct ofs_move *move = &device->move;
	struct ofs_copy *copy = &move->copies[index];
	const struct ofs_store_entry *entry = &copy->entry;
	struct ofs_store *from = copy->state == OFS_COPY_TO_READ ? device->store : move->store;

	if (copy->state == OFS_COPY_TO_WRITE) {
		return ofs_store_put_until(move->store, entry->tenant, &entry->store_key, entry->layer,
			copy->record, user_of(index), entry->expire_s, now_s);
	}
	return ofs_store_get(from, &entry->store_key, entry->layer, copy->record, user_of(index),
		now_s);
}

static bool
push(struct ofs_device *device, uint32_t index, uint64_t now_s)
{
	struct ofs_copy *copy = &device->move.copies[index];
	bool reads_old = copy->state == OFS_COPY_TO_READ;
	int rc;

	if (!stands(device, copy)) {
		finish(device, copy, false);
		return true;
	}
	rc = begin(device, index, now_s);
	if (rc == -EAGAIN)
		return false;
	if (rc == 0) {
		copy->state++;
		copy->deadline_ns = ofs_device_now_ns(device) + device->config.io_timeout_ns;
	} else if (rc == -ENOENT) {
		finish(device, copy, false); /* expired, in either store */
	} else {
		copy->state = OFS_COPY_FREE;
		ofs_move_fail(device, rc, "%s of a block is refused (%s)",
			reads_old ? "the read" : "the copy", strerror(-rc));
	}
	return true;
}

/* Takes the next block of the index that the target does not have; false at the end of the pass. */
static bool
look(struct ofs_device *device, uint64_t now_s)
{
	struct ofs_move *move = &device->move;
	struct ofs_store_entry entry;

	for (int i = 0; i < OFS_MOVE_SCAN; i++) {
		uint32_t free = 0;

		while (free < OFS_MOVE_COPIES && move->copies[free].state != OFS_COPY_FREE)
			free++;
		if (free == OFS_MOVE_COPIES)
			return true;
		if (ofs_store_scan(device->store, &move->cursor, &entry, 1) == 0)
			return false;
		if ((entry.expire_s != 0 && entry.expire_s <= now_s)
			|| ofs_store_renew(move->store, &entry.store_key, entry.layer, entry.expire_s) == 0) {
			continue;
		}
		move->pass_found++;
		move->copies[free].entry = entry;
		move->copies[free].tries = 0;
		move->copies[free].state = OFS_COPY_TO_READ;
	}
	return true;
}

bool
ofs_move_copies_step(struct ofs_device *device)
{
	struct ofs_move *move = &device->move;
	uint64_t now_ns = ofs_device_now_ns(device);
	uint64_t now_s = ofs_clock_unix_s(&device->clock);
	uint32_t step = move->step;
	bool busy = false;

	for (int i = 0; i < OFS_MOVE_LOOKS && !move->pass_done; i++)
		move->pass_done = !look(device, now_s);
	for (uint32_t i = 0; i < OFS_MOVE_COPIES && move->step == step; i++) {
		struct ofs_copy *copy = &move->copies[i];

		if (ofs_move_copy_waits(copy))
			busy |= push(device, i, now_s);
		else if (copy->state != OFS_COPY_FREE && now_ns >= copy->deadline_ns)
			ofs_move_fail(device, -ETIMEDOUT, "%s does not answer",
				copy->state == OFS_COPY_READING ? "the present storage" : "the target");
	}
	return busy;
}

static void
try_again(struct ofs_device *device, struct ofs_copy *copy, uint32_t state, int rc)
{
	const char *what = copy->state == OFS_COPY_READING ? "the present storage cannot be read"
		: copy->state == OFS_COPY_WRITING              ? "the target cannot be written"
													   : "the target gives other bytes back";

	copy->state = state;
	if (++copy->tries >= OFS_MOVE_TRIES || rc == -ENOSPC) {
		copy->state = OFS_COPY_FREE;
		ofs_move_fail(device, rc, "%s (%s)", what, strerror(-rc));
	}
}

void
ofs_move_copy_done(struct ofs_device *device, uint32_t index, int rc)
{
	struct ofs_move *move = &device->move;
	struct ofs_copy *copy = &move->copies[index];
	uint64_t checksum = trailer_of(device, copy)->checksum;

	assert(index < OFS_MOVE_COPIES && copy->state != OFS_COPY_FREE);
	if (move->step != OFS_STEP_COPY && move->step != OFS_STEP_LAST) {
		copy->state = OFS_COPY_FREE; /* the move has failed: only its memory was needed */
		return;
	}
	switch ((enum ofs_copy_state)copy->state) {
	case OFS_COPY_READING:
		copy->checksum = checksum;
		if (rc == -EBADMSG)
			lose(device, copy);
		else if (rc != 0)
			try_again(device, copy, OFS_COPY_TO_READ, rc);
		else
			copy->state = OFS_COPY_TO_WRITE;
		break;
	case OFS_COPY_WRITING:
		if (rc != 0)
			try_again(device, copy, OFS_COPY_TO_WRITE, rc);
		else
			copy->state = OFS_COPY_TO_CHECK;
		break;
	case OFS_COPY_CHECKING:
		if (rc == -EIO)
			try_again(device, copy, OFS_COPY_TO_CHECK, rc);
		else if (rc != 0 || checksum != copy->checksum)
			try_again(device, copy, OFS_COPY_TO_READ, -EBADMSG);
		else
			finish(device, copy, true);
		break;
	case OFS_COPY_FREE:
	case OFS_COPY_TO_READ:
	case OFS_COPY_TO_WRITE:
	case OFS_COPY_TO_CHECK:
		assert(!"an I/O ended that this copy had not begun");
	}
}
