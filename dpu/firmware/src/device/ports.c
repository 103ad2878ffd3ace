/* Hosts attach and leave: ports, and sessions that end because the host closed them or died. */
#include "internal.h"

#include <string.h>

int
ofs_device_check_session(const struct ofs_device *device, uint32_t port, uint32_t session)
{
	if (session >= device->config.core.session_max || !device->sessions.entries[session].used
		|| device->sessions.entries[session].port != port) {
		return -EPERM;
	}
	return 0;
}

/* Shares the tenant's region with hosts of this side, from the first attach until it is
 * unmapped. */
static int
share_of(struct ofs_device_tenant *tenant, const char *fabric, struct ofs_share **out)
{
	const struct ofs_port_ops *ops;
	int rc = 0;

	for (uint32_t i = 0; (ops = ofs_port_side(i)) != NULL; i++) {
		if (strcmp(ops->name, fabric) != 0)
			continue;
		if (tenant->shares[i] == NULL)
			rc = ofs_share_open(&tenant->shares[i], ops, tenant->region);
		*out = tenant->shares[i];
		return rc;
	}
	return -EINVAL;
}

void
ofs_device_unshare(struct ofs_device_tenant *tenant)
{
	for (uint32_t i = 0; i < OFS_PORT_SIDES_MAX; i++) {
		ofs_share_close(tenant->shares[i]);
		tenant->shares[i] = NULL;
	}
}

static int
open_port(struct ofs_device *device, uint32_t tenant, const char *fabric, struct ofs_port **port,
	struct ofs_attachment *attachment)
{
	struct ofs_port_config config = {.tenant = tenant,
		.entry_count = device->config.port_entry_count,
		.demand_max = device->config.core.demand_max,
		.score_max = device->config.score_max,
		.put_slot_count = device->config.put_slot_count,
		.put_stride_bytes = device->record_size_bytes,
		.boot_id = device->status.boot_id,
		.memory = device->config.memory,
		.clock = &device->clock,
		.sim = device->config.port_sim};
	struct ofs_share *share;
	int rc = share_of(&device->tenants[tenant], fabric, &share);

	if (rc == 0)
		rc = ofs_port_open(port, &config, share);
	if (rc != 0)
		return rc;
	rc = ofs_port_export(*port, attachment);
	if (rc != 0)
		ofs_port_close(*port);
	return rc;
}

static int
attach(struct ofs_device *device, uint32_t tenant, const char *fabric, uint32_t *out,
	struct ofs_attachment *attachment)
{
	struct ofs_device_port *state;
	uint32_t port = 0;
	int rc;

	if (tenant >= device->tenant_count)
		return -EINVAL;
	while (port < device->config.port_max && device->ports.entries[port].used)
		port++;
	if (port == device->config.port_max)
		return -ENOSPC;
	state = &device->ports.entries[port];
	rc = open_port(device, tenant, fabric, &state->port, attachment);
	if (rc != 0)
		return rc;
	state->tenant = tenant;
	state->owned = false;
	state->puts_in_flight = 0;
	state->steps_waiting = 0;
	state->used = true;
	device->ports.count++;
	*out = port;
	return 0;
}

OFS_DEVICE_CALL(attach, (uint32_t, tenant), (const char *, fabric), (uint32_t *, port),
	(struct ofs_attachment *, attachment));

static int
own_port(struct ofs_device *device, uint32_t port, const struct ofs_key *owner)
{
	if (port >= device->config.port_max || !device->ports.entries[port].used)
		return -EINVAL;
	device->ports.entries[port].owned = true;
	device->ports.entries[port].owner = *owner;
	return 0;
}

OFS_DEVICE_CALL(own_port, (uint32_t, port), (const struct ofs_key *, owner));

struct find_port {
	uint32_t number;
	struct ofs_port *port;
};

static int
run_find_port(struct ofs_device *device, void *argument)
{
	struct find_port *call = argument;

	if (call->number >= device->config.port_max || !device->ports.entries[call->number].used)
		return -EINVAL;
	call->port = device->ports.entries[call->number].port;
	return 0;
}

int
ofs_device_connect(struct ofs_device *device, uint32_t port, const struct ofs_attachment *answer)
{
	struct find_port call = {.number = port};
	int rc = ofs_device_call(device, run_find_port, &call);

	return rc != 0 ? rc : ofs_port_connect(call.port, answer);
}

