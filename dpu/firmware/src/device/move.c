/* The steps of a move, from its start to the close of the old store. See move.h. */
#include "internal.h"

#include <stdio.h>
#include <string.h>

/* ---- passes ---- */

static void
begin_pass(struct ofs_device *device)
{
	struct ofs_move *move = &device->move;
	struct ofs_store_stats stats;
	uint32_t sent = 0;

	for (uint32_t i = 0; i < device->writes.count; i++)
		sent += device->writes.entries[i].state == OFS_WRITE_SENT;
	ofs_store_stats_get(device->store, &stats);
	move->cursor = 0;
	move->pass_found = 0;
	move->pass_done = false;
	move->pass_moved = stats.blocks_moved;
	move->pass_quiet = sent == 0 && device->archive.flying == 0;
	move->status.blocks_total = stats.blocks;
	move->status.passes++;
}

/* A pass has ended: start another, hold writes back, or everything is copied. */
static void
end_pass(struct ofs_device *device)
{
	struct ofs_move *move = &device->move;
	struct ofs_store_stats stats;

	assert(move->step == OFS_STEP_COPY || move->step == OFS_STEP_LAST);
	ofs_store_stats_get(device->store, &stats);
	if (move->step == OFS_STEP_COPY) {
		if (move->pass_found <= OFS_MOVE_FEW || move->status.passes >= OFS_MOVE_PASSES_MAX) {
			move->step = OFS_STEP_LAST;
			move->held_at_ns = ofs_device_now_ns(device);
			/* Puts count their whole deadline from their arrival: they must not miss it here. */
			move->until_ns = move->held_at_ns + device->config.io_timeout_ns / 2;
		}
	} else if (move->pass_quiet && move->pass_found == 0 && device->archive.flying == 0
		&& stats.blocks_moved == move->pass_moved) {
		/* A pass misses blocks that the cleaner moves from a place not yet visited to a visited
		 * one. */
		move->step = OFS_STEP_SYNC;
		move->tries = 0;
		return;
	}
	begin_pass(device);
}

/* ---- the switch ---- */

static void *
record_of(const struct ofs_move *move)
{
	return move->copies[OFS_MOVE_COPIES - 1].record
		+ (move->copies[1].record - move->copies[0].record);
}

/* From here on the other store is the device's. */
static void
change_places(struct ofs_device *device)
{
	struct ofs_move *move = &device->move;
	struct ofs_storage *storage = device->storage;
	struct ofs_store *store = device->store;

	/* Everything is copied, and nothing was written since. */
	assert(move->step == OFS_STEP_RECORD || move->step == OFS_STEP_ERASE);
	assert(ofs_move_copies_idle(move));
	device->storage = move->storage;
	device->store = move->store;
	device->config.storage = move->config;
	device->stores_left++;
	move->storage = storage;
	move->store = store;
	move->step = OFS_STEP_CLOSE;
	move->status.switched = 1;
	move->status.held_ns = ofs_device_now_ns(device) - move->held_at_ns;
	ofs_store_rest(store);
	ofs_device_note_storage(device, ofs_storage_warning(device->storage));
	device->reactor.store_tick_ns = 0;
}

/*
 * The forward record's content is unknown, and the old device accepts no write. Everything
 * acknowledged is in the new store: the device switches to it and reports `unrecorded`.
 */
static void
change_unrecorded(struct ofs_device *device)
{
	struct ofs_move *move = &device->move;

	char text[sizeof(device->names.texts[0].warning)];

	change_places(device);
	move->status.unrecorded = 1;
	snprintf(text, sizeof(text),
		"the storage changed, and the old one could not record it: set storage.path = %s before "
		"the next start",
		device->config.storage.path);
	ofs_device_note_storage(device, text);
}

static void
retry_or_erase(struct ofs_device *device)
{
	struct ofs_move *move = &device->move;

	if (++move->tries < OFS_MOVE_TRIES)
		return;
	if (move->step == OFS_STEP_ERASE) {
		change_unrecorded(device);
		return;
	}
	move->step = OFS_STEP_ERASE;
	move->tries = 0;
}

