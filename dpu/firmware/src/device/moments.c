/* Moments of reads, commands and turns, for the recorder (moments.h). */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

int
ofs_device_moments_open(struct ofs_device *device)
{
	struct ofs_moments *moments = &device->moments;

	if (device->config.moment_max == 0)
		return 0;
	moments->entries = calloc(device->config.moment_max, sizeof(*moments->entries));
	moments->on = moments->entries != NULL;
	return moments->on ? 0 : -ENOMEM;
}

void
ofs_device_moments_switch(struct ofs_device *device, bool on)
{
	struct ofs_moments *moments = &device->moments;

	moments->on = on && moments->entries != NULL;
	ofs_device_turn_begins(device, ofs_device_now_ns(device));
	ofs_device_window_begins(device);
}

static void
note(struct ofs_device *device, const struct ofs_moment *moment)
{
	struct ofs_moments *moments = &device->moments;
	uint32_t max = device->config.moment_max, place = moments->first + moments->count;

	if (moments->count == max) {
		moments->lost++;
		return;
	}
	place = place < max ? place : place - max;
	moments->entries[place] = *moment;
	moments->entries[place].lost = moments->lost;
	moments->lost = 0;
	moments->count++;
}

void
ofs_device_turn_begins(struct ofs_device *device, uint64_t now_ns)
{
	struct ofs_moments *moments = &device->moments;

	if (!ofs_moments_on(moments))
		return;
	moments->polled_ns = moments->began_ns;
	moments->began_ns = now_ns;
	moments->phase_ns = now_ns;
	moments->starts = device->storage->starts;
	moments->wakes = device->storage->wakes;
	memset(&moments->turn, 0, sizeof(moments->turn));
	moments->turn.kind = OFS_MOMENT_TURN;
	moments->turn.rested_us = (uint32_t)((now_ns - moments->worked_ns) / 1000);
}

void
ofs_device_phase_ends(struct ofs_device *device, enum ofs_phase phase, bool busy)
{
	struct ofs_moments *moments = &device->moments;
	uint64_t now_ns;

	if (!ofs_moments_on(moments) || !busy)
		return; /* an idle phase takes next to nothing, and counts to the one after it */
	now_ns = ofs_device_now_ns(device);
	moments->turn.at_ns[phase] += now_ns - moments->phase_ns;
	moments->phase_ns = now_ns;
}

void
ofs_device_turn_ends(struct ofs_device *device, bool busy)
{
	struct ofs_moments *moments = &device->moments;

	if (!ofs_moments_on(moments))
		return;
	if (device->storage->starts > moments->starts) { /* else none, or a move took its place */
		moments->turn.starts = (uint32_t)(device->storage->starts - moments->starts);
		moments->turn.wakes = (uint32_t)(device->storage->wakes - moments->wakes);
	}
	busy |= moments->turn.starts > 0; /* a lone read waits for the next poll */
	ofs_device_phase_ends(device, OFS_PHASE_REST, busy);
	if (moments->turn.commands > 0 || moments->turn.begun > 0 || moments->turn.ended > 0)
		moments->worked_ns = moments->phase_ns;
	if (!busy)
		return;
	note(device, &moments->turn);
	if (++moments->window_turns >= OFS_WINDOW_TURNS) {
		ofs_device_window_ends(device);
		ofs_device_window_begins(device);
	}
}

void
ofs_device_window_begins(struct ofs_device *device)
{
	struct ofs_moments *moments = &device->moments;

	if (!ofs_moments_on(moments))
		return;
	moments->window_turns = 0;
	moments->window_ns = ofs_device_now_ns(device);
	moments->window_cpu_ns = ofs_clock_cpu_ns(&device->clock);
}

void
ofs_device_window_ends(struct ofs_device *device)
{
	struct ofs_moments *moments = &device->moments;
	struct ofs_moment moment = {.kind = OFS_MOMENT_WINDOW, .commands = moments->window_turns};

	if (!ofs_moments_on(moments) || moments->window_turns == 0)
		return;
	moment.at_ns[OFS_WINDOW_CPU_SO_FAR] = ofs_clock_cpu_ns(&device->clock);
	moment.at_ns[OFS_WINDOW_CPU] = moment.at_ns[OFS_WINDOW_CPU_SO_FAR] - moments->window_cpu_ns;
	moment.at_ns[OFS_WINDOW_TOOK] = ofs_device_now_ns(device) - moments->window_ns;
	note(device, &moment);
}

void
ofs_device_note_read(struct ofs_device *device, const struct ofs_read *read, uint64_t begun_ns)
{
	struct ofs_moments *moments = &device->moments;
	const struct ofs_action *action = &read->action;
	struct ofs_moment moment = {.kind = OFS_MOMENT_READ,
		.cause = action->cause,
		.tenant = action->tenant,
		.session = action->session,
		.layer = action->layer,
		.begun = read->beside};
	uint64_t issued_ns = read->issued_ns;

	if (!ofs_moments_on(moments))
		return;
	moments->turn.ended++;
	moment.at_ns[OFS_READ_DECIDED] = read->decided_ns;
	moment.at_ns[OFS_READ_SUBMITTED] = issued_ns;
	moment.at_ns[OFS_READ_POLLED] = moments->polled_ns > issued_ns ? moments->polled_ns : issued_ns;
	moment.at_ns[OFS_READ_REAPED] = moments->reaped_ns;
	moment.at_ns[OFS_READ_TAKEN] = begun_ns;
	moment.at_ns[OFS_READ_PUBLISHED] = device->reads.published_ns;
	moment.at_ns[OFS_READ_ANSWERED] = ofs_device_now_ns(device);
	note(device, &moment);
}

void
ofs_device_note_command(struct ofs_device *device, const struct ofs_waiter *waiter)
{
	const struct ofs_sqe *sqe = &waiter->sqe;
	struct ofs_moment moment = {.kind = OFS_MOMENT_COMMAND,
		.tenant = device->ports.entries[waiter->port].tenant,
		.session = sqe->session,
		.layer = sqe->layer,
		.commands = 1,
		.demands = sqe->demand_count,
		.scores = sqe->score_count,
		.begun = waiter->waited};

	if (!ofs_moments_on(&device->moments))
		return;
	moment.at_ns[OFS_COMMAND_SENT] = sqe->sent_ns;
	moment.at_ns[OFS_COMMAND_TAKEN] = waiter->begun_ns;
	moment.at_ns[OFS_COMMAND_DECIDED] = waiter->decided_ns;
	moment.at_ns[OFS_COMMAND_ANSWERED] = ofs_device_now_ns(device);
	note(device, &moment);
}

static int
moments_take(struct ofs_device *device, struct ofs_moment *out, int max)
{
	struct ofs_moments *moments = &device->moments;
	int count = 0;

	for (; count < max && moments->count > 0; count++) {
		out[count] = moments->entries[moments->first];
		moments->first = moments->first + 1 < device->config.moment_max ? moments->first + 1 : 0;
		moments->count--;
	}
	return count;
}

OFS_DEVICE_CALL(moments_take, (struct ofs_moment *, out), (int, max));
