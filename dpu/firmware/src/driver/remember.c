/*
 * Slots that the host remembers, so that a hit over a network costs one round trip instead of two.
 *
 * Model: a table with one entry for each of some keys: the slot of the block when a read of it last
 * succeeded. The driver's thread owns it; a key that hashes to another's entry replaces it. An
 * entry is worth as much as one read from the directory a moment ago: region.h says why a record
 * that matches it is right, however old the entry is. In local memory there is no table: reading
 * the directory costs no more than reading the record.
 */
#include "driver/internal.h"

#include <assert.h>
#include <stdlib.h>

/* Twice the slots, at most 6 MiB. */
#define ENTRIES_MAX (1u << 18)

int
ofs_remember_open(struct ofs_driver *driver)
{
	uint32_t slot_count = driver->fabric->region.slot_count;
	uint32_t entry_count = 16;

	if (driver->fabric->ops->copy != NULL)
		return 0;
	while (entry_count < ENTRIES_MAX && entry_count / 2 < slot_count)
		entry_count *= 2;
	driver->remembered = calloc(entry_count, sizeof(driver->remembered[0]));
	driver->remembered_mask = entry_count - 1;
	return driver->remembered == NULL ? -ENOMEM : 0;
}

static struct ofs_remembered *
find(const struct ofs_driver *driver, const struct ofs_key *key)
{
	return &driver->remembered[ofs_bucket_first(key, driver->remembered_mask + 1)];
}

bool
ofs_remember_recall(const struct ofs_driver *driver, struct ofs_block_read *read)
{
	const struct ofs_remembered *known = find(driver, &read->key);

	if (known->generation == 0 || !ofs_key_equal(&known->key, &read->key))
		return false;
	read->slot = known->slot;
	read->generation = known->generation;
	return true;
}

void
ofs_remember_keep(struct ofs_driver *driver, const struct ofs_block_read *read)
{
	assert(read->slot < driver->fabric->region.slot_count);
	if (driver->remembered != NULL)
		*find(driver, &read->key) =
			(struct ofs_remembered){read->key, read->slot, read->generation};
}

void
ofs_remember_drop(struct ofs_driver *driver, const struct ofs_block_read *read)
{
	find(driver, &read->key)->generation = 0;
}
