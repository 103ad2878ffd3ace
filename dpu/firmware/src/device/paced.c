/*
 * A modelled device's commands and hits, at its pace: a step or a hint is decided when the device
 * would have taken its command, and a step is answered when the device would have transferred the
 * last of its blocks to the host, beginning with those already staged. The storage (emulated) paces
 * reads and writes.
 *
 * Model: two tables: of steps that wait to be decided, each with a copy of its payload, and of
 * waiters whose blocks are being transferred; blocks that land meanwhile are transferred together
 * afterwards. An entry is freed when the pace reports its end, even if its host has left by then.
 * Without a modelled device there are no tables, and nothing here is called.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define TAG_HIT 0x80000000u /* of a tag: the rest is an index in the table of hits */

int
ofs_device_open_held(struct ofs_device *device)
{
	size_t demand_max = device->config.core.demand_max, score_max = device->config.score_max + 1;
	uint32_t count = device->waiters.count;
	uint32_t *ordinals = calloc(count * demand_max, sizeof(uint32_t));
	uint32_t *granules = calloc(count * demand_max, sizeof(uint32_t));
	uint8_t *seen = calloc(count, demand_max);
	uint16_t *scores = calloc(count * score_max, sizeof(uint16_t));
	struct ofs_guess *guesses = calloc(count * demand_max, sizeof(struct ofs_guess));

	device->paced.steps = calloc(count, sizeof(*device->paced.steps));
	device->paced.hits = calloc(count, sizeof(*device->paced.hits));
	if (device->paced.steps == NULL || device->paced.hits == NULL || ordinals == NULL
		|| seen == NULL || granules == NULL || scores == NULL || guesses == NULL
		|| ofs_fifo_open(&device->paced.free_steps, count, true) != 0
		|| ofs_fifo_open(&device->paced.free_hits, count, true) != 0) {
		free(ordinals);
		free(granules);
		free(seen);
		free(scores);
		free(guesses);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < count; i++) {
		device->paced.steps[i].port = device->paced.hits[i].port = OFS_NONE;
		device->paced.steps[i].waiter = OFS_NONE;
		device->paced.steps[i].command.ordinals = ordinals + i * demand_max;
		device->paced.steps[i].command.granules = granules + i * demand_max;
		device->paced.steps[i].command.seen = seen + i * demand_max;
		device->paced.steps[i].command.scores = scores + i * score_max;
		device->paced.steps[i].command.guesses = guesses + i * demand_max;
	}
	return 0;
}

void
ofs_device_close_held(struct ofs_device *device)
{
	if (device->paced.steps != NULL) {
		free(device->paced.steps[0].command.ordinals);
		free(device->paced.steps[0].command.granules);
		free(device->paced.steps[0].command.seen);
		free(device->paced.steps[0].command.scores);
		free(device->paced.steps[0].command.guesses);
	}
	free(device->paced.steps);
	free(device->paced.hits);
	device->paced.steps = NULL;
	device->paced.hits = NULL;
	ofs_fifo_close(&device->paced.free_steps);
	ofs_fifo_close(&device->paced.free_hits);
}

static void
ask(struct ofs_device *device, enum ofs_pace_kind kind, struct ofs_held *held, uint32_t tag,
	const struct ofs_sqe *sqe, uint32_t count, uint32_t score_count)
{
	struct ofs_timing_request asked = {.tag = tag,
		.size_bytes = device->config.core.block_size_bytes,
		.count = count,
		.score_count = score_count,
		.tenant = device->ports.entries[held->port].tenant,
		.session = sqe->session,
		.layer = sqe->layer,
		.blocks = kind == OFS_PACE_COMMAND && count ? held->command.ordinals : NULL};

	held->begun_ns = ofs_device_now_ns(device);
	held->ring_ns = 0;
	ofs_pace_ask(device->paced.pace, OFS_PACE_COMMANDS, kind, held->begun_ns, &asked);
}

