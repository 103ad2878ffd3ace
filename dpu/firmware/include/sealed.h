/*
 * sealed.h: DMA memory that is handed to hosts: a memfd that can neither shrink nor grow.
 *
 * Model: a host that shrank it would kill the reactor with SIGBUS. A region is also sealed against
 * every writable mapping but ours. It is freed by ofs_dma_free, as any DMA memory.
 */
#ifndef OFS_SEALED_H
#define OFS_SEALED_H

#include "dma.h"

/*
 * Shared memory of ofs_dma_alloc, sealed. With `readonly_outside` no other writable mapping of it
 * can ever be made. 0, -ENOMEM, -EMFILE, -ENFILE.
 */
int ofs_sealed_alloc(struct ofs_dma *out, const struct ofs_dma_config *config, uint64_t size_bytes,
	const char *name, int readonly_outside);
/* A descriptor of the same memory that can only be read; -errno. The caller closes it. */
int ofs_sealed_readonly_fd(const struct ofs_dma *dma);

#endif
