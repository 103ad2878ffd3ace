/*
 * device/admit.h: whether a block of a session is to be written. See admit.c.
 *
 * Model: a table of fixed size that counts the sessions which tried to put a chunk that the store
 * does not have. Belongs to the reactor's thread; an entry that it loses only delays a write.
 */
#ifndef OFS_DEVICE_ADMIT_H
#define OFS_DEVICE_ADMIT_H

#include "device.h"

#include <stdbool.h>

/* The number of sessions that tried to put a chunk which the store does not have. */
struct ofs_touch {
	uint64_t mark;   /* the upper half of its store key */
	uint64_t serial; /* of the last of these sessions */
	uint32_t count;
};

struct ofs_admit {
	struct ofs_touch *touches; /* [chunk_max], by store key */
};

int ofs_device_open_admit(struct ofs_device *device);
bool ofs_device_admit(struct ofs_device *device, uint32_t session, const struct ofs_key *store_key,
	uint32_t layer);

#endif
