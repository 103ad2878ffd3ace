/*
 * The template for a new fabric. It works: it is the `memory` fabric, host and DPU in one process
 * and in one mapping, which the tests run under ThreadSanitizer.
 *
 * To add a fabric, copy this file; keep the functions and their order; name its open in open.c,
 * write the DPU's end of it (port/skeleton.c), and give it a line in host/fabrics. The contract
 * suite then runs over it too. The comment above each function says what it must do, and what an
 * RDMA fabric would do instead.
 */
#include "clock.h"
#include "fabric/host_port.h"
#include "port/local.h"
#include "region/shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SLEEP_NS 20000

/* First member: the base, whose header copies ofs_fabric_check fills in. Own fields follow. */
struct skeleton_fabric {
	struct ofs_mapped_fabric mapped;
	struct ofs_local *local;
	const uint8_t *region;
};

/* Releases everything, in any state that open can leave. RDMA: queue pair, registrations, ports. */
static void
skeleton_close(struct ofs_fabric *fabric)
{
	struct skeleton_fabric *skeleton = (struct skeleton_fabric *)fabric;

	if (skeleton->local != NULL)
		ofs_local_release(skeleton->local);
	free(skeleton);
}

/* No `export`: the DPU needs nothing of ours. RDMA: number and address of the queue pair. */

/* Allows reads into the range. RDMA: register it for local writes, keep its key with the range. */
static int
skeleton_register_memory(struct ofs_fabric *fabric, void *base, uint64_t size_bytes)
{
	return ofs_fabric_register_memory(fabric, base, size_bytes);
}

/* RDMA: deregister; unmapping first would let the card write into what is mapped there next. */
static int
skeleton_unregister_memory(struct ofs_fabric *fabric, void *base, uint64_t size_bytes)
{
	return ofs_fabric_unregister_memory(fabric, base, size_bytes);
}

/*
 * Post one read, checked against the region's size. RDMA: a READ work request with an entry of its
 * scatter list for each span, and no signal.
 */
static int
skeleton_read(struct ofs_fabric *fabric, uint64_t region_offset, const struct ofs_span *spans,
	uint32_t span_count)
{
	return ofs_host_port_read(&fabric->region, ((struct skeleton_fabric *)fabric)->region,
		region_offset, spans, span_count);
}

/* Waits for all posted reads. RDMA: poll for the last one, which was posted with a signal. */
static int
skeleton_flush(struct ofs_fabric *fabric, uint64_t timeout_ns)
{
	(void)fabric;
	(void)timeout_ns;
	return 0;
}

/* Copies bytes into the put window. RDMA: a WRITE; a later submission is seen after it. */
static int
skeleton_write_put(struct ofs_fabric *fabric, uint32_t put_slot, const void *source,
	uint32_t size_bytes, uint64_t *checksum)
{
	return ofs_host_port_write_put(&((struct skeleton_fabric *)fabric)->mapped.port, &fabric->port,
		put_slot, source, size_bytes, checksum);
}

/* Memory for one submission's payload. RDMA: a registered buffer here, written out by submit. */
static void *
skeleton_payload(struct ofs_fabric *fabric, uint32_t payload_index)
{
	return ofs_host_port_payload(&((struct skeleton_fabric *)fabric)->mapped.port, &fabric->port,
		payload_index);
}

/* Queue one command, or -EAGAIN, or -EPIPE. RDMA: WRITE payload, entry and tail, in this order. */
static int
skeleton_submit(struct ofs_fabric *fabric, const struct ofs_sqe *sqe)
{
	return ofs_host_port_submit(&((struct skeleton_fabric *)fabric)->mapped.port, &fabric->port,
		sqe);
}

/* Take up to `max` completions. RDMA: the DPU writes them into a ring in registered host memory. */
static int
skeleton_poll(struct ofs_fabric *fabric, struct ofs_cqe *cqes, int max)
{
	return ofs_host_port_poll(&((struct skeleton_fabric *)fabric)->mapped.port, &fabric->port, cqes,
		max);
}

