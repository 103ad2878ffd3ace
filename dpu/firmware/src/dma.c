/* Memory for devices; see dma.h. */
#include "dma.h"

#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif
#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif

#define POLICY_BIND 2 /* MPOL_BIND of <numaif.h>, a header of libnuma */

enum { NODES_MAX = 1024, NODE_BITS = 64 };

/* A range that the device of `owner` may write to. */
struct hold {
	const void *owner;
	uintptr_t base;
	uint64_t size_bytes;
	struct hold *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ofs_dma_totals totals; /* under lock */
static struct hold *holds;           /* under lock */

static int
overlaps(const struct hold *hold, const void *base, uint64_t size_bytes)
{
	uintptr_t begin = (uintptr_t)base;

	return hold->base < begin + size_bytes && begin < hold->base + hold->size_bytes;
}

int
ofs_dma_hold(const void *owner, const void *base, uint64_t size_bytes)
{
	struct hold *hold = malloc(sizeof(*hold));

	if (hold == NULL)
		return -ENOMEM;
	pthread_mutex_lock(&lock);
	*hold = (struct hold){owner, (uintptr_t)base, size_bytes, holds};
	holds = hold;
	pthread_mutex_unlock(&lock);
	return 0;
}

void
ofs_dma_release(const void *owner, const void *base, uint64_t size_bytes)
{
	struct hold **link = &holds;

	pthread_mutex_lock(&lock);
	while (*link != NULL) {
		struct hold *hold = *link;

		if (hold->owner == owner && overlaps(hold, base, size_bytes)) {
			*link = hold->next;
			free(hold);
		} else {
			link = &hold->next;
		}
	}
	pthread_mutex_unlock(&lock);
}

uint32_t
ofs_dma_held(const void *owner)
{
	uint32_t count = 0;

	pthread_mutex_lock(&lock);
	for (const struct hold *hold = holds; hold != NULL; hold = hold->next)
		count += hold->owner == owner;
	pthread_mutex_unlock(&lock);
	return count;
}

static int
is_held(const struct ofs_dma *dma)
{
	int found = 0;

	pthread_mutex_lock(&lock);
	for (const struct hold *hold = holds; hold != NULL; hold = hold->next)
		found |= overlaps(hold, dma->base, dma->size_bytes);
	pthread_mutex_unlock(&lock);
	return found;
}

/* Adds one allocation to the totals, or removes it. */
static void
count(const struct ofs_dma *dma, int taken)
{
	uint64_t sign = taken ? 1 : UINT64_MAX; /* unsigned: adding UINT64_MAX subtracts 1 */

	pthread_mutex_lock(&lock);
	totals.bytes += sign * dma->size_bytes;
	totals.reserved_bytes += dma->kind == OFS_DMA_RESERVED ? sign * dma->huge_bytes : 0;
	totals.transparent_bytes += dma->kind == OFS_DMA_TRANSPARENT ? sign * dma->huge_bytes : 0;
	totals.locked_bytes += dma->locked ? sign * dma->size_bytes : 0;
	totals.unbound_bytes += dma->unbound ? sign * dma->size_bytes : 0;
	pthread_mutex_unlock(&lock);
}

/* A mapping on a 2 MiB boundary: reserves more address space than needed, and unmaps the excess. */
static int
map_aligned(struct ofs_dma *dma, int flags)
{
	uint64_t spare = OFS_DMA_HUGE_PAGE_BYTES;
	uint8_t *space = mmap(NULL, dma->size_bytes + spare, PROT_NONE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint8_t *base;
	uint64_t before;

	if (space == MAP_FAILED)
		return -errno;
	before = -(uintptr_t)space % spare;
	base = space + before;
	if (before > 0)
		munmap(space, before);
	if (spare > before)
		munmap(base + dma->size_bytes, spare - before);
	if (mmap(base, dma->size_bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, dma->fd, 0)
		== MAP_FAILED) {
		int rc = -errno;

		munmap(base, dma->size_bytes);
		return rc;
	}
	dma->base = base;
	return 0;
}

static int
bind_node(const struct ofs_dma *dma, uint32_t node)
{
	unsigned long nodes[NODES_MAX / NODE_BITS] = {0};

	if (node >= NODES_MAX)
		return -EINVAL;
	nodes[node / NODE_BITS] = 1ul << node % NODE_BITS;
	return syscall(SYS_mbind, dma->base, dma->size_bytes, POLICY_BIND, nodes, NODES_MAX + 1, 0) == 0
		? 0
		: -errno;
}

/*
 * Shared memory gets huge pages by advice only where the machine's `shmem_enabled` allows it, which
 * is off by default; a collapse needs no more than that it is not `deny`. It wants one page to be
 * there, and fills the rest with zeros. The first that fails ends it: what follows has base pages.
 */
static void
collapse(const struct ofs_dma *dma)
{
	for (uint64_t at = 0; at < dma->size_bytes; at += OFS_DMA_HUGE_PAGE_BYTES) {
		uint8_t *part = (uint8_t *)dma->base + at;

		if (madvise(part, (size_t)sysconf(_SC_PAGESIZE), MADV_POPULATE_WRITE) != 0
			|| madvise(part, OFS_DMA_HUGE_PAGE_BYTES, MADV_COLLAPSE) != 0)
			return;
	}
}

/* Touches every page, so that lack of memory is an error here and not a signal at a later write. */
static int
touch(const struct ofs_dma *dma)
{
	if (madvise(dma->base, dma->size_bytes, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno != EINVAL)
		return -ENOMEM;
	if (dma->fd >= 0 && fallocate(dma->fd, 0, 0, (off_t)dma->size_bytes) != 0)
		return -ENOMEM;
	for (uint64_t at = 0; at < dma->size_bytes; at += 4096)
		((volatile uint8_t *)dma->base)[at] = 0;
	return 0;
}

/* How much of it is in huge pages now, from /proc/self/smaps, read only as far as needed. */
static uint64_t
transparent_bytes(const struct ofs_dma *dma)
{
	uintptr_t begin = (uintptr_t)dma->base;
	FILE *file = fopen("/proc/self/smaps", "re");
	unsigned long long low = 0, high = 0, found_kib = 0;
	char line[512];

	if (file == NULL)
		return 0;
	while (fgets(line, sizeof(line), file) != NULL && low < begin + dma->size_bytes) {
		unsigned long long kib;

		if (sscanf(line, "%llx-%llx ", &low, &high) == 2 || high <= begin)
			continue;
		if (sscanf(line, "AnonHugePages: %llu", &kib) == 1
			|| sscanf(line, "ShmemPmdMapped: %llu", &kib) == 1)
			found_kib += kib;
	}
	fclose(file);
	return found_kib * 1024 < dma->size_bytes ? found_kib * 1024 : dma->size_bytes;
}

static int
open_shared(struct ofs_dma *dma, const char *name)
{
	unsigned int huge = dma->kind == OFS_DMA_RESERVED ? MFD_HUGETLB | MFD_HUGE_2MB : 0;

	dma->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | huge);
	if (dma->fd < 0)
		return -errno;
	if (ftruncate(dma->fd, (off_t)dma->size_bytes) != 0)
		return errno == EFBIG || errno == EINVAL ? -ENOMEM : -errno;
	return 0;
}

static int
map_kind(struct ofs_dma *dma, const struct ofs_dma_config *config, const char *name)
{
	int flags = name != NULL ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
	int rc = name != NULL ? open_shared(dma, name) : 0;

	if (name == NULL && dma->kind == OFS_DMA_RESERVED)
		flags |= MAP_HUGETLB | MAP_HUGE_2MB;
	rc = rc == 0 ? map_aligned(dma, flags) : rc;
	if (rc != 0)
		return rc;
	/* Before the first touch, because these decide which pages it gets. */
	dma->unbound = config->numa_bind && bind_node(dma, config->numa_node) != 0;
	if (dma->kind == OFS_DMA_TRANSPARENT) {
		(void)madvise(dma->base, dma->size_bytes, MADV_HUGEPAGE);
		if (dma->fd >= 0)
			collapse(dma);
	} else if (dma->kind == OFS_DMA_BASE_PAGES) {
		(void)madvise(dma->base, dma->size_bytes, MADV_NOHUGEPAGE);
	}
	return touch(dma);
}

static void
unmap(struct ofs_dma *dma)
{
	if (dma->base != NULL)
		munmap(dma->base, dma->size_bytes);
	if (dma->fd >= 0)
		close(dma->fd);
	*dma = (struct ofs_dma){.fd = -1};
}

int
ofs_dma_alloc(struct ofs_dma *out, const struct ofs_dma_config *config, uint64_t size_bytes,
	const char *name)
{
	uint64_t huge_page = OFS_DMA_HUGE_PAGE_BYTES;
	int huge = config->huge == OFS_DMA_HUGE_AUTO && size_bytes >= huge_page / 2;
	uint64_t page = huge ? huge_page : (uint64_t)sysconf(_SC_PAGESIZE);
	int rc = -ENOMEM;

	*out = (struct ofs_dma){.fd = -1};
	if (size_bytes == 0)
		return -EINVAL;
	if (size_bytes > UINT64_MAX / 4)
		return -ENOMEM;
	for (uint32_t kind = huge ? OFS_DMA_RESERVED : OFS_DMA_BASE_PAGES; kind > 0 && rc != 0;
		 kind--) {
		unmap(out);
		out->size_bytes = (size_bytes + page - 1) / page * page;
		out->kind = kind;
		rc = map_kind(out, config, name);
	}
	if (rc != 0) {
		unmap(out);
		return rc;
	}
	if (out->kind == OFS_DMA_RESERVED)
		out->huge_bytes = out->size_bytes;
	else if (out->kind == OFS_DMA_TRANSPARENT)
		out->huge_bytes = transparent_bytes(out);
	if (out->huge_bytes == 0)
		out->kind = OFS_DMA_BASE_PAGES; /* the advice was not followed */
	out->locked = mlock(out->base, out->size_bytes) == 0;
	(void)madvise(out->base, out->size_bytes, MADV_DONTDUMP);
	count(out, 1);
	return 0;
}

void
ofs_dma_free(struct ofs_dma *dma)
{
	if (dma->base == NULL)
		return;
	assert(!is_held(dma)); /* a device may still write there: unregister it first */
	count(dma, 0);
	unmap(dma);
}

const char *
ofs_dma_kind_name(uint32_t kind)
{
	static const char *const names[] = {"none", "base pages", "transparent huge pages",
		"reserved huge pages"};

	return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "unknown";
}

void
ofs_dma_totals_read(struct ofs_dma_totals *out)
{
	pthread_mutex_lock(&lock);
	*out = totals;
	pthread_mutex_unlock(&lock);
}

void
ofs_dma_warning(char *out, size_t size_bytes)
{
	struct ofs_dma_totals now;
	struct rlimit limit = {0};
	size_t used = 0;

	ofs_dma_totals_read(&now);
	out[0] = '\0';
	if (now.locked_bytes < now.bytes) {
		(void)getrlimit(RLIMIT_MEMLOCK, &limit);
		snprintf(out, size_bytes,
			"%llu of %llu MiB of DMA memory are not locked (the limit is %llu KiB): "
			"ulimit -l unlimited, or LimitMEMLOCK=infinity",
			(unsigned long long)(now.bytes - now.locked_bytes) >> 20,
			(unsigned long long)now.bytes >> 20, (unsigned long long)limit.rlim_cur >> 10);
		used = strlen(out);
	}
	if (now.unbound_bytes > 0) {
		snprintf(out + used, size_bytes - used,
			"%s%llu MiB of DMA memory are not on the NUMA node that was asked for: "
			"see /sys/devices/system/node, and CAP_SYS_NICE in a container",
			used > 0 ? "; " : "", (unsigned long long)now.unbound_bytes >> 20);
	}
}
