/*
 * Which keys a volume has: a walk over the table by homes, and within a home by keys. No store and
 * no delete changes the place of another value in that order, though it may move its entry. So a
 * walk in several commands finds what was there all the time, once.
 */
#include "device/value_table.h"
#include "internal.h"

#define LOOK_MAX 4096 /* entries and blocks that one command looks at */

struct value_walk {
	uint32_t tenant;
	uint64_t home;       /* beyond the mask: it is over */
	struct ofs_key from; /* the least key of this home that it has not passed */
	uint64_t looked;
};

static bool
is_before(const struct ofs_key *one, const struct ofs_key *other)
{
	return one->hi != other->hi ? one->hi < other->hi : one->lo < other->lo;
}

/* The walk's next value of this home; NULL: it has no other. */
static const struct ofs_value *
next_of_home(const struct ofs_values *values, struct value_walk *walk)
{
	const struct ofs_value *next = NULL;

	for (uint32_t i = (uint32_t)walk->home;; i = (i + 1) & values->mask) {
		const struct ofs_value *entry = &values->entries[i];
		const struct ofs_key *key = &entry->name.key;

		walk->looked++;
		if (entry->name.generation == 0)
			return next;
		if (entry->tenant == walk->tenant && !is_before(key, &walk->from)
			&& (next == NULL || is_before(key, &next->name.key))
			&& ofs_value_home(values, walk->tenant, key) == walk->home)
			next = entry;
	}
}

static void
next_home(struct value_walk *walk)
{
	walk->home++;
	walk->from = (struct ofs_key){0};
}

/* Whether this is the value's name in the volume, and its blocks are here or in the archive. */
static bool
is_listed(struct ofs_device *device, const struct ofs_device_port *port,
	const struct ofs_value *value, const struct ofs_key *volume, struct value_walk *walk)
{
	const struct ofs_value_name *name = &value->name;
	struct ofs_key key;

	if (name->name_bytes == 0 || value->place >= OFS_VALUE_LEAVING)
		return false;
	ofs_value_key((const uint8_t *)volume, (const uint8_t *)&name->name, name->name_bytes, &key);
	if (port->owned)
		ofs_siphash(&port->owner, &key, sizeof(key), &key);
	if (!ofs_key_equal(&key, &name->key))
		return false;
	if (value->archived || value->place == OFS_VALUE_AWAY)
		return true;
	walk->looked += (uint64_t)ofs_value_chunks(device, name->length) //
		* device->config.core.layer_count;
	return ofs_value_is_whole(device, value, false);
}

static void
begin(const struct ofs_values *values, const struct ofs_device_port *port,
	const struct ofs_value_ask *ask, struct value_walk *walk)
{
	walk->from = ask->key;
	walk->home = ask->length - 1;
	if (ask->length > 0)
		return;
	if (port->owned)
		ofs_siphash(&port->owner, &ask->key, sizeof(ask->key), &walk->from);
	walk->home = ofs_value_home(values, walk->tenant, &walk->from);
}

void
ofs_device_list_values(struct ofs_device *device, uint32_t port, const struct ofs_value_ask *ask,
	struct ofs_value_told *told, uint32_t count)
{
	const struct ofs_device_port *state = &device->ports.entries[port];
	const struct ofs_values *values = &device->values;
	struct value_walk walk = {.tenant = state->tenant};
	const struct ofs_value *value;
	uint32_t found = 0;

	for (uint32_t i = 0; i < count; i++)
		told[i] = (struct ofs_value_told){.session = OFS_NONE,
			.rc = values->entries == NULL ? -ENOTSUP : -EINVAL};
	if (values->entries == NULL || count < 2)
		return;
	begin(values, state, ask, &walk);
	while (walk.home <= values->mask && walk.looked < LOOK_MAX && found + 1 < count) {
		value = next_of_home(values, &walk);
		if (value == NULL) {
			next_home(&walk);
			continue;
		}
		if (is_listed(device, state, value, &ask->name, &walk))
			told[found++] = (struct ofs_value_told){.session = value->name.name_bytes,
				.length = value->name.length,
				.chunk = value->name.name};
		walk.from = value->name.key;
		walk.from.hi += ++walk.from.lo == 0;
		if (walk.from.lo == 0 && walk.from.hi == 0)
			next_home(&walk);
	}
	told[found] = (struct ofs_value_told){.rc = walk.home > values->mask ? -ENOENT : -EAGAIN,
		.session = OFS_NONE,
		.length = walk.home + 1,
		.chunk = walk.from};
}
