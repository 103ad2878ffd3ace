/* Slots, pieces, and the meaning of NVMe status codes (spdk_queue.h has the model). */
#include "spdk_queue.h"

#include <assert.h>
#include <spdk/env.h>
#include <string.h>

/* As the kernel maps it (drivers/nvme/host/core.c, block/blk-core.c), so that a caller sees the
 * errno that io_uring would return. */
static int
errno_of(const struct spdk_nvme_cpl *cpl)
{
	uint8_t code = cpl->status.sc;

	if (!spdk_nvme_cpl_is_error(cpl))
		return 0;
	if (cpl->status.sct == SPDK_NVME_SCT_MEDIA_ERROR) {
		if (code == SPDK_NVME_SC_GUARD_CHECK_ERROR
			|| code == SPDK_NVME_SC_APPLICATION_TAG_CHECK_ERROR
			|| code == SPDK_NVME_SC_REFERENCE_TAG_CHECK_ERROR)
			return -EILSEQ;
		return -ENODATA;
	}
	if (cpl->status.sct == SPDK_NVME_SCT_COMMAND_SPECIFIC
		&& code == SPDK_NVME_SC_ATTEMPTED_WRITE_TO_RO_RANGE)
		return -ENODATA;
	if (cpl->status.sct != SPDK_NVME_SCT_GENERIC)
		return -EIO;
	switch (code) {
	case SPDK_NVME_SC_CAPACITY_EXCEEDED:
		return -ENOSPC;
	case SPDK_NVME_SC_LBA_OUT_OF_RANGE:
		return -EREMOTEIO;
	case SPDK_NVME_SC_RESERVATION_CONFLICT:
		return -EBADE;
	case SPDK_NVME_SC_INVALID_OPCODE:
	case SPDK_NVME_SC_INVALID_FIELD:
	case SPDK_NVME_SC_INVALID_NAMESPACE_OR_FORMAT:
		return -EOPNOTSUPP;
	default:
		return -EIO;
	}
}

static int
chunk_take(struct ofs_spdk *spdk, uint32_t drive)
{
	for (int word = 0; word < SPDK_CHUNKS / 64; word++) {
		if (spdk->chunk_used[word] != UINT64_MAX) {
			int bit = __builtin_ctzll(~spdk->chunk_used[word]);

			spdk->chunk_used[word] |= 1ull << bit;
			spdk->chunk_owner[word * 64 + bit] = (uint8_t)drive;
			return word * 64 + bit;
		}
	}
	return SPDK_NONE;
}

static void
chunk_give(struct ofs_spdk *spdk, int32_t chunk)
{
	spdk->chunk_used[chunk / 64] &= ~(1ull << (chunk % 64));
}

void
ofs_spdk_chunks_give(struct ofs_spdk *spdk, uint32_t drive)
{
	for (int32_t chunk = 0; spdk->chunks != NULL && chunk < SPDK_CHUNKS; chunk++)
		if (spdk->chunk_owner[chunk] == drive)
			chunk_give(spdk, chunk);
}

static uint8_t *
chunk_at(const struct ofs_spdk *spdk, int32_t chunk)
{
	return spdk->chunks + (size_t)chunk * SPDK_CHUNK_BYTES;
}

void
ofs_spdk_wait(struct ofs_spdk *spdk, uint32_t index)
{
	struct ofs_spdk_slot *slot = &spdk->slots[index];

	slot->carried_bytes = 0;
	slot->lost = 0;
	if (slot->waits)
		return;
	slot->waits = 1;
	slot->next = SPDK_NONE;
	if (spdk->wait_last == SPDK_NONE)
		spdk->wait_first = (int32_t)index;
	else
		spdk->slots[spdk->wait_last].next = (int32_t)index;
	spdk->wait_last = (int32_t)index;
}

static uint32_t
whole(const struct ofs_spdk *spdk, const struct ofs_spdk_slot *slot)
{
	return slot->io.op == OFS_STORAGE_SYNC ? spdk->link->drive_count : slot->io.size_bytes;
}

/* No piece of it is in flight: it is finished, returns to the waiting list, or is still in it. */
static void
settle(struct ofs_spdk *spdk, uint32_t index)
{
	struct ofs_spdk_slot *slot = &spdk->slots[index];

	if (slot->out > 0)
		return;
	/* Data that a write cache has lost is not recovered by a second flush. */
	if (slot->lost && slot->rc == 0 && slot->io.op == OFS_STORAGE_SYNC)
		slot->rc = -EIO;
	if (slot->rc == 0 && slot->lost) {
		ofs_spdk_wait(spdk, index);
		return;
	}
	if (slot->waits)
		return; /* the pump unlinks it first */
	assert(spdk->ready_count < spdk->base.queue_depth_max);
	spdk->ready[(spdk->ready_head + spdk->ready_count++) % spdk->base.queue_depth_max] = index;
}