static void
copy_payload(struct ofs_command *to, const struct ofs_command *from)
{
	const struct ofs_sqe *sqe = &from->sqe;

	if (sqe->op == OFS_OP_HINT) {
		memcpy(to->guesses, from->guesses, ofs_payload_used_bytes(sqe));
		return;
	}
	memcpy(to->ordinals, from->ordinals, sqe->demand_count * sizeof(uint32_t));
	memcpy(to->seen, from->seen, sqe->demand_count);
	if (sqe->flags & OFS_STEP_GRANULES)
		memcpy(to->granules, from->granules, sqe->demand_count * sizeof(uint32_t));
	memcpy(to->scores, from->scores, sqe->score_count * sizeof(uint16_t));
}

/* The command's payload was checked against these limits when the port returned it. */
bool
ofs_device_hold(struct ofs_device *device, uint32_t port, const struct ofs_command *command)
{
	uint32_t index = ofs_fifo_take(&device->paced.free_steps);
	const struct ofs_sqe *sqe = &command->sqe;
	struct ofs_held *held = &device->paced.steps[index];

	if (index == OFS_NONE)
		return false;
	held->port = port;
	held->command.sqe = *sqe;
	copy_payload(&held->command, command);
	if (sqe->op == OFS_OP_HINT) { /* takes as long as scores of as many bytes */
		ask(device, OFS_PACE_COMMAND, held, index, sqe, 0,
			(uint32_t)(ofs_payload_used_bytes(sqe) / sizeof(uint16_t)));
	} else {
		ask(device, OFS_PACE_COMMAND, held, index, sqe, sqe->demand_count,
			(uint32_t)(ofs_scores_size_bytes(sqe) / sizeof(uint16_t)));
	}
	if (sqe->sent_ns != 0 && sqe->sent_ns < held->begun_ns)
		held->ring_ns = held->begun_ns - sqe->sent_ns;
	return true;
}

bool
ofs_device_hold_hits(struct ofs_device *device, uint32_t waiter, uint32_t count)
{
	uint32_t index = ofs_fifo_take(&device->paced.free_hits);
	struct ofs_held *held = &device->paced.hits[index];

	if (index == OFS_NONE)
		return false;
	held->port = device->waiters.entries[waiter].port;
	held->waiter = waiter;
	ask(device, OFS_PACE_HIT, held, TAG_HIT | index, &device->waiters.entries[waiter].sqe, count,
		0);
	return true;
}

struct ofs_held *
ofs_device_take_held(struct ofs_device *device, uint64_t now_ns)
{
	struct ofs_pace_end end;
	struct ofs_held *held;

	if (!ofs_pace_take(device->paced.pace, OFS_PACE_COMMANDS, now_ns, &end))
		return NULL;
	held = (end.tag & TAG_HIT) != 0 ? &device->paced.hits[end.tag & ~TAG_HIT]
									: &device->paced.steps[end.tag];
	assert(((end.tag & TAG_HIT) != 0) == (held->waiter != OFS_NONE));
	if (held->port != OFS_NONE) {
		(void)ofs_device_stage_end(device,
			held->waiter == OFS_NONE ? OFS_STAGE_MODEL_COMMAND : OFS_STAGE_MODEL_HIT,
			held->begun_ns);
		device->status.paced++;
		/* The time in the ring is the software's too: a device takes a command on arrival. */
		device->status.paced_late +=
			ofs_pace_late(held->begun_ns, end.due_ns, now_ns + held->ring_ns);
	}
	return held;
}

void
ofs_device_free_held(struct ofs_device *device, struct ofs_held *held)
{
	held->port = OFS_NONE;
	if (held->waiter != OFS_NONE)
		ofs_fifo_give(&device->paced.free_hits, (uint32_t)(held - device->paced.hits));
	else
		ofs_fifo_give(&device->paced.free_steps, (uint32_t)(held - device->paced.steps));
}

void
ofs_device_forget_held(struct ofs_device *device, uint32_t port)
{
	for (uint32_t i = 0; i < device->waiters.count; i++) {
		if (device->paced.steps[i].port == port)
			device->paced.steps[i].port = OFS_NONE;
		if (device->paced.hits[i].port == port)
			device->paced.hits[i].port = OFS_NONE;
	}
}
