/*
 * posix: pread and pwrite by a fixed pool of threads. Works anywhere.
 *
 * Model: two bounded rings under one lock, `todo` to the threads and `done` back; an eventfd
 * signals that `done` is not empty. Without O_DIRECT a read is first tried inside submit with
 * RWF_NOWAIT: a page in the page cache is copied there, which saves the tens of microseconds that
 * waking a thread costs. Such a completion waits in a ring of the polling thread.
 */
#include "internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

enum { POSIX_THREADS_MAX = 64, POSIX_THREADS_DEFAULT = 4, POSIX_TRIES_MAX = 1000 };

struct posix_task {
	struct ofs_io io;
	int64_t result;
};

struct posix_ring {
	struct posix_task *items;
	uint32_t capacity;
	uint32_t head;
	uint32_t count;
};

struct posix {
	struct ofs_storage base;
	int fd;
	int event_fd;
	int nowait;              /* polling thread: the file system supports RWF_NOWAIT */
	struct posix_ring quick; /* polling thread: completed inside submit */
	pthread_mutex_t lock;    /* everything below */
	pthread_cond_t work;
	struct posix_ring todo;
	struct posix_ring done;
	int signalled; /* event_fd is readable */
	int stopping;
	atomic_uint done_count; /* copy of done.count, to poll without the lock */
	uint32_t thread_count;
	pthread_t threads[POSIX_THREADS_MAX];
};

/* Neither ring can overflow: together they never contain more than what is in flight. */
static void
ring_push(struct posix_ring *ring, const struct posix_task *task)
{
	ring->items[(ring->head + ring->count) % ring->capacity] = *task;
	ring->count++;
}

static struct posix_task
ring_pop(struct posix_ring *ring)
{
	struct posix_task task = ring->items[ring->head];

	ring->head = (ring->head + 1) % ring->capacity;
	ring->count--;
	return task;
}

static ssize_t
posix_move(struct posix *posix, const struct ofs_io *io, uint32_t moved_bytes)
{
	struct iovec vector = {(uint8_t *)io->buffer + moved_bytes, io->size_bytes - moved_bytes};
	off_t offset = (off_t)(io->offset + moved_bytes);
	ssize_t count;

	if (io->op == OFS_STORAGE_READ)
		return preadv(posix->fd, &vector, 1, offset);
	if ((io->flags & OFS_STORAGE_DURABLE) == 0)
		return pwritev(posix->fd, &vector, 1, offset);
	count = pwritev2(posix->fd, &vector, 1, offset, RWF_DSYNC);
	if (count < 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
		count = pwritev(posix->fd, &vector, 1, offset);
		if (count >= 0 && fdatasync(posix->fd) != 0)
			return -1;
	}
	return count;
}

static int64_t
posix_execute(struct posix *posix, const struct ofs_io *io)
{
	uint32_t moved_bytes = 0;

	if (io->op == OFS_STORAGE_SYNC)
		return fdatasync(posix->fd) == 0 ? 0 : -errno;
	for (int tries = 0; tries < POSIX_TRIES_MAX; tries++) {
		ssize_t count = posix_move(posix, io, moved_bytes);

		if (count < 0 && errno != EINTR && errno != EAGAIN)
			return -errno;
		if (count == 0)
			return -EIO; /* the file ends before its size: it was truncated */
		if (count > 0)
			moved_bytes += (uint32_t)count;
		if (moved_bytes == io->size_bytes)
			return moved_bytes;
	}
	return -EIO;
}

static void
posix_finish(struct posix *posix, const struct posix_task *task)
{
	ring_push(&posix->done, task);
	atomic_store_explicit(&posix->done_count, posix->done.count, memory_order_release);
	if (!posix->signalled)
		posix->signalled = eventfd_write(posix->event_fd, 1) == 0;
}

static void *
posix_thread(void *argument)
{
	struct posix *posix = argument;

	pthread_mutex_lock(&posix->lock);
	for (;;) {
		struct posix_task task;

		while (posix->todo.count == 0 && !posix->stopping)
			pthread_cond_wait(&posix->work, &posix->lock);
		if (posix->todo.count == 0)
			break; /* accepted I/O completes before the threads end */
		task = ring_pop(&posix->todo);
		pthread_mutex_unlock(&posix->lock);
		task.result = posix_execute(posix, &task.io);
		pthread_mutex_lock(&posix->lock);
		posix_finish(posix, &task);
	}
	pthread_mutex_unlock(&posix->lock);
	return NULL;
}

static void
posix_close(struct ofs_storage *storage)
{
	struct posix *posix = (struct posix *)storage;

	pthread_mutex_lock(&posix->lock);
	posix->stopping = 1;
	pthread_cond_broadcast(&posix->work);
	pthread_mutex_unlock(&posix->lock);
	for (uint32_t i = 0; i < posix->thread_count; i++)
		pthread_join(posix->threads[i], NULL);
	pthread_cond_destroy(&posix->work);
	pthread_mutex_destroy(&posix->lock);
	if (posix->event_fd >= 0)
		close(posix->event_fd);
	if (posix->fd >= 0)
		close(posix->fd);
	free(posix->todo.items);
	free(posix->done.items);
	free(posix->quick.items);
	free(posix);
}

