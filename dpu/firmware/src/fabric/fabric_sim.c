/*
 * The simulated side of the fabric seam: the same mappings, virtual time, seeded faults.
 *
 * Wraps a shm or memory fabric and shares its thread with the DPU: time advances only when the host
 * waits, pauses or reads, and `pump` then runs the DPU too. A read may let the DPU work in its
 * middle (a torn read, as on a real machine) or return with a flipped bit; completions are delayed
 * and may overtake each other. A seed reproduces all of it.
 */
#include "fabric/host_port.h"

#include <stdlib.h>
#include <string.h>

#define READ_BYTES_PER_NS 10     /* virtual cost of a one-sided read */
#define TORN_SIZE_BYTES_MIN 1024 /* only payloads are torn: a lookup is one access */
#define STEP_NS_MAX 50000
#define READ_BATCH_MAX 16
#define TORN_PUMPS 8 /* turns of the DPU in the middle of a torn read */

struct fabric_held {
	struct ofs_cqe cqe;
	uint64_t due_ns;
};

struct sim_fabric {
	struct ofs_fabric base;
	struct ofs_fabric *inner;
	struct ofs_fabric_sim_config config;
	void (*pump)(void *context, uint64_t now_ns);
	void *context;
	uint64_t now_ns;
	uint64_t random;
	struct fabric_held *held; /* [2 * entry_count], completions in flight */
	uint32_t held_count;
};

static int
happens(struct sim_fabric *sim, uint32_t per_million)
{
	return per_million != 0 && ofs_draw(&sim->random) % 1000000 < per_million;
}

/* Advances the time, lets the DPU work, and collects what it completed. */
static void
advance(struct sim_fabric *sim, uint64_t by_ns)
{
	struct ofs_cqe cqe;

	sim->now_ns += by_ns;
	sim->pump(sim->context, sim->now_ns);
	while (sim->held_count < 2 * sim->base.port.entry_count
		&& sim->inner->ops->poll(sim->inner, &cqe, 1) == 1) {
		uint64_t delay_ns = sim->config.delay_ns_max == 0
			? 0
			: ofs_draw(&sim->random) % (sim->config.delay_ns_max + 1);

		sim->held[sim->held_count++] = (struct fabric_held){cqe, sim->now_ns + delay_ns};
	}
}

static void
sim_close(struct ofs_fabric *fabric)
{
	struct sim_fabric *sim = (struct sim_fabric *)fabric;

	if (sim->inner != NULL)
		sim->inner->ops->close(sim->inner);
	free(sim->held);
	free(sim);
}

/* The bytes [from, to) of a read. */
static int
read_some(struct sim_fabric *sim, uint64_t region_offset, const struct ofs_span *spans,
	uint32_t span_count, uint32_t from, uint32_t to)
{
	struct ofs_span some[OFS_READ_SPANS_MAX] = {{NULL, 0}};
	uint32_t some_count = 0;
	uint32_t begin = 0;

	for (uint32_t i = 0; i < span_count; i++) {
		uint32_t end = begin + spans[i].size_bytes;
		uint32_t first = from > begin ? from : begin;
		uint32_t last = to < end ? to : end;

		if (first < last) {
			some[some_count++] =
				(struct ofs_span){(uint8_t *)spans[i].target + (first - begin), last - first};
		}
		begin = end;
	}
	return sim->inner->ops->read(sim->inner, region_offset + from, some, some_count);
}

static void
flip(struct sim_fabric *sim, const struct ofs_span *spans, uint32_t at)
{
	while (at >= spans->size_bytes) {
		at -= spans->size_bytes;
		spans++;
	}
	((uint8_t *)spans->target)[at] ^= (uint8_t)(1u << ofs_draw(&sim->random) % 8);
}

/* A network may deliver the end of a read before its beginning. */
static int
sim_read(struct ofs_fabric *fabric, uint64_t region_offset, const struct ofs_span *spans,
	uint32_t span_count)
{
	struct sim_fabric *sim = (struct sim_fabric *)fabric;
	uint32_t size_bytes = 0;
	uint32_t half = 0;
	int backwards = 0;
	int rc = 0;

	/* Refused as a network card would, so that a missing registration is found without one. */
	for (uint32_t i = 0; i < span_count; i++) {
		if (!ofs_fabric_is_registered(fabric, spans[i].target, spans[i].size_bytes))
			return -EFAULT;
		size_bytes += spans[i].size_bytes;
	}
	if (size_bytes >= TORN_SIZE_BYTES_MIN && happens(sim, sim->config.torn_per_million)) {
		half = size_bytes / 2;
		backwards = ofs_draw(&sim->random) % 2 == 0;
		rc = read_some(sim, region_offset, spans, span_count, backwards ? half : 0,
			backwards ? size_bytes : half);
		for (int i = 0; i < TORN_PUMPS; i++)
			advance(sim, sim->config.step_ns);
	}
	if (rc == 0) {
		rc = read_some(sim, region_offset, spans, span_count, backwards ? 0 : half,
			backwards ? half : size_bytes);
	}
	if (rc == 0 && size_bytes > 0 && happens(sim, sim->config.flip_per_million))
		flip(sim, spans, (uint32_t)(ofs_draw(&sim->random) % size_bytes));
	sim->now_ns += size_bytes / READ_BYTES_PER_NS;
	return rc;
}

static int
sim_flush(struct ofs_fabric *fabric, uint64_t timeout_ns)
{
	(void)fabric;
	(void)timeout_ns;
	return 0;
}

