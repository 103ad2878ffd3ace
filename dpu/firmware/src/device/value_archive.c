/*
 * Values and the archive: what it hears of them, and what comes back. The archive's threads take
 * notes of entries in a list, and say how they ended. Nothing here waits but their own call.
 */
#include "device/value_table.h"
#include "internal.h"

#include <string.h>

/* A value that did not come back counts as absent for so long, and may then be tried again. */
#define FAILED_NS 1000000000ull

static bool
has_archive(const struct ofs_device *device)
{
	return device->config.archive_places > 0;
}

/* ---- for commands ---- */

void
ofs_value_note(struct ofs_device *device, struct ofs_value *entry, enum ofs_value_list list)
{
	struct ofs_values *values = &device->values;
	bool is_first;

	if (!has_archive(device))
		return;
	is_first = values->firsts[list] == OFS_NONE;
	ofs_value_enlist(values, entry, list);
	if (!is_first)
		return;
	pthread_mutex_lock(&device->mailbox.mutex);
	values->news |= 1u << list;
	pthread_cond_broadcast(&device->mailbox.cond);
	pthread_mutex_unlock(&device->mailbox.mutex);
}

bool
ofs_value_failed(struct ofs_device *device, const struct ofs_value *entry)
{
	uint64_t since_ns = ofs_device_now_ns(device) - entry->wanted_ns;

	return entry->wanted_ns != 0 && since_ns >= device->config.archive_wait_ns
		&& since_ns < device->config.archive_wait_ns + FAILED_NS;
}

int
ofs_value_want(struct ofs_device *device, struct ofs_value *entry)
{
	uint64_t now_ns = ofs_device_now_ns(device), wait_ns = device->config.archive_wait_ns;

	assert(entry->place == OFS_VALUE_AWAY);
	if (entry->wanted_ns == 0 || now_ns - entry->wanted_ns >= wait_ns + FAILED_NS) {
		entry->wanted_ns = now_ns;
		ofs_value_note(device, entry, OFS_LIST_NOW);
	}
	return now_ns - entry->wanted_ns < wait_ns ? -EAGAIN : -ENOENT;
}

int
ofs_value_leave(struct ofs_device *device, uint32_t tenant, const struct ofs_key *key,
	struct ofs_value *entry)
{
	bool unlisted = has_archive(device) && !device->values.listed;
	struct ofs_value unknown = {.tenant = tenant};

	if (entry == NULL && !unlisted)
		return -ENOENT;
	if (entry == NULL) {
		if (!ofs_values_room(device))
			return -ENOSPC;
		unknown.name =
			(struct ofs_value_name){.key = *key, .generation = ++device->values.generation};
		entry = ofs_value_insert(&device->values, &unknown);
	} else if (entry->place == OFS_VALUE_LEAVING) {
		return -EAGAIN;
	} else if (entry->place == OFS_VALUE_GONE) {
		ofs_value_remove(&device->values, entry);
		return -ENOENT;
	} else if (!has_archive(device)) {
		ofs_value_forget(device, entry);
		return 0;
	}
	entry->place = OFS_VALUE_LEAVING;
	ofs_value_note(device, entry, OFS_LIST_NOW);
	ofs_value_drop(device, entry);
	return -EAGAIN;
}

/* ---- for blocks that come back ---- */

static struct ofs_value *
find(const struct ofs_device *device, uint32_t tenant, const struct ofs_key *key,
	uint64_t generation)
{
	struct ofs_value *entry = ofs_value_find(&device->values, tenant, key);

	return entry != NULL && entry->name.generation == generation ? entry : NULL;
}

bool
ofs_value_awaits(const struct ofs_device *device, uint32_t tenant,
	const struct ofs_archive_block *block)
{
	const struct ofs_value *entry;

	if (block->generation == 0)
		return true;
	entry = find(device, tenant, &block->key, block->generation);
	return entry != NULL && entry->place == OFS_VALUE_AWAY
		&& ofs_value_has_chunk(device, entry, &block->store_key);
}

