/*
 * sim: a drive in memory and virtual time, with seeded faults.
 *
 * Model: the NVMe model decides when an I/O completes; poll returns what is due at the clock's
 * time, in time order. Data moves at the moment of completion, so a caller that reads a buffer too
 * early sees old bytes. Each accepted I/O draws at most one fault from (seed, its number): the same
 * seed and the same calls give the same run. After a hang (drawn, or ofs_storage_hang for the whole
 * device) the I/O (or the device) completes nothing until ofs_storage_unhang, which ends what hung
 * with -ETIMEDOUT and moves no data.
 *
 * Of a drive with zones, what is written in place (lifetime 0) goes to a log on its conventional
 * namespace, and all else to the zones, whose addresses are the caller's from zones_offset_bytes
 * on; a discard resets the zone that begins with it. What the drive refuses ends with -EIO; a write
 * to one at the end of its life with -ENODATA, as Linux says for that status (nvme_error_status).
 *
 * With a path the medium is that file, and outlives the storage. I/O in flight at close is torn, as
 * in a power cut: some of its blocks reach the medium, others do not.
 */
#include "internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "due_heap.h"

#define PS_PER_NS 1000u

enum sim_fault {
	FAULT_NONE,
	FAULT_EIO,
	FAULT_SHORT,
	FAULT_CORRUPT,
	FAULT_HANG,
	FAULT_TORN,
	FAULT_TIMEOUT,
	FAULT_READ_ONLY
};

struct sim_slot {
	struct ofs_io io;
	uint64_t random;
	enum sim_fault fault;
	uint32_t next_hung; /* OFS_NONE ends the list */
};

struct sim_storage {
	struct ofs_storage base;
	struct ofs_storage_config config;
	uint8_t *memory;
	struct ofs_nvme_model *model;
	struct ofs_due_heap heap;
	struct sim_slot *slots;
	uint32_t *free_slots;
	uint32_t free_count;
	uint32_t hung_first;
	uint64_t io_count;
	uint64_t log_bytes; /* on the conventional namespace of a drive with zones */
	int hung;
	int opened;
};

/* The I/O's number is the only state. */
static uint64_t
sim_random(uint64_t seed, uint64_t number)
{
	return ofs_mix(seed * 0xd1342543de82ef95ull + (number + 1) * 0x9e3779b97f4a7c15ull);
}

static enum sim_fault
sim_draw(const struct sim_storage *sim, const struct ofs_io *io, uint64_t random)
{
	uint64_t draw = random % 1000000u;
	uint64_t edge = sim->config.fault_eio_per_million;

	if (draw < edge)
		return FAULT_EIO;
	edge += sim->config.fault_hang_per_million;
	if (draw < edge)
		return FAULT_HANG;
	if (io->op == OFS_STORAGE_SYNC)
		return FAULT_NONE;
	edge += sim->config.fault_short_per_million;
	if (draw < edge)
		return io->op == OFS_STORAGE_DISCARD ? FAULT_NONE : FAULT_SHORT;
	edge += io->op == OFS_STORAGE_READ ? sim->config.fault_corrupt_per_million
									   : sim->config.fault_torn_per_million;
	if (draw >= edge)
		return FAULT_NONE;
	return io->op == OFS_STORAGE_READ ? FAULT_CORRUPT : FAULT_TORN;
}

static void
sim_move(struct sim_storage *sim, const struct ofs_io *io, uint32_t at, uint32_t size_bytes)
{
	uint8_t *medium = sim->memory + io->offset + at;
	uint8_t *buffer = (uint8_t *)io->buffer + at;

	if (io->op == OFS_STORAGE_READ)
		memcpy(buffer, medium, size_bytes);
	else
		memcpy(medium, buffer, size_bytes);
}

/* A bit for each block of a torn write decides whether it reaches the medium; never do all. */
static void
sim_move_torn(struct sim_storage *sim, const struct sim_slot *slot)
{
	uint32_t lba = sim->base.lba_size_bytes;
	uint32_t count = slot->io.size_bytes / lba;
	uint32_t lost = (uint32_t)(slot->random >> 32) % count;

	for (uint32_t i = 0; i < count; i++)
		if (i != lost && (sim_random(slot->random, i) & 1))
			sim_move(sim, &slot->io, i * lba, lba);
}

