/*
 * spdk: NVMe without the kernel, over PCIe, TCP, RDMA or vfio-user.
 *
 * Model: one controller and one queue pair for each drive; several drives are striped. submit and
 * poll never wait for a target; only the thread in spdk_link.c does. Memory that a drive cannot
 * reach is copied through SPDK bounce buffers: none over TCP, unregistered memory over PCIe and
 * RDMA, all memory that is not SPDK's over vfio-user. After open only SPDK itself allocates, when
 * the link reconnects. There is no descriptor to sleep on: while I/O is in flight the caller polls,
 * and `due_ns` says when an idle connection needs its next keep-alive.
 */
#include "spdk.h"

#include "dma.h"
#include "spdk_queue.h"

#include <spdk/env.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPDK_CLOSE_WAIT_MS = 5000 };

static _Thread_local char why_refused[SPDK_WHY_BYTES];

static const char *
spdk_why(void)
{
	return why_refused;
}

static int
spdk_submit(struct ofs_storage *storage, const struct ofs_io *io)
{
	struct ofs_spdk *spdk = (struct ofs_spdk *)storage;
	int rc = ofs_storage_check(storage, io);
	uint64_t now_ns;
	int32_t index;

	if (rc == -EAGAIN)
		ofs_spdk_reap(spdk); /* so that a caller that only submits makes progress */
	if (rc != 0)
		return rc;
	now_ns = ofs_clock_now_ns(storage->clock);
	if (storage->stats.in_flight++ == 0 && spdk->tick_ns > now_ns + SPDK_LOOK_NS)
		spdk->tick_ns = now_ns + SPDK_LOOK_NS;
	index = spdk->free_slots[--spdk->free_count];
	spdk->slots[index] = (struct ofs_spdk_slot){.io = *io, .began_ns = now_ns, .used = 1};
	ofs_spdk_wait(spdk, (uint32_t)index);
	ofs_spdk_pump(spdk);
	return 0;
}

static int
spdk_poll(struct ofs_storage *storage, struct ofs_io_done *done, int max)
{
	struct ofs_spdk *spdk = (struct ofs_spdk *)storage;
	int count = 0;

	ofs_spdk_reap(spdk);
	ofs_spdk_tick(spdk, ofs_clock_now_ns(storage->clock));
	if (spdk->wait_first != SPDK_NONE)
		ofs_spdk_pump(spdk);
	while (count < max && spdk->ready_count > 0) {
		uint32_t index = spdk->ready[spdk->ready_head];
		struct ofs_spdk_slot *slot = &spdk->slots[index];
		int64_t result = slot->rc != 0 ? slot->rc : (int64_t)slot->io.size_bytes;

		spdk->ready_head = (spdk->ready_head + 1) % storage->queue_depth_max;
		spdk->ready_count--;
		done[count++] = (struct ofs_io_done){slot->io.user, result};
		slot->used = 0;
		spdk->free_slots[spdk->free_count++] = (int32_t)index;
		ofs_storage_count(storage, slot->io.op, result);
	}
	return count;
}

static int
spdk_unregister_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	struct ofs_spdk *spdk = (struct ofs_spdk *)storage;
	uintptr_t begin = (uintptr_t)base;
	uint32_t i = 0;
	int rc = 0;

	while (i < spdk->region_count) {
		struct ofs_spdk_region region = spdk->regions[i];

		if (region.base < begin + size_bytes && begin < region.base + region.size_bytes) {
			spdk->regions[i] = spdk->regions[--spdk->region_count];
			rc = spdk_mem_unregister((void *)region.base, region.size_bytes);
		} else {
			i++;
		}
	}
	return rc;
}

/* TCP reaches any memory, and vfio-user only SPDK's own: there is nothing to register. */
static int
registers(const struct ofs_spdk *spdk)
{
	for (uint32_t i = 0; i < spdk->link->drive_count; i++)
		if (spdk->link->drives[i].id.trtype == SPDK_NVME_TRANSPORT_PCIE
			|| spdk->link->drives[i].id.trtype == SPDK_NVME_TRANSPORT_RDMA)
			return 1;
	return 0;
}

