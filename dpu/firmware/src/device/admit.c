/*
 * admit.c: which new blocks are worth a write.
 *
 * Model: a chunk is written when more sessions than `policy.admit_named_min` have come to put it,
 * this one included; what the store has is written again as ever. Who came is remembered in a table
 * of fixed size by the store key. A chunk that falls on another's place takes it, but not from one
 * of its own session: hosts put layer by layer, and each would end what the other had begun. When
 * the other is stored, the place is free. No decision of the core: what is refused is no event of
 * it. Belongs to the reactor's thread.
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
