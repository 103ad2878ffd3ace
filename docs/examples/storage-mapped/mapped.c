/*
 * mapped: a file as memory, for one that is memory below (a DAX mount over persistent memory or a
 * CXL device); over a disk it works too, and the page cache then pays.
 *
 * Model: the file is made as large as it should be and mapped, once, at open. An I/O is a copy,
 * carried out inside submit, and waits in a ring until poll hands it out; a sync, and a durable
 * write, is msync over what it covers. One thread; nothing is allocated after open, and what fails
 * there is -EIO of msync. A page that the medium lost is SIGBUS, as for every mapping.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAPPED_PAGE_BYTES = 4096 };

struct mapped_storage {
	struct ofs_storage base;
	uint8_t *memory;
	struct ofs_io_done *done; /* a ring of queue_depth_max: ofs_storage_check bounds it */
	uint16_t *done_ops;
	uint32_t done_head;
	uint32_t done_count;
};

static const struct ofs_storage_ops mapped_ops;

static void
mapped_close(struct ofs_storage *storage)
{
	struct mapped_storage *mapped = (struct mapped_storage *)storage;

	if (mapped->memory != NULL)
		munmap(mapped->memory, storage->size_bytes);
	free(mapped->done);
	free(mapped->done_ops);
	free(mapped);
}

/* Opens or makes the file, at least as large as asked for. What is another user's, a link or holds
 * something else is left as it is. 0 or -errno; `out` is the descriptor. */
static int
mapped_file_open(const struct ofs_storage_config *config, int *out)
{
	int fd = open(config->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	struct stat found;
	int rc = 0;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &found) != 0)
		rc = -errno;
	else if (!S_ISREG(found.st_mode))
		rc = -EINVAL;
	else if (found.st_uid != geteuid() && found.st_uid != 0)
		rc = -EACCES;
	else if (found.st_size > 0 && (uint64_t)found.st_size < config->size_bytes)
		rc = -EEXIST;
	else if (found.st_size == 0)
		rc = -posix_fallocate(fd, 0, (off_t)config->size_bytes); /* no SIGBUS for want of room */
	if (rc != 0)
		close(fd);
	*out = fd;
	return rc;
}

static int
mapped_open(struct ofs_storage **out, const struct ofs_storage_config *config,
	struct ofs_clock *clock)
{
	struct mapped_storage *mapped = calloc(1, sizeof(*mapped));
	void *memory;
	int fd = -1;
	int rc;

	if (mapped == NULL)
		return -ENOMEM;
	ofs_storage_init(&mapped->base, &mapped_ops, config, clock);
	rc = mapped->base.size_bytes > 0 ? mapped_file_open(config, &fd) : -EINVAL;
	if (rc == 0) {
		memory = mmap(NULL, mapped->base.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
		if (memory == MAP_FAILED)
			rc = -errno;
		else
			mapped->memory = memory;
	}
	if (rc == 0) {
		mapped->done = calloc(config->queue_depth_max, sizeof(mapped->done[0]));
		mapped->done_ops = calloc(config->queue_depth_max, sizeof(mapped->done_ops[0]));
		if (mapped->done == NULL || mapped->done_ops == NULL)
			rc = -ENOMEM;
	}
	if (rc != 0) {
		mapped_close(&mapped->base);
		return rc;
	}
	*out = &mapped->base;
	return 0;
}

/* A copy reaches all memory. */
static int
mapped_register_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	(void)storage;
	return base != NULL && size_bytes > 0 ? 0 : -EINVAL;
}

static int
mapped_unregister_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	(void)storage;
	return base != NULL && size_bytes > 0 ? 0 : -EINVAL;
}

/* To the medium: the pages from `offset` on. 0 or -errno. */
static int
mapped_sync(struct mapped_storage *mapped, uint64_t offset, uint64_t size_bytes)
{
	uint64_t begin = offset & ~(uint64_t)(MAPPED_PAGE_BYTES - 1);

	return msync(mapped->memory + begin, offset + size_bytes - begin, MS_SYNC) == 0 ? 0 : -errno;
}

static int
mapped_submit(struct ofs_storage *storage, const struct ofs_io *io)
{
	struct mapped_storage *mapped = (struct mapped_storage *)storage;
	int rc = ofs_storage_check(storage, io);
	uint32_t at;

	if (rc != 0)
		return rc;
	if (io->op == OFS_STORAGE_READ)
		memcpy(io->buffer, mapped->memory + io->offset, io->size_bytes);
	else if (io->op == OFS_STORAGE_WRITE)
		memcpy(mapped->memory + io->offset, io->buffer, io->size_bytes);
	if (io->op == OFS_STORAGE_SYNC)
		rc = mapped_sync(mapped, 0, storage->size_bytes);
	else if (io->op == OFS_STORAGE_WRITE && (io->flags & OFS_STORAGE_DURABLE) != 0)
		rc = mapped_sync(mapped, io->offset, io->size_bytes);
	at = (mapped->done_head + mapped->done_count) % storage->queue_depth_max;
	mapped->done[at] = (struct ofs_io_done){io->user, rc < 0 ? rc : (int64_t)io->size_bytes};
	mapped->done_ops[at] = io->op;
	mapped->done_count++;
	storage->stats.in_flight++;
	return 0;
}

static int
mapped_poll(struct ofs_storage *storage, struct ofs_io_done *done, int max)
{
	struct mapped_storage *mapped = (struct mapped_storage *)storage;
	int count = 0;

	while (count < max && mapped->done_count > 0) {
		done[count] = mapped->done[mapped->done_head];
		ofs_storage_count(storage, mapped->done_ops[mapped->done_head], done[count].result);
		count++;
		mapped->done_head = (mapped->done_head + 1) % storage->queue_depth_max;
		mapped->done_count--;
	}
	return count;
}

static int
mapped_wait_fd(struct ofs_storage *storage)
{
	(void)storage;
	return -1;
}

static uint64_t
mapped_due_ns(struct ofs_storage *storage)
{
	return ((struct mapped_storage *)storage)->done_count > 0 ? 0 : UINT64_MAX;
}

static const struct ofs_storage_ops mapped_ops = {
	.name = "mapped",
	.version = OFS_STORAGE_VERSION,
	.open = mapped_open,
	.close = mapped_close,
	.register_memory = mapped_register_memory,
	.unregister_memory = mapped_unregister_memory,
	.submit = mapped_submit,
	.poll = mapped_poll,
	.wait_fd = mapped_wait_fd,
	.due_ns = mapped_due_ns,
};

uintptr_t
mapped_table(void)
{
	return (uintptr_t)&mapped_ops;
}