void
ofs_spdk_piece_end(struct ofs_spdk_piece *piece, int rc, int undone)
{
	struct ofs_spdk *spdk = piece->spdk;
	struct ofs_spdk_slot *slot = &spdk->slots[piece->slot];

	assert(piece->used && slot->out > 0);
	if (rc == 0 && piece->chunk >= 0 && slot->io.op == OFS_STORAGE_READ)
		memcpy((uint8_t *)slot->io.buffer + piece->at, chunk_at(spdk, piece->chunk),
			piece->size_bytes);
	/* A target that was cut off and wakes up may still write to a bounce buffer: it stays taken
	 * until the drive is back, and the target has released this connection. */
	if (piece->chunk >= 0 && !undone)
		chunk_give(spdk, piece->chunk);
	spdk->link->drives[piece->drive].out--;
	piece->used = 0;
	piece->next = spdk->free_piece;
	spdk->free_piece = (int32_t)(piece - spdk->pieces);
	slot->out--;
	if (rc == 0 && slot->io.op == OFS_STORAGE_WRITE && !(slot->io.flags & OFS_STORAGE_DURABLE))
		spdk->link->drives[piece->drive].unsynced = 1;
	if (undone)
		slot->lost = 1;
	else if (rc != 0 && slot->rc == 0)
		slot->rc = rc;
	settle(spdk, piece->slot);
}

static void
piece_done(void *argument, const struct spdk_nvme_cpl *cpl)
{
	struct ofs_spdk_piece *piece = argument;
	int undone = piece->spdk->cutting
		|| (cpl->status.sct == SPDK_NVME_SCT_GENERIC
			&& cpl->status.sc == SPDK_NVME_SC_ABORTED_SQ_DELETION);

	ofs_spdk_piece_end(piece, errno_of(cpl), undone && spdk_nvme_cpl_is_error(cpl));
}

/* Whether the drive reaches these bytes without a bounce buffer. */
static int
reaches(const struct ofs_spdk *spdk, const struct ofs_spdk_drive *drive, void *buffer,
	uint32_t size_bytes)
{
	uintptr_t begin = (uintptr_t)buffer;
	uint64_t ignored;

	if (drive->id.trtype == SPDK_NVME_TRANSPORT_TCP)
		return 1;
	if (drive->id.trtype == SPDK_NVME_TRANSPORT_VFIOUSER) /* memory the target can map: SPDK's */
		return spdk_mem_get_fd_and_offset(buffer, &ignored) >= 0;
	for (uint32_t i = 0; i < spdk->region_count; i++)
		if (begin >= spdk->regions[i].base
			&& begin + size_bytes <= spdk->regions[i].base + spdk->regions[i].size_bytes)
			return 1;
	return spdk_vtophys(buffer, NULL) != SPDK_VTOPHYS_ERROR;
}

/* The target of a slot's next piece: which drive, which byte of it, how many. */
static uint32_t
place(const struct ofs_spdk *spdk, const struct ofs_spdk_slot *slot, uint32_t *drive,
	uint64_t *offset)
{
	uint64_t at = slot->io.offset + slot->carried_bytes;
	uint32_t size_bytes = slot->io.size_bytes - slot->carried_bytes;
	uint32_t count = spdk->link->drive_count;

	*drive = 0;
	*offset = at;
	if (count > 1) {
		uint64_t stripe = at / SPDK_STRIPE_BYTES;
		uint32_t in_stripe = (uint32_t)(at % SPDK_STRIPE_BYTES);

		*drive = (uint32_t)(stripe % count);
		*offset = stripe / count * SPDK_STRIPE_BYTES + in_stripe;
		if (size_bytes > SPDK_STRIPE_BYTES - in_stripe)
			size_bytes = SPDK_STRIPE_BYTES - in_stripe;
	}
	if (slot->io.op == OFS_STORAGE_DISCARD)
		return size_bytes; /* moves no bytes: no transfer is too large */
	return size_bytes < spdk->piece_bytes ? size_bytes : spdk->piece_bytes;
}

static int
command(struct ofs_spdk *spdk, struct ofs_spdk_piece *piece, uint64_t offset)
{
	const struct ofs_io *io = &spdk->slots[piece->slot].io;
	struct ofs_spdk_drive *drive = &spdk->link->drives[piece->drive];
	uint8_t *buffer = (uint8_t *)io->buffer + piece->at;
	uint64_t lba = offset / drive->sector_bytes;
	uint32_t count = piece->size_bytes / drive->sector_bytes;
	uint32_t flags = 0;

	if (io->op == OFS_STORAGE_SYNC) {
		drive->unsynced = 0; /* a failure is reported to the caller */
		return spdk_nvme_ns_cmd_flush(drive->ns, drive->qpair, piece_done, piece);
	}
	if (io->op == OFS_STORAGE_DISCARD)
		return ofs_spdk_place_discard(drive, lba, count, piece_done, piece);
	if (piece->chunk >= 0) {
		if (io->op == OFS_STORAGE_WRITE)
			memcpy(chunk_at(spdk, piece->chunk), buffer, piece->size_bytes);
		buffer = chunk_at(spdk, piece->chunk);
	}
	if (io->op == OFS_STORAGE_READ)
		return spdk_nvme_ns_cmd_read(drive->ns, drive->qpair, buffer, lba, count, piece_done, piece,
			0);
	if (io->flags & OFS_STORAGE_DURABLE)
		flags = SPDK_NVME_IO_FLAGS_FORCE_UNIT_ACCESS;
	return ofs_spdk_place_write(drive, buffer, lba, count, flags, io->lifetime, piece_done, piece);
}

