/*
 * The simulated side of a port: its host is in this process, and the seed determines the link's
 * faults.
 *
 * Answers are delayed and overtake each other; a poll of the ring may miss a command, like a write
 * still in flight; and commands that no host sent appear between the host's. Every port refuses
 * those, so they harm no block: they test that a correct host ignores unsolicited answers. Delays
 * use the clock of the config.
 */
#include "clock.h"
#include "port/internal.h"
#include "region/shared.h"

#include <stdlib.h>
#include <string.h>

struct port_held {
	struct ofs_cqe cqe;
	uint64_t due_ns;
};

struct sim_port {
	struct ofs_port base;
	struct ofs_local *local;
	struct ofs_clock *clock;
	struct ofs_port_sim_config config;
	uint64_t random;
	struct port_held *held; /* [2 * entry_count], answers in flight */
	uint32_t held_count;
};

static int
happens(struct sim_port *sim, uint32_t per_million)
{
	return per_million != 0 && ofs_draw(&sim->random) % 1000000 < per_million;
}

static int
sim_share(struct ofs_share **out, struct ofs_region *region)
{
	(void)region;
	*out = calloc(1, sizeof(**out));
	return *out == NULL ? -ENOMEM : 0;
}

static void
sim_unshare(struct ofs_share *share)
{
	free(share);
}

static int
sim_open(struct ofs_port **out, const struct ofs_port_config *config, struct ofs_share *share)
{
	const struct ofs_port_sim_config *faults = &config->sim;
	struct sim_port *sim;
	int rc;

	if (faults->late_per_million > 1000000 || faults->nonsense_per_million > 1000000
		|| (faults->delay_ns_max > 0 && config->clock == NULL)) {
		return -EINVAL;
	}
	sim = calloc(1, sizeof(*sim));
	if (sim == NULL)
		return -ENOMEM;
	sim->config = *faults;
	sim->clock = config->clock;
	sim->random = faults->seed;
	rc = ofs_rings_init(&sim->base.rings, config);
	if (rc == 0) {
		sim->held = calloc(2 * (size_t)config->entry_count, sizeof(sim->held[0]));
		rc = sim->held == NULL ? -ENOMEM : 0;
	}
	if (rc == 0)
		rc = ofs_local_open(&sim->local, share->region, &config->memory,
			sim->base.rings.header.size_bytes);
	if (rc != 0) {
		free(sim->held);
		free(sim);
		return rc;
	}
	ofs_rings_place(&sim->base.rings, sim->local->memory.base, sim->local->memory.size_bytes);
	*out = &sim->base;
	return 0;
}

static void
sim_close(struct ofs_port *port)
{
	struct sim_port *sim = (struct sim_port *)port;

	ofs_word_store_ordered(&port->rings.words->closed, 1);
	ofs_local_withdraw(sim->local);
	free(sim->held);
	free(sim);
}

static int
sim_export(const struct ofs_port *port, struct ofs_attachment *attachment)
{
	ofs_local_write_blob(((const struct sim_port *)port)->local, "sim", attachment);
	return 0;
}

/* Delivers what is due, in due order: a bounded number, since each has an entry. */
static void
deliver(struct sim_port *sim)
{
	uint64_t now_ns = sim->held_count > 0 ? ofs_clock_now_ns(sim->clock) : 0;

	while (sim->held_count > 0) {
		uint32_t first = 0;

		for (uint32_t i = 1; i < sim->held_count; i++)
			if (sim->held[i].due_ns < sim->held[first].due_ns)
				first = i;
		if (sim->held[first].due_ns > now_ns)
			return;
		ofs_rings_push_answer(&sim->base.rings, &sim->held[first].cqe);
		sim->held_count--;
		memmove(&sim->held[first], &sim->held[first + 1],
			(sim->held_count - first) * sizeof(sim->held[0]));
	}
}

/* A command with a payload area that no port has; its other fields are random. */
static int
find_nonsense(struct sim_port *sim, struct ofs_command *command)
{
	uint64_t words[sizeof(command->sqe) / sizeof(uint64_t)];

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		words[i] = ofs_draw(&sim->random);
	memcpy(&command->sqe, words, sizeof(command->sqe));
	command->sqe.payload_index = UINT16_MAX;
	return ofs_rings_refuse(&sim->base.rings, &command->sqe, -EPROTO);
}

static int
sim_poll(struct ofs_port *port, struct ofs_command *command)
{
	struct sim_port *sim = (struct sim_port *)port;

	deliver(sim);
	if (ofs_rings_has_room(&port->rings) && happens(sim, sim->config.nonsense_per_million))
		return find_nonsense(sim, command);
	if (ofs_rings_ready(&port->rings) && happens(sim, sim->config.late_per_million))
		return 0;
	return ofs_rings_poll(&port->rings, command);
}

static int
sim_complete(struct ofs_port *port, const struct ofs_cqe *cqe, const struct ofs_result *results)
{
	struct sim_port *sim = (struct sim_port *)port;
	uint64_t delay_ns = sim->config.delay_ns_max;
	int rc = ofs_rings_write_results(&port->rings, cqe, results);

	if (rc != 0)
		return rc;
	if (delay_ns == 0) {
		ofs_rings_push_answer(&port->rings, cqe);
		return 0;
	}
	/* It counts as outstanding until it is delivered, so there is an entry for it. */
	sim->held[sim->held_count++] = (struct port_held){*cqe,
		ofs_clock_now_ns(sim->clock) + ofs_draw(&sim->random) % (delay_ns + 1)};
	return 0;
}

static void *
sim_put_slot(const struct ofs_port *port, uint32_t put_slot)
{
	return ofs_rings_put_slot(&port->rings, put_slot);
}

/* There is no sleep in virtual time. */
static int
sim_sleep(struct ofs_port *port)
{
	(void)port;
	return 1;
}

static void
sim_wake(struct ofs_port *port)
{
	(void)port;
}

static int
sim_wake_fd(const struct ofs_port *port)
{
	(void)port;
	return -1;
}

const struct ofs_port_ops ofs_port_ops_sim = {
	.name = "sim",
	.share = sim_share,
	.unshare = sim_unshare,
	.open = sim_open,
	.close = sim_close,
	.export = sim_export,
	.poll = sim_poll,
	.complete = sim_complete,
	.put_slot = sim_put_slot,
	.sleep = sim_sleep,
	.wake = sim_wake,
	.wake_fd = sim_wake_fd,
};
