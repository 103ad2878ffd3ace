/*
 * io_uring: one ring, one registered file, registered buffers, an eventfd to sleep on.
 *
 * Model: submit writes a submission entry; every second submit passes the waiting entries to the
 * kernel, and the next poll passes the rest. Holding them all until the poll would leave the drive
 * idle while a batch is prepared; one system call for each entry is no faster and costs twice the
 * calls. The ring starts disabled and is enabled by the first poll or submit, because its single
 * issuer is the thread that enables it, not the one that opened it. With deferred task work the
 * kernel completes nothing until that thread polls, and a flag of the ring says that completions
 * wait: an idle poll makes no system call. Unregistered memory works through the plain opcodes. A
 * short transfer is continued, EAGAIN and EINTR are retried, both a bounded number of times. A
 * write names the stream of its placement handle, which the kernel passes on to a drive that has
 * some. Writes through the page cache wait for each other and are joined: uring_writes.c.
 */
#include "internal.h"

#ifdef OFS_HAVE_URING

#include "uring.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	URING_RETRIES_MAX = 1000,
	URING_BATCH_MAX = 64,
	URING_WAITING_MAX = 2, /* fewer entries than this wait for the next poll */
	URING_IDLE_POLLS_PER_CLEAR = 64,
	URING_CLOSE_WAIT_MS = 5000,
};

static void
uring_enable(struct uring *uring)
{
	long rc = 0;

	/* The call itself: liburing 2.3 declares io_uring_enable_rings but does not export it. */
	if (!uring->enabled && (uring->ring.flags & IORING_SETUP_R_DISABLED))
		rc = syscall(__NR_io_uring_register, uring->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS,
			NULL, 0);
	assert(rc == 0);
	uring->enabled = 1;
}

/* Passes the queued entries to the kernel, and lets it post completions where poll reads next.
 * After EAGAIN, EBUSY and EINTR the entries wait for the next poll. */
static void
uring_flush(struct uring *uring, int get_events)
{
	unsigned int queued = io_uring_sq_ready(&uring->ring);
	int rc;

	uring_enable(uring);
	if (queued == 0)
		return;
	if (queued == uring->entry_count)
		ofs_storage_starts(&uring->base, ofs_clock_now_ns(uring->base.clock));
	rc = get_events ? io_uring_submit_and_get_events(&uring->ring) : io_uring_submit(&uring->ring);
	assert(rc != -EEXIST || uring->closing); /* polled by a thread other than the ring's */
}

static void
uring_begin(struct uring *uring, uint32_t slot_index)
{
	if (ofs_uring_joins(uring, &uring->slots[slot_index].io))
		ofs_uring_write(uring, slot_index);
	else
		ofs_uring_prepare(uring, slot_index);
}

static int
uring_submit(struct ofs_storage *storage, const struct ofs_io *io)
{
	struct uring *uring = (struct uring *)storage;
	int rc = ofs_storage_check(storage, io);
	uint32_t slot_index;

	if (rc == -EAGAIN)
		uring_flush(uring, 1); /* so that a caller that only submits makes progress */
	if (rc != 0)
		return rc;
	slot_index = uring->free_slots[--uring->free_count];
	uring->slots[slot_index] = (struct uring_slot){.io = *io};
	storage->stats.in_flight++;
	uring_begin(uring, slot_index);
	if (io_uring_sq_ready(&uring->ring) >= URING_WAITING_MAX)
		uring_flush(uring, 0);
	return 0;
}