static int
spdk_register_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	struct ofs_spdk *spdk = (struct ofs_spdk *)storage;
	int rc = -ENOBUFS;

	if (base == NULL || size_bytes == 0)
		return -EINVAL;
	(void)spdk_unregister_memory(storage, base, size_bytes);
	if (!registers(spdk))
		return 0;
	if (spdk->region_count < SPDK_REGIONS_MAX)
		rc = spdk_mem_register(base, size_bytes);
	if (rc == 0)
		spdk->regions[spdk->region_count++] = (struct ofs_spdk_region){(uintptr_t)base, size_bytes};
	else if (storage->warning[0] == '\0')
		ofs_storage_warn(storage,
			"memory is not registered (%s): it is copied; reserve huge pages, see RLIMIT_MEMLOCK",
			strerror(-rc));
	return 0;
}

/* A drive that maps memory itself maps base pages one by one. */
static void
note_pages(struct ofs_spdk *spdk, const struct ofs_storage_config *config)
{
	if (config->huge != OFS_DMA_HUGE_OFF && !ofs_spdk_is_huge() && registers(spdk))
		ofs_storage_warn(&spdk->base,
			"SPDK's memory is in base pages: fewer than %d huge pages of 2 MiB were free; reserve "
			"some "
			"(sysctl vm.nr_hugepages=%d), or set memory.huge = \"off\"",
			SPDK_ENV_HUGE_PAGES, 2 * SPDK_ENV_HUGE_PAGES);
}

/* Waits a bounded time for what is in flight: the caller frees the buffers next. */
static void
drain(struct ofs_spdk *spdk)
{
	struct ofs_io_done done[64];
	struct timespec pause = {.tv_nsec = 1000000};

	for (int waited_ms = 0; waited_ms < SPDK_CLOSE_WAIT_MS; waited_ms++) {
		if (spdk->base.stats.in_flight == 0)
			return;
		if (spdk_poll(&spdk->base, done, 64) == 0)
			nanosleep(&pause, NULL);
	}
}

static void
spdk_close(struct ofs_storage *storage)
{
	struct ofs_spdk *spdk = (struct ofs_spdk *)storage;

	if (spdk->link != NULL) {
		drain(spdk);
		ofs_spdk_cut_all(spdk);
		ofs_spdk_link_close(spdk->link);
	}
	/* A target that hangs may still write to a bounce buffer: then the buffers are not freed. */
	if (spdk->chunks != NULL && spdk->base.stats.in_flight == 0)
		spdk_dma_free(spdk->chunks);
	free(spdk->slots);
	free(spdk->free_slots);
	free(spdk->ready);
	free(spdk->pieces);
	free(spdk);
}

/* Size, logical block and pieces, from those of the drives. */
static int
measure(struct ofs_spdk *spdk, const struct ofs_storage_config *config)
{
	struct ofs_storage *base = &spdk->base;
	uint64_t least_bytes = UINT64_MAX;
	uint32_t sector_bytes = 512;
	int bounces = 0;

	base->discards = config->discard;
	spdk->piece_bytes = UINT32_MAX;
	for (uint32_t i = 0; i < spdk->link->drive_count; i++) {
		const struct ofs_spdk_drive *drive = &spdk->link->drives[i];

		if (drive->size_bytes < least_bytes)
			least_bytes = drive->size_bytes;
		if (drive->sector_bytes > sector_bytes)
			sector_bytes = drive->sector_bytes;
		if (drive->transfer_max_bytes < spdk->piece_bytes)
			spdk->piece_bytes = drive->transfer_max_bytes;
		base->discards = base->discards && drive->discards;
		base->stats.handles = drive->handle_count < 2 ? 0 : drive->handle_count;
		bounces |= drive->id.trtype != SPDK_NVME_TRANSPORT_TCP;
		ofs_spdk_chunks_give(spdk, i);
		atomic_store(&spdk->link->drives[i].state, SPDK_UP);
	}
	base->lba_size_bytes = config->lba_size_bytes > 0 ? config->lba_size_bytes : sector_bytes;
	if (spdk->link->drive_count > 1)
		least_bytes -= least_bytes % SPDK_STRIPE_BYTES;
	base->size_bytes = least_bytes * spdk->link->drive_count;
	base->direct = 1;
	if (base->lba_size_bytes % sector_bytes != 0) {
		snprintf(why_refused, sizeof(why_refused),
			"the drive has sectors of %u B, and storage.lba is no multiple of that; set it to %u B "
			"or "
			"more",
			sector_bytes, sector_bytes);
		return -EINVAL;
	}
	if (config->size_bytes > base->size_bytes) {
		snprintf(why_refused, sizeof(why_refused),
			"the drive has %llu B, not %llu B; lower storage.size, or stripe over more drives",
			(unsigned long long)base->size_bytes, (unsigned long long)config->size_bytes);
		return -ENOSPC;
	}
	if (config->size_bytes > 0)
		base->size_bytes = config->size_bytes;
	base->size_bytes &= ~(uint64_t)(base->lba_size_bytes - 1);
	spdk->piece_bytes -= spdk->piece_bytes % base->lba_size_bytes;
	if (bounces) {
		spdk->chunks = spdk_dma_malloc((size_t)SPDK_CHUNKS * SPDK_CHUNK_BYTES, 1 << 12, NULL);
		if (spdk->chunks == NULL)
			return -ENOMEM;
	}
	return 0;
}

