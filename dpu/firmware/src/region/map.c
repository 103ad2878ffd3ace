/* Memory that the DPU makes and shares; see map.h. */
#include "region/map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

static int
fill(struct ofs_map *map, int readonly_outside)
{
	/* Allocating first turns a lack of memory into an error here, not a SIGBUS at some write. */
	if (ftruncate(map->fd, (off_t)map->size_bytes) != 0
		|| fallocate(map->fd, 0, 0, (off_t)map->size_bytes) != 0) {
		return errno == ENOSPC || errno == EFBIG ? -ENOMEM : -errno;
	}
	/* A host that shrank the file would kill the reactor with SIGBUS. */
	if (fcntl(map->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
		return -errno;
	map->base =
		mmap(NULL, map->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, map->fd, 0);
	if (map->base == MAP_FAILED) {
		map->base = NULL;
		return -errno;
	}
	if (readonly_outside) {
		/* A read-only descriptor alone could be reopened for writing through /proc. */
		if (fcntl(map->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno != EINVAL)
			return -errno;
		(void)fchmod(map->fd, 0400); /* what is left to kernels without that seal */
	}
	return fcntl(map->fd, F_ADD_SEALS, F_SEAL_SEAL) != 0 ? -errno : 0;
}

int
ofs_map_open(struct ofs_map *map, const char *name, uint64_t size_bytes, int readonly_outside)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	int rc;

	map->base = NULL;
	map->size_bytes = (size_bytes + page - 1) & ~(page - 1);
	map->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (map->fd < 0)
		return -errno;
	rc = fill(map, readonly_outside);
	if (rc != 0)
		ofs_map_close(map);
	return rc;
}

void
ofs_map_close(struct ofs_map *map)
{
	if (map->base != NULL) {
		munmap(map->base, map->size_bytes);
		map->base = NULL;
	}
	if (map->fd >= 0) {
		close(map->fd);
		map->fd = -1;
	}
}

int
ofs_map_readonly_fd(const struct ofs_map *map)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", map->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}
