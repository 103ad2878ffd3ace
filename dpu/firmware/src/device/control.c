/*
 * Control calls: tenants, sessions, policy. Each runs on the reactor's thread through the mailbox,
 * so that it sees and changes only what that thread owns.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

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

/* The region first: a tenant that the core has accepted cannot be removed. */
static int
tenant_add(struct ofs_device *device, const struct ofs_tenant_config *wanted, uint32_t *tenant)
{
	struct ofs_region_config config = {.slot_count = wanted->slot_count,
		.tenant = device->tenant_count,
		.boot_id = device->status.boot_id,
		.granule_count = device->config.store.granule_count,
		.layer_count = device->config.core.layer_count,
		.memory = device->config.memory,
		.payload_size_bytes = device->config.store.payload_size_bytes,
		.lba_size_bytes = device->storage->lba_size_bytes};
	struct ofs_device_tenant *state;
	int rc;

	if (device->tenant_count >= device->config.core.tenant_max)
		return -ENOSPC;
	if (wanted->slot_count == 0 || wanted->slot_count > device->config.core.slot_count)
		return -EINVAL;
	state = &device->tenants[device->tenant_count];
	rc = open_region(device, state, &config);
	if (rc == 0) {
		rc = ofs_core_tenant_add(device->core, ofs_device_now_ns(device), wanted, tenant);
		ofs_device_after_event(device, rc);
	}
	if (rc != 0) {
		close_region(device, state);
		return rc;
	}
	assert(*tenant == device->tenant_count);
	device->tenant_count++;
	return ofs_device_share(device, *tenant,
		&(struct ofs_tenant_share){
			.weight = wanted->weight < UINT16_MAX ? wanted->weight : UINT16_MAX});
}

OFS_DEVICE_CALL(tenant_add, (const struct ofs_tenant_config *, config), (uint32_t *, tenant));

static int
tenant_share(struct ofs_device *device, uint32_t tenant, const struct ofs_tenant_share *share)
{
	return ofs_device_share(device, tenant, share);
}

OFS_DEVICE_CALL(tenant_share, (uint32_t, tenant), (const struct ofs_tenant_share *, share));

static int
tenant_status_get(struct ofs_device *device, uint32_t tenant, struct ofs_tenant_status *status)
{
	if (tenant >= device->tenant_count)
		return -EINVAL;
	*status = (struct ofs_tenant_status){0};
	ofs_device_issue_figures(device, tenant, status);
	if (device->tenant_count <= OFS_HELD_MAX) {
		struct ofs_chunks_held held[OFS_HELD_MAX];

		ofs_device_chunks_held(device, held);
		status->kept_chunks = held[tenant].kept;
	}
	ofs_device_quota_figures(device, tenant, status);
	return 0;
}

OFS_DEVICE_CALL(tenant_status_get, (uint32_t, tenant), (struct ofs_tenant_status *, status));

static int
session_open(struct ofs_device *device, uint32_t port, const struct ofs_session_config *wanted,
	uint32_t *session)
{
	struct ofs_session_config config = *wanted;
	struct ofs_device_session *state;
	int rc;

	if (port >= device->config.port_max || !device->ports.entries[port].used)
		return -EINVAL;
	if (device->draining)
		return -ESHUTDOWN;
	config.tenant = device->ports.entries[port].tenant;
	rc = ofs_core_session_open(device->core, ofs_device_now_ns(device), &config, session);
	ofs_device_after_event(device, rc);
	if (rc != 0)
		return rc;
	state = &device->sessions.entries[*session];
	state->used = true;
	state->serial = ++device->sessions.serial;
	state->port = port;
	state->chunk_count = 0;
	state->chunks =
		device->sessions.chunks + (size_t)*session * device->config.core.session_chunk_max;
	device->tenants[config.tenant].sessions++;
	device->status.sessions++;
	return 0;
}

OFS_DEVICE_CALL(session_open, (uint32_t, port), (const struct ofs_session_config *, config),
	(uint32_t *, session));

static bool
is_open(const struct ofs_device *device, uint32_t session)
{
	return session < device->config.core.session_max && device->sessions.entries[session].used;
}

