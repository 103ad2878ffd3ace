/* One NIXL agent with its UCX back end; see agent.h. */
#include "nixl/agent.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define PROGRESS_DELAY_US 100000 /* a look without an event; events wake the thread as well */

static _Atomic(const struct ofs_nixl_api *) opened;

const struct ofs_nixl_api *
ofs_nixl_api(void)
{
	return atomic_load(&opened);
}

void
ofs_nixl_api_set(const struct ofs_nixl_api *api)
{
	atomic_store(&opened, api);
}

static int
open_backend(struct ofs_nixl_agent *agent)
{
	const struct ofs_nixl_api *api = agent->api;
	void *memories = NULL;
	void *params = NULL;
	int rc = api->get_plugin_params(agent->handle, "UCX", &memories, &params);

	if (rc == 0)
		rc = api->create_backend(agent->handle, "UCX", params, &agent->backend);
	if (memories != NULL)
		api->destroy_mem_list(memories);
	if (params != NULL)
		api->destroy_params(params);
	if (rc == 0)
		rc = api->create_opt_args(&agent->options);
	if (rc == 0)
		rc = api->opt_args_add_backend(agent->options, agent->backend);
	if (rc == 0)
		rc = api->create_notif_map(&agent->notified);
	return rc == 0 ? 0 : -EIO;
}

int
ofs_nixl_agent_open(struct ofs_nixl_agent *agent, const char *role, bool progress)
{
	struct ofs_nixl_agent_config config = {.progress_thread = progress,
		.thread_sync = 1,
		.worker_count = 1,
		.progress_delay_us = PROGRESS_DELAY_US};
	uint64_t nonce;
	int rc;

	*agent = (struct ofs_nixl_agent){.api = ofs_nixl_api()};
	if (agent->api == NULL)
		return -ENOTSUP;
	if (getrandom(&nonce, sizeof(nonce), 0) != (ssize_t)sizeof(nonce))
		return -EIO;
	snprintf(agent->name, sizeof(agent->name), "offstage-%s-%016llx", role,
		(unsigned long long)nonce);
	rc = agent->api->create_configured_agent(agent->name, &config, &agent->handle);
	rc = rc == 0 ? open_backend(agent) : -EIO;
	if (rc != 0)
		ofs_nixl_agent_close(agent);
	return rc;
}

void
ofs_nixl_agent_close(struct ofs_nixl_agent *agent)
{
	const struct ofs_nixl_api *api = agent->api;

	if (agent->notified != NULL)
		api->destroy_notif_map(agent->notified);
	if (agent->options != NULL)
		api->destroy_opt_args(agent->options);
	if (agent->backend != NULL)
		api->destroy_backend(agent->backend);
	if (agent->handle != NULL)
		api->destroy_agent(agent->handle);
	*agent = (struct ofs_nixl_agent){0};
}

int
ofs_nixl_register(struct ofs_nixl_agent *agent, const void *base, uint64_t size_bytes,
	void **registration)
{
	void *list = NULL;
	int rc = agent->api->create_reg_dlist(agent->memory, &list);

	if (rc == 0)
		rc = agent->api->reg_dlist_add_desc(list, (uintptr_t)base, size_bytes, agent->device, NULL,
			0);
	if (rc == 0)
		rc = agent->api->register_mem(agent->handle, list, agent->options);
	if (rc != 0 && list != NULL)
		agent->api->destroy_reg_dlist(list);
	*registration = rc == 0 ? list : NULL;
	return rc == 0 ? 0 : -EIO;
}

void
ofs_nixl_deregister(struct ofs_nixl_agent *agent, void *registration)
{
	if (registration == NULL)
		return;
	agent->api->deregister_mem(agent->handle, registration, agent->options);
	agent->api->destroy_reg_dlist(registration);
}

int
ofs_nixl_metadata(struct ofs_nixl_agent *agent, uint8_t *out, size_t room_bytes,
	uint32_t *size_bytes)
{
	void *data = NULL;
	size_t found_bytes = 0;
	int rc = agent->api->get_local_md(agent->handle, &data, &found_bytes) == 0 ? 0 : -EIO;

	if (rc == 0 && found_bytes > room_bytes)
		rc = -ENOSPC;
	if (rc == 0) {
		memcpy(out, data, found_bytes);
		*size_bytes = (uint32_t)found_bytes;
	}
	free(data);
	return rc;
}

int
ofs_nixl_meet(struct ofs_nixl_agent *agent, const uint8_t *metadata, size_t size_bytes,
	char name[OFS_NIXL_NAME_SIZE_BYTES])
{
	char *found = NULL;
	int rc = agent->api->load_remote_md(agent->handle, metadata, size_bytes, &found);

	if (rc != 0)
		return -EPIPE;
	rc = strlen(found) < OFS_NIXL_NAME_SIZE_BYTES ? 0 : -EPIPE;
	if (rc == 0)
		snprintf(name, OFS_NIXL_NAME_SIZE_BYTES, "%s", found);
	else
		ofs_nixl_forget(agent, found);
	free(found);
	return rc;
}

