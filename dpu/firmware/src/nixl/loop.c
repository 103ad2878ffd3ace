/* A bare loop of NIXL: the reference of `offstage bench fabric` for the nixl fabric; see nixl.h. */
#include "clock.h"
#include "dma.h"
#include "nixl/agent.h"

#include <stdlib.h>
#include <string.h>

#define BLOCKS 1024 /* named by the prepared requests together: more than a cache holds */
#define ROUND_TIMEOUT_NS 5000000000ull

struct loop_blob {
	uint64_t address;
	uint64_t size_bytes;
	uint32_t metadata_size_bytes;
	uint32_t reserved;
};

struct ofs_nixl_loop {
	struct ofs_nixl_agent agent;
	struct ofs_dma memory; /* the loop's own; none if it is a GPU's */
	uint64_t base;
	uint64_t size_bytes;
	void *registration;
};

void
ofs_nixl_loop_close(struct ofs_nixl_loop *loop)
{
	if (loop == NULL)
		return;
	if (loop->agent.handle != NULL)
		ofs_nixl_deregister(&loop->agent, loop->registration);
	ofs_nixl_agent_close(&loop->agent);
	ofs_dma_free(&loop->memory);
	free(loop);
}

static int
begin(struct ofs_nixl_loop *loop, uint64_t base, uint64_t size_bytes)
{
	loop->base = base;
	loop->size_bytes = size_bytes;
	return ofs_nixl_register(&loop->agent, (void *)(uintptr_t)base, size_bytes,
		&loop->registration);
}

int
ofs_nixl_loop_open(struct ofs_nixl_loop **out, uint64_t size_bytes, int target)
{
	/* The kinds of memory between which the fabric reads: shared memory of a region, and a host's
	 * own base pages. */
	static const struct ofs_dma_config region;
	static const struct ofs_dma_config rows = {.huge = OFS_DMA_HUGE_OFF};
	struct ofs_nixl_loop *loop = calloc(1, sizeof(*loop));
	int rc = -ENOMEM;

	if (loop != NULL) {
		rc = ofs_dma_alloc(&loop->memory, target ? &region : &rows, size_bytes,
			target ? "offstage-loop" : NULL);
	}
	if (rc == 0)
		rc = ofs_nixl_agent_open(&loop->agent, "floor", target != 0);
	if (rc == 0)
		rc = begin(loop, (uintptr_t)loop->memory.base, size_bytes);
	if (rc != 0)
		ofs_nixl_loop_close(loop);
	else
		*out = loop;
	return rc;
}

int
ofs_nixl_loop_open_device(struct ofs_nixl_loop **out, uint64_t address, uint64_t size_bytes,
	uint32_t device)
{
	struct ofs_nixl_loop *loop = calloc(1, sizeof(*loop));
	int rc = loop == NULL ? -ENOMEM : ofs_nixl_agent_open(&loop->agent, "device", false);

	if (rc == 0) {
		loop->agent.memory = OFS_NIXL_VRAM;
		loop->agent.device = device;
		rc = begin(loop, address, size_bytes) == 0 ? 0 : -ENODEV;
	}
	if (rc != 0)
		ofs_nixl_loop_close(loop);
	else
		*out = loop;
	return rc;
}

int
ofs_nixl_loop_export(struct ofs_nixl_loop *loop, uint8_t *blob, uint32_t room_bytes,
	uint32_t *size_bytes)
{
	struct loop_blob content = {.address = loop->base, .size_bytes = loop->size_bytes};
	int rc = room_bytes < sizeof(content)
		? -ENOSPC
		: ofs_nixl_metadata(&loop->agent, blob + sizeof(content), room_bytes - sizeof(content),
			  &content.metadata_size_bytes);

	if (rc == 0) {
		memcpy(blob, &content, sizeof(content));
		*size_bytes = (uint32_t)sizeof(content) + content.metadata_size_bytes;
	}
	return rc;
}

/* Prepares request `number`: its blocks are far apart, and overlap no other's. */
static int
prepare(struct ofs_nixl_loop *loop, struct ofs_nixl_transfer *transfer, const char *peer,
	const struct loop_blob *target, int write, uint32_t size_bytes, uint32_t batch, uint32_t number)
{
	uint64_t blocks = target->size_bytes / size_bytes;
	int rc = ofs_nixl_transfer_open(&loop->agent, transfer);

	for (uint32_t i = 0; i < batch && rc == 0; i++) {
		uint64_t block = ((uint64_t)number * batch + i) * 2654435761u % blocks;

		rc = ofs_nixl_transfer_add(&loop->agent, transfer,
			(void *)(uintptr_t)(loop->base + (uint64_t)i * size_bytes),
			target->address + block * size_bytes, size_bytes);
	}
	if (rc == 0) {
		rc = ofs_nixl_transfer_prepare(&loop->agent, transfer,
			write ? OFS_NIXL_WRITE : OFS_NIXL_READ, peer, NULL, 0);
	}
	return rc;
}

static int
run_round(struct ofs_nixl_loop *loop, struct ofs_nixl_transfer *transfer, uint64_t *taken_ns)
{
	uint64_t start_ns = ofs_machine_now_ns();
	int rc = ofs_nixl_transfer_post(&loop->agent, transfer);

	while (rc == -EINPROGRESS && ofs_machine_now_ns() - start_ns < ROUND_TIMEOUT_NS)
		rc = ofs_nixl_transfer_poll(&loop->agent, transfer);
	*taken_ns = ofs_machine_now_ns() - start_ns;
	return rc == -EINPROGRESS ? -ETIMEDOUT : rc;
}

int
ofs_nixl_loop_run(struct ofs_nixl_loop *loop, const uint8_t *blob, uint32_t blob_size_bytes,
	int write, uint32_t size_bytes, uint32_t batch, uint32_t round_count, uint64_t *ns)
{
	struct ofs_nixl_transfer *transfers;
	uint32_t request_count = batch < BLOCKS ? BLOCKS / batch : 1;
	char peer[OFS_NIXL_NAME_SIZE_BYTES];
	struct loop_blob target;
	int rc;

	if (blob_size_bytes < sizeof(target) || size_bytes == 0 || batch == 0
		|| (uint64_t)size_bytes * batch > loop->size_bytes)
		return -EINVAL;
	memcpy(&target, blob, sizeof(target));
	if (blob_size_bytes != sizeof(target) + (uint64_t)target.metadata_size_bytes
		|| size_bytes > target.size_bytes)
		return -EINVAL;
	transfers = calloc(request_count, sizeof(transfers[0]));
	if (transfers == NULL)
		return -ENOMEM;
	rc = ofs_nixl_meet(&loop->agent, blob + sizeof(target), target.metadata_size_bytes, peer);
	for (uint32_t i = 0; i < request_count && rc == 0; i++)
		rc = prepare(loop, &transfers[i], peer, &target, write, size_bytes, batch, i);
	for (uint32_t i = 0; i < round_count && rc == 0; i++)
		rc = run_round(loop, &transfers[i % request_count], &ns[i]);
	for (uint32_t i = 0; i < request_count; i++)
		if (transfers[i].local != NULL)
			ofs_nixl_transfer_close(&loop->agent, &transfers[i]);
	if (rc != -EPIPE)
		ofs_nixl_forget(&loop->agent, peer);
	free(transfers);
	return rc;
}
