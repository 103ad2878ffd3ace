/*
 * Opening the file or block device below posix and io_uring.
 *
 * It is checked through the descriptor that all later I/O uses, before anything in it changes: a
 * file of another user is refused, and a file with data in it is not grown.
 *
 * Neither back end accepts discards. A file's space is reserved at open, so that a full disk fails
 * the open and not a later put; punching a hole would give that space back. A block device's
 * discard is a call that waits for the drive, and the polling thread must not wait.
 */
#include "internal.h"

#include "store_format.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define OFS_HEAD_SIZE_BYTES (256u << 10) /* the store and dpu/storage/drives.py read here, too */

/* Creates no file where a name exists, even a dangling link. -EPERM from a back end's open means
 * that the kernel forbids the back end, so the file's is -EACCES. */
static int
open_or_make(const char *path, int flags)
{
	int fd = open(path, flags | O_RDWR | O_CLOEXEC | O_NOCTTY);

	if (fd < 0 && errno == ENOENT)
		fd = open(path, flags | O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, 0600);
	if (fd >= 0)
		return fd;
	return errno == EPERM ? -EACCES : -errno;
}

static int
file_open_flags(struct ofs_storage *storage, const struct ofs_storage_config *config)
{
	if (config->direct) {
		int fd = open_or_make(config->path, O_DIRECT);

		storage->direct = fd >= 0;
		if (fd != -EINVAL)
			return fd;
		ofs_storage_warn(storage,
			"the file system refuses O_DIRECT: reads come from the "
			"page cache");
	}
	return open_or_make(config->path, 0);
}

/* The alignment that O_DIRECT requires of offsets and addresses; 512 without O_DIRECT. */
static uint32_t
file_alignment_bytes(const struct ofs_storage *storage, int fd, const struct stat *status)
{
	int sector_size_bytes = 0;

	if (!storage->direct)
		return 512;
	if (S_ISBLK(status->st_mode)) {
		if (ioctl(fd, BLKSSZGET, &sector_size_bytes) == 0 && sector_size_bytes >= 512)
			return (uint32_t)sector_size_bytes;
		return 4096;
	}
#ifdef STATX_DIOALIGN
	{
		struct statx wide;

		if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &wide) == 0
			&& (wide.stx_mask & STATX_DIOALIGN) != 0 && wide.stx_dio_offset_align > 0) {
			uint32_t need = wide.stx_dio_offset_align;

			if (wide.stx_dio_mem_align > need)
				need = wide.stx_dio_mem_align;
			return need < 512 ? 512 : need;
		}
	}
#endif
	return 4096; /* an older kernel does not report it; every file system accepts this */
}

/* A file may grow only if it is blank where a store begins, or is a truncated store. The caller has
 * checked this already, but by name, and the name may point to another file now. 0 or a negative
 * errno.
 */
static int
file_may_grow(int fd)
{
	unsigned char *head = aligned_alloc(4096, OFS_HEAD_SIZE_BYTES);
	ssize_t got = head == NULL ? -1 : pread(fd, head, OFS_HEAD_SIZE_BYTES, 0);
	int rc = got < 0 ? -errno : 0;

	for (ssize_t i = 0; rc == 0 && i < got; i++)
		if (head[i] != 0)
			rc = -EEXIST;
	for (ssize_t at = 0; rc == -EEXIST && at <= OFS_STORE_COPY_OFFSET;
		 at += OFS_STORE_COPY_OFFSET) {
		uint64_t magic = 0;

		if (at + (ssize_t)sizeof(magic) <= got)
			memcpy(&magic, head + at, sizeof(magic));
		if (magic == OFS_STORE_MAGIC)
			rc = 0;
	}
	free(head);
	return rc;
}

static int
file_size(struct ofs_storage *storage, const struct ofs_storage_config *config, int fd,
	const struct stat *status)
{
	uint64_t have_bytes = (uint64_t)status->st_size;
	uint64_t want_bytes = config->size_bytes;

	if (S_ISBLK(status->st_mode)) {
		if (ioctl(fd, BLKGETSIZE64, &have_bytes) != 0)
			return -errno;
		if (want_bytes > have_bytes)
			return -ENOSPC;
	} else if (want_bytes > have_bytes) {
		int rc = file_may_grow(fd);

		if (rc != 0)
			return rc;
		/* Reserving now turns a full disk into one error at open instead of many later ones. */
		if (fallocate(fd, 0, 0, (off_t)want_bytes) != 0) {
			if (errno != EOPNOTSUPP && errno != ENOSYS)
				return -errno;
			if (ftruncate(fd, (off_t)want_bytes) != 0)
				return -errno;
		}
		have_bytes = want_bytes;
	}
	storage->size_bytes = want_bytes > 0 ? want_bytes : have_bytes;
	storage->size_bytes &= ~(uint64_t)(storage->lba_size_bytes - 1);
	return storage->size_bytes > 0 ? 0 : -EINVAL;
}

int
ofs_storage_file_open(struct ofs_storage *storage, const struct ofs_storage_config *config)
{
	struct stat status;
	uint32_t need;
	int fd;
	int rc;

	if (config->path[0] == 0)
		return -ENOENT;
	fd = file_open_flags(storage, config);
	if (fd < 0)
		return fd;
	if (fstat(fd, &status) != 0) {
		rc = -errno;
	} else if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) {
		rc = S_ISDIR(status.st_mode) ? -EISDIR : -EINVAL;
	} else if (S_ISREG(status.st_mode) && status.st_uid != geteuid() && status.st_uid != 0) {
		rc = -EACCES;
	} else {
		need = file_alignment_bytes(storage, fd, &status);
		storage->lba_size_bytes = config->lba_size_bytes > 0 ? config->lba_size_bytes : need;
		/* A smaller lba than the device's would fail at the first I/O. */
		rc =
			storage->lba_size_bytes % need != 0 ? -EINVAL : file_size(storage, config, fd, &status);
	}
	if (rc != 0) {
		close(fd);
		return rc;
	}
	return fd;
}

uint32_t
ofs_storage_file_handles(const struct ofs_storage *storage, int fd)
{
	struct stat status;
	char path[64];
	unsigned int count = 0;
	FILE *file;

	if (!storage->direct || fstat(fd, &status) != 0 || !S_ISBLK(status.st_mode))
		return 0;
	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/queue/max_write_streams",
		major(status.st_rdev), minor(status.st_rdev));
	file = fopen(path, "re");
	if (file == NULL)
		return 0;
	if (fscanf(file, "%u", &count) != 1 || count < 2)
		count = 0;
	fclose(file);
	return count < UINT8_MAX ? count : UINT8_MAX;
}
