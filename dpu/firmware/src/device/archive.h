/*
 * device/archive.h: blocks by their store key, for an archive that keeps copies elsewhere.
 *
 * Model: `places` records in the device's memory. A caller owns the places that it names in a call
 * until the call returns; the reactor reads the store into them, or writes them to the store, while
 * it serves hosts, with at most one I/O per place. Nothing is staged and nothing counts as a
 * demand. A place whose I/O outlasts the caller's timeout stays in use until the I/O completes.
 * Belongs to the reactor's thread except `ended` and `left`, which are under the mailbox's mutex.
 */
#ifndef OFS_DEVICE_ARCHIVE_H
#define OFS_DEVICE_ARCHIVE_H

#include "device.h"

#include <stdbool.h>

enum ofs_place_state {
	OFS_PLACE_FREE = 0,
	OFS_PLACE_WAITS = 1, /* the store was busy */
	OFS_PLACE_FLIES = 2
};

struct ofs_archive_entry {
	uint32_t state;
	uint32_t write;
	uint32_t tenant;
	uint64_t deletes; /* of the tenant, when the caller looked: a later delete cancels a write */
	struct ofs_archive_block block;
	bool ended; /* block.rc is set */
	bool left;  /* its caller no longer waits */
};

struct ofs_archive {
	struct ofs_dma memory;
	struct ofs_archive_entry *entries; /* [config.archive_places] */
	uint32_t waiting;
	uint32_t flying;
};

int ofs_archive_open(struct ofs_device *device);
void ofs_archive_free(struct ofs_device *device);
uint8_t *ofs_archive_record(const struct ofs_device *device, uint32_t index);
struct ofs_trailer *ofs_archive_trailer(const struct ofs_device *device, uint32_t index);
/* Gives a place that waits to the store. */
void ofs_archive_push(struct ofs_device *device, uint32_t index, uint64_t now_s);
/* Retries what the store could not take. */
bool ofs_archive_turn(struct ofs_device *device);
void ofs_archive_done(struct ofs_device *device, uint32_t index, int rc);

#endif
