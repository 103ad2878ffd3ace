/*
 * quota.c: a tenant's bounds on shared resources, which apply even if there is room.
 *
 * Model: a tenant at a bound loses its own coldest kept chunks; if it has none, its request is
 * refused (-EDQUOT). Other tenants' chunks are not touched. This walks a table, so a 16th of the
 * bound is freed each time. Existing data does not count again: a known chunk, a block that is
 * rewritten. A block acknowledged before it is written was counted when it was staged, and is
 * never refused. Belongs to the reactor's thread.
 */
#include "internal.h"

#define SPARE_PART 16 /* of the bound is freed in addition to what is needed */
#define CHUNKS_MAX 64 /* in one turn, of puts */

static int
tenant_quota(struct ofs_device *device, uint32_t tenant, const struct ofs_tenant_quota *quota)
{
	if (tenant >= device->tenant_count)
		return -EINVAL;
	device->tenants[tenant].quota = *quota;
	return 0;
}

OFS_DEVICE_CALL(tenant_quota, (uint32_t, tenant), (const struct ofs_tenant_quota *, quota));

/* The tenant's kept chunks that may go: those that the append names are spared. */
static uint64_t
spare_chunks(const struct ofs_device *device, uint32_t tenant)
{
	struct ofs_chunk_state state;
	uint64_t kept = 0;

	for (uint32_t chunk = 0; chunk < device->config.core.chunk_max; chunk++)
		kept += ofs_core_chunk_state(device->core, chunk, &state) == 0 && state.tenant == tenant
			&& state.kept && device->marks.entries[chunk].spared == 0;
	return kept;
}

/* Frees what the tenant lacks, and a part of the bound besides; nothing, where that cannot be. */
static bool
make_room(struct ofs_device *device, uint32_t tenant, uint64_t lacks)
{
	uint64_t spare = spare_chunks(device, tenant);
	uint64_t goes = lacks + device->tenants[tenant].quota.chunks_max / SPARE_PART;

	return spare >= lacks
		&& ofs_device_purge_own(device, tenant, (uint32_t)(goes < spare ? goes : spare), UINT64_MAX)
		> 0;
}

int
ofs_device_quota_append(struct ofs_device *device, uint32_t session, uint32_t count, bool folded,
	const struct ofs_key *contents)
{
	uint32_t named = folded ? 1 : count; /* the first is there if the others are */
	uint32_t number = device->ports.entries[device->sessions.entries[session].port].tenant;
	struct ofs_device_tenant *tenant = &device->tenants[number];
	uint64_t most = tenant->quota.chunks_max, wants;
	bool has_room = true;
	int made;

	if (most == 0)
		return 0;
	while (has_room) {
		made =
			ofs_core_session_look(device->core, session, named, contents, device->sessions.looked);
		made = folded && made > 0 ? made * (int)count : made;
		wants = ofs_core_chunk_count(device->core, number) + (uint64_t)(made > 0 ? made : 0);
		if (made <= 0 || wants <= most)
			return 0;
		ofs_device_spare(device, session, count, folded, contents, true);
		has_room = make_room(device, number, wants - most);
		ofs_device_spare(device, session, count, folded, contents, false);
	}
	tenant->quota_refused++;
	return -EDQUOT;
}

/* The tenant's blocks that the store has, or has accepted. */
static uint64_t
stored(const struct ofs_device *device, uint32_t number)
{
	const struct ofs_device_tenant *tenant = &device->tenants[number];

	assert(tenant->flushes_sent + tenant->parked <= tenant->dirty);
	return ofs_store_blocks_of(device->store, number) + tenant->dirty - tenant->flushes_sent;
}

uint64_t
ofs_device_quota_blocks(const struct ofs_device *device, uint32_t number)
{
	uint64_t bytes = device->tenants[number].quota.stored_bytes_max;

	return bytes == 0 ? UINT64_MAX : bytes / device->record_size_bytes;
}

int
ofs_device_quota_put(struct ofs_device *device, const struct ofs_write *write)
{
	uint64_t most = ofs_device_quota_blocks(device, write->tenant),
			 has = stored(device, write->tenant);

	if (has < most || write->kind != OFS_IO_PUT || ofs_store_refuses(device->store)
		|| ofs_store_position(device->store, &write->store_key, write->layer) != UINT64_MAX) {
		return 0;
	}
	if (ofs_device_purge_own(device, write->tenant, CHUNKS_MAX, has - most + 1 + most / SPARE_PART)
		> 0) {
		return stored(device, write->tenant) < most ? 0 : -EAGAIN;
	}
	device->tenants[write->tenant].quota_refused++;
	return -EDQUOT;
}

bool
ofs_device_quota_stage(const struct ofs_device *device, uint32_t number)
{
	const struct ofs_device_tenant *tenant = &device->tenants[number];
	uint64_t most = tenant->quota.dirty_blocks_max;

	return device->writes.dirty < device->config.dirty_blocks_max && tenant->parked == 0
		&& (most == 0 || tenant->dirty < most)
		&& stored(device, number) < ofs_device_quota_blocks(device, number);
}

void
ofs_device_quota_figures(const struct ofs_device *device, uint32_t number,
	struct ofs_tenant_status *status)
{
	const struct ofs_device_tenant *tenant = &device->tenants[number];

	status->chunks = ofs_core_chunk_count(device->core, number);
	status->chunks_max = tenant->quota.chunks_max;
	status->stored_blocks = ofs_store_blocks_of(device->store, number);
	status->stored_bytes = status->stored_blocks * device->record_size_bytes;
	status->stored_bytes_max = tenant->quota.stored_bytes_max;
	status->dirty_blocks = tenant->dirty;
	status->dirty_blocks_max = tenant->quota.dirty_blocks_max;
	status->purged = tenant->purged;
	status->quota_refused = tenant->quota_refused;
	status->sessions = tenant->sessions;
	status->sessions_max = tenant->quota.sessions_max;
}
