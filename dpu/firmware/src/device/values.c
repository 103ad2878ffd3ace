/* Commands on values: stored, read, looked for and deleted by key; see values.h. */
#include "device/value_table.h"
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define SWEEP 64           /* entries looked at for one that has lost its blocks */
#define STEP_NS 1000000ull /* of a session that has no pace of its own */
#define STORE_FLAGS (uint32_t)(OFS_VALUE_KEEP | OFS_VALUE_OVER | OFS_VALUE_DURABLE)

/* ---- blocks of a value ---- */

static uint32_t
pieces_of(const struct ofs_device *device, uint64_t length)
{
	uint32_t payload = device->config.store.payload_size_bytes;
	uint64_t pieces = (length + payload - 1) / payload;

	return pieces > UINT32_MAX ? UINT32_MAX : (uint32_t)pieces;
}

/* A content of its own for each store of a key, which no content of a host's chunk can be made to
 * equal without knowing the generation. */
static struct ofs_key
content_of(const struct ofs_value_name *name)
{
	uint64_t words[4] = {name->key.lo, name->key.hi, name->generation, OFS_VALUE_MAGIC};
	struct ofs_key content;

	content.lo = ofs_checksum(words, sizeof(words));
	words[3] = content.lo;
	content.hi = ofs_checksum(words, sizeof(words));
	return content;
}

/* Written in write-back mode and acknowledged, though the store does not have it yet. */
static bool
is_dirty(const struct ofs_device *device, uint32_t tenant, uint32_t chunk, uint32_t layer)
{
	uint32_t slot;

	return ofs_core_block_slot(device->core, chunk, layer, &slot) == 1
		&& device->tenants[tenant].flush_of[slot] != OFS_NONE;
}

bool
ofs_value_is_whole(const struct ofs_device *device, uint32_t tenant,
	const struct ofs_key *store_key, uint64_t length)
{
	uint32_t chunk = ofs_core_chunk_find(device->core, tenant, store_key);

	if (chunk == OFS_NONE)
		return false;
	for (uint32_t layer = pieces_of(device, length); layer-- > 0;)
		if (!ofs_core_block_is_stored(device->core, chunk, layer)
			&& !is_dirty(device, tenant, chunk, layer))
			return false;
	return true;
}

/* Whether a piece of a whole value is not on the drive yet. */
static bool
is_on_its_way(const struct ofs_device *device, uint32_t tenant, const struct ofs_value *value)
{
	uint32_t chunk = ofs_core_chunk_find(device->core, tenant, &value->store_key);

	for (uint32_t layer = pieces_of(device, value->name.length); layer-- > 0;)
		if (!ofs_core_block_is_stored(device->core, chunk, layer))
			return true;
	return false;
}

void
ofs_value_drop(struct ofs_device *device, uint32_t tenant, const struct ofs_key *store_key)
{
	uint32_t chunk = ofs_core_chunk_find(device->core, tenant, store_key);

	if (chunk != OFS_NONE)
		ofs_device_delete_named(device, tenant, store_key, chunk);
}

void
ofs_value_forget(struct ofs_device *device, struct ofs_value *entry)
{
	struct ofs_value value = *entry;

	ofs_value_remove(&device->values, entry);
	ofs_value_drop(device, value.tenant, &value.store_key);
}

/* The key's value; NULL: it has none, or it had one that has lost blocks. */
static struct ofs_value *
look(struct ofs_device *device, uint32_t tenant, const struct ofs_key *key)
{
	struct ofs_value *entry = ofs_value_find(&device->values, tenant, key);

	if (entry == NULL || ofs_value_is_whole(device, tenant, &entry->store_key, entry->name.length))
		return entry;
	ofs_value_forget(device, entry);
	return NULL;
}

/* Whether the table takes one more; if it is full, some entries may have lost their blocks. */
static bool
has_room(struct ofs_device *device)
{
	struct ofs_values *values = &device->values;

	for (uint32_t i = 0; i < SWEEP && values->count >= device->config.value_max; i++) {
		struct ofs_value *entry = &values->entries[values->swept++ & values->mask];

		if (entry->name.generation != 0)
			(void)look(device, entry->tenant, &entry->name.key);
	}
	return values->count < device->config.value_max;
}

