/*
 * Control calls: tenants, sessions, policy. Each runs on the reactor's thread through the mailbox,
 * so that it sees and changes only what that thread owns.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

struct tenant_add {
	const struct ofs_tenant_config *config;
	uint32_t *tenant;
};

static int
open_region(struct ofs_device *device, struct ofs_device_tenant *state,
	const struct ofs_region_config *config)
{
	uint64_t size_bytes;
	void *base;
	int rc;

	state->slot_count = config->slot_count;
	state->flush_of = malloc((size_t)config->slot_count * sizeof(*state->flush_of));
	state->steps = calloc(1, sizeof(*state->steps));
	if (state->flush_of == NULL || state->steps == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < config->slot_count; i++)
		state->flush_of[i] = OFS_NONE;
	rc = ofs_region_open(&state->region, config);
	if (rc != 0)
		return rc;
	base = ofs_region_base(state->region, &size_bytes);
	return ofs_storage_register_memory(device->storage, base, size_bytes);
}

static void
close_region(struct ofs_device *device, struct ofs_device_tenant *state)
{
	uint64_t size_bytes;
	void *base;

	if (state->region != NULL) {
		base = ofs_region_base(state->region, &size_bytes);
		(void)ofs_storage_unregister_memory(device->storage, base, size_bytes);
		ofs_device_unshare(state);
		ofs_region_close(state->region);
	}
	free(state->steps);
	free(state->flush_of);
	*state = (struct ofs_device_tenant){.writes = state->writes};
}

/* The region first: what the core has been given of a tenant cannot be taken back. */
static int
run_tenant_add(struct ofs_device *device, void *argument)
{
	struct tenant_add *call = argument;
	struct ofs_region_config config = {.slot_count = call->config->slot_count,
		.tenant = device->tenant_count,
		.epoch = device->status.epoch,
		.granule_count = device->config.store.granule_count,
		.memory = device->config.memory,
		.payload_size_bytes = device->config.store.payload_size_bytes,
		.lba_size_bytes = device->storage->lba_size_bytes};
	struct ofs_device_tenant *state;
	int rc;

	if (device->tenant_count >= device->config.core.tenant_max)
		return -ENOSPC;
	if (call->config->slot_count == 0 || call->config->slot_count > device->config.core.slot_count)
		return -EINVAL;
	state = &device->tenants[device->tenant_count];
	rc = open_region(device, state, &config);
	if (rc == 0) {
		rc = ofs_core_tenant_add(device->core, ofs_device_now_ns(device), call->config,
			call->tenant);
		ofs_device_after_event(device, rc);
	}
	if (rc != 0) {
		close_region(device, state);
		return rc;
	}
	assert(*call->tenant == device->tenant_count);
	device->tenant_count++;
	return ofs_device_share(device, *call->tenant,
		&(struct ofs_tenant_share){
			.weight = call->config->weight < UINT16_MAX ? call->config->weight : UINT16_MAX});
}

int
ofs_device_tenant_add(struct ofs_device *device, const struct ofs_tenant_config *config,
	uint32_t *tenant)
{
	struct tenant_add call = {config, tenant};

	return ofs_device_call(device, run_tenant_add, &call);
}

/* What the store recovered becomes known to the core, each block to its own tenant. */
static int
run_restore(struct ofs_device *device, void *argument)
{
	struct ofs_store_entry entries[OFS_DONE_BATCH];
	uint64_t cursor = 0;
	uint32_t tenant = *(uint32_t *)argument;
	uint32_t chunk;
	int count;

	if (tenant >= device->tenant_count)
		return -EINVAL;
	while ((count = ofs_store_scan(device->store, &cursor, entries, OFS_DONE_BATCH)) > 0) {
		for (int i = 0; i < count; i++) {
			if (entries[i].tenant == tenant) {
				/* -ENOSPC: the index is smaller than the store; the block is a miss. */
				ofs_device_after_event(device,
					ofs_core_block_restore(device->core, ofs_device_now_ns(device), tenant,
						&entries[i].store_key, entries[i].layer, &chunk));
			}
		}
	}
	return 0;
}

int
ofs_device_restore(struct ofs_device *device, uint32_t tenant)
{
	return ofs_device_call(device, run_restore, &tenant);
}

struct tenant_call {
	uint32_t tenant;
	const struct ofs_tenant_share *share;
	struct ofs_tenant_status *status;
};

static int
run_tenant_share(struct ofs_device *device, void *argument)
{
	const struct tenant_call *call = argument;

	return ofs_device_share(device, call->tenant, call->share);
}

