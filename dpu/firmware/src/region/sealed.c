/* DMA memory that is passed to hosts; see sealed.h. */
#include "sealed.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

static int
seal(const struct ofs_dma *dma, int readonly_outside)
{
	if (fcntl(dma->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
		return -errno;
	if (readonly_outside) {
		/* A read-only descriptor alone could be reopened for writing through /proc. */
		if (fcntl(dma->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno != EINVAL)
			return -errno;
		(void)fchmod(dma->fd, 0400); /* the fallback for kernels without that seal */
	}
	return fcntl(dma->fd, F_ADD_SEALS, F_SEAL_SEAL) != 0 ? -errno : 0;
}

int
ofs_sealed_alloc(struct ofs_dma *out, const struct ofs_dma_config *config, uint64_t size_bytes,
	const char *name, int readonly_outside)
{
	int rc = ofs_dma_alloc(out, config, size_bytes, name);

	if (rc != 0)
		return rc;
	rc = seal(out, readonly_outside);
	if (rc != 0)
		ofs_dma_free(out);
	return rc;
}

int
ofs_sealed_readonly_fd(const struct ofs_dma *dma)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", dma->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}
