/*
 * nvme: an NVMe drive behind a DPU.
 *
 * Model: reads, and writes if so configured, take the drive's times, with its queue and its cost of
 * a command; the DPU's own work takes constant times. A drive without schedulers reserves all of
 * its time at the request, so every end is known immediately; of one with them, ends come later.
 */
#include <stdlib.h>

#include "internal.h"

struct nvme_side {
	struct ofs_timing base;
	struct ofs_timing_config config;
	struct ofs_nvme_model *model;
};

static uint64_t
nvme_read(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	return ofs_nvme_model_submit(((struct nvme_side *)timing)->model, now_ps, 0, request->tag,
		request->offset_bytes, request->size_bytes);
}

static uint64_t
nvme_write(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	struct nvme_side *side = (struct nvme_side *)timing;

	if (!side->config.writes)
		return now_ps + side->config.write_ps;
	return ofs_nvme_model_submit(side->model, now_ps, 1, request->tag, request->offset_bytes,
		request->size_bytes);
}

static uint64_t
nvme_hit(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	(void)request;
	return now_ps + ((struct nvme_side *)timing)->config.hit_ps;
}

static uint64_t
nvme_command(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	(void)request;
	return now_ps + ((struct nvme_side *)timing)->config.command_ps;
}

static uint64_t
nvme_next_ps(const struct ofs_timing *timing)
{
	return ofs_nvme_model_next_ps(((const struct nvme_side *)timing)->model);
}

static int
nvme_poll(struct ofs_timing *timing, uint64_t now_ps, struct ofs_timing_end *ends, int max)
{
	struct ofs_nvme_end end;
	int count = 0;

	while (count < max
		&& ofs_nvme_model_poll(((struct nvme_side *)timing)->model, now_ps, &end, 1) == 1)
		ends[count++] = (struct ofs_timing_end){end.tag, end.end_ps};
	return count;
}

static void
nvme_reset(struct ofs_timing *timing)
{
	ofs_nvme_model_reset(((struct nvme_side *)timing)->model);
}

static void
nvme_close(struct ofs_timing *timing)
{
	ofs_nvme_model_close(((struct nvme_side *)timing)->model);
	free(timing);
}

static const struct ofs_timing_ops ops = {
	.name = "nvme",
	.version = OFS_TIMING_VERSION,
	.read = nvme_read,
	.write = nvme_write,
	.hit = nvme_hit,
	.command = nvme_command,
	.next_ps = nvme_next_ps,
	.poll = nvme_poll,
	.reset = nvme_reset,
	.close = nvme_close,
};

int
ofs_timing_nvme_open(struct ofs_timing **out, const struct ofs_timing_config *config)
{
	struct nvme_side *side = calloc(1, sizeof(*side));
	int rc;

	if (side == NULL)
		return -ENOMEM;
	side->base = (struct ofs_timing){.ops = &ops, .in_flight_max = UINT32_MAX};
	if (config->nvme.scheduled)
		side->base.in_flight_max = config->nvme.queue_depth_max;
	side->config = *config;
	side->config.nvme.erase_limit = 0; /* a timing has an end for every write */
	rc = ofs_nvme_model_open(&side->model, &side->config.nvme, config->seed);
	if (rc) {
		free(side);
		return rc;
	}
	*out = &side->base;
	return 0;
}
