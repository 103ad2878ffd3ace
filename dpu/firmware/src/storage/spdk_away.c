/*
 * Drives that are away: targets that died, hang or came back, and the I/Os that wait for them.
 *
 * Model: a dead target shows on its queue pair or its admin queue, a hung one by an I/O past its
 * deadline. Either way the connection is cut, after which the target can no longer write to our
 * memory, and the link reconnects meanwhile. I/O that was in flight is sent once more if the drive
 * is back in time, which its caller does not notice; otherwise it ends with -EIO (died) or
 * -ETIMEDOUT (hung). A local drive cannot be cut off: it may write to a buffer as long as it has
 * power, so its I/Os stay in flight and the caller's own deadline counts (storage.h).
 */
#include "spdk_queue.h"

enum { AWAY_IDLE_NS = 1000000000 };

static void
cut(struct ofs_spdk *spdk, uint32_t number)
{
	struct ofs_spdk_drive *drive = &spdk->link->drives[number];

	spdk->cutting = 1;
	/* This comes first: freeing the queue pair asks the target to delete it, and that may hang. */
	if (drive->gone || drive->id.trtype != SPDK_NVME_TRANSPORT_PCIE)
		spdk_nvme_ctrlr_fail(drive->ctrlr);
	spdk_nvme_ctrlr_free_io_qpair(drive->qpair);
	drive->qpair = NULL;
	for (uint32_t i = 0; i < spdk->piece_count && drive->out > 0; i++)
		if (spdk->pieces[i].used && spdk->pieces[i].drive == number)
			ofs_spdk_piece_end(&spdk->pieces[i], 0, 1);
	spdk->cutting = 0;
	drive->gone = 0;
	if (drive->unsynced)
		drive->sync_lost = 1;
	drive->unsynced = 0;
}

static void
lose(struct ofs_spdk *spdk, uint32_t number, int rc, uint64_t now_ns)
{
	struct ofs_spdk_drive *drive = &spdk->link->drives[number];

	drive->lost_rc = rc;
	drive->lost_ns = now_ns;
	cut(spdk, number);
	ofs_spdk_link_ask(spdk->link, drive);
}

void
ofs_spdk_cut_all(struct ofs_spdk *spdk)
{
	for (uint32_t i = 0; i < spdk->link->drive_count; i++)
		if (atomic_load(&spdk->link->drives[i].state) == SPDK_UP) {
			cut(spdk, i);
			atomic_store(&spdk->link->drives[i].state, SPDK_CLOSED);
		}
}

/* The errno with which a waiting slot must end now; 0: it may go on waiting. */
static int
overdue(const struct ofs_spdk *spdk, const struct ofs_spdk_slot *slot, uint64_t now_ns)
{
	int late = spdk->timeout_ns > 0 && now_ns - slot->began_ns > spdk->timeout_ns;

	for (uint32_t i = 0; i < spdk->link->drive_count; i++) {
		const struct ofs_spdk_drive *drive = &spdk->link->drives[i];
		int state = atomic_load(&drive->state);

		if (state == SPDK_FOREIGN)
			return -EIO;
		/* After it has been away for that long, I/Os no longer wait for it. */
		if (state != SPDK_UP
			&& (late || (spdk->timeout_ns > 0 && now_ns - drive->lost_ns > spdk->timeout_ns)))
			return drive->lost_rc;
	}
	return late ? -ETIMEDOUT : 0;
}

/* A slot has pieces in flight past the deadline: their drives hang. */
static void
cut_who_hangs(struct ofs_spdk *spdk, uint64_t now_ns)
{
	for (uint32_t i = 0; i < spdk->piece_count; i++) {
		const struct ofs_spdk_piece *piece = &spdk->pieces[i];
		uint32_t number = piece->drive;

		if (piece->used && now_ns - spdk->slots[piece->slot].began_ns > spdk->timeout_ns
			&& spdk->link->drives[number].id.trtype != SPDK_NVME_TRANSPORT_PCIE)
			lose(spdk, number, -ETIMEDOUT, now_ns);
	}
}

static void
look_at_drive(struct ofs_spdk *spdk, uint32_t number, uint64_t now_ns)
{
	struct ofs_spdk_drive *drive = &spdk->link->drives[number];
	int state = atomic_load_explicit(&drive->state, memory_order_acquire);

	if (state == SPDK_READY) {
		ofs_spdk_chunks_give(spdk, number);
		atomic_store(&drive->state, SPDK_UP);
	} else if (state == SPDK_UP
		&& (drive->gone || spdk_nvme_ctrlr_process_admin_completions(drive->ctrlr) < 0)) {
		drive->gone = 1;
		lose(spdk, number, -EIO, now_ns);
	}
}

void
ofs_spdk_tick(struct ofs_spdk *spdk, uint64_t now_ns)
{
	int away = 0;

	if (now_ns < spdk->tick_ns)
		return;
	for (uint32_t i = 0; i < spdk->link->drive_count; i++) {
		look_at_drive(spdk, i, now_ns);
		away |= atomic_load(&spdk->link->drives[i].state) != SPDK_UP;
	}
	if (spdk->timeout_ns > 0)
		cut_who_hangs(spdk, now_ns);
	for (int32_t i = spdk->wait_first; i != SPDK_NONE; i = spdk->slots[i].next)
		if (spdk->slots[i].rc == 0)
			spdk->slots[i].rc = overdue(spdk, &spdk->slots[i], now_ns);
	spdk->tick_ns = now_ns + (away || spdk->base.stats.in_flight > 0 ? SPDK_LOOK_NS : AWAY_IDLE_NS);
}