void
ofs_value_name_block(const struct ofs_device *device, uint32_t tenant,
	const struct ofs_archive_block *block, const struct ofs_trailer *trailer)
{
	const struct ofs_value *entry = find(device, tenant, &block->key, block->generation);

	if (block->generation != 0 && entry != NULL && entry->name.length == block->value_length)
		ofs_device_fill_tag(trailer, &block->store_key, &entry->name);
}

void
ofs_value_arrived(struct ofs_device *device, uint32_t tenant, const struct ofs_archive_block *block)
{
	struct ofs_value *entry = find(device, tenant, &block->key, block->generation);

	if (block->generation == 0 || (entry != NULL && entry->place == OFS_VALUE_HERE))
		return;
	if (!ofs_value_awaits(device, tenant, block)) {
		uint32_t chunk = ofs_core_chunk_find(device->core, tenant, &block->store_key);

		if (chunk != OFS_NONE)
			ofs_device_delete_named(device, tenant, &block->store_key, chunk);
	} else if (ofs_value_is_whole(device, entry, false)) {
		entry->place = OFS_VALUE_HERE;
		ofs_value_enlist(&device->values, entry, OFS_LIST_NONE);
	}
}

void
ofs_values_purge(struct ofs_device *device, uint32_t tenant)
{
	struct ofs_values *values = &device->values;

	for (uint32_t i = 0; values->entries != NULL && i <= values->mask; i++) {
		struct ofs_value *entry = &values->entries[i];

		if (entry->name.generation == 0 || entry->tenant != tenant)
			continue;
		entry->archived = false;
		if (entry->place == OFS_VALUE_AWAY) {
			ofs_value_forget(device, entry);
			i--; /* another may stand there now */
		}
	}
}

/* ---- calls of the archive ---- */

static enum ofs_value_note_kind
kind_of(const struct ofs_value *entry)
{
	if (entry->place == OFS_VALUE_LEAVING)
		return OFS_NOTE_GONE;
	if (entry->place == OFS_VALUE_AWAY)
		return OFS_NOTE_WANTED;
	return entry->list == OFS_LIST_NOW ? OFS_NOTE_REPLACED : OFS_NOTE_STORED;
}

static int
take(struct ofs_device *device, enum ofs_value_list list, struct ofs_value_note *notes, int max)
{
	struct ofs_values *values = &device->values;
	int count = 0;

	while (count < max && values->firsts[list] != OFS_NONE) {
		struct ofs_value *entry = &values->entries[values->firsts[list]];
		struct ofs_value_note *note = &notes[count++];

		*note = (struct ofs_value_note){.key = entry->name.key,
			.store_key = entry->store_key,
			.generation = entry->name.generation,
			.length = entry->name.length,
			.tenant = entry->tenant,
			.kind = kind_of(entry)};
		ofs_value_enlist(values, entry, OFS_LIST_NONE);
		if (note->kind == OFS_NOTE_REPLACED && !entry->archived)
			ofs_value_note(device, entry, OFS_LIST_STORED);
	}
	pthread_mutex_lock(&device->mailbox.mutex);
	if (values->firsts[list] == OFS_NONE)
		values->news &= ~(1u << list);
	pthread_mutex_unlock(&device->mailbox.mutex);
	return count;
}

static int
value_notes(struct ofs_device *device, uint32_t stored, struct ofs_value_note *notes, int max)
{
	int count = take(device, OFS_LIST_NOW, notes, max);

	return stored ? count + take(device, OFS_LIST_STORED, notes + count, max - count) : count;
}

OFS_DEVICE_CALL(value_notes, (uint32_t, stored), (struct ofs_value_note *, notes), (int, max));

int
ofs_device_value_await(struct ofs_device *device, uint32_t stored, uint64_t timeout_ns)
{
	uint32_t lists = 1u << OFS_LIST_NOW | (uint32_t)(stored != 0) << OFS_LIST_STORED;
	struct timespec until = ofs_device_until(timeout_ns);
	int found;

	pthread_mutex_lock(&device->mailbox.mutex);
	while ((device->values.news & lists) == 0 && !device->mailbox.stopped)
		if (pthread_cond_timedwait(&device->mailbox.cond, &device->mailbox.mutex, &until)
			== ETIMEDOUT)
			break;
	found = (device->values.news & lists) != 0;
	pthread_mutex_unlock(&device->mailbox.mutex);
	return found;
}

