/*
 * device/paced.h: commands and hits of a modelled device.
 *
 * Model: belongs to the reactor's thread. Both tables have an entry for each waiter. An entry is in
 * use from the request to the pace until the pace reports its end, even if its host has left by
 * then (`port` is OFS_NONE). Without a modelled device `pace` is NULL and there are no tables.
 */
#ifndef OFS_DEVICE_PACED_H
#define OFS_DEVICE_PACED_H

#include "device.h"
#include "device/fifo.h"
#include "pace.h"
#include "port.h"

#include <stdbool.h>

/* A STEP that a modelled device has not taken, or blocks of a waiter that it is transferring. */
struct ofs_held {
	uint32_t port;   /* OFS_NONE: free, or its host has left */
	uint32_t waiter; /* hits; of a STEP OFS_NONE */
	uint64_t begun_ns;
	uint64_t ring_ns;           /* STEP: its time in the ring, if its host says when it sent it */
	struct ofs_command command; /* STEP: the arrays belong to the entry */
};

struct ofs_paced {
	struct ofs_pace *pace;
	struct ofs_held *steps;
	struct ofs_held *hits;
	struct ofs_fifo free_steps;
	struct ofs_fifo free_hits;
};

int ofs_device_open_held(struct ofs_device *device);
void ofs_device_close_held(struct ofs_device *device);
/*
 * Serves the step when the device has taken it; or, for a waiter, reports when it has transferred
 * `count` blocks to the host. False: as many wait already as the rings have entries.
 */
bool ofs_device_hold(struct ofs_device *device, uint32_t port, const struct ofs_command *command);
bool ofs_device_hold_hits(struct ofs_device *device, uint32_t waiter, uint32_t count);
/* The next that the model has taken or transferred by now, to be freed when served; NULL: none. */
struct ofs_held *ofs_device_take_held(struct ofs_device *device, uint64_t now_ns);
void ofs_device_free_held(struct ofs_device *device, struct ofs_held *held);
/* The host has left: its steps are no longer served, nor its blocks transferred. */
void ofs_device_forget_held(struct ofs_device *device, uint32_t port);

#endif