static int
take_tables(struct ofs_spdk *spdk, uint32_t depth)
{
	spdk->piece_count = spdk->link->drives[0].request_max;
	spdk->slots = calloc(depth, sizeof(spdk->slots[0]));
	spdk->free_slots = calloc(depth, sizeof(spdk->free_slots[0]));
	spdk->ready = calloc(depth, sizeof(spdk->ready[0]));
	spdk->pieces = calloc(spdk->piece_count, sizeof(spdk->pieces[0]));
	if (spdk->slots == NULL || spdk->free_slots == NULL || spdk->ready == NULL
		|| spdk->pieces == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < depth; i++)
		spdk->free_slots[spdk->free_count++] = (int32_t)(depth - 1 - i);
	spdk->free_piece = SPDK_NONE;
	for (uint32_t i = 0; i < spdk->piece_count; i++) {
		spdk->pieces[i].next = spdk->free_piece;
		spdk->free_piece = (int32_t)i;
	}
	return 0;
}

static int
spdk_open(struct ofs_storage **out, const struct ofs_storage_config *config,
	struct ofs_clock *clock)
{
	struct ofs_spdk *spdk = calloc(1, sizeof(*spdk));
	int rc;

	why_refused[0] = '\0';
	if (spdk == NULL)
		return -ENOMEM;
	ofs_storage_init(&spdk->base, ofs_spdk_ops(), config, clock);
	spdk->timeout_ns = config->timeout_ns;
	spdk->wait_first = SPDK_NONE;
	spdk->wait_last = SPDK_NONE;
	rc = ofs_spdk_link_open(&spdk->link, config, why_refused);
	if (rc == 0)
		rc = measure(spdk, config);
	if (rc == 0)
		rc = take_tables(spdk, config->queue_depth_max);
	if (rc != 0) {
		spdk_close(&spdk->base);
		return rc;
	}
	note_pages(spdk, config);
	*out = &spdk->base;
	return 0;
}

static int
spdk_wait_fd(struct ofs_storage *storage)
{
	(void)storage;
	return -1;
}

static uint64_t
spdk_due_ns(struct ofs_storage *storage)
{
	return ((struct ofs_spdk *)storage)->tick_ns;
}

const void *
ofs_spdk_ops(void)
{
	static const struct ofs_storage_ops ops = {
		.name = "spdk",
		.version = OFS_STORAGE_VERSION,
		.why = spdk_why,
		.open = spdk_open,
		.close = spdk_close,
		.register_memory = spdk_register_memory,
		.unregister_memory = spdk_unregister_memory,
		.submit = spdk_submit,
		.poll = spdk_poll,
		.wait_fd = spdk_wait_fd,
		.due_ns = spdk_due_ns,
		.hang = NULL,
	};

	return &ops;
}