/* A block acknowledged in write-back mode exists, even before the store has it. */
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

/* Room in the table of chunks, for an append that keeps what it names. */
static bool
make_room(struct ofs_device *device, uint32_t session, uint32_t count, bool folded,
	const struct ofs_key *contents)
{
	uint32_t port = device->sessions.entries[session].port;
	bool found;

	ofs_device_spare(device, session, count, folded, contents, true);
	found = ofs_device_purge(device, device->ports.entries[port].tenant, false, UINT64_MAX);
	ofs_device_spare(device, session, count, folded, contents, false);
	return found;
}

/* Of one content (`folded`), or of as many as there are chunks. */
static int
append(struct ofs_device *device, uint32_t session, uint32_t count, bool folded,
	const struct ofs_key *contents, struct ofs_chunk_info *infos)
{
	struct ofs_device_session *state;
	int rc;

	if (!is_open(device, session))
		return -EINVAL;
	state = &device->sessions.entries[session];
	if (count > device->config.core.session_chunk_max - state->chunk_count)
		return -ENOSPC;
	do {
		rc = ofs_device_quota_append(device, session, count, folded, contents);
		if (rc != 0)
			return rc;
		rc = (folded ? ofs_core_session_append_folded : ofs_core_session_append)(device->core,
			ofs_device_now_ns(device), session, count, contents, infos);
		ofs_device_after_event(device, rc);
	} while (rc == -ENOSPC && make_room(device, session, count, folded, contents));
	if (rc == 0) {
		uint32_t tenant = device->ports.entries[state->port].tenant;

		for (uint32_t i = 0; i < count && device->tenants[tenant].dirty > 0; i++)
			count_staged(device, tenant, &infos[i]);
		ofs_device_mark_chunks(device, infos, count, true);
		memcpy(state->chunks + state->chunk_count, infos, count * sizeof(*infos));
		state->chunk_count += count;
	}
	return rc;
}

static int
session_append(struct ofs_device *device, uint32_t session, uint32_t count,
	const struct ofs_key *contents, struct ofs_chunk_info *infos)
{
	return append(device, session, count, false, contents, infos);
}

OFS_DEVICE_CALL(session_append, (uint32_t, session), (uint32_t, count),
	(const struct ofs_key *, contents), (struct ofs_chunk_info *, infos));

int
ofs_device_begin_session(struct ofs_device *device, uint32_t port,
	const struct ofs_session_config *config, const struct ofs_key *content, uint32_t count,
	uint32_t *session)
{
	const struct ofs_device_tenant *tenant = &device->tenants[device->ports.entries[port].tenant];
	int rc;

	if (tenant->quota.sessions_max != 0 && tenant->sessions >= tenant->quota.sessions_max)
		return -EBUSY;
	rc = session_open(device, port, config, session);
	if (rc != 0)
		return rc == -ENOSPC ? -EBUSY : rc; /* there is one when another has ended */
	rc = append(device, *session, count, true, content, device->values.infos);
	if (rc != 0)
		(void)ofs_device_end_session(device, *session, true);
	return rc;
}

static int
session_set_generating(struct ofs_device *device, uint32_t session, int generating)
{
	int rc;

	if (!is_open(device, session))
		return -EINVAL;
	rc = ofs_core_session_set_generating(device->core, ofs_device_now_ns(device), session,
		generating);
	ofs_device_after_event(device, rc);
	return rc;
}

OFS_DEVICE_CALL(session_set_generating, (uint32_t, session), (int, generating));

static int
session_close(struct ofs_device *device, uint32_t session, int keep)
{
	return is_open(device, session) ? ofs_device_end_session(device, session, keep != 0) : -EINVAL;
}

OFS_DEVICE_CALL(session_close, (uint32_t, session), (int, keep));

static int
set_policy(struct ofs_device *device, const struct ofs_policy *policy)
{
	int rc = ofs_core_set_policy(device->core, ofs_device_now_ns(device), policy);

	ofs_device_after_event(device, rc);
	if (rc == 0)
		device->config.policy = *policy;
	return rc;
}

OFS_DEVICE_CALL(set_policy, (const struct ofs_policy *, policy));

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