static void
delete_chunk(struct ofs_device *device, uint32_t tenant, const struct ofs_key *store_key,
	uint32_t chunk)
{
	uint64_t now_ns = ofs_device_now_ns(device);

	if (ofs_core_store_references(device->core, tenant, store_key) > 0)
		return;
	for (uint32_t layer = 0; layer < device->config.core.layer_count; layer++) {
		ofs_device_move_forget(device, store_key, layer);
		ofs_device_after_event(device, ofs_core_block_drop(device->core, now_ns, chunk, layer));
		if (ofs_store_delete(device->store, store_key, layer) == 0) {
			ofs_device_after_event(device,
				ofs_core_block_forget(device->core, now_ns, tenant, store_key, layer));
		}
	}
}

/*
 * Drops blocks that no session reads any more, through this chunk or another with the same store
 * key. Writes of them that have not begun are dropped; the store itself drops those that have.
 * Staged copies are evicted, except those being read or written: a put of other bytes under that
 * name is refused (puts.c).
 */
static void
delete_blocks(struct ofs_device *device, const struct ofs_device_session *state)
{
	uint32_t tenant = device->ports.entries[state->port].tenant;

	device->tenants[tenant].deletes++;
	ofs_device_cancel_writes(device, tenant, state);
	for (uint32_t i = 0; i < state->chunk_count; i++)
		delete_chunk(device, tenant, &state->chunks[i].store_key, state->chunks[i].chunk);
}

void
ofs_device_delete_named(struct ofs_device *device, uint32_t tenant, const struct ofs_key *store_key,
	uint32_t chunk)
{
	struct ofs_chunk_info info = {.store_key = *store_key, .chunk = chunk};
	const struct ofs_device_session alone = {.chunk_count = 1, .chunks = &info};

	/* `deletes` stays: pieces from the archive are written while their value awaits them. */
	ofs_device_cancel_writes(device, tenant, &alone);
	delete_chunk(device, tenant, store_key, chunk);
}

int
ofs_device_end_session(struct ofs_device *device, uint32_t session, bool keep)
{
	struct ofs_device_session *state = &device->sessions.entries[session];
	int rc;

	assert(state->used && device->status.sessions > 0);
	if (state->role != OFS_VALUE_NO_ROLE)
		keep = ofs_device_value_stays(device, session);
	ofs_device_mark_chunks(device, state->chunks, state->chunk_count, false);
	rc = ofs_core_session_close(device->core, ofs_device_now_ns(device), session);

	ofs_device_after_event(device, rc);
	if (!keep)
		delete_blocks(device, state);
	state->used = false;
	state->role = OFS_VALUE_NO_ROLE;
	state->value = (struct ofs_value_name){0};
	device->tenants[device->ports.entries[state->port].tenant].sessions--;
	device->status.sessions--;
	return rc;
}

/* Those of a port; unless `all`, those alone that commands on values have opened. */
static void
end_sessions(struct ofs_device *device, uint32_t port, bool all)
{
	for (uint32_t i = 0; i < device->config.core.session_max; i++) {
		const struct ofs_device_session *state = &device->sessions.entries[i];

		/* Archived: a host that died may return for its prefixes. */
		if (state->used && state->port == port && (all || state->role != OFS_VALUE_NO_ROLE))
			(void)ofs_device_end_session(device, i, true);
	}
}

static int
reattach(struct ofs_device *device, uint32_t port, struct ofs_attachment *attachment)
{
	struct find_port found = {.number = port};
	int rc = run_find_port(device, &found);

	if (rc == 0 && found.port->ops->disconnect == NULL)
		rc = -ENOTSUP;
	if (rc == 0)
		rc = found.port->ops->disconnect(found.port);
	if (rc == 0)
		end_sessions(device, port, false); /* whose tasks have ended at their host */
	return rc != 0 ? rc : ofs_port_export(found.port, attachment);
}

OFS_DEVICE_CALL(reattach, (uint32_t, port), (struct ofs_attachment *, attachment));

static int
detach(struct ofs_device *device, uint32_t port)
{
	if (port >= device->config.port_max || !device->ports.entries[port].used)
		return -EINVAL;
	end_sessions(device, port, true);
	if (device->paced.pace != NULL) {
		ofs_device_forget_held(device, port);
		ofs_device_drop_waiters(device, port); /* whose blocks were being transferred */
	}
	/* The core ended every demand of those sessions, and with them every other step. */
	assert(device->ports.entries[port].steps_waiting == 0);
	ofs_device_abandon_puts(device, port);
	assert(device->ports.entries[port].puts_in_flight == 0 && device->ports.count > 0);
	ofs_port_close(device->ports.entries[port].port);
	device->ports.entries[port].port = NULL;
	device->ports.entries[port].used = false;
	device->ports.count--;
	return 0;
}

OFS_DEVICE_CALL(detach, (uint32_t, port));
