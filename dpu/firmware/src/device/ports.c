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
	int i;

	fds[0] = ofs_region_share_fd(device->tenants[tenant].region);
	fds[1] = dup(ofs_port_fd(port));
	fds[2] = dup(ofs_port_dpu_bell_fd(port));
	fds[3] = dup(ofs_port_host_wake_fd(port));
	for (i = 0; i < 4; i++) {
		if (fds[i] < 0) {
			while (i-- > 0) {
				close(fds[i]);
			}
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
		.demand_max = device->config.core.demand_max, .score_max = device->config.score_max,
		.put_slot_count = device->config.put_slot_count, .epoch = device->status.epoch};
	struct ofs_device_port *state;
	uint64_t size_bytes;
	uint32_t port = 0;
	void *puts;
	int rc;

	if (call->tenant >= device->config.core.tenant_max ||
		device->tenants[call->tenant].region == NULL) {
		return -EINVAL;
	}
	while (port < device->config.port_max && device->ports[port].used) {
		port++;
	}
	if (port == device->config.port_max) {
		return -ENOSPC;
	}
	state = &device->ports[port];
	config.put_stride_bytes =
		ofs_region_record_size_bytes(device->tenants[call->tenant].region);
	rc = ofs_port_open(&state->port, &config);
	if (rc != 0) {
		return rc;
	}
	rc = share_descriptors(device, call->tenant, state->port, call->fds);
	if (rc != 0) {
		ofs_port_close(state->port);
		return rc;
	}
	/* Unregistered memory works too, only slower: a full table of buffers is no reason to refuse. */
	puts = ofs_port_puts_base(state->port, &size_bytes);
	(void)device->storage->ops->register_memory(device->storage, puts, size_bytes);
	state->tenant = call->tenant;
	state->puts_in_flight = 0;
	state->steps_waiting = 0;
	state->closing = false;
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

/* Blocks only this session knew are deleted when it is not archived. */
static void
delete_blocks(struct ofs_device *device, const struct ofs_device_session *state)
{
	uint32_t i;
	uint32_t layer;

	for (i = 0; i < state->chunk_count; i++) {
		const struct ofs_chunk_info *chunk = &state->chunks[i];

		if (ofs_core_chunk_references(device->core, chunk->chunk) > 0) {
			continue;
		}
		for (layer = 0; layer < device->config.core.layer_count; layer++) {
			if (ofs_store_delete(device->store, &chunk->store_key, layer) == 0) {
				(void)ofs_core_block_forget(device->core, ofs_device_now_ns(device),
					device->ports[state->port].tenant, &chunk->store_key, layer);
				ofs_device_act(device);
			}
		}
	}
}

int
ofs_device_end_session(struct ofs_device *device, uint32_t session, bool archive)
{
	struct ofs_device_session *state = &device->sessions[session];
	int rc = ofs_core_session_close(device->core, ofs_device_now_ns(device), session);

	ofs_device_act(device);
	if (!archive) {
		delete_blocks(device, state);
	}
	state->used = false;
	device->status.sessions--;
	return rc;
}

/* When the store has let go of the port's put window, the mapping can go. */
int
ofs_device_port_release(struct ofs_device *device, uint32_t port)
{
	struct ofs_device_port *state = &device->ports[port];

	if (state->puts_in_flight > 0) {
		return 0;
	}
	ofs_port_close(state->port);
	state->port = NULL;
	state->used = false;
	device->port_count--;
	return 0;
}

static int
run_detach(struct ofs_device *device, void *argument)
{
	uint32_t port = *(uint32_t *)argument;
	uint32_t i;

	if (port >= device->config.port_max || !device->ports[port].used ||
		device->ports[port].closing) {
		return -EINVAL;
	}
	for (i = 0; i < device->config.core.session_max; i++) {
		if (device->sessions[i].used && device->sessions[i].port == port) {
			/* Archived: a host that died may come back for its prefixes. */
			(void)ofs_device_end_session(device, i, true);
		}
	}
	for (i = 0; i < device->waiter_count; i++) {
		if (device->waiters[i].used && device->waiters[i].port == port) {
			ofs_device_drop_waiter(device, i);
		}
	}
	device->ports[port].closing = true;
	return ofs_device_port_release(device, port);
}

int
ofs_device_detach(struct ofs_device *device, uint32_t port)
{
	return ofs_device_call(device, run_detach, &port);
}
