/*
 * The nixl side of the fabric seam: a host that reaches the DPU by NIXL.
 *
 * Owns a link (nixl/link.h), whose agent has no thread: it progresses only in calls. `read`
 * collects reads, which `flush` sends as one transfer. The host keeps a mirror of the port: its put
 * window is written out to the DPU, and arriving answers are stored in it. When the link is down,
 * every call returns -EPIPE.
 */
#include "clock.h"
#include "fabric/host_port.h"
#include "nixl/link.h"
#include "region/shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SPIN_NS 50000ull
#define PAUSE_NS 20000ull
#define READ_BATCH_MAX 64

struct nixl_fabric {
	struct ofs_mapped_fabric mapped; /* its port is the mirror */
	struct ofs_nixl_link link;
	struct ofs_dma mirror;
	void *mirror_registration;
	void *registrations[OFS_FABRIC_MEMORIES_MAX]; /* parallel to base.registered */
	struct ofs_nixl_transfer reads;
	struct ofs_nixl_transfer *puts; /* [put_slot_count] */
	uint32_t puts_flying_count;
	struct ofs_nixl_command *command; /* sized for the largest */
};

static uint64_t
nixl_now_ns(struct ofs_fabric *fabric)
{
	(void)fabric;
	return ofs_machine_now_ns();
}

static void
nixl_pause(struct ofs_fabric *fabric, uint64_t pause_ns)
{
	struct timespec left = {.tv_sec = (time_t)(pause_ns / 1000000000ull),
		.tv_nsec = (long)(pause_ns % 1000000000ull)};

	(void)fabric;
	nanosleep(&left, NULL);
}

static void
nixl_close(struct ofs_fabric *fabric)
{
	struct nixl_fabric *nixl = (struct nixl_fabric *)fabric;

	if (nixl->link.agent.handle != NULL) {
		ofs_nixl_transfer_close(&nixl->link.agent, &nixl->reads);
		for (uint32_t i = 0; nixl->puts != NULL && i < fabric->port.put_slot_count; i++)
			ofs_nixl_transfer_close(&nixl->link.agent, &nixl->puts[i]);
		for (uint32_t i = 0; i < fabric->registered_count; i++)
			ofs_nixl_deregister(&nixl->link.agent, nixl->registrations[i]);
		ofs_nixl_deregister(&nixl->link.agent, nixl->mirror_registration);
	}
	ofs_nixl_link_close(&nixl->link);
	ofs_dma_release(nixl, nixl->mirror.base, nixl->mirror.size_bytes);
	ofs_dma_free(&nixl->mirror);
	free(nixl->puts);
	free(nixl->command);
	free(nixl);
}

static int
nixl_register_memory(struct ofs_fabric *fabric, void *base, uint64_t size_bytes)
{
	struct nixl_fabric *nixl = (struct nixl_fabric *)fabric;
	uint32_t at = fabric->registered_count;
	int rc = ofs_fabric_register_memory(fabric, base, size_bytes);

	if (rc != 0)
		return rc;
	rc = ofs_nixl_register(&nixl->link.agent, base, size_bytes, &nixl->registrations[at]);
	if (rc != 0)
		(void)ofs_fabric_unregister_memory(fabric, base, size_bytes);
	return rc;
}

static int
nixl_unregister_memory(struct ofs_fabric *fabric, void *base, uint64_t size_bytes)
{
	struct nixl_fabric *nixl = (struct nixl_fabric *)fabric;
	uintptr_t first = (uintptr_t)base;
	uint32_t at = 0;
	int rc;

	while (at < fabric->registered_count
		&& (fabric->registered[at].first != first
			|| fabric->registered[at].end - first != size_bytes)) {
		at++;
	}
	rc = ofs_fabric_unregister_memory(fabric, base, size_bytes);
	if (rc != 0)
		return rc;
	ofs_nixl_deregister(&nixl->link.agent, nixl->registrations[at]);
	nixl->registrations[at] = nixl->registrations[fabric->registered_count]; /* like the range */
	return 0;
}

static int
link_down(struct nixl_fabric *nixl)
{
	nixl->link.down = true;
	return -EPIPE;
}