/* 1 when the I/O is complete and *result is set, 0 when it is to be queued again. */
static int
uring_finish(struct uring *uring, uint32_t slot_index, int count, int64_t *result)
{
	struct uring_slot *slot = &uring->slots[slot_index];

	*result = count;
	if (count == -EAGAIN || count == -EINTR) {
		*result = -EIO;
	} else if (count < 0 || slot->io.op == OFS_STORAGE_SYNC) {
		return 1;
	} else {
		slot->moved_bytes += (uint32_t)count;
		*result = slot->moved_bytes;
		if (slot->moved_bytes == slot->io.size_bytes)
			return 1;
		*result = -EIO;
		/* No progress: the end of a truncated file. With O_DIRECT a remainder that is not whole
		 * blocks cannot be requested. */
		if (count == 0 || slot->moved_bytes % uring->base.lba_size_bytes != 0)
			return 1;
	}
	return ++slot->retries > URING_RETRIES_MAX;
}

/* The kernel has ended what it was given of a slot: whether its I/O has ended. */
static int
uring_end(struct uring *uring, uint32_t slot_index, struct ofs_io_done *done)
{
	const struct ofs_io *io = &uring->slots[slot_index].io;
	int64_t result;

	if (!uring_finish(uring, slot_index, uring->slots[slot_index].count, &result)) {
		uring_begin(uring, slot_index);
		return 0;
	}
	*done = (struct ofs_io_done){io->user, result};
	ofs_storage_count(&uring->base, io->op, result);
	uring->free_slots[uring->free_count++] = slot_index;
	return 1;
}

/* Clears the eventfd on each change from busy to idle, and at intervals while idle, because the
 * kernel may signal a completion after poll has taken it. */
static void
uring_clear_event(struct uring *uring)
{
	eventfd_t ignored;

	if (uring->harvested == 0 && ++uring->idle_polls % URING_IDLE_POLLS_PER_CLEAR != 0)
		return;
	uring->harvested = 0;
	(void)!eventfd_read(uring->event_fd, &ignored);
}

/* Takes completions of the kernel: what they are of stands in `ended`. */
static unsigned int
uring_reap(struct uring *uring)
{
	struct io_uring_cqe *cqes[URING_BATCH_MAX];
	unsigned int ready = io_uring_peek_batch_cqe(&uring->ring, cqes, URING_BATCH_MAX);

	for (unsigned int i = 0; i < ready; i++)
		ofs_uring_ended(uring, (uint32_t)io_uring_cqe_get_data64(cqes[i]), cqes[i]->res);
	io_uring_cq_advance(&uring->ring, ready);
	uring->harvested += ready;
	return ready;
}

static int
uring_poll(struct ofs_storage *storage, struct ofs_io_done *done, int max)
{
	struct uring *uring = (struct uring *)storage;
	uint32_t slot_index;
	int count = 0;

	uring_flush(uring, 1);
	if (uring_reap(uring) == 0) {
		uring_clear_event(uring);
		/* A completion between the peek and the clearing would lose its signal: peek again. */
		(void)uring_reap(uring);
	}
	while (count < max && (slot_index = ofs_uring_pop(uring, &uring->ended)) != URING_NONE)
		count += uring_end(uring, slot_index, &done[count]);
	ofs_uring_write_more(uring);
	uring_flush(uring, 1); /* what was queued now */
	return count;
}

/* The best set of flags this kernel takes: 6.1, 6.0, 5.19, before. */
static int
uring_open_ring(struct uring *uring, uint32_t depth)
{
	static const unsigned int flags[] = {
		IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_TASKRUN_FLAG
			| IORING_SETUP_DEFER_TASKRUN,
		IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_TASKRUN_FLAG
			| IORING_SETUP_COOP_TASKRUN,
		IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_COOP_TASKRUN,
		0,
	};
	int rc = -EINVAL;

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && rc == -EINVAL; i++)
		rc = io_uring_queue_init(depth, &uring->ring, flags[i]);
	uring->ring_open = rc == 0;
	return rc;
}

/* Waits for what the kernel has in flight: its buffers are about to be freed. On a thread other
 * than the ring's, entries that were queued and not submitted stay queued. */
