/*
 * admit.c: which new blocks are worth a write.
 *
 * Model: a chunk is written once more sessions than `policy.admit_named_min` have tried to put it,
 * this one included; a chunk that the store has is always written again. A table of fixed size
 * counts the sessions by store key. A chunk that hashes to another's entry replaces it, unless both
 * are of the same session: hosts put layer by layer, and the two would keep replacing each other.
 * When the other is stored, its entry is free. The core does not decide this: a refused put is not
 * an event of the core. Belongs to the reactor's thread.
 */
#include "internal.h"

#include <stdlib.h>

#define NOTHING 255 /* of admit_named_min: nothing new is written */

int
ofs_device_open_admit(struct ofs_device *device)
{
	device->admit.touches = calloc(device->config.core.chunk_max, sizeof(*device->admit.touches));
	return device->admit.touches == NULL ? -ENOMEM : 0;
}

bool
ofs_device_admit(struct ofs_device *device, uint32_t session, const struct ofs_key *store_key,
	uint32_t layer)
{
	uint32_t least = device->config.policy.admit_named_min;
	uint64_t serial = device->sessions.entries[session].serial;
	struct ofs_touch *touch;

	if (least == 0 || ofs_store_position(device->store, store_key, layer) != UINT64_MAX)
		return true;
	touch = &device->admit.touches[store_key->lo % device->config.core.chunk_max];
	if (touch->mark != store_key->hi && touch->serial == serial) {
		device->status.puts_unadmitted++;
		return false;
	}
	if (touch->mark != store_key->hi)
		*touch = (struct ofs_touch){.mark = store_key->hi, .serial = serial, .count = 1};
	else if (touch->serial != serial && touch->count < NOTHING)
		*touch = (struct ofs_touch){store_key->hi, serial, touch->count + 1};
	if (least < NOTHING && touch->count > least)
		return true;
	device->status.puts_unadmitted++;
	return false;
}
