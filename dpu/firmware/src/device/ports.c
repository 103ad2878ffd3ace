/* Hosts come and go: ports, and the end of a session, by its own wish or because its host died. */
#include "internal.h"

#include <string.h>
#include <unistd.h>

struct attach {
	uint32_t tenant;
	uint32_t *port;
	int *fds;
};

static int
share_descriptors(const struct ofs_device *device, uint32_t tenant, const struct ofs_port *port,
	int *fds)
{
	fds[0] = ofs_region_share_fd(device->tenants[tenant].region);
	fds[1] = dup(ofs_port_fd(port));
	fds[2] = dup(ofs_port_dpu_bell_fd(port));
	fds[3] = dup(ofs_port_host_wake_fd(port));
	for (int i = 0; i < 4; i++) {
		if (fds[i] < 0) {
			while (i-- > 0)
				close(fds[i]);
			return -EMFILE;
		}
	}
	return 0;
}

static int
run_attach(struct ofs_device *device, void *argument)
{
	struct attach *call = argument;
	struct ofs_port_config config = {.tenant = call->tenant,
		.entry_count = device->config.port_entry_count,
		.demand_max = device->config.core.demand_max,
		.score_max = device->config.score_max,
		.put_slot_count = device->config.put_slot_count,
		.epoch = device->status.epoch};
	struct ofs_device_port *state;
	uint32_t port = 0;
	int rc;

	if (call->tenant >= device->tenant_count)
		return -EINVAL;
	while (port < device->config.port_max && device->ports[port].used)
		port++;
	if (port == device->config.port_max)
		return -ENOSPC;
	state = &device->ports[port];
	config.put_stride_bytes = device->record_size_bytes;
	rc = ofs_port_open(&state->port, &config);
	if (rc != 0)
		return rc;
	rc = share_descriptors(device, call->tenant, state->port, call->fds);
	if (rc != 0) {
		ofs_port_close(state->port);
		state->port = NULL;
		return rc;
	}
	state->tenant = call->tenant;
	state->puts_in_flight = 0;
	state->steps_waiting = 0;
	state->used = true;
	device->port_count++;
	*call->port = port;
	return 0;
}

int
ofs_device_attach(struct ofs_device *device, uint32_t tenant, uint32_t *port, int *fds)
{
	struct attach call = {tenant, port, fds};

	return ofs_device_call(device, run_attach, &call);
}

/*
 * Blocks that no session reads from any more, through this chunk or another of the same store key.
 * Writes of them that have not begun are dropped; the store itself drops those that have.
 */
static void
delete_blocks(struct ofs_device *device, const struct ofs_device_session *state)
{
	uint32_t tenant = device->ports[state->port].tenant;
	uint64_t now_ns = ofs_device_now_ns(device);

	ofs_device_cancel_writes(device, tenant, state);
	for (uint32_t i = 0; i < state->chunk_count; i++) {
		const struct ofs_key *store_key = &state->chunks[i].store_key;

		if (ofs_core_store_references(device->core, tenant, store_key) > 0)
			continue;
		for (uint32_t layer = 0; layer < device->config.core.layer_count; layer++) {
			if (ofs_store_delete(device->store, store_key, layer) == 0) {
				ofs_device_told(device,
					ofs_core_block_forget(device->core, now_ns, tenant, store_key, layer));
			}
		}
	}
}

int
ofs_device_end_session(struct ofs_device *device, uint32_t session, bool archive)
{
	struct ofs_device_session *state = &device->sessions[session];
	int rc = ofs_core_session_close(device->core, ofs_device_now_ns(device), session);

	ofs_device_told(device, rc);
	if (!archive)
		delete_blocks(device, state);
	state->used = false;
	device->status.sessions--;
	return rc;
}

static int
run_detach(struct ofs_device *device, void *argument)
{
	uint32_t port = *(uint32_t *)argument;

	if (port >= device->config.port_max || !device->ports[port].used)
		return -EINVAL;
	for (uint32_t i = 0; i < device->config.core.session_max; i++) {
		if (device->sessions[i].used && device->sessions[i].port == port) {
			/* Archived: a host that died may come back for its prefixes. */
			(void)ofs_device_end_session(device, i, true);
		}
	}
	/* The core ended every demand of those sessions, and so every step. */
	assert(device->ports[port].steps_waiting == 0);
	ofs_device_forsake_puts(device, port);
	ofs_port_close(device->ports[port].port);
	device->ports[port].port = NULL;
	device->ports[port].used = false;
	device->port_count--;
	return 0;
}

int
ofs_device_detach(struct ofs_device *device, uint32_t port)
{
	return ofs_device_call(device, run_detach, &port);
}