int
ofs_device_tenant_share(struct ofs_device *device, uint32_t tenant,
	const struct ofs_tenant_share *share)
{
	struct tenant_call call = {.tenant = tenant, .share = share};

	return ofs_device_call(device, run_tenant_share, &call);
}

static int
run_tenant_status(struct ofs_device *device, void *argument)
{
	const struct tenant_call *call = argument;

	if (call->tenant >= device->tenant_count)
		return -EINVAL;
	*call->status = (struct ofs_tenant_status){0};
	ofs_device_issue_figures(device, call->tenant, call->status);
	if (device->tenant_count <= OFS_HELD_MAX) {
		struct ofs_chunks_held held[OFS_HELD_MAX];

		ofs_device_chunks_held(device, held);
		call->status->archived_chunks = held[call->tenant].archived;
	}
	ofs_device_quota_figures(device, call->tenant, call->status);
	return 0;
}

int
ofs_device_tenant_status_get(struct ofs_device *device, uint32_t tenant,
	struct ofs_tenant_status *status)
{
	struct tenant_call call = {.tenant = tenant, .status = status};

	return ofs_device_call(device, run_tenant_status, &call);
}

struct session_open {
	uint32_t port;
	const struct ofs_session_config *config;
	uint32_t *session;
};

static int
run_session_open(struct ofs_device *device, void *argument)
{
	struct session_open *call = argument;
	struct ofs_session_config config = *call->config;
	struct ofs_device_session *state;
	int rc;

	if (call->port >= device->config.port_max || !device->ports.entries[call->port].used)
		return -EINVAL;
	if (device->draining)
		return -ESHUTDOWN;
	config.tenant = device->ports.entries[call->port].tenant;
	rc = ofs_core_session_open(device->core, ofs_device_now_ns(device), &config, call->session);
	ofs_device_after_event(device, rc);
	if (rc != 0)
		return rc;
	state = &device->sessions.entries[*call->session];
	state->used = true;
	state->serial = ++device->sessions.serial;
	state->port = call->port;
	state->chunk_count = 0;
	state->chunks =
		device->sessions.chunks + (size_t)*call->session * device->config.core.session_chunk_max;
	device->status.sessions++;
	return 0;
}

int
ofs_device_session_open(struct ofs_device *device, uint32_t port,
	const struct ofs_session_config *config, uint32_t *session)
{
	struct session_open call = {port, config, session};

	return ofs_device_call(device, run_session_open, &call);
}

struct session_append {
	uint32_t session;
	uint32_t count;
	const struct ofs_key *contents;
	struct ofs_chunk_info *infos;
};

static bool
is_open(const struct ofs_device *device, uint32_t session)
{
	return session < device->config.core.session_max && device->sessions.entries[session].used;
}

/* What was acknowledged in write-back mode is there, also while the store does not have it yet. */
static void
count_staged(const struct ofs_device *device, uint32_t tenant, struct ofs_chunk_info *info)
{
	const uint32_t *flush_of = device->tenants[tenant].flush_of;
	uint32_t slot;

	for (uint32_t layer = 0; layer < device->config.core.layer_count; layer++) {
		info->stored_layers += !ofs_core_block_is_stored(device->core, info->chunk, layer)
			&& ofs_core_block_slot(device->core, info->chunk, layer, &slot) == 1
			&& flush_of[slot] != OFS_NONE;
	}
}

static int
run_session_append(struct ofs_device *device, void *argument)
{
	struct session_append *call = argument;
	struct ofs_device_session *state;
	int rc;

	if (!is_open(device, call->session))
		return -EINVAL;
	state = &device->sessions.entries[call->session];
	if (call->count > device->config.core.session_chunk_max - state->chunk_count)
		return -ENOSPC;
	do {
		rc = ofs_device_quota_append(device, call->session, call->count, call->contents);
		if (rc != 0)
			return rc;
		rc = ofs_core_session_append(device->core, ofs_device_now_ns(device), call->session,
			call->count, call->contents, call->infos);
		ofs_device_after_event(device, rc);
	} while (rc == -ENOSPC
		&& ofs_device_purge(device, device->ports.entries[state->port].tenant, false));
	if (rc == 0) {
		uint32_t tenant = device->ports.entries[state->port].tenant;

		for (uint32_t i = 0; i < call->count && device->tenants[tenant].dirty > 0; i++)
			count_staged(device, tenant, &call->infos[i]);
		ofs_device_mark_chunks(device, call->infos, call->count, true);
		memcpy(state->chunks + state->chunk_count, call->infos, call->count * sizeof(*call->infos));
		state->chunk_count += call->count;
	}
	return rc;
}

