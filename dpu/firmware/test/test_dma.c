/*
 * Does DMA memory keep the promises of dma.h: aligned, zeroed, shared if it has a name, counted,
 * and never unmapped under a device that may still write there?
 */
#include "dma.h"
#include "storage.h"

#include <assert.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define COLLAPSE 25 /* MADV_COLLAPSE, which older headers lack */
#define NO_ADVICE 1000

static const struct ofs_dma_config any = {0};

/* Does `mistake` abort? It runs in a child, so that we live on. */
static int
aborts(void (*mistake)(void))
{
	pid_t child = fork();
	int status;

	assert(child >= 0);
	if (child == 0) {
		struct rlimit none = {0};

		setrlimit(RLIMIT_CORE, &none);
		if (freopen("/dev/null", "w", stderr) == NULL)
			_exit(2);
		mistake();
		_exit(0);
	}
	assert(waitpid(child, &status, 0) == child);
	assert(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void
try_sizes(void)
{
	static const uint64_t sizes[] = {1, 4096, 5000, (1 << 20) - 1, 1 << 20, (2 << 20) + 1, 9 << 20};
	struct ofs_dma_totals totals;

	for (size_t i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t size_bytes = sizes[i / 2];
		uint64_t page = size_bytes >= 1 << 20 ? 2 << 20 : 4096;
		struct ofs_dma dma;
		uint8_t *bytes;

		assert(ofs_dma_alloc(&dma, &any, size_bytes, i % 2 ? "test" : NULL) == 0);
		assert((uintptr_t)dma.base % (2 << 20) == 0);
		assert(dma.size_bytes >= size_bytes && dma.size_bytes - size_bytes < page);
		assert((dma.fd >= 0) == (i % 2 == 1));
		assert((dma.kind == OFS_DMA_BASE_PAGES) == (dma.huge_bytes == 0));
		assert(dma.huge_bytes <= dma.size_bytes);
		bytes = dma.base;
		for (uint64_t at = 0; at < dma.size_bytes; at += 511)
			assert(bytes[at] == 0);
		bytes[dma.size_bytes - 1] = 1;
		ofs_dma_totals_read(&totals);
		assert(totals.bytes == dma.size_bytes);
		assert(totals.reserved_bytes + totals.transparent_bytes == dma.huge_bytes);
		assert(totals.locked_bytes == (dma.locked ? dma.size_bytes : 0));
		ofs_dma_free(&dma);
		assert(dma.base == NULL && dma.fd == -1);
		ofs_dma_free(&dma); /* nothing is there any more */
	}
	ofs_dma_totals_read(&totals);
	assert(memcmp(&totals, &(struct ofs_dma_totals){0}, sizeof(totals)) == 0);
}

/* A mapping of the descriptor sees writes of the other end; nothing is sealed yet. It is put where
 * other memory was, aligned as huge pages need: an emulator does not look for such a place. */
static void
try_shared(void)
{
	struct ofs_dma dma, place;
	uint8_t *other;

	assert(ofs_dma_alloc(&dma, &any, 3 << 20, "test") == 0);
	assert(ofs_dma_alloc(&place, &any, dma.size_bytes, NULL) == 0);
	other = mmap(place.base, dma.size_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, dma.fd, 0);
	assert(other == place.base);
	((uint8_t *)dma.base)[dma.size_bytes - 1] = 7;
	assert(other[dma.size_bytes - 1] == 7);
	ofs_dma_free(&place);
	ofs_dma_free(&dma);
}

/* Where the kernel makes shared memory huge when asked for it, has all of ours huge pages? It may
 * refuse once, while a page is on its way to a list. An emulator may take any advice, and do
 * nothing. */
static void
try_collapse(void)
{
	struct ofs_dma_config base = {.huge = OFS_DMA_HUGE_OFF};
	bool asked, huge = false;
	struct ofs_dma probe, dma;

	assert(ofs_dma_alloc(&probe, &base, 4 << 20, "test") == 0);
	assert(probe.kind == OFS_DMA_BASE_PAGES && probe.huge_bytes == 0);
	asked = madvise(probe.base, probe.size_bytes, NO_ADVICE) != 0
		&& madvise(probe.base, probe.size_bytes, MADV_HUGEPAGE) == 0
		&& madvise(probe.base, probe.size_bytes, COLLAPSE) == 0;
	for (int i = 0; i < 8 && !huge; i++) {
		assert(ofs_dma_alloc(&dma, &any, 6 << 20, "test") == 0);
		huge = dma.huge_bytes == dma.size_bytes;
		for (uint64_t at = 0; at < dma.size_bytes; at++)
			assert(((uint8_t *)dma.base)[at] == 0);
		ofs_dma_free(&dma);
	}
	assert(huge || !asked);
	ofs_dma_free(&probe);
}

static void
try_wishes(void)
{
	struct ofs_dma_config config = {.huge = OFS_DMA_HUGE_OFF};
	struct ofs_dma dma;
	char text[512];

	assert(ofs_dma_alloc(&dma, &config, 4 << 20, NULL) == 0);
	assert(dma.kind == OFS_DMA_BASE_PAGES && dma.huge_bytes == 0);
	ofs_dma_free(&dma);
	/* No machine has that node: a warning that names it, not an error. */
	config = (struct ofs_dma_config){.numa_bind = 1, .numa_node = 1000};
	assert(ofs_dma_alloc(&dma, &config, 4096, NULL) == 0);
	assert(dma.unbound);
	ofs_dma_warning(text, sizeof(text));
	assert(strstr(text, "NUMA node") != NULL);
	ofs_dma_free(&dma);
	ofs_dma_warning(text, sizeof(text));
	assert(strcmp(text, "") == 0);
	assert(ofs_dma_alloc(&dma, &any, 0, NULL) == -EINVAL && dma.base == NULL);
	assert(ofs_dma_alloc(&dma, &any, 1ull << 50, NULL) == -ENOMEM && dma.base == NULL);
	assert(ofs_dma_alloc(&dma, &any, UINT64_MAX, "test") == -ENOMEM && dma.base == NULL);
}

static struct ofs_clock clock_of_all;

static struct ofs_storage *
open_registered(struct ofs_dma *dma)
{
	struct ofs_storage_config config = {.backend = "skeleton", .size_bytes = 1 << 16};
	struct ofs_storage *storage;

	config.queue_depth_max = 4;
	ofs_clock_init_os(&clock_of_all);
	assert(ofs_storage_open(&storage, &config, &clock_of_all, NULL, 0) == 0);
	assert(ofs_dma_alloc(dma, &any, 1 << 16, NULL) == 0);
	assert(ofs_storage_register_memory(storage, dma->base, dma->size_bytes) == 0);
	assert(ofs_dma_held(storage) == 1);
	return storage;
}

static void
free_registered(void)
{
	struct ofs_dma dma;

	(void)open_registered(&dma);
	ofs_dma_free(&dma);
}

static void
close_registered(void)
{
	struct ofs_dma dma;

	ofs_storage_close(open_registered(&dma));
}

static void
free_half_held(void)
{
	struct ofs_dma dma;

	assert(ofs_dma_alloc(&dma, &any, 1 << 16, NULL) == 0);
	assert(ofs_dma_hold(&dma, (uint8_t *)dma.base + 4096, 1) == 0);
	ofs_dma_free(&dma);
}

static void
in_order(void)
{
	struct ofs_dma dma;
	struct ofs_storage *storage = open_registered(&dma);

	/* Given again it is still one range, and taken back once. */
	assert(ofs_storage_register_memory(storage, dma.base, dma.size_bytes) == 0);
	assert(ofs_dma_held(storage) == 1);
	assert(ofs_storage_unregister_memory(storage, dma.base, dma.size_bytes) == 0);
	assert(ofs_dma_held(storage) == 0);
	ofs_storage_close(storage);
	ofs_dma_free(&dma);
}

int
main(void)
{
	try_sizes();
	try_shared();
	try_collapse();
	try_wishes();
	assert(aborts(free_registered));
	assert(aborts(close_registered));
	assert(aborts(free_half_held));
	assert(!aborts(in_order));
	return 0;
}