static int
nixl_read(struct ofs_fabric *fabric, uint64_t region_offset, const struct ofs_span *spans,
	uint32_t span_count)
{
	struct nixl_fabric *nixl = (struct nixl_fabric *)fabric;
	uint64_t offset = region_offset;
	int rc = 0;

	for (uint32_t i = 0; i < span_count; i++) {
		rc = ofs_region_range(&fabric->region, offset, spans[i].size_bytes);
		if (rc != 0)
			return rc;
		if (!ofs_fabric_is_registered(fabric, spans[i].target, spans[i].size_bytes))
			return -EFAULT;
		offset += spans[i].size_bytes;
	}
	offset = nixl->link.blob.region_address + region_offset;
	for (uint32_t i = 0; i < span_count && rc == 0; i++) {
		rc = ofs_nixl_transfer_add(&nixl->link.agent, &nixl->reads, spans[i].target, offset,
			spans[i].size_bytes);
		offset += spans[i].size_bytes;
	}
	return rc;
}

static int
nixl_flush(struct ofs_fabric *fabric, uint64_t timeout_ns)
{
	struct nixl_fabric *nixl = (struct nixl_fabric *)fabric;

	if (nixl->reads.count == 0)
		return 0;
	if (nixl->link.down)
		return -EPIPE;
	return ofs_nixl_link_finish(&nixl->link, &nixl->reads,
		ofs_nixl_transfer_run(&nixl->link.agent, &nixl->reads, OFS_NIXL_READ, nixl->link.dpu, NULL,
			0),
		timeout_ns);
}

static int
nixl_write_put(struct ofs_fabric *fabric, uint32_t put_slot, const void *source,
	uint32_t size_bytes, uint64_t *checksum)
{
	return ofs_host_port_write_put(&((struct nixl_fabric *)fabric)->mapped.port, &fabric->port,
		put_slot, source, size_bytes, checksum);
}

static void *
nixl_payload(struct ofs_fabric *fabric, uint32_t payload_index)
{
	return ofs_host_port_payload(&((struct nixl_fabric *)fabric)->mapped.port, &fabric->port,
		payload_index);
}

/* Writes the block from the mirror's window, followed by its command. */
static int
send_put(struct nixl_fabric *nixl, const struct ofs_sqe *sqe)
{
	const struct ofs_port_header *port = &nixl->mapped.base.port;
	struct ofs_nixl_transfer *put;
	uint64_t offset;
	int rc;

	if (sqe->put_slot >= port->put_slot_count || sqe->length > port->put_stride_bytes)
		return -EINVAL;
	put = &nixl->puts[sqe->put_slot];
	if (put->flying)
		return -EAGAIN;
	offset = (uint64_t)sqe->put_slot * port->put_stride_bytes;
	rc = ofs_nixl_transfer_add(&nixl->link.agent, put,
		nixl->mapped.port.base + port->puts_offset + offset, nixl->link.blob.puts_address + offset,
		sqe->length);
	if (rc == 0) {
		rc = ofs_nixl_transfer_run(&nixl->link.agent, put, OFS_NIXL_WRITE, nixl->link.dpu,
			nixl->command, sizeof(*nixl->command));
	}
	nixl->puts_flying_count += rc == -EINPROGRESS;
	return rc == -EINPROGRESS ? 0 : rc;
}

static int
nixl_submit(struct ofs_fabric *fabric, const struct ofs_sqe *sqe)
{
	struct nixl_fabric *nixl = (struct nixl_fabric *)fabric;
	size_t size_bytes = 0;
	int rc;

	if (nixl->link.down)
		return -EPIPE;
	nixl->command->header.kind = OFS_NIXL_COMMAND;
	nixl->command->sqe = *sqe;
	if (sqe->op == OFS_OP_PUT && sqe->length > 0) {
		rc = send_put(nixl, sqe);
		return rc == -EPIPE ? link_down(nixl) : rc;
	}
	if (sqe->payload_index < fabric->port.entry_count
		&& ofs_payload_used_bytes(sqe) <= fabric->port.payload_size_bytes) {
		size_bytes = ofs_payload_used_bytes(sqe);
		memcpy(nixl->command + 1, nixl_payload(fabric, sqe->payload_index), size_bytes);
	}
	rc = ofs_nixl_send(&nixl->link.agent, nixl->link.dpu, nixl->command,
		sizeof(*nixl->command) + size_bytes);
	return rc == -EPIPE ? link_down(nixl) : rc;
}

/* Stores results, entry and tail in the mirror. Reports of landed blocks are dropped if only
 * completions still have room. */