/* For a discard, one bit per block decides whether it keeps its bytes. */
static void
sim_discard(struct sim_storage *sim, const struct sim_slot *slot)
{
	uint32_t lba = sim->base.lba_size_bytes;

	for (uint32_t i = 0; i < slot->io.size_bytes / lba; i++)
		if (sim_random(slot->random, i) & 1)
			memset(sim->memory + slot->io.offset + (uint64_t)i * lba, 0, lba);
}

/* Completes an I/O: moves the data, as far as its fault allows. */
static int64_t
sim_execute(struct sim_storage *sim, const struct sim_slot *slot)
{
	const struct ofs_io *io = &slot->io;
	uint32_t lba = sim->base.lba_size_bytes;

	if (slot->fault == FAULT_EIO)
		return -EIO;
	if (slot->fault == FAULT_TIMEOUT)
		return -ETIMEDOUT;
	if (slot->fault == FAULT_READ_ONLY)
		return -ENODATA;
	if (io->op == OFS_STORAGE_SYNC)
		return 0;
	if (io->op == OFS_STORAGE_DISCARD) {
		sim_discard(sim, slot);
		return slot->fault == FAULT_TORN ? -EIO : (int64_t)io->size_bytes;
	}
	if (slot->fault == FAULT_SHORT) {
		sim_move(sim, io, 0, io->size_bytes / lba / 2 * lba);
		return -EIO;
	}
	if (slot->fault == FAULT_TORN) {
		sim_move_torn(sim, slot);
		return -EIO;
	}
	sim_move(sim, io, 0, io->size_bytes);
	if (slot->fault == FAULT_CORRUPT) {
		uint64_t at = (slot->random >> 20) % io->size_bytes;

		/* The low bit is always set, so that the byte always changes. */
		((uint8_t *)io->buffer)[at] ^= (uint8_t)(slot->random >> 56) | 1;
	}
	return io->size_bytes;
}

static void
sim_put_aside(struct sim_storage *sim, uint32_t index)
{
	sim->slots[index].next_hung = sim->hung_first;
	sim->hung_first = index;
}

/* The drive says when; the I/O then waits in the heap. */
static void
sim_expect(struct sim_storage *sim, uint64_t end_ps, uint32_t index)
{
	ofs_due_heap_push(&sim->heap, (end_ps + PS_PER_NS - 1) / PS_PER_NS, index);
}

/* What a drive with schedulers has ended. */
static void
sim_collect(struct sim_storage *sim, uint64_t now_ps)
{
	struct ofs_nvme_end end;

	while (ofs_nvme_model_poll(sim->model, now_ps, &end, 1) == 1)
		sim_expect(sim, end.end_ps, (uint32_t)end.tag);
}

static int
sim_poll(struct ofs_storage *storage, struct ofs_io_done *done, int max)
{
	struct sim_storage *sim = (struct sim_storage *)storage;
	uint64_t now_ns = ofs_clock_now_ns(storage->clock);
	int count = 0;

	sim_collect(sim, now_ns * PS_PER_NS);
	while (count < max && !sim->hung && ofs_due_heap_next_ns(&sim->heap) <= now_ns) {
		uint32_t index = ofs_due_heap_pop(&sim->heap);
		struct sim_slot *slot = &sim->slots[index];
		int64_t result;

		if (slot->fault == FAULT_HANG) {
			sim_put_aside(sim, index);
			continue;
		}
		result = sim_execute(sim, slot);
		done[count++] = (struct ofs_io_done){slot->io.user, result};
		ofs_storage_count(storage, slot->io.op, result);
		sim->free_slots[sim->free_count++] = index;
	}
	return count;
}

