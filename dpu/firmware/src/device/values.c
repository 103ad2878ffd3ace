/* Commands on values: stored, read, looked for and deleted by key; see values.h. */
#include "clock_wait.h"
#include "device/value_table.h"
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_MIN 16        /* entries */
#define STEP_NS 1000000ull /* of a session that has no pace of its own */
#define STORE_FLAGS (uint32_t)(OFS_VALUE_KEEP | OFS_VALUE_OVER | OFS_VALUE_DURABLE)

/* ---- sessions of values ---- */

static int
begin(struct ofs_device *device, uint32_t port, const struct ofs_value_name *name,
	enum ofs_value_role role, struct ofs_value_told *told)
{
	struct ofs_session_config config = {.select_blocks = 1, .step_ns = STEP_NS};
	struct ofs_key content = ofs_value_content(name);
	uint32_t chunks = ofs_value_chunks(device, name->length);
	struct ofs_device_session *state;
	int rc = ofs_device_begin_session(device, port, &config, &content, chunks, &told->session);

	if (rc != 0)
		return rc;
	state = &device->sessions.entries[told->session];
	state->role = role;
	state->value = *name;
	told->length = name->length;
	told->chunk = device->values.infos[0].key;
	return 0;
}

/* ---- the verbs ---- */

/* Whether the key has a value, as far as a store is concerned. */
static bool
has_value(struct ofs_device *device, const struct ofs_value *entry)
{
	return entry != NULL && entry->place < OFS_VALUE_LEAVING
		&& (entry->place != OFS_VALUE_AWAY || !ofs_value_failed(device, entry));
}

static int
check_flags(struct ofs_device *device, const struct ofs_value *entry, uint32_t flags)
{
	bool there = has_value(device, entry);

	if (there && flags & OFS_VALUE_KEEP)
		return -EEXIST;
	return !there && flags & OFS_VALUE_OVER ? -ENOENT : 0;
}

static int
store(struct ofs_device *device, uint32_t port, const struct ofs_value_ask *ask,
	struct ofs_value_told *told)
{
	struct ofs_value_name name = {.key = ask->key,
		.length = ask->length,
		.flags = ask->flags,
		.name_bytes = ask->name_bytes,
		.name = ask->name};
	uint32_t tenant = device->ports.entries[port].tenant;
	const struct ofs_value *entry;
	int rc;

	if (ask->length == 0 || ask->flags & ~STORE_FLAGS || ask->name_bytes > OFS_VALUE_NAME_BYTES_MAX)
		return -EINVAL;
	rc = ofs_value_never_fits(device, tenant, ask->length);
	if (rc != 0)
		return rc;
	entry = ofs_value_look(device, tenant, &ask->key);
	rc = check_flags(device, entry, ask->flags);
	if (rc == 0 && entry == NULL && !ofs_values_room(device))
		rc = -ENOSPC;
	if (rc != 0)
		return rc;
	name.generation = ++device->values.generation;
	return begin(device, port, &name, OFS_VALUE_WRITES, told);
}

/* From here on the key's value is what this session wrote, and what it was before is deleted. */
static int
commit(struct ofs_device *device, uint32_t port, uint32_t session)
{
	const struct ofs_device_session *state = &device->sessions.entries[session];
	uint32_t tenant = device->ports.entries[port].tenant;
	struct ofs_value value = {.name = state->value, .tenant = tenant};
	struct ofs_value *entry;
	bool replaces;
	int rc;

	if (state->role != OFS_VALUE_WRITES)
		return -EPERM;
	value.store_key = state->chunks[0].store_key;
	if (!ofs_value_is_whole(device, &value, value.name.flags & OFS_VALUE_DURABLE))
		return -EAGAIN;
	entry = ofs_value_look(device, tenant, &value.name.key);
	if (entry != NULL && entry->place == OFS_VALUE_LEAVING)
		return -EAGAIN;
	rc = check_flags(device, entry, value.name.flags);
	if (rc == 0 && entry == NULL && !ofs_values_room(device))
		rc = -ENOSPC;
	if (rc != 0)
		return rc;
	replaces = entry != NULL || !device->values.listed;
	if (entry != NULL)
		ofs_value_forget(device, entry);
	entry = ofs_value_insert(&device->values, &value);
	ofs_value_note(device, entry, replaces ? OFS_LIST_NOW : OFS_LIST_STORED);
	return ofs_device_end_session(device, session, true);
}

static int
end(struct ofs_device *device, uint32_t session)
{
	if (device->sessions.entries[session].role == OFS_VALUE_NO_ROLE)
		return -EPERM;
	return ofs_device_end_session(device, session, true);
}