void
ofs_nixl_forget(struct ofs_nixl_agent *agent, const char *name)
{
	(void)agent->api->invalidate_remote_md(agent->handle, name);
}

int
ofs_nixl_send(struct ofs_nixl_agent *agent, const char *name, const void *data, size_t size_bytes)
{
	return agent->api->gen_notif(agent->handle, name, data, size_bytes, agent->options) == 0
		? 0
		: -EPIPE;
}

int
ofs_nixl_take(struct ofs_nixl_agent *agent,
	void (*take)(void *context, const char *from, const uint8_t *data, size_t size_bytes),
	void *context)
{
	const struct ofs_nixl_api *api = agent->api;
	size_t sender_count = 0;
	int taken_count = 0;

	if (api->get_notifs(agent->handle, agent->notified, agent->options) != 0)
		return 0;
	if (api->notif_map_size(agent->notified, &sender_count) != 0 || sender_count == 0)
		return 0;
	for (size_t i = 0; i < sender_count; i++) {
		const char *from;
		size_t count = 0;

		if (api->notif_map_get_agent_at(agent->notified, i, &from) != 0)
			continue;
		(void)api->notif_map_get_notifs_size(agent->notified, from, &count);
		for (size_t j = 0; j < count; j++) {
			const void *data;
			size_t size_bytes;

			if (api->notif_map_get_notif(agent->notified, from, j, &data, &size_bytes) != 0)
				continue;
			take(context, from, data, size_bytes);
			taken_count++;
		}
	}
	api->notif_map_clear(agent->notified);
	return taken_count;
}

int
ofs_nixl_transfer_open(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer)
{
	*transfer = (struct ofs_nixl_transfer){0};
	if (agent->api->create_xfer_dlist(agent->memory, &transfer->local) == 0
		&& agent->api->create_xfer_dlist(OFS_NIXL_DRAM, &transfer->remote) == 0) {
		return 0;
	}
	ofs_nixl_transfer_close(agent, transfer);
	return -ENOMEM;
}

static void
end_request(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer)
{
	if (transfer->request != NULL) {
		(void)agent->api->release_xfer_req(agent->handle, transfer->request);
		(void)agent->api->destroy_xfer_req(transfer->request);
	}
	transfer->request = NULL;
}

void
ofs_nixl_transfer_close(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer)
{
	end_request(agent, transfer);
	if (transfer->local != NULL)
		agent->api->destroy_xfer_dlist(transfer->local);
	if (transfer->remote != NULL)
		agent->api->destroy_xfer_dlist(transfer->remote);
	*transfer = (struct ofs_nixl_transfer){0};
}

int
ofs_nixl_transfer_add(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer,
	const void *local, uint64_t remote, uint64_t size_bytes)
{
	if (agent->api->xfer_dlist_add_desc(transfer->local, (uintptr_t)local, size_bytes,
			agent->device)
			!= 0
		|| agent->api->xfer_dlist_add_desc(transfer->remote, remote, size_bytes, 0) != 0) {
		return -ENOMEM;
	}
	transfer->count++;
	return 0;
}

static int
outcome(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer, int status)
{
	transfer->flying = status == OFS_NIXL_IN_PROGRESS;
	if (transfer->flying)
		return -EINPROGRESS;
	if (transfer->once || status != 0)
		end_request(agent, transfer);
	return status == 0 ? 0 : -EPIPE;
}

int
ofs_nixl_transfer_prepare(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer,
	enum ofs_nixl_op op, const char *peer, const void *data, size_t size_bytes)
{
	const struct ofs_nixl_api *api = agent->api;
	int rc = 0;

	if (data != NULL) {
		rc = api->opt_args_set_notif_msg(agent->options, data, size_bytes);
		if (rc == 0)
			rc = api->opt_args_set_has_notif(agent->options, true);
	}
	if (rc == 0) {
		rc = api->create_xfer_req(agent->handle, op, transfer->local, transfer->remote, peer,
			&transfer->request, agent->options);
	}
	if (data != NULL)
		(void)api->opt_args_set_has_notif(agent->options, false);
	(void)api->xfer_dlist_clear(transfer->local);
	(void)api->xfer_dlist_clear(transfer->remote);
	transfer->count = 0;
	if (rc != 0)
		transfer->request = NULL;
	return rc == 0 ? 0 : -EPIPE;
}

int
ofs_nixl_transfer_post(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer)
{
	return outcome(agent, transfer,
		agent->api->post_xfer_req(agent->handle, transfer->request, NULL));
}

int
ofs_nixl_transfer_poll(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer)
{
	if (!transfer->flying)
		return 0;
	return outcome(agent, transfer, agent->api->get_xfer_status(agent->handle, transfer->request));
}

int
ofs_nixl_transfer_run(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer,
	enum ofs_nixl_op op, const char *peer, const void *data, size_t size_bytes)
{
	int rc = ofs_nixl_transfer_prepare(agent, transfer, op, peer, data, size_bytes);

	transfer->once = true;
	return rc == 0 ? ofs_nixl_transfer_post(agent, transfer) : rc;
}