/* What the model takes it for, and its address there. */
static int
sim_write(struct sim_storage *sim, const struct ofs_io *io, uint64_t *offset)
{
	int zoned = sim->config.nvme.zone_size_bytes > 0;

	*offset = io->offset;
	if (zoned)
		*offset -=
			*offset < sim->config.zones_offset_bytes ? *offset : sim->config.zones_offset_bytes;
	if (io->op == OFS_STORAGE_DISCARD)
		return zoned ? OFS_NVME_ZONE_RESET : OFS_NVME_DISCARD;
	if (io->op != OFS_STORAGE_WRITE)
		return 0;
	if (zoned && io->lifetime > 0)
		return OFS_NVME_ZONE_WRITE;
	if (zoned) {
		*offset = sim->log_bytes;
		sim->log_bytes += io->size_bytes;
	}
	return 1 + (int)ofs_storage_handle(io->lifetime, (uint32_t)sim->base.stats.handles);
}

static int
sim_submit(struct ofs_storage *storage, const struct ofs_io *io)
{
	struct sim_storage *sim = (struct sim_storage *)storage;
	uint64_t now_ns = ofs_clock_now_ns(storage->clock);
	int rc = ofs_storage_check(storage, io);
	uint64_t due_ps, offset;
	uint32_t index;
	int write;

	if (rc != 0)
		return rc;
	index = sim->free_slots[--sim->free_count];
	sim->slots[index].io = *io;
	sim->slots[index].random = sim_random(sim->config.seed, sim->io_count++);
	sim->slots[index].fault = sim_draw(sim, io, sim->slots[index].random);
	write = sim_write(sim, io, &offset);
	due_ps = ofs_nvme_model_submit(sim->model, now_ns * PS_PER_NS, write, index, offset,
		write == OFS_NVME_ZONE_RESET ? 0 : io->size_bytes);
	if (due_ps == OFS_NVME_REFUSED) {
		sim->slots[index].fault = sim->config.nvme.zone_size_bytes ? FAULT_EIO : FAULT_READ_ONLY;
		due_ps = now_ns * PS_PER_NS;
	}
	if (due_ps != OFS_NVME_LATER)
		sim_expect(sim, due_ps, index);
	storage->stats.in_flight++;
	return 0;
}

static uint64_t
sim_due_ns(struct ofs_storage *storage)
{
	struct sim_storage *sim = (struct sim_storage *)storage;

	uint64_t heap_ns = ofs_due_heap_next_ns(&sim->heap);
	uint64_t next_ps = ofs_nvme_model_next_ps(sim->model);
	uint64_t next_ns =
		next_ps == OFS_NVME_LATER ? UINT64_MAX : (next_ps + PS_PER_NS - 1) / PS_PER_NS;

	if (sim->hung)
		return UINT64_MAX;
	return next_ns < heap_ns ? next_ns : heap_ns;
}

/* Ends what hung: the I/Os set aside, and those that came due while the whole device hung. */
static void
sim_hang(struct ofs_storage *storage, int hung)
{
	struct sim_storage *sim = (struct sim_storage *)storage;
	uint64_t now_ns = ofs_clock_now_ns(storage->clock);

	sim_collect(sim, now_ns * PS_PER_NS);
	if (sim->hung && !hung)
		while (ofs_due_heap_next_ns(&sim->heap) <= now_ns)
			sim_put_aside(sim, ofs_due_heap_pop(&sim->heap));
	sim->hung = hung;
	while (!hung && sim->hung_first != OFS_NONE) {
		uint32_t index = sim->hung_first;

		sim->hung_first = sim->slots[index].next_hung;
		sim->slots[index].fault = FAULT_TIMEOUT;
		ofs_due_heap_push(&sim->heap, now_ns, index);
	}
}

void
ofs_storage_sim_wear(const struct ofs_storage *storage, struct ofs_nvme_wear *wear)
{
	*wear = (struct ofs_nvme_wear){0};
	if (storage->ops == &ofs_storage_ops_sim)
		ofs_nvme_model_wear(((const struct sim_storage *)storage)->model, wear);
}

static int
sim_register_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	(void)storage;
	return base != NULL && size_bytes > 0 ? 0 : -EINVAL;
}

static int
sim_unregister_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	(void)storage;
	return base != NULL && size_bytes > 0 ? 0 : -EINVAL;
}

