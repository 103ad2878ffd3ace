/*
 * dma.h: the one memory that devices read and write: regions, ports, store buffers, benches.
 *
 * Model: `ofs_dma_alloc` returns memory aligned to 2 MiB, touched, locked, left out of core dumps
 * and, if asked for, bound to a NUMA node. From half a huge page on it consists of whole huge
 * pages: reserved ones (hugetlb), else transparent ones, else base pages. The handle says which.
 * Without huge pages, the lock or the node the memory is only slower: this is counted and reported
 * by `ofs_dma_warning`, and is no error. With a name the memory is shared: a memfd that can be
 * sealed and passed to another process.
 *
 * Memory that a device may still write must not be unmapped. The code that registers memory with a
 * device calls `ofs_dma_hold`, and `ofs_dma_release` after it has unregistered it; `ofs_dma_free`
 * of held memory is a bug and aborts.
 *
 * A handle belongs to its opener. Totals and holds are per process, under a lock: any thread may
 * call.
 */
#ifndef OFS_DMA_H
#define OFS_DMA_H

#include "ofs_base.h"

/* cdef: order 2 */
/* cdef: begin */
enum ofs_dma_huge { OFS_DMA_HUGE_AUTO = 0, OFS_DMA_HUGE_OFF = 1 };

enum ofs_dma_kind {
	OFS_DMA_NONE = 0,
	OFS_DMA_BASE_PAGES = 1,
	OFS_DMA_TRANSPARENT = 2, /* of huge pages as many as the kernel had */
	OFS_DMA_RESERVED = 3     /* huge pages of the reserved pool (hugetlb) */
};

/* All zero: huge pages where there are, no NUMA node. */
struct ofs_dma_config {
	uint32_t huge; /* enum ofs_dma_huge */
	uint32_t numa_bind;
	uint32_t numa_node; /* with numa_bind */
};

struct ofs_dma {
	void *base;
	uint64_t size_bytes; /* what was asked for, rounded up to the pages it lies in */
	uint64_t huge_bytes; /* of them in huge pages, at allocation */
	uint32_t kind;       /* enum ofs_dma_kind */
	int32_t fd;          /* memfd of shared memory; -1 */
	uint32_t locked;
	uint32_t unbound; /* a NUMA node was asked for and binding failed */
};

/* Of all DMA memory of this process. */
struct ofs_dma_totals {
	uint64_t bytes;
	uint64_t reserved_bytes;
	uint64_t transparent_bytes;
	uint64_t locked_bytes;
	uint64_t unbound_bytes;
};

/*
 * `name` NULL: private memory; else a memfd of that name, without any seal. Zeroed. 0, -EINVAL for
 * no size, -ENOMEM, -EMFILE, -ENFILE. A failed or freed handle is all zero but for its fd of -1.
 */
int ofs_dma_alloc(struct ofs_dma *out, const struct ofs_dma_config *config, uint64_t size_bytes,
	const char *name);
/* No-op if nothing was allocated. Aborts if a part of it is held. */
void ofs_dma_free(struct ofs_dma *dma);
const char *ofs_dma_kind_name(uint32_t kind);
void ofs_dma_totals_read(struct ofs_dma_totals *out);
/* One line on a request that failed (lock, node), with the fix; "" if none did. */
void ofs_dma_warning(char *out, size_t size_bytes);
/* cdef: end */

enum { OFS_DMA_HUGE_PAGE_BYTES = 2 << 20 };

/* From now on `owner`'s device may write to the range. 0 or -ENOMEM. */
int ofs_dma_hold(const void *owner, const void *base, uint64_t size_bytes);
/* Every range that `owner` holds and that overlaps this one. */
void ofs_dma_release(const void *owner, const void *base, uint64_t size_bytes);
/* How many ranges `owner` holds. */
uint32_t ofs_dma_held(const void *owner);

#endif