static int
sim_write_put(struct ofs_fabric *fabric, uint32_t put_slot, const void *source, uint32_t size_bytes,
	uint64_t *checksum)
{
	struct sim_fabric *sim = (struct sim_fabric *)fabric;

	return sim->inner->ops->write_put(sim->inner, put_slot, source, size_bytes, checksum);
}

static void *
sim_payload(struct ofs_fabric *fabric, uint32_t payload_index)
{
	struct sim_fabric *sim = (struct sim_fabric *)fabric;

	return sim->inner->ops->payload(sim->inner, payload_index);
}

static int
sim_submit(struct ofs_fabric *fabric, const struct ofs_sqe *sqe)
{
	struct sim_fabric *sim = (struct sim_fabric *)fabric;

	return sim->inner->ops->submit(sim->inner, sqe);
}

/* In due order, which may differ from the order of sending. */
static int
sim_poll(struct ofs_fabric *fabric, struct ofs_cqe *cqes, int max)
{
	struct sim_fabric *sim = (struct sim_fabric *)fabric;
	int count = 0;

	while (count < max) {
		uint32_t first = OFS_NONE;
		uint32_t i;

		for (i = 0; i < sim->held_count; i++) {
			if (sim->held[i].due_ns <= sim->now_ns
				&& (first == OFS_NONE || sim->held[i].due_ns < sim->held[first].due_ns)) {
				first = i;
			}
		}
		if (first == OFS_NONE)
			break;
		cqes[count++] = sim->held[first].cqe;
		sim->held_count--;
		memmove(&sim->held[first], &sim->held[first + 1],
			(sim->held_count - first) * sizeof(sim->held[0]));
	}
	return count;
}

static const struct ofs_result *
sim_results(struct ofs_fabric *fabric, const struct ofs_cqe *cqe)
{
	struct sim_fabric *sim = (struct sim_fabric *)fabric;

	return sim->inner->ops->results(sim->inner, cqe);
}

static int
has_due(const struct sim_fabric *sim)
{
	for (uint32_t i = 0; i < sim->held_count; i++)
		if (sim->held[i].due_ns <= sim->now_ns)
			return 1;
	return 0;
}

static int
sim_wait(struct ofs_fabric *fabric, uint64_t timeout_ns)
{
	struct sim_fabric *sim = (struct sim_fabric *)fabric;
	uint64_t until_ns = sim->now_ns + timeout_ns;
	uint64_t step_ns = sim->config.step_ns;

	do {
		uint64_t left_ns = until_ns - sim->now_ns;

		/* A look takes time too; otherwise polling alone would never advance the time. */
		advance(sim, step_ns < left_ns || left_ns == 0 ? step_ns : left_ns);
		if (has_due(sim))
			return 0;
		if (sim->held_count == 0
			&& ofs_host_port_closed(&((const struct ofs_mapped_fabric *)sim->inner)->port))
			return -EPIPE;
		/* The steps grow while nothing arrives, so that a hang costs little to simulate. */
		step_ns = step_ns < STEP_NS_MAX ? step_ns + step_ns / 8 + 1 : STEP_NS_MAX;
	} while (sim->now_ns < until_ns);
	return -ETIMEDOUT;
}

static uint64_t
sim_now_ns(struct ofs_fabric *fabric)
{
	return ((struct sim_fabric *)fabric)->now_ns;
}

static void
sim_pause(struct ofs_fabric *fabric, uint64_t pause_ns)
{
	advance((struct sim_fabric *)fabric, pause_ns);
}

static const struct ofs_fabric_ops sim_ops = {
	.name = "sim",
	.close = sim_close,
	.register_memory = ofs_fabric_register_memory,
	.unregister_memory = ofs_fabric_unregister_memory,
	.read = sim_read,
	.flush = sim_flush,
	.copy = NULL, /* as over a network */
	.write_put = sim_write_put,
	.payload = sim_payload,
	.submit = sim_submit,
	.poll = sim_poll,
	.results = sim_results,
	.wait = sim_wait,
	.now_ns = sim_now_ns,
	.pause = sim_pause,
};

int
ofs_fabric_sim_open(struct ofs_fabric **out, const struct ofs_attachment *attachment,
	const struct ofs_fabric_sim_config *config, void (*pump)(void *context, uint64_t now_ns),
	void *context, uint64_t now_ns, char *error, size_t error_size_bytes)
{
	struct sim_fabric *sim;
	int rc;

	if (error_size_bytes > 0)
		error[0] = '\0';
	if (config->step_ns == 0 || config->torn_per_million > 1000000
		|| config->flip_per_million > 1000000) {
		return -EINVAL;
	}
	sim = calloc(1, sizeof(*sim));
	if (sim == NULL)
		return -ENOMEM;
	rc = ofs_fabric_open(&sim->inner, attachment, error, error_size_bytes);
	if (rc == 0) {
		sim->held = calloc(2 * sim->inner->port.entry_count, sizeof(sim->held[0]));
		rc = sim->held == NULL ? -ENOMEM : 0;
	}
	if (rc != 0) {
		sim_close(&sim->base);
		return rc;
	}
	sim->base = *sim->inner;
	sim->base.ops = &sim_ops;
	sim->base.read_batch_max = READ_BATCH_MAX;
	sim->base.dilation = 1;
	sim->config = *config;
	sim->pump = pump;
	sim->context = context;
	sim->now_ns = now_ns;
	sim->random = config->seed;
	*out = &sim->base;
	return 0;
}
