/* Commands of hosts. Every number was copied from shared memory and is checked. */
#include "internal.h"

#define COMMAND_BATCH 16 /* of one port in one turn */
#define COMMAND_UNIT 32  /* demands, or scores, or KiB of a put, in one unit of work */

/* 0, or the reason why the STEP is refused. */
static int
check_step(const struct ofs_device *device, uint32_t port, const struct ofs_command *command)
{
	const struct ofs_sqe *sqe = &command->sqe;
	int rc = ofs_device_check_session(device, port, sqe->session);

	if (rc != 0)
		return rc;
	if (device->ports.entries[port].steps_waiting >= device->config.port_entry_count)
		return -EBUSY; /* more commands in flight than the ring has entries */
	if (sqe->layer >= device->config.core.layer_count
		|| sqe->demand_count > device->config.core.demand_max
		|| sqe->score_count > device->config.score_max) {
		return -EINVAL;
	}
	for (uint32_t i = 0; i < sqe->demand_count; i++)
		if (command->seen[i] >= OFS_CAUSE_COUNT)
			return -EINVAL;
	return 0;
}

static void
serve_step(struct ofs_device *device, uint32_t port, const struct ofs_command *command)
{
	const struct ofs_sqe *sqe = &command->sqe;
	struct ofs_step step = {.session = sqe->session,
		.step = sqe->step,
		.layer = sqe->layer,
		.selected_count = sqe->selected_count,
		.demand_count = sqe->demand_count,
		.score_count = sqe->score_count,
		.flags = sqe->flags & OFS_STEP_RETRY,
		.hint_bytes = (uint32_t)ofs_scores_size_bytes(sqe),
		.demands = command->ordinals,
		.granules = sqe->flags & OFS_STEP_GRANULES ? command->granules : NULL,
		.seen = command->seen,
		.scores = command->scores};
	uint64_t now_ns = ofs_device_now_ns(device);
	uint8_t *ends;
	int rc = check_step(device, port, command);

	if (rc == 0) {
		step.waiter = ofs_device_take_waiter(device, port, sqe, &ends);
		rc = ofs_core_step(device->core, now_ns, &step, ends);
		(void)ofs_device_stage_end(device, OFS_STAGE_DECIDE, sqe->sent_ns == 0 ? 0 : now_ns);
		assert(rc != -EBUSY);
		device->waiters.entries[step.waiter].begun_ns = now_ns;
		if (ofs_moments_on(&device->moments))
			device->waiters.entries[step.waiter].decided_ns = ofs_device_now_ns(device);
		device->moments.turn.demands += step.demand_count;
		device->moments.turn.scores += step.score_count;
		if (rc != 0)
			ofs_device_drop_waiter(device, step.waiter);
	}
	if (rc != 0) {
		device->status.commands_bad++;
		ofs_device_complete(device, port, sqe, rc);
		return;
	}
	ofs_device_begin_waiter(device, step.waiter, command->seen);
	ofs_device_act(device);
}

/* The core takes no more hints in one call than its queue holds. */
static void
serve_hint(struct ofs_device *device, uint32_t port, const struct ofs_command *command)
{
	const struct ofs_sqe *sqe = &command->sqe;
	uint32_t batch_max = device->config.core.queue_max;
	int rc = ofs_device_check_session(device, port, sqe->session);

	for (uint32_t done = 0; rc == 0 && done < sqe->demand_count; done += batch_max) {
		uint32_t left = sqe->demand_count - done;

		rc = ofs_core_hint(device->core, ofs_device_now_ns(device), sqe->session,
			command->guesses + done, left < batch_max ? left : batch_max);
		ofs_device_after_event(device, rc);
	}
	device->status.commands_bad += rc != 0;
	ofs_device_complete(device, port, sqe, rc);
}

static void
serve_decision(struct ofs_device *device, uint32_t port, const struct ofs_command *command)
{
	if (command->sqe.op == OFS_OP_HINT)
		serve_hint(device, port, command);
	else
		serve_step(device, port, command);
}

/* Whether its numbers determine its cost: not for a PUT whose bytes are not read. */
static bool
serve_command(struct ofs_device *device, uint32_t port, const struct ofs_command *command)
{
	const struct ofs_sqe *sqe = &command->sqe;
	int rc = 0;

	device->status.commands++;
	device->moments.turn.commands++;
	(void)ofs_device_stage_end(device, OFS_STAGE_RING_WAIT, sqe->sent_ns);
	if (ofs_device_is_fenced(device)) {
		ofs_device_complete(device, port, sqe, -EKEYEXPIRED);
		return sqe->op != OFS_OP_PUT;
	}
	switch (sqe->op) {
	case OFS_OP_STEP:
	case OFS_OP_HINT:
		if (device->paced.pace == NULL || !ofs_device_hold(device, port, command))
			serve_decision(device, port, command);
		return true;
	case OFS_OP_PUT:
		device->moments.turn.puts++;
		return ofs_device_put(device, port, sqe);
	case OFS_OP_RELEASE:
		rc = ofs_device_check_session(device, port, sqe->session);
		if (rc == 0) {
			rc = ofs_core_session_release(device->core, ofs_device_now_ns(device), sqe->session);
			ofs_device_after_event(device, rc);
		}
		break;
	case OFS_OP_VALUES:
		ofs_device_values(device, port, command);
		return true;
	case OFS_OP_NOP:
		break;
	default:
		rc = -EINVAL;
		device->status.commands_bad++;
	}
	ofs_device_complete(device, port, sqe, rc);
	return true;
}