void
ofs_device_move_done(struct ofs_device *device, uint32_t user, int rc)
{
	struct ofs_move *move = &device->move;

	if (user < OFS_MOVE_COPIES) {
		ofs_move_copy_done(device, user, rc);
		return;
	}
	move->sent = false;
	if (move->step == OFS_STEP_CLOSE) {
		if (user == OFS_MOVE_USER_RECORD && rc == 0 && move->status.switched)
			move->status.unrecorded = 0; /* the record was written, if late */
	} else if (move->step == OFS_STEP_SYNC) {
		if (rc == 0)
			move->step = OFS_STEP_RECORD;
		else if (++move->tries >= OFS_MOVE_TRIES)
			ofs_move_fail(device, rc, "the target cannot be synced (%s)", strerror(-rc));
		move->tries = rc == 0 ? 0 : move->tries;
	} else if (rc != 0) {
		retry_or_erase(device);
	} else if (move->step == OFS_STEP_RECORD) {
		change_places(device);
	} else {
		ofs_move_fail(device, -EIO, "the present storage cannot record where its blocks go");
	}
}

/* Syncs, then records; false if the store is busy. */
static bool
send(struct ofs_device *device)
{
	struct ofs_move *move = &device->move;
	uint64_t user = (uint64_t)OFS_IO_MOVE << 56;
	int rc;

	if (move->sent)
		return false;
	if (move->step == OFS_STEP_SYNC) {
		rc = ofs_store_sync(move->store, user | OFS_MOVE_USER_SYNC);
	} else {
		if (move->step == OFS_STEP_RECORD) {
			ofs_store_forward_fill(device->store, move->store, &move->config,
				ofs_clock_unix_s(&device->clock), record_of(move));
		} else {
			memset(record_of(move), 0, ofs_store_forward_size_bytes(device->store));
		}
		user |= move->step == OFS_STEP_RECORD ? OFS_MOVE_USER_RECORD : OFS_MOVE_USER_ERASE;
		rc = ofs_store_forward_write(device->store, record_of(move), user);
	}
	if (rc == -EAGAIN)
		return false;
	move->sent = rc == 0;
	if (rc != 0)
		ofs_device_move_done(device, OFS_MOVE_USER_ERASE, rc);
	return true;
}

/* Held back for too long. Before the record it is safe to give up; after it, going back may lose
 * what is acknowledged from now on. */
static void
give_up(struct ofs_device *device)
{
	struct ofs_move *move = &device->move;

	if (move->step < OFS_STEP_RECORD
		|| (move->step == OFS_STEP_RECORD && !move->sent && move->tries == 0))
		ofs_move_fail(device, -ETIMEDOUT, "the stores still had I/O in flight at the deadline");
	else
		change_unrecorded(device);
}

/* Nothing of the other store is in flight any more. */
static bool
try_close(struct ofs_device *device)
{
	struct ofs_move *move = &device->move;

	ofs_move_copies_drop(move);
	if (move->storage->stats.in_flight > 0 || !ofs_move_copies_idle(move) || move->sent)
		return false;
	ofs_move_close_other(device);
	ofs_move_free_memory(device);
	move->step = OFS_STEP_NONE;
	move->status.state = move->status.switched ? OFS_MOVE_DONE : OFS_MOVE_FAILED;
	return true;
}

bool
ofs_device_move_turn(struct ofs_device *device, bool served)
{
	struct ofs_move *move = &device->move;
	bool busy = served;

	if (move->step == OFS_STEP_CLOSE)
		return busy || try_close(device);
	if (move->status.passes == 0)
		begin_pass(device);
	if (ofs_device_move_holds(device) && ofs_device_now_ns(device) >= move->until_ns) {
		give_up(device);
		return true;
	}
	if (move->step == OFS_STEP_COPY || move->step == OFS_STEP_LAST) {
		busy |= ofs_move_copies_step(device);
		if (move->step != OFS_STEP_CLOSE && move->pass_done && ofs_move_copies_idle(move)) {
			end_pass(device);
			busy = true;
		}
	} else {
		busy |= send(device);
	}
	return busy;
}

static int
move_status_get(struct ofs_device *device, struct ofs_move_status *status)
{
	*status = device->move.status;
	return 0;
}

OFS_DEVICE_CALL(move_status_get, (struct ofs_move_status *, status));
