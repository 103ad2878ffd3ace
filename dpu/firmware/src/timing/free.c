/* free: every request takes a constant time, 0 if not configured, and none waits for another. */
#include <stdlib.h>

#include "internal.h"

struct free_side {
	struct ofs_timing base;
	struct ofs_timing_config config;
};

static uint64_t
free_read(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	(void)request;
	return now_ps + ((struct free_side *)timing)->config.read_ps;
}

static uint64_t
free_write(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	(void)request;
	return now_ps + ((struct free_side *)timing)->config.write_ps;
}

static uint64_t
free_hit(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	(void)request;
	return now_ps + ((struct free_side *)timing)->config.hit_ps;
}

static uint64_t
free_command(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	(void)request;
	return now_ps + ((struct free_side *)timing)->config.command_ps;
}

static void
free_reset(struct ofs_timing *timing)
{
	(void)timing;
}

static void
free_close(struct ofs_timing *timing)
{
	free(timing);
}

static const struct ofs_timing_ops ops = {
	.name = "free",
	.version = OFS_TIMING_VERSION,
	.read = free_read,
	.write = free_write,
	.hit = free_hit,
	.command = free_command,
	.next_ps = ofs_timing_no_next,
	.poll = ofs_timing_no_poll,
	.reset = free_reset,
	.close = free_close,
};

int
ofs_timing_free_open(struct ofs_timing **out, const struct ofs_timing_config *config)
{
	struct free_side *side = calloc(1, sizeof(*side));

	if (side == NULL)
		return -ENOMEM;
	side->base = (struct ofs_timing){.ops = &ops, .in_flight_max = UINT32_MAX};
	side->config = *config;
	*out = &side->base;
	return 0;
}
