/*
 * device/reads.h: reads from the store into slots.
 *
 * Model: belongs to the reactor's thread. An entry is free, or in the list from `oldest` to
 * `newest` (pending and flying, in the order they began), or a zombie, which is in neither. The
 * slot of a read is not reused until the entry is free again.
 */
#ifndef OFS_DEVICE_READS_H
#define OFS_DEVICE_READS_H

#include "device.h"
#include "device/fifo.h"

#include <stdbool.h>

enum ofs_read_state {
	OFS_READ_FREE = 0,
	OFS_READ_PENDING = 1, /* the store was busy: submitted later, in order */
	OFS_READ_FLYING = 2,
	OFS_READ_ZOMBIE = 3 /* its deadline passed; the device may still write into the slot */
};

struct ofs_read {
	uint32_t state;
	struct ofs_action action;
	uint64_t deadline_ns;
	uint32_t older; /* among those pending or in flight, in the order they began */
	uint32_t newer;
	uint64_t decided_ns;
	uint32_t beside;    /* reads in flight when the storage got it */
	uint64_t stage_ns;  /* when its current stage began; 0: not timed */
	uint64_t issued_ns; /* when the storage got it; 0: not yet */
	bool purged;        /* its block is deleted; the copy in its slot must be dropped too */
};

struct ofs_reads {
	struct ofs_read *entries;
	uint32_t count;
	uint32_t flying;
	struct ofs_fifo free;
	uint32_t oldest;
	uint32_t newest;
	uint64_t landing_issued_ns; /* of the read whose end the core is processing; 0: none */
	uint64_t landing_ended_ns;
	uint64_t published_ns; /* the same read; 0: not yet, or moments are not noted */
};

/* It has its turn. 0: in flight; -EAGAIN: its block is being written; any other: it has ended. */
int ofs_device_begin_read(struct ofs_device *device, uint32_t index, uint64_t now_s);
void ofs_device_read_done(struct ofs_device *device, uint32_t index, int rc);
bool ofs_device_scan_reads(struct ofs_device *device, uint64_t now_ns);

#endif