static int
ring_open(struct posix_ring *ring, uint32_t capacity)
{
	ring->items = calloc(capacity, sizeof(ring->items[0]));
	ring->capacity = capacity;
	return ring->items != NULL ? 0 : -ENOMEM;
}

static int
posix_open_parts(struct posix *posix, const struct ofs_storage_config *config)
{
	uint32_t threads = config->thread_count > 0 ? config->thread_count : POSIX_THREADS_DEFAULT;
	uint32_t depth = config->queue_depth_max;

	if (ring_open(&posix->todo, depth) != 0 || ring_open(&posix->done, depth) != 0
		|| ring_open(&posix->quick, depth) != 0)
		return -ENOMEM;
	posix->fd = ofs_storage_file_open(&posix->base, config);
	if (posix->fd < 0)
		return posix->fd;
	posix->nowait = !posix->base.direct;
	posix->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (posix->event_fd < 0)
		return -errno;
	while (posix->thread_count < threads) {
		int rc = pthread_create(&posix->threads[posix->thread_count], NULL, posix_thread, posix);

		if (rc != 0)
			return -rc;
		posix->thread_count++;
	}
	return 0;
}

static int
posix_open(struct ofs_storage **out, const struct ofs_storage_config *config,
	struct ofs_clock *clock)
{
	struct posix *posix = calloc(1, sizeof(*posix));
	int rc;

	if (posix == NULL)
		return -ENOMEM;
	ofs_storage_init(&posix->base, &ofs_storage_ops_posix, config, clock);
	posix->fd = -1;
	posix->event_fd = -1;
	pthread_mutex_init(&posix->lock, NULL);
	pthread_cond_init(&posix->work, NULL);
	rc = posix_open_parts(posix, config);
	if (rc != 0) {
		posix_close(&posix->base);
		return rc;
	}
	*out = &posix->base;
	return 0;
}

static int
posix_register_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	(void)storage; /* any memory will do */
	return base != NULL && size_bytes > 0 ? 0 : -EINVAL;
}

static int
posix_unregister_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	(void)storage;
	return base != NULL && size_bytes > 0 ? 0 : -EINVAL;
}

/* 1 when the page cache had all of it. A partial read is left to a thread, which reads it again. */
static int
posix_read_cached(struct posix *posix, const struct ofs_io *io)
{
	struct iovec vector = {io->buffer, io->size_bytes};
	ssize_t count = preadv2(posix->fd, &vector, 1, (off_t)io->offset, RWF_NOWAIT);

	if (count < 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL))
		posix->nowait = 0;
	return count == (ssize_t)io->size_bytes;
}

static int
posix_submit(struct ofs_storage *storage, const struct ofs_io *io)
{
	struct posix *posix = (struct posix *)storage;
	struct posix_task task = {*io, io->size_bytes};
	int rc = ofs_storage_check(storage, io);

	if (rc != 0)
		return rc;
	storage->stats.in_flight++;
	if (posix->nowait && io->op == OFS_STORAGE_READ && posix_read_cached(posix, io)) {
		ring_push(&posix->quick, &task);
		return 0;
	}
	pthread_mutex_lock(&posix->lock);
	ring_push(&posix->todo, &task);
	pthread_cond_signal(&posix->work);
	pthread_mutex_unlock(&posix->lock);
	return 0;
}

static int
posix_take(struct posix *posix, struct posix_ring *ring, struct ofs_io_done *done, int max)
{
	int count = 0;

	while (count < max && ring->count > 0) {
		struct posix_task task = ring_pop(ring);

		done[count++] = (struct ofs_io_done){task.io.user, task.result};
		ofs_storage_count(&posix->base, task.io.op, task.result);
	}
	return count;
}

static int
posix_poll(struct ofs_storage *storage, struct ofs_io_done *done, int max)
{
	struct posix *posix = (struct posix *)storage;
	int count = posix_take(posix, &posix->quick, done, max);

	if (count == max || atomic_load_explicit(&posix->done_count, memory_order_acquire) == 0)
		return count;
	pthread_mutex_lock(&posix->lock);
	count += posix_take(posix, &posix->done, done + count, max - count);
	atomic_store_explicit(&posix->done_count, posix->done.count, memory_order_release);
	if (posix->done.count == 0 && posix->signalled) {
		eventfd_t ignored;

		/* EAGAIN: the caller has cleared it already. */
		(void)!eventfd_read(posix->event_fd, &ignored);
		posix->signalled = 0;
	}
	pthread_mutex_unlock(&posix->lock);
	return count;
}

static int
posix_wait_fd(struct ofs_storage *storage)
{
	return ((struct posix *)storage)->event_fd;
}

static uint64_t
posix_due_ns(struct ofs_storage *storage)
{
	(void)storage;
	return UINT64_MAX;
}

const struct ofs_storage_ops ofs_storage_ops_posix = {
	.name = "posix",
	.open = posix_open,
	.close = posix_close,
	.register_memory = posix_register_memory,
	.unregister_memory = posix_unregister_memory,
	.submit = posix_submit,
	.poll = posix_poll,
	.wait_fd = posix_wait_fd,
	.due_ns = posix_due_ns,
	.hang = NULL,
};