static int
take_in(struct ofs_device *device, const struct ofs_value_note *note)
{
	struct ofs_value value = {.store_key = note->store_key,
		.tenant = note->tenant,
		.place = OFS_VALUE_AWAY,
		.archived = true};
	struct ofs_value *entry;
	struct ofs_key content, key;

	value.name = (struct ofs_value_name){.key = note->key,
		.length = note->length,
		.generation = note->generation};
	content = ofs_value_content(&value.name);
	key = ofs_core_first_key(device->core, note->tenant, &content);
	/* Nothing on the drive is deleted or written because of a name that says what is not so. */
	if (!ofs_key_equal(&key, &note->store_key) || note->generation == 0 || note->length == 0
		|| !ofs_value_fits(device, note->length))
		return -EINVAL;
	if (note->generation > device->values.generation)
		device->values.generation = note->generation;
	entry = ofs_value_find(&device->values, note->tenant, &note->key);
	if (entry != NULL && entry->place == OFS_VALUE_AWAY
		&& entry->name.generation < note->generation) {
		ofs_value_forget(device, entry);
		entry = NULL;
	}
	if (entry == NULL && device->values.count >= device->config.value_max) {
		device->values.listed = false;
		return -ENOSPC;
	}
	if (entry == NULL)
		(void)ofs_value_insert(&device->values, &value);
	else if (entry->name.generation != note->generation || entry->place >= OFS_VALUE_LEAVING
		|| entry->name.length != note->length)
		return -ESTALE;
	else
		entry->archived = true;
	if (entry != NULL && entry->list == OFS_LIST_STORED)
		ofs_value_enlist(&device->values, entry, OFS_LIST_NONE);
	return 0;
}

static int
value_archived(struct ofs_device *device, uint32_t count, const struct ofs_value_note *notes,
	int32_t *rcs)
{
	if (device->values.entries == NULL)
		return -ENOTSUP;
	for (uint32_t i = 0; i < count; i++)
		rcs[i] = notes[i].tenant < device->tenant_count ? take_in(device, &notes[i]) : -EINVAL;
	return 0;
}

OFS_DEVICE_CALL(value_archived, (uint32_t, count), (const struct ofs_value_note *, notes),
	(int32_t *, rcs));

static int
value_end(struct ofs_device *device, uint32_t count, const struct ofs_value_note *notes,
	uint32_t gone)
{
	for (uint32_t i = 0; i < count; i++) {
		struct ofs_value *entry = find(device, notes[i].tenant, &notes[i].key, notes[i].generation);

		if (entry == NULL || entry->place == OFS_VALUE_HERE)
			continue;
		if (entry->place == OFS_VALUE_LEAVING && gone && !device->values.listed) {
			entry->place = OFS_VALUE_GONE;
		} else if (gone && entry->place != OFS_VALUE_GONE) {
			ofs_value_forget(device, entry);
		} else if (entry->place == OFS_VALUE_AWAY) {
			entry->wanted_ns = ofs_device_now_ns(device) - device->config.archive_wait_ns;
			entry->wanted_ns += entry->wanted_ns == 0;
		}
	}
	return 0;
}

OFS_DEVICE_CALL(value_end, (uint32_t, count), (const struct ofs_value_note *, notes),
	(uint32_t, gone));

static int
value_listed(struct ofs_device *device, uint32_t listed)
{
	device->values.listed = listed != 0;
	return 0;
}

OFS_DEVICE_CALL(value_listed, (uint32_t, listed));

static int
value_waiting(struct ofs_device *device, uint32_t *count)
{
	*count = device->values.noted;
	return 0;
}

OFS_DEVICE_CALL(value_waiting, (uint32_t *, count));