/* It is answered when the drive has ended its part, too, for as far as no session has the value. */
static int
leave(struct ofs_device *device, uint32_t tenant, const struct ofs_value_ask *ask,
	struct ofs_value *entry, struct ofs_value_told *told)
{
	uint64_t ticket = ask->length, left;
	int rc = 0;

	if (ticket == 0)
		rc = ofs_value_leave(device, tenant, &ask->key, entry);
	else if (entry != NULL && entry->place == OFS_VALUE_LEAVING)
		rc = -EAGAIN;
	else if (entry != NULL && entry->place == OFS_VALUE_GONE)
		ofs_value_remove(&device->values, entry);
	if (rc != 0 && rc != -EAGAIN)
		return rc;
	if (ofs_purge_wiped(device, tenant, &ticket, &left) == 0)
		return rc;
	told->length = ticket;
	return -EAGAIN;
}

static int
by_key(struct ofs_device *device, uint32_t port, uint32_t verb, const struct ofs_value_ask *ask,
	struct ofs_value_told *told)
{
	uint32_t tenant = device->ports.entries[port].tenant;
	struct ofs_value *entry = ofs_value_look(device, tenant, &ask->key);

	if (verb == OFS_VALUE_DELETE)
		return leave(device, tenant, ask, entry, told);
	if (entry == NULL || entry->place >= OFS_VALUE_LEAVING)
		return -ENOENT;
	if (entry->place == OFS_VALUE_AWAY)
		return ofs_value_want(device, entry);
	told->length = entry->name.length;
	return verb == OFS_VALUE_RETRIEVE ? begin(device, port, &entry->name, OFS_VALUE_READS, told)
									  : 0;
}

static int
carry_out(struct ofs_device *device, uint32_t port, uint32_t verb, const struct ofs_value_ask *ask,
	struct ofs_value_told *told)
{
	int rc;

	if (device->values.entries == NULL)
		return -ENOTSUP;
	switch (verb) {
	case OFS_VALUE_STORE:
		return store(device, port, ask, told);
	case OFS_VALUE_COMMIT:
	case OFS_VALUE_END:
		rc = ofs_device_check_session(device, port, ask->session);
		if (rc != 0)
			return rc;
		return verb == OFS_VALUE_END ? end(device, ask->session)
									 : commit(device, port, ask->session);
	default:
		return by_key(device, port, verb, ask, told);
	}
}

void
ofs_device_values(struct ofs_device *device, uint32_t port, const struct ofs_command *command)
{
	const struct ofs_sqe *sqe = &command->sqe;
	const struct ofs_device_port *state = &device->ports.entries[port];
	struct ofs_value_told *told = device->values.told;

	assert(sqe->demand_count <= device->config.core.demand_max / 2); /* the port checked it */
	if (sqe->flags == OFS_VALUE_LIST)
		ofs_device_list_values(device, port, command->asks, told, sqe->demand_count);
	for (uint32_t i = 0; i < sqe->demand_count && sqe->flags != OFS_VALUE_LIST; i++) {
		struct ofs_value_ask ask = command->asks[i];

		if (state->owned)
			ofs_siphash(&state->owner, &command->asks[i].key, sizeof(ask.key), &ask.key);
		told[i] = (struct ofs_value_told){.session = OFS_NONE};
		told[i].rc = carry_out(device, port, sqe->flags, &ask, &told[i]);
	}
	ofs_device_complete_with(device, port, sqe, 2 * sqe->demand_count,
		(const struct ofs_result *)told);
}

/* ---- open ---- */

int
ofs_device_open_values(struct ofs_device *device)
{
	struct ofs_values *values = &device->values;
	uint64_t room = ROOM_MIN;

	for (uint32_t i = 0; i < OFS_LIST_COUNT; i++)
		values->firsts[i] = values->lasts[i] = OFS_NONE;
	/* Whatever a lost drive had is earlier: nobody stores 2^30 values in a second. */
	values->generation =
		(ofs_clock_unix_s(&device->clock) << 30) + (ofs_device_now_ns(device) & ((1u << 30) - 1));
	values->told = calloc(device->config.core.demand_max / 2 + 1, sizeof(*values->told));
	values->infos = calloc(device->config.core.session_chunk_max, sizeof(*values->infos));
	if (values->told == NULL || values->infos == NULL)
		return -ENOMEM;
	if (device->config.value_max == 0)
		return 0;
	while (room < 2ull * device->config.value_max)
		room *= 2;
	if (room > 1ull << 31)
		return -EINVAL;
	values->mask = (uint32_t)(room - 1);
	values->entries = calloc(room, sizeof(*values->entries));
	return values->entries == NULL ? -ENOMEM : 0;
}
