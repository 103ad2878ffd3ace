/* Opens a storage: chooses a back end, and says why one was refused. */
#include "dma.h"
#include "internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const struct ofs_storage_ops *const storage_all[] = {
	&ofs_storage_ops_posix,
	&ofs_storage_ops_uring,
	&ofs_storage_ops_emulated,
	&ofs_storage_ops_sim,
	&ofs_storage_ops_skeleton,
};

enum { STORAGE_ADDED_MAX = 8 };

static const struct ofs_storage_ops *storage_added[STORAGE_ADDED_MAX];
static uint32_t storage_added_count;

static const struct ofs_storage_ops *
find_side(const char *name)
{
	for (uint32_t i = 0; i < storage_added_count; i++)
		if (strcmp(storage_added[i]->name, name) == 0)
			return storage_added[i];
	for (size_t i = 0; i < sizeof(storage_all) / sizeof(storage_all[0]); i++)
		if (strcmp(storage_all[i]->name, name) == 0)
			return storage_all[i];
	return NULL;
}

int
ofs_storage_add(const struct ofs_storage_ops *ops)
{
	const struct ofs_storage_ops *had;

	if (ops == NULL || ops->name == NULL)
		return -EINVAL;
	if (ops->version != OFS_STORAGE_VERSION)
		return -EPROTO;
	had = find_side(ops->name);
	if (had != NULL)
		return had == ops ? 0 : -EEXIST;
	if (storage_added_count == STORAGE_ADDED_MAX)
		return -ENOSPC;
	storage_added[storage_added_count++] = ops;
	return 0;
}

int
ofs_storage_memory_open(uint8_t **out, uint64_t size_bytes)
{
	void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	*out = memory == MAP_FAILED ? NULL : memory;
	return memory == MAP_FAILED ? -errno : 0;
}

void
ofs_storage_memory_close(uint8_t *memory, uint64_t size_bytes)
{
	if (memory != NULL)
		munmap(memory, size_bytes);
}

/* Every back end refuses these alike, so the text is here once. NULL: nothing wrong. */
static const char *
config_fault(const struct ofs_storage_config *config, const struct ofs_clock *clock)
{
	uint32_t lba = config->lba_size_bytes;

	if (memchr(config->backend, 0, sizeof(config->backend)) == NULL
		|| memchr(config->path, 0, sizeof(config->path)) == NULL
		|| memchr(config->inner, 0, sizeof(config->inner)) == NULL)
		return "a text is not ended by a zero byte; shorten it";
	if (clock == NULL)
		return "no clock was given; pass one";
	if (config->queue_depth_max == 0 || config->queue_depth_max > OFS_STORAGE_QUEUE_DEPTH_MAX)
		return "queue_depth_max is out of range; choose 1 to 4096";
	if (lba != 0 && (lba < 512 || lba > OFS_STORAGE_LBA_MAX_BYTES || (lba & (lba - 1)) != 0))
		return "lba_size_bytes is not a power of two from 512 to 65536; choose one, or 0";
	if (config->thread_count > 64)
		return "thread_count is out of range; choose 1 to 64, or 0";
	return NULL;
}

static void
explain(char *error, size_t error_size_bytes, const struct ofs_storage_config *config,
	const char *backend, int rc)
{
	const char *fix = "check the path and `offstage doctor`";
	const struct ofs_storage_ops *ops = find_side(backend);
	const char *why = ops != NULL && ops->why != NULL ? ops->why() : "";

	if (rc == 0 || error == NULL || error_size_bytes == 0)
		return;
	if (why[0] != 0) {
		snprintf(error, error_size_bytes, "storage %s: %s", backend, why);
		return;
	}
	if (strcmp(backend, "io_uring") == 0 && (rc == -EPERM || rc == -ENOSYS)) {
		snprintf(error, error_size_bytes, "storage io_uring: %s; %s",
			rc == -ENOSYS ? "this build or this kernel has no io_uring"
						  : "the kernel forbids io_uring",
			rc == -ENOSYS ? "build with liburing-dev, or use backend \"posix\""
						  : "set sysctl kernel.io_uring_disabled=0, or use backend \"posix\"");
		return;
	}
	if (rc == -ENOSPC || rc == -EFBIG)
		fix = "free space, or ask for a smaller size";
	else if (rc == -EACCES || rc == -EPERM)
		fix = "check owner and mode of the file";
	else if (rc == -ENOENT)
		fix = "create the directory, or name another path";
	else if (rc == -EISDIR)
		fix = "name a file or a block device, not a directory";
	else if (rc == -ENOMEM)
		fix = "lower the queue depth or the size, or raise RLIMIT_MEMLOCK";
	else if (rc == -EINVAL)
		fix = "check size (above 0, for a file at least one lba), lba and the nvme parameters";
	snprintf(error, error_size_bytes, "storage %s%s%s: %s; %s", backend,
		config->path[0] != 0 ? " on " : "", config->path, strerror(-rc), fix);
}