/* Sends one piece of a slot: 0 sent, -EAGAIN no room now, -EHOSTDOWN its drive is away, or the
 * driver's error. */
static int
carry(struct ofs_spdk *spdk, uint32_t index)
{
	struct ofs_spdk_slot *slot = &spdk->slots[index];
	struct ofs_spdk_piece *piece;
	struct ofs_spdk_drive *drive;
	uint32_t number = slot->carried_bytes; /* of the drive, for a sync */
	uint64_t offset = 0;
	uint32_t size_bytes = 0;
	int32_t chunk = SPDK_NONE;
	int32_t free_piece = spdk->free_piece;
	int rc;

	if (slot->io.op != OFS_STORAGE_SYNC)
		size_bytes = place(spdk, slot, &number, &offset);
	drive = &spdk->link->drives[number];
	if (atomic_load_explicit(&drive->state, memory_order_relaxed) != SPDK_UP)
		return -EHOSTDOWN;
	if (slot->io.op == OFS_STORAGE_SYNC && drive->sync_lost) {
		drive->sync_lost = 0;
		return -EIO;
	}
	if (free_piece == SPDK_NONE)
		return -EAGAIN;
	if (slot->io.buffer != NULL && spdk->chunks != NULL
		&& !reaches(spdk, drive, (uint8_t *)slot->io.buffer + slot->carried_bytes, size_bytes)) {
		chunk = chunk_take(spdk, number);
		if (chunk == SPDK_NONE)
			return -EAGAIN;
		if (size_bytes > SPDK_CHUNK_BYTES)
			size_bytes = SPDK_CHUNK_BYTES;
	}
	piece = &spdk->pieces[free_piece];
	spdk->free_piece = piece->next;
	*piece = (struct ofs_spdk_piece){spdk, index, number, chunk, SPDK_NONE, slot->carried_bytes,
		size_bytes, 1};
	slot->carried_bytes += slot->io.op == OFS_STORAGE_SYNC ? 1 : size_bytes;
	slot->out++;
	drive->out++;
	rc = command(spdk, piece, offset);
	if (rc == 0)
		return 0;
	slot->carried_bytes -= slot->io.op == OFS_STORAGE_SYNC ? 1 : size_bytes;
	slot->out--;
	drive->out--;
	piece->used = 0;
	piece->next = spdk->free_piece;
	spdk->free_piece = free_piece;
	if (chunk >= 0)
		chunk_give(spdk, chunk);
	if (rc == -ENXIO) {
		drive->gone = 1;
		return -EHOSTDOWN;
	}
	return rc == -ENOMEM ? -EAGAIN : rc;
}

void
ofs_spdk_pump(struct ofs_spdk *spdk)
{
	int32_t before = SPDK_NONE;
	int32_t index = spdk->wait_first;
	int room = 1;

	while (index != SPDK_NONE) {
		struct ofs_spdk_slot *slot = &spdk->slots[index];
		int32_t next = slot->next;
		int rc = 0;

		while (room && rc == 0 && slot->rc == 0 && slot->carried_bytes < whole(spdk, slot))
			rc = carry(spdk, (uint32_t)index);
		if (rc == -EAGAIN)
			room = 0;
		else if (rc != 0 && rc != -EHOSTDOWN)
			slot->rc = rc;
		if (slot->rc == 0 && slot->carried_bytes < whole(spdk, slot)) {
			before = index;
		} else {
			slot->waits = 0;
			if (before == SPDK_NONE)
				spdk->wait_first = next;
			else
				spdk->slots[before].next = next;
			if (spdk->wait_last == index)
				spdk->wait_last = before;
			if (slot->out == 0)
				settle(spdk, (uint32_t)index);
		}
		index = room ? next : SPDK_NONE;
	}
}

void
ofs_spdk_reap(struct ofs_spdk *spdk)
{
	for (uint32_t i = 0; i < spdk->link->drive_count; i++) {
		struct ofs_spdk_drive *drive = &spdk->link->drives[i];

		if (drive->out > 0 && atomic_load_explicit(&drive->state, memory_order_relaxed) == SPDK_UP
			&& spdk_nvme_qpair_process_completions(drive->qpair, 0) < 0)
			drive->gone = 1; /* the tick removes it */
		if (drive->gone)
			spdk->tick_ns = 0;
	}
}