int
ofs_device_session_append(struct ofs_device *device, uint32_t session, uint32_t count,
	const struct ofs_key *contents, struct ofs_chunk_info *infos)
{
	struct session_append call = {session, count, contents, infos};

	return ofs_device_call(device, run_session_append, &call);
}

struct sessions_open {
	uint32_t port;
	const struct ofs_session_config *config;
	uint32_t count;
	const uint32_t *chunk_counts;
	const struct ofs_key *contents;
	uint32_t *sessions;
	struct ofs_chunk_info *infos;
	int32_t *rcs;
};

static int
run_sessions_open(struct ofs_device *device, void *argument)
{
	struct sessions_open *call = argument;
	uint32_t first = 0;

	for (uint32_t i = 0; i < call->count; i++) {
		struct session_open open = {call->port, call->config, &call->sessions[i]};
		struct session_append append = {.count = call->chunk_counts[i],
			.contents = call->contents + first,
			.infos = call->infos + first};

		call->rcs[i] = run_session_open(device, &open);
		if (call->rcs[i] == 0) {
			append.session = call->sessions[i];
			call->rcs[i] = run_session_append(device, &append);
			if (call->rcs[i] != 0)
				(void)ofs_device_end_session(device, append.session, true);
		}
		first += call->chunk_counts[i];
	}
	return 0;
}

int
ofs_device_sessions_open(struct ofs_device *device, uint32_t port,
	const struct ofs_session_config *config, uint32_t count, const uint32_t *chunk_counts,
	const struct ofs_key *contents, uint32_t *sessions, struct ofs_chunk_info *infos, int32_t *rcs)
{
	struct sessions_open call = {port, config, count, chunk_counts, contents, sessions, infos, rcs};

	return ofs_device_call(device, run_sessions_open, &call);
}

struct session_flag {
	uint32_t session;
	int value;
};

static int
run_set_generating(struct ofs_device *device, void *argument)
{
	struct session_flag *call = argument;
	int rc;

	if (!is_open(device, call->session))
		return -EINVAL;
	rc = ofs_core_session_set_generating(device->core, ofs_device_now_ns(device), call->session,
		call->value);
	ofs_device_after_event(device, rc);
	return rc;
}

int
ofs_device_session_set_generating(struct ofs_device *device, uint32_t session, int generating)
{
	struct session_flag call = {session, generating};

	return ofs_device_call(device, run_set_generating, &call);
}

static int
run_session_close(struct ofs_device *device, void *argument)
{
	struct session_flag *call = argument;

	return is_open(device, call->session)
		? ofs_device_end_session(device, call->session, call->value != 0)
		: -EINVAL;
}

int
ofs_device_session_close(struct ofs_device *device, uint32_t session, int archive)
{
	struct session_flag call = {session, archive};

	return ofs_device_call(device, run_session_close, &call);
}

struct sessions_close {
	uint32_t count;
	const uint32_t *sessions;
	int archive;
};

static int
run_sessions_close(struct ofs_device *device, void *argument)
{
	struct sessions_close *call = argument;
	int rc = 0;

	for (uint32_t i = 0; i < call->count; i++) {
		struct session_flag one = {call->sessions[i], call->archive};
		int ended = run_session_close(device, &one);

		rc = rc == 0 ? ended : rc;
	}
	return rc;
}

int
ofs_device_sessions_close(struct ofs_device *device, uint32_t count, const uint32_t *sessions,
	int archive)
{
	struct sessions_close call = {count, sessions, archive};

	return ofs_device_call(device, run_sessions_close, &call);
}

static int
run_set_policy(struct ofs_device *device, void *argument)
{
	const struct ofs_policy *policy = argument;
	int rc = ofs_core_set_policy(device->core, ofs_device_now_ns(device), policy);

	ofs_device_after_event(device, rc);
	if (rc == 0)
		device->config.policy = *policy;
	return rc;
}

int
ofs_device_set_policy(struct ofs_device *device, const struct ofs_policy *policy)
{
	struct ofs_policy copy = *policy;

	return ofs_device_call(device, run_set_policy, &copy);
}

static int
run_reset(struct ofs_device *device, void *argument)
{
	int rc = ofs_core_reset(device->core, ofs_device_now_ns(device));

	(void)argument;
	memset(device->stages.histograms, 0, sizeof(device->stages.histograms));
	for (uint32_t i = 0; i < device->tenant_count; i++)
		memset(device->tenants[i].steps, 0, sizeof(*device->tenants[i].steps));
	ofs_device_after_event(device, rc);
	return rc;
}

int
ofs_device_reset(struct ofs_device *device)
{
	return ofs_device_call(device, run_reset, NULL);
}