/* A drive with fewer placement handles than it must have is closed again. */
static int
check_handles(struct ofs_storage **out, const struct ofs_storage_config *config, char *error,
	size_t error_size_bytes)
{
	uint32_t count = (uint32_t)(*out)->stats.handles;

	if (count >= config->handles_min)
		return 0;
	if (error != NULL)
		snprintf(error, error_size_bytes,
			"storage %s on %s: writes can name %u placement handles, not %u; lower "
			"storage.handles_min, or give a whole drive with flexible data placement: io_uring "
			"reaches its handles from Linux 6.16 on, spdk on any",
			ofs_storage_name(*out), config->path, count, config->handles_min);
	ofs_storage_close(*out);
	*out = NULL;
	return -ENOTSUP;
}

static int
open_auto(struct ofs_storage **out, const struct ofs_storage_config *config,
	struct ofs_clock *clock)
{
	int rc = ofs_storage_ops_uring.open(out, config, clock);
	int uring_rc = rc;

	if (rc != -EPERM && rc != -ENOSYS && rc != -ENOMEM && rc != -ENOTSUP)
		return rc;
	rc = ofs_storage_ops_posix.open(out, config, clock);
	if (rc == 0)
		ofs_storage_warn(*out, "io_uring is unavailable (%s), posix threads instead; %s",
			strerror(-uring_rc),
			uring_rc == -ENOSYS ? "build with liburing-dev"
								: "see sysctl kernel.io_uring_disabled and RLIMIT_MEMLOCK");
	return rc;
}

int
ofs_storage_open(struct ofs_storage **out, const struct ofs_storage_config *config,
	struct ofs_clock *clock, char *error, size_t error_size_bytes)
{
	const char *fault = config_fault(config, clock);
	const struct ofs_storage_ops *ops;
	int rc;

	*out = NULL;
	if (error != NULL && error_size_bytes > 0)
		error[0] = 0;
	if (fault == NULL && strcmp(config->backend, "auto") == 0) {
		rc = open_auto(out, config, clock);
		explain(error, error_size_bytes, config, "auto", rc);
		return rc != 0 ? rc : check_handles(out, config, error, error_size_bytes);
	}
	ops = fault == NULL ? find_side(config->backend) : NULL;
	if (fault == NULL && ops == NULL)
		fault = "no such backend; choose auto, posix, io_uring, emulated, sim, skeleton or spdk";
	if (fault != NULL) {
		if (error != NULL)
			snprintf(error, error_size_bytes, "storage: %s", fault);
		return -EINVAL;
	}
	rc = ops->open(out, config, clock);
	explain(error, error_size_bytes, config, config->backend, rc);
	return rc != 0 ? rc : check_handles(out, config, error, error_size_bytes);
}

void
ofs_storage_close(struct ofs_storage *storage)
{
	if (storage == NULL)
		return;
	/* Memory that is still registered would be unmapped under the device; if a device hangs, the
	 * back end's close ends its access. */
	assert(storage->stats.in_flight > 0 || ofs_dma_held(storage) == 0);
	ofs_dma_release(storage, NULL, UINT64_MAX);
	storage->ops->close(storage);
}

const char *
ofs_storage_warning(const struct ofs_storage *storage)
{
	return storage->warning;
}

const char *
ofs_storage_name(const struct ofs_storage *storage)
{
	return storage->ops->name;
}

int
ofs_storage_register_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	int rc = storage->ops->register_memory(storage, base, size_bytes);

	if (rc != 0)
		return rc;
	ofs_dma_release(storage, base, size_bytes); /* registered again: it replaces what overlaps it */
	rc = ofs_dma_hold(storage, base, size_bytes);
	if (rc != 0)
		(void)storage->ops->unregister_memory(storage, base, size_bytes);
	return rc;
}

int
ofs_storage_unregister_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	int rc = storage->ops->unregister_memory(storage, base, size_bytes);

	if (rc == 0)
		ofs_dma_release(storage, base, size_bytes);
	return rc;
}

int
ofs_storage_wait_fd(struct ofs_storage *storage)
{
	return storage->ops->wait_fd(storage);
}

uint64_t
ofs_storage_due_ns(struct ofs_storage *storage)
{
	return storage->ops->due_ns(storage);
}

void
ofs_storage_hang(struct ofs_storage *storage)
{
	if (storage->ops->hang != NULL)
		storage->ops->hang(storage, 1);
}

void
ofs_storage_unhang(struct ofs_storage *storage)
{
	if (storage->ops->hang != NULL)
		storage->ops->hang(storage, 0);
}
