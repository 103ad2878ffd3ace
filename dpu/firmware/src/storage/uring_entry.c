/* Entries of io_uring: what the next flush gives to the kernel. Model: stateless. */
#include "internal.h"

#ifdef OFS_HAVE_URING

#include "uring.h"

#include <assert.h>
#include <sys/uio.h>

/* A write's stream (`write_stream`, which older headers have under this name), 0: none. */
static int
uring_stream(const struct uring *uring, uint32_t lifetime)
{
	uint32_t count = (uint32_t)uring->base.stats.handles;

	return count == 0 ? 0 : 1 + (int)ofs_storage_handle(lifetime, count);
}

struct io_uring_sqe *
ofs_uring_entry(struct uring *uring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);

	assert(sqe != NULL); /* the ring has an entry for everything in flight */
	uring->entry_count++;
	return sqe;
}

void
ofs_uring_mark_write(const struct uring *uring, struct io_uring_sqe *sqe, const struct ofs_io *io)
{
	sqe->rw_flags = io->flags & OFS_STORAGE_DURABLE ? RWF_DSYNC : 0;
	sqe->splice_fd_in = uring_stream(uring, io->lifetime);
}

void
ofs_uring_prepare(struct uring *uring, uint32_t slot_index)
{
	struct uring_slot *slot = &uring->slots[slot_index];
	struct io_uring_sqe *sqe = ofs_uring_entry(uring);
	uint8_t *buffer = (uint8_t *)slot->io.buffer + slot->moved_bytes;
	uint32_t size_bytes = slot->io.size_bytes - slot->moved_bytes;
	uint64_t offset = slot->io.offset + slot->moved_bytes;
	int piece;

	if (slot->io.op == OFS_STORAGE_SYNC) {
		io_uring_prep_fsync(sqe, 0, IORING_FSYNC_DATASYNC);
	} else {
		piece = ofs_uring_piece(uring, buffer, size_bytes);
		if (slot->io.op == OFS_STORAGE_READ && piece >= 0)
			io_uring_prep_read_fixed(sqe, 0, buffer, size_bytes, offset, piece);
		else if (slot->io.op == OFS_STORAGE_READ)
			io_uring_prep_read(sqe, 0, buffer, size_bytes, offset);
		else if (piece >= 0)
			io_uring_prep_write_fixed(sqe, 0, buffer, size_bytes, offset, piece);
		else
			io_uring_prep_write(sqe, 0, buffer, size_bytes, offset);
		if (slot->io.op == OFS_STORAGE_WRITE)
			ofs_uring_mark_write(uring, sqe, &slot->io);
	}
	io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE); /* entry 0 of the file table */
	io_uring_sqe_set_data64(sqe, slot_index);
}

#endif