static void
take_answer(struct nixl_fabric *nixl, const uint8_t *data, size_t size_bytes)
{
	const struct ofs_port_header *header = &nixl->mapped.base.port;
	struct ofs_host_port *port = &nixl->mapped.port;
	uint32_t tail = ofs_word_load(&port->words->completion_tail);
	uint32_t unread_count = tail - port->completion_head;
	struct ofs_nixl_answer answer;
	size_t results_bytes;

	if (size_bytes < sizeof(answer))
		return;
	memcpy(&answer, data, sizeof(answer));
	results_bytes = size_bytes - sizeof(answer);
	if (answer.cqe.count > header->demand_max || answer.cqe.first > answer.cqe.count
		|| results_bytes != (answer.cqe.count - answer.cqe.first) * sizeof(struct ofs_result)
		|| (results_bytes > 0 && answer.cqe.payload_index >= header->entry_count)) {
		return;
	}
	if (results_bytes > 0) {
		memcpy((uint8_t *)nixl_payload(&nixl->mapped.base, answer.cqe.payload_index)
				+ ofs_payload_results_offset(header->demand_max, header->score_max)
				+ answer.cqe.first * sizeof(struct ofs_result),
			data + sizeof(answer), results_bytes);
	}
	if (unread_count
		>= (answer.cqe.rc == -EINPROGRESS ? header->entry_count : 2 * header->entry_count)) {
		return;
	}
	memcpy(port->base + header->completions_offset
			+ (tail & port->completion_mask) * sizeof(struct ofs_cqe),
		&answer.cqe, sizeof(answer.cqe));
	ofs_word_store(&port->words->completion_tail, tail + 1);
}

static void
deliver(void *context, const char *from, const uint8_t *data, size_t size_bytes)
{
	struct nixl_fabric *nixl = context;
	struct ofs_nixl_header header;

	if (size_bytes < sizeof(header) || strcmp(from, nixl->link.dpu) != 0)
		return;
	memcpy(&header, data, sizeof(header));
	if (header.magic != OFS_NIXL_MAGIC
		|| memcmp(header.token, nixl->link.blob.token, sizeof(header.token)) != 0) {
		return;
	}
	if (header.kind == OFS_NIXL_ANSWER)
		take_answer(nixl, data, size_bytes);
	else if (header.kind == OFS_NIXL_CLOSED)
		(void)link_down(nixl);
}

/* Progresses transfers in flight, and collects what has arrived. */
static void
turn(struct nixl_fabric *nixl)
{
	uint32_t put_slot_count =
		nixl->puts_flying_count > 0 ? nixl->mapped.base.port.put_slot_count : 0;

	if (nixl->link.down)
		return;
	if (ofs_nixl_take(&nixl->link.agent, deliver, nixl) > 0)
		nixl->link.heard_ns = nixl_now_ns(&nixl->mapped.base);
	for (uint32_t i = 0; i < put_slot_count; i++) {
		int rc;

		if (!nixl->puts[i].flying)
			continue;
		rc = ofs_nixl_transfer_poll(&nixl->link.agent, &nixl->puts[i]);
		nixl->puts_flying_count -= rc != -EINPROGRESS;
		if (rc == -EPIPE)
			(void)link_down(nixl);
	}
}

static int
nixl_poll(struct ofs_fabric *fabric, struct ofs_cqe *cqes, int max)
{
	struct nixl_fabric *nixl = (struct nixl_fabric *)fabric;

	turn(nixl);
	return ofs_host_port_poll(&nixl->mapped.port, &fabric->port, cqes, max);
}

static const struct ofs_result *
nixl_results(struct ofs_fabric *fabric, const struct ofs_cqe *cqe)
{
	return ofs_host_port_results(&((struct nixl_fabric *)fabric)->mapped.port, &fabric->port, cqe);
}

static int
nixl_wait(struct ofs_fabric *fabric, uint64_t timeout_ns)
{
	struct nixl_fabric *nixl = (struct nixl_fabric *)fabric;
	uint64_t start_ns = nixl_now_ns(fabric);

	for (;;) {
		uint64_t now_ns;

		turn(nixl);
		if (ofs_host_port_ready(&nixl->mapped.port))
			return 0;
		now_ns = nixl_now_ns(fabric);
		ofs_nixl_link_probe(&nixl->link, now_ns);
		if (nixl->link.down)
			return -EPIPE;
		if (now_ns - start_ns >= timeout_ns)
			return -ETIMEDOUT;
		if (now_ns - start_ns >= SPIN_NS)
			nixl_pause(fabric, PAUSE_NS);
	}
}

static const struct ofs_fabric_ops nixl_ops = {
	.name = "nixl",
	.close = nixl_close,
	.register_memory = nixl_register_memory,
	.unregister_memory = nixl_unregister_memory,
	.read = nixl_read,
	.flush = nixl_flush,
	.copy = NULL,
	.write_put = nixl_write_put,
	.payload = nixl_payload,
	.submit = nixl_submit,
	.poll = nixl_poll,
	.results = nixl_results,
	.wait = nixl_wait,
	.now_ns = nixl_now_ns,
	.pause = nixl_pause,
};

