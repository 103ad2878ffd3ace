/*
 * skeleton: the smallest back end that satisfies the whole contract, and the template for a new
 * one.
 *
 * Model (every back end opens with its own): memory of a fixed size that is lost at close. submit
 * carries out an I/O, which then waits in a ring until poll returns it. One thread; submit refuses
 * only what the contract refuses; nothing fails after open.
 *
 * To add a back end: copy this file, give every `skeleton` your name, declare the table in
 * internal.h, add it to storage_all[] in storage.c, and add one line to SIDES in
 * tests/contract/test_storage.py. The suite there is the definition of "works". docs/how-to/add-
 * a-storage.md walks through it.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* The shared part comes first, so that a pointer to one is a pointer to the other. */
struct skeleton_storage {
	struct ofs_storage base;
	uint8_t *memory;
	struct ofs_io_done *done; /* a ring of queue_depth_max: it cannot overflow, because */
	uint16_t *done_ops;       /* ofs_storage_check bounds what is in flight */
	uint32_t done_head;
	uint32_t done_count;
};

/* Called for a half-open storage too, so every member must be valid or zero. Your back end waits
 * here, for a bounded time, for I/O still in flight: the caller frees the buffers next. */
static void
skeleton_close(struct ofs_storage *storage)
{
	struct skeleton_storage *skeleton = (struct skeleton_storage *)storage;

	ofs_storage_memory_close(skeleton->memory, storage->size_bytes);
	free(skeleton->done);
	free(skeleton->done_ops);
	free(skeleton);
}

/* Everything that allocates or can be refused happens here; after it, the data path only moves
 * data. Return a -errno that distinguishes the causes: storage.c turns it into the line the user
 * reads. A request that cannot be granted (O_DIRECT, registered memory) is a warning:
 * ofs_storage_warn. */
static int
skeleton_open(struct ofs_storage **out, const struct ofs_storage_config *config,
	struct ofs_clock *clock)
{
	struct skeleton_storage *skeleton = calloc(1, sizeof(*skeleton));
	int rc = 0;

	if (skeleton == NULL)
		return -ENOMEM;
	ofs_storage_init(&skeleton->base, &ofs_storage_ops_skeleton, config, clock);
	if (skeleton->base.size_bytes == 0)
		rc = -EINVAL;
	else
		rc = ofs_storage_memory_open(&skeleton->memory, skeleton->base.size_bytes);
	if (rc == 0) {
		skeleton->done = calloc(config->queue_depth_max, sizeof(skeleton->done[0]));
		skeleton->done_ops = calloc(config->queue_depth_max, sizeof(skeleton->done_ops[0]));
		if (skeleton->done == NULL || skeleton->done_ops == NULL)
			rc = -ENOMEM;
	}
	if (rc != 0) {
		skeleton_close(&skeleton->base);
		return rc;
	}
	*out = &skeleton->base;
	return 0;
}

/* Pin, map or register the range for DMA. May be called several times. Memory that was not
 * registered must still work, if slower; if the device cannot reach it, submit refuses the I/O. */
static int
skeleton_register_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	(void)storage;
	return base != NULL && size_bytes > 0 ? 0 : -EINVAL;
}

/* From here on the range may be unmapped. If the address appears again, it is other memory. */
static int
skeleton_unregister_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	(void)storage;
	return base != NULL && size_bytes > 0 ? 0 : -EINVAL;
}

/* Never blocks. ofs_storage_check refuses what every back end refuses (a full queue, a range
 * outside the device, an alignment). A device queue that is full for its own reasons is -EAGAIN
 * as well. */
static int
skeleton_submit(struct ofs_storage *storage, const struct ofs_io *io)
{
	struct skeleton_storage *skeleton = (struct skeleton_storage *)storage;
	int rc = ofs_storage_check(storage, io);
	uint32_t at;

	if (rc != 0)
		return rc;
	if (io->op == OFS_STORAGE_READ)
		memcpy(io->buffer, skeleton->memory + io->offset, io->size_bytes);
	else if (io->op == OFS_STORAGE_WRITE)
		memcpy(skeleton->memory + io->offset, io->buffer, io->size_bytes);
	at = (skeleton->done_head + skeleton->done_count) % storage->queue_depth_max;
	skeleton->done[at] = (struct ofs_io_done){io->user, io->size_bytes};
	skeleton->done_ops[at] = io->op;
	skeleton->done_count++;
	storage->stats.in_flight++;
	return 0;
}

/* Returns each accepted I/O exactly once, with its own `user`. ofs_storage_count keeps the
 * statistics and frees its place in the queue. Returns how many; 0 means idle, and the reactor
 * counts that. */
static int
skeleton_poll(struct ofs_storage *storage, struct ofs_io_done *done, int max)
{
	struct skeleton_storage *skeleton = (struct skeleton_storage *)storage;
	int count = 0;

	while (count < max && skeleton->done_count > 0) {
		done[count] = skeleton->done[skeleton->done_head];
		ofs_storage_count(storage, skeleton->done_ops[skeleton->done_head], done[count].result);
		count++;
		skeleton->done_head = (skeleton->done_head + 1) % storage->queue_depth_max;
		skeleton->done_count--;
	}
	return count;
}

/* -1: poll only. A back end that can signal a completion returns an eventfd; its poll clears it. */
static int
skeleton_wait_fd(struct ofs_storage *storage)
{
	(void)storage;
	return -1;
}

/* For back ends that know when the next completion is due. What waits in the ring is due now. */
static uint64_t
skeleton_due_ns(struct ofs_storage *storage)
{
	return ((struct skeleton_storage *)storage)->done_count > 0 ? 0 : UINT64_MAX;
}

/* The same functions in the same order in every back end. */
const struct ofs_storage_ops ofs_storage_ops_skeleton = {
	.name = "skeleton",
	.open = skeleton_open,
	.close = skeleton_close,
	.register_memory = skeleton_register_memory,
	.unregister_memory = skeleton_unregister_memory,
	.submit = skeleton_submit,
	.poll = skeleton_poll,
	.wait_fd = skeleton_wait_fd,
	.due_ns = skeleton_due_ns,
	.hang = NULL,
};