/* ---- sessions of values ---- */

static int
begin(struct ofs_device *device, uint32_t port, const struct ofs_value_name *name,
	enum ofs_value_role role, struct ofs_value_told *told)
{
	struct ofs_session_config config = {.select_blocks = 1, .step_ns = STEP_NS};
	struct ofs_key content = content_of(name);
	struct ofs_device_session *state;
	struct ofs_chunk_info info;
	int rc = ofs_device_begin_session(device, port, &config, &content, &told->session, &info);

	if (rc != 0)
		return rc;
	state = &device->sessions.entries[told->session];
	state->role = role;
	state->value = *name;
	told->length = name->length;
	told->chunk = info.key;
	return 0;
}

/* ---- the verbs ---- */

static int
check_flags(const struct ofs_value *entry, uint32_t flags)
{
	if (entry != NULL && flags & OFS_VALUE_KEEP)
		return -EEXIST;
	return entry == NULL && flags & OFS_VALUE_OVER ? -ENOENT : 0;
}

static int
store(struct ofs_device *device, uint32_t port, const struct ofs_value_ask *ask,
	struct ofs_value_told *told)
{
	struct ofs_value_name name = {.key = ask->key, .length = ask->length, .flags = ask->flags};
	const struct ofs_value *entry;
	int rc;

	if (ask->length == 0 || ask->flags & ~STORE_FLAGS)
		return -EINVAL;
	if (pieces_of(device, ask->length) > device->config.core.layer_count)
		return -EMSGSIZE;
	entry = look(device, device->ports.entries[port].tenant, &ask->key);
	rc = check_flags(entry, ask->flags);
	if (rc == 0 && entry == NULL && !has_room(device))
		rc = -ENOSPC;
	if (rc != 0)
		return rc;
	if (++device->values.generation == 0)
		device->values.generation = 1;
	name.generation = device->values.generation;
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
	int rc;

	if (state->role != OFS_VALUE_WRITES)
		return -EPERM;
	value.store_key = state->chunks[0].store_key;
	if (!ofs_value_is_whole(device, tenant, &value.store_key, value.name.length)
		|| (value.name.flags & OFS_VALUE_DURABLE && is_on_its_way(device, tenant, &value)))
		return -EAGAIN;
	entry = look(device, tenant, &value.name.key);
	rc = check_flags(entry, value.name.flags);
	if (rc == 0 && entry == NULL && !has_room(device))
		rc = -ENOSPC;
	if (rc != 0)
		return rc;
	if (entry != NULL)
		ofs_value_forget(device, entry);
	ofs_value_insert(&device->values, &value);
	return ofs_device_end_session(device, session, true);
}

static int
end(struct ofs_device *device, uint32_t session)
{
	if (device->sessions.entries[session].role == OFS_VALUE_NO_ROLE)
		return -EPERM;
	return ofs_device_end_session(device, session, true);
}

static int
by_key(struct ofs_device *device, uint32_t port, uint32_t verb, const struct ofs_value_ask *ask,
	struct ofs_value_told *told)
{
	struct ofs_value *entry = look(device, device->ports.entries[port].tenant, &ask->key);

	if (entry == NULL)
		return -ENOENT;
	told->length = entry->name.length;
	if (verb == OFS_VALUE_RETRIEVE)
		return begin(device, port, &entry->name, OFS_VALUE_READS, told);
	if (verb == OFS_VALUE_DELETE)
		ofs_value_forget(device, entry);
	return 0;
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
	struct ofs_value_told *told = device->values.told;

	const struct ofs_device_port *state = &device->ports.entries[port];

	assert(sqe->demand_count <= device->config.core.demand_max / 2); /* the port checked it */
	for (uint32_t i = 0; i < sqe->demand_count; i++) {
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
	uint64_t room = 2;

	values->told = calloc(device->config.core.demand_max / 2 + 1, sizeof(*values->told));
	if (values->told == NULL)
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