/* The results of a STEP. RDMA: written by the DPU before the completion. */
static const struct ofs_result *
skeleton_results(struct ofs_fabric *fabric, const struct ofs_cqe *cqe)
{
	return ofs_host_port_results(&((struct skeleton_fabric *)fabric)->mapped.port, &fabric->port,
		cqe);
}

static uint64_t
skeleton_now_ns(struct ofs_fabric *fabric)
{
	(void)fabric;
	return ofs_machine_now_ns();
}

static void
skeleton_pause(struct ofs_fabric *fabric, uint64_t pause_ns)
{
	struct timespec left = {.tv_sec = (time_t)(pause_ns / 1000000000ull),
		.tv_nsec = (long)(pause_ns % 1000000000ull)};

	(void)fabric;
	nanosleep(&left, NULL);
}

/* Waits for a result of poll, a closed port, or the time. RDMA: a completion channel. */
static int
skeleton_wait(struct ofs_fabric *fabric, uint64_t timeout_ns)
{
	struct skeleton_fabric *skeleton = (struct skeleton_fabric *)fabric;
	uint64_t start_ns = skeleton_now_ns(fabric);

	for (;;) {
		if (ofs_host_port_ready(&skeleton->mapped.port))
			return 0;
		if (ofs_host_port_closed(&skeleton->mapped.port))
			return -EPIPE;
		if (skeleton_now_ns(fabric) - start_ns >= timeout_ns)
			return -ETIMEDOUT;
		skeleton_pause(fabric, SLEEP_NS);
	}
}

static const struct ofs_fabric_ops skeleton_ops = {
	.name = "memory",
	.close = skeleton_close,
	.register_memory = skeleton_register_memory,
	.unregister_memory = skeleton_unregister_memory,
	.read = skeleton_read,
	.flush = skeleton_flush,
	.copy = NULL, /* as over a network: the driver reads records, a batch per round trip */
	.write_put = skeleton_write_put,
	.payload = skeleton_payload,
	.submit = skeleton_submit,
	.poll = skeleton_poll,
	.results = skeleton_results,
	.wait = skeleton_wait,
	.now_ns = skeleton_now_ns,
	.pause = skeleton_pause,
};

/* Map the memory, check both headers with ofs_fabric_check, and only then trust a number. */
int
ofs_fabric_memory_open(struct ofs_fabric **out, const struct ofs_attachment *attachment,
	char *error, size_t error_size_bytes)
{
	struct ofs_blob_header header;
	struct ofs_blob_local blob;
	struct skeleton_fabric *skeleton;
	uint64_t region_size_bytes;
	int rc = ofs_blob_read(attachment, &header, &blob, sizeof(blob), error, error_size_bytes);

	if (rc != 0)
		return rc;
	skeleton = calloc(1, sizeof(*skeleton));
	if (skeleton == NULL)
		return -ENOMEM;
	skeleton->mapped.base.ops = &skeleton_ops;
	skeleton->mapped.base.read_batch_max = 16;
	skeleton->mapped.base.dilation = 1;
	skeleton->local = ofs_local_find(&blob);
	if (skeleton->local == NULL) {
		snprintf(error, error_size_bytes,
			"attach blob: no such port in this process; attach again, where the device is");
		skeleton_close(&skeleton->mapped.base);
		return -EINVAL;
	}
	skeleton->region = ofs_region_base(skeleton->local->region, &region_size_bytes);
	rc = ofs_fabric_check(&skeleton->mapped.base, skeleton->region, region_size_bytes,
		skeleton->local->memory.base, skeleton->local->memory.size_bytes, error, error_size_bytes);
	if (rc != 0) {
		skeleton_close(&skeleton->mapped.base);
		return rc;
	}
	ofs_host_port_init(&skeleton->mapped.port, skeleton->local->memory.base,
		&skeleton->mapped.base.port, -1);
	*out = &skeleton->mapped.base;
	return 0;
}