static void
uring_drain(struct uring *uring)
{
	struct ofs_io_done done[URING_BATCH_MAX];
	struct timespec pause = {.tv_nsec = 1000000};

	uring->closing = 1;
	for (int waited_ms = 0; waited_ms < URING_CLOSE_WAIT_MS; waited_ms++) {
		if (uring->base.stats.in_flight == 0)
			return;
		uring_flush(uring, 1);
		if (uring->entry_count == io_uring_sq_ready(&uring->ring))
			return;
		if (uring_poll(&uring->base, done, URING_BATCH_MAX) == 0)
			nanosleep(&pause, NULL);
	}
}

static void
uring_close(struct ofs_storage *storage)
{
	struct uring *uring = (struct uring *)storage;

	if (uring->ring_open) {
		uring_drain(uring);
		io_uring_queue_exit(&uring->ring);
	}
	if (uring->event_fd >= 0)
		close(uring->event_fd);
	if (uring->fd >= 0)
		close(uring->fd);
	free(uring->slots);
	free(uring->free_slots);
	free(uring);
}

static int
uring_open_parts(struct uring *uring, const struct ofs_storage_config *config)
{
	uint32_t depth = config->queue_depth_max;
	int rc = uring_open_ring(uring, depth);

	/* The ring comes first: if the kernel forbids it, no file has been created or grown. */
	if (rc != 0)
		return rc;
	uring->fd = ofs_storage_file_open(&uring->base, config);
	if (uring->fd < 0)
		return uring->fd;
	uring->base.stats.handles = ofs_storage_file_handles(&uring->base, uring->fd);
	rc = io_uring_register_files(&uring->ring, &uring->fd, 1);
	if (rc != 0)
		return rc;
	uring->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (uring->event_fd < 0)
		return -errno;
	rc = io_uring_register_eventfd(&uring->ring, uring->event_fd);
	if (rc != 0)
		return rc;
	uring->sparse = io_uring_register_buffers_sparse(&uring->ring, URING_PIECES_MAX) == 0;
	uring->slots = calloc(depth, sizeof(uring->slots[0]));
	uring->free_slots = calloc(depth, sizeof(uring->free_slots[0]));
	if (uring->slots == NULL || uring->free_slots == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < depth; i++)
		uring->free_slots[uring->free_count++] = depth - 1 - i;
	ofs_uring_open_writes(uring);
	return 0;
}

static int
uring_open(struct ofs_storage **out, const struct ofs_storage_config *config,
	struct ofs_clock *clock)
{
	struct uring *uring = calloc(1, sizeof(*uring));
	int rc;

	if (uring == NULL)
		return -ENOMEM;
	ofs_storage_init(&uring->base, &ofs_storage_ops_uring, config, clock);
	uring->fd = -1;
	uring->event_fd = -1;
	rc = uring_open_parts(uring, config);
	if (rc != 0) {
		uring_close(&uring->base);
		return rc;
	}
	*out = &uring->base;
	return 0;
}

static int
uring_wait_fd(struct ofs_storage *storage)
{
	return ((struct uring *)storage)->event_fd;
}

static uint64_t
uring_due_ns(struct ofs_storage *storage)
{
	(void)storage;
	return UINT64_MAX;
}

const struct ofs_storage_ops ofs_storage_ops_uring = {
	.name = "io_uring",
	.open = uring_open,
	.close = uring_close,
	.register_memory = ofs_uring_register_memory,
	.unregister_memory = ofs_uring_unregister_memory,
	.submit = uring_submit,
	.poll = uring_poll,
	.wait_fd = uring_wait_fd,
	.due_ns = uring_due_ns,
	.hang = NULL,
};

#else /* built without liburing */

static int
uring_open(struct ofs_storage **out, const struct ofs_storage_config *config,
	struct ofs_clock *clock)
{
	(void)out;
	(void)config;
	(void)clock;
	return -ENOSYS;
}

const struct ofs_storage_ops ofs_storage_ops_uring = {
	.name = "io_uring",
	.open = uring_open,
};

#endif