/* Backpressure: whether a step's demands could lack room in the tenant's part of the core's tables
 * of reads and of waiting demands. A tenant with nothing there is never held back. */
bool
ofs_device_is_held_back(const struct ofs_device *device, uint32_t port)
{
	const struct ofs_core_config *core = &device->config.core;
	const struct ofs_device_tenant *tenant = &device->tenants[device->ports.entries[port].tenant];
	uint32_t prefetches = device->config.policy.prefetch_in_flight_max;
	uint32_t reads = core->io_max > prefetches ? (core->io_max - prefetches) / core->tenant_max : 0;
	uint64_t demands = (uint64_t)core->session_max * core->demand_max / core->tenant_max;

	if (core->tenant_max == 1)
		return false;
	reads = reads < 2 * core->demand_max ? 2 * core->demand_max : reads;
	return (tenant->reads_live > 0 && tenant->reads_live + core->demand_max > reads)
		|| (tenant->demands_waiting > 0 && tenant->demands_waiting + core->demand_max > demands);
}

/* The reactor's cost of a command, in units of about the time that an empty one takes. */
static int32_t
work_of(const struct ofs_sqe *sqe)
{
	uint32_t work = 0;

	if (sqe->op == OFS_OP_STEP || sqe->op == OFS_OP_HINT || sqe->op == OFS_OP_VALUES)
		work = sqe->demand_count + sqe->score_count;
	else if (sqe->op == OFS_OP_PUT)
		work = sqe->length / 1024 * COMMAND_UNIT;
	return 1 + (int32_t)(work / COMMAND_UNIT);
}

/* Takes commands of one port, until its tenant has used its share of this turn. */
static bool
serve_port(struct ofs_device *device, uint32_t port)
{
	struct ofs_device_port *state = &device->ports.entries[port];
	struct ofs_device_tenant *tenant = &device->tenants[state->tenant];
	bool busy = false;

	for (int k = 0; k < COMMAND_BATCH && tenant->credit > 0; k++) {
		int32_t work;
		int rc;

		if (ofs_device_is_held_back(device, port)) {
			tenant->held_back++;
			return busy;
		}
		rc = ofs_port_poll(state->port, &device->commands.command);
		if (rc == 0)
			return busy;
		busy = true;
		work = 1;
		if (rc != 1)
			device->status.commands_bad++;
		else if (serve_command(device, port, &device->commands.command))
			work = work_of(&device->commands.command.sqe);
		tenant->credit -= work;
	}
	return busy;
}

/*
 * Takes a bounded number of commands from every port, starting with another port each time, and a
 * bounded amount of work for every tenant, however many ports it has; work beyond the bound is
 * charged to the tenant's next turns.
 */
bool
ofs_device_serve_ports(struct ofs_device *device)
{
	uint32_t port_max = device->config.port_max;
	bool busy = false;

	for (uint32_t i = 0; i < device->tenant_count && device->ports.count > 0; i++) {
		int32_t *credit = &device->tenants[i].credit;

		*credit += OFS_COMMAND_CREDIT;
		*credit = *credit < OFS_COMMAND_CREDIT ? *credit : OFS_COMMAND_CREDIT;
	}
	for (uint32_t i = 0; i < port_max && device->ports.count > 0; i++) {
		uint32_t next = device->commands.port_turn + i;
		uint32_t port = next < port_max ? next : next - port_max;

		if (device->ports.entries[port].used)
			busy |= serve_port(device, port);
	}
	device->commands.port_turn =
		device->commands.port_turn + 1 < port_max ? device->commands.port_turn + 1 : 0;
	return busy;
}

bool
ofs_device_serve_pace(struct ofs_device *device)
{
	uint64_t now_ns = ofs_device_now_ns(device);
	struct ofs_held *held;
	bool busy = false;

	while ((held = ofs_device_take_held(device, now_ns)) != NULL) {
		busy = true;
		if (held->port != OFS_NONE && held->waiter != OFS_NONE)
			ofs_device_handed(device, held->waiter);
		else if (held->port != OFS_NONE) /* or its host has left */
			serve_decision(device, held->port, &held->command);
		ofs_device_free_held(device, held);
	}
	return busy;
}