/* Makes the mirror: a port as the blob describes it; its put window is written out to the DPU. */
static int
open_mirror(struct nixl_fabric *nixl)
{
	const struct ofs_port_header *port = &nixl->mapped.base.port;
	static const struct ofs_dma_config plain;
	int rc = ofs_dma_alloc(&nixl->mirror, &plain, port->size_bytes + sizeof(uint64_t), NULL);

	if (rc == 0)
		rc = ofs_dma_hold(nixl, nixl->mirror.base, nixl->mirror.size_bytes);
	if (rc == 0) {
		rc = ofs_nixl_register(&nixl->link.agent, nixl->mirror.base, nixl->mirror.size_bytes,
			&nixl->mirror_registration);
	}
	if (rc != 0)
		return rc;
	ofs_host_port_init(&nixl->mapped.port, nixl->mirror.base, port, -1);
	nixl->puts = calloc(port->put_slot_count, sizeof(nixl->puts[0]));
	nixl->command = calloc(1, sizeof(*nixl->command) + port->payload_size_bytes);
	if (nixl->puts == NULL || nixl->command == NULL)
		return -ENOMEM;
	rc = ofs_nixl_transfer_open(&nixl->link.agent, &nixl->reads);
	for (uint32_t i = 0; i < port->put_slot_count && rc == 0; i++)
		rc = ofs_nixl_transfer_open(&nixl->link.agent, &nixl->puts[i]);
	nixl->command->header.magic = OFS_NIXL_MAGIC;
	memcpy(nixl->command->header.token, nixl->link.blob.token, sizeof(nixl->link.blob.token));
	return rc;
}

static int
open_link(struct nixl_fabric *nixl, const uint8_t *metadata, char *error, size_t error_size_bytes)
{
	int rc = ofs_fabric_check(&nixl->mapped.base, (const uint8_t *)&nixl->link.blob.region,
		nixl->link.blob.region.size_bytes, (const uint8_t *)&nixl->link.blob.port,
		nixl->link.blob.port.size_bytes, error, error_size_bytes);

	if (rc != 0)
		return rc;
	rc = ofs_nixl_link_open(&nixl->link);
	if (rc == 0)
		rc = open_mirror(nixl);
	if (rc != 0) {
		snprintf(error, error_size_bytes, "nixl: no agent with UCX (errno %d); %s", -rc,
			"UCX_TLS must hold tcp; NIXL_LOG_LEVEL=INFO says more");
		return rc;
	}
	rc = ofs_nixl_link_greet(&nixl->link, metadata,
		(uint64_t *)((uint8_t *)nixl->mirror.base + nixl->mapped.base.port.size_bytes));
	if (rc != 0) {
		snprintf(error, error_size_bytes, "nixl: the daemon's memory cannot be reached; %s",
			"give both ends the same UCX_TLS (with tcp in it) and a network between them");
	}
	return rc;
}

int
ofs_fabric_nixl_open(struct ofs_fabric **out, const struct ofs_attachment *attachment, char *error,
	size_t error_size_bytes)
{
	const uint8_t *content = attachment->blob + sizeof(struct ofs_blob_header);
	struct ofs_blob_header header;
	struct nixl_fabric *nixl;
	int rc = ofs_blob_read(attachment, &header, NULL, 0, error, error_size_bytes);

	if (rc != 0)
		return rc;
	nixl = calloc(1, sizeof(*nixl));
	if (nixl == NULL)
		return -ENOMEM;
	if (header.size_bytes >= sizeof(header) + sizeof(nixl->link.blob))
		memcpy(&nixl->link.blob, content, sizeof(nixl->link.blob));
	if (header.size_bytes
		!= sizeof(header) + sizeof(nixl->link.blob)
			+ (uint64_t)nixl->link.blob.metadata_size_bytes) {
		snprintf(error, error_size_bytes,
			"attach blob: the part for its fabric has the wrong size; %s",
			"install the same release on both sides");
		free(nixl);
		return -EINVAL;
	}
	nixl->mapped.base.ops = &nixl_ops;
	nixl->mapped.base.read_batch_max = READ_BATCH_MAX;
	nixl->mapped.base.dilation = 1;
	rc = open_link(nixl, content + sizeof(nixl->link.blob), error, error_size_bytes);
	if (rc != 0) {
		nixl_close(&nixl->mapped.base);
		return rc;
	}
	*out = &nixl->mapped.base;
	return 0;
}