static int
sim_wait_fd(struct ofs_storage *storage)
{
	(void)storage;
	return -1; /* there is no sleep in virtual time */
}

static void
sim_tear(struct sim_storage *sim, uint32_t index)
{
	const struct sim_slot *slot = &sim->slots[index];

	if (slot->io.op == OFS_STORAGE_WRITE)
		sim_move_torn(sim, slot);
	else if (slot->io.op == OFS_STORAGE_DISCARD)
		sim_discard(sim, slot);
}

static void
sim_cut(struct sim_storage *sim)
{
	for (; sim->hung_first != OFS_NONE; sim->hung_first = sim->slots[sim->hung_first].next_hung)
		sim_tear(sim, sim->hung_first);
	sim_collect(sim, OFS_NVME_LATER - 1);
	while (ofs_due_heap_next_ns(&sim->heap) != UINT64_MAX)
		sim_tear(sim, ofs_due_heap_pop(&sim->heap));
}

static void
sim_close(struct ofs_storage *storage)
{
	struct sim_storage *sim = (struct sim_storage *)storage;

	if (sim->opened)
		sim_cut(sim);
	ofs_storage_memory_close(sim->memory, storage->size_bytes);
	ofs_nvme_model_close(sim->model);
	ofs_due_heap_close(&sim->heap);
	free(sim->slots);
	free(sim->free_slots);
	free(sim);
}

static int
sim_open_medium(struct sim_storage *sim)
{
	uint64_t size_bytes = sim->base.size_bytes;
	void *memory = MAP_FAILED;
	int fd;
	int rc;

	if (sim->config.path[0] == '\0')
		return ofs_storage_memory_open(&sim->memory, size_bytes);
	fd = open(sim->config.path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && ftruncate(fd, (off_t)size_bytes) == 0)
		memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	rc = memory == MAP_FAILED ? -errno : 0;
	if (fd >= 0)
		close(fd);
	if (rc == 0)
		sim->memory = memory;
	return rc;
}

static int
sim_open_parts(struct sim_storage *sim)
{
	uint32_t depth = sim->base.queue_depth_max;
	int rc;

	if (sim->base.size_bytes == 0)
		return -EINVAL;
	rc = sim_open_medium(sim);
	if (rc != 0)
		return rc;
	if (sim->config.nvme.scheduled && depth > sim->config.nvme.queue_depth_max)
		return -EINVAL;
	rc = ofs_nvme_model_open(&sim->model, &sim->config.nvme, sim->config.seed);
	if (rc != 0)
		return rc;
	sim->slots = calloc(depth, sizeof(sim->slots[0]));
	sim->free_slots = calloc(depth, sizeof(sim->free_slots[0]));
	if (sim->slots == NULL || sim->free_slots == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < depth; i++)
		sim->free_slots[sim->free_count++] = depth - 1 - i;
	return ofs_due_heap_open(&sim->heap, depth);
}

static int
sim_open(struct ofs_storage **out, const struct ofs_storage_config *config, struct ofs_clock *clock)
{
	struct sim_storage *sim = calloc(1, sizeof(*sim));
	int rc;

	if (sim == NULL)
		return -ENOMEM;
	ofs_storage_init(&sim->base, &ofs_storage_ops_sim, config, clock);
	sim->base.discards = config->discard;
	sim->base.stats.handles = config->nvme.handle_count < 2 ? 0 : config->nvme.handle_count;
	sim->config = *config;
	sim->hung_first = OFS_NONE;
	rc = sim_open_parts(sim);
	if (rc != 0) {
		sim_close(&sim->base);
		return rc;
	}
	sim->opened = 1;
	*out = &sim->base;
	return 0;
}

const struct ofs_storage_ops ofs_storage_ops_sim = {
	.name = "sim",
	.open = sim_open,
	.close = sim_close,
	.register_memory = sim_register_memory,
	.unregister_memory = sim_unregister_memory,
	.submit = sim_submit,
	.poll = sim_poll,
	.wait_fd = sim_wait_fd,
	.due_ns = sim_due_ns,
	.hang = sim_hang,
};
