/*
 * device/answers.h: answers to hosts, and the steps that wait for their blocks.
 *
 * Model: belongs to the reactor's thread. There is a waiter for every submission entry of every
 * port, so that taking one never fails. `results` and `ends` of an entry are its parts of the two
 * tables; `landed_count` of its demands have ended and `remaining` have not.
 */
#ifndef OFS_DEVICE_ANSWERS_H
#define OFS_DEVICE_ANSWERS_H

#include "device.h"
#include "device/fifo.h"

#include <stdbool.h>

/* One STEP whose blocks have not all landed. */
struct ofs_waiter {
	bool used;
	uint32_t port;
	uint32_t remaining;      /* demands that have not landed */
	uint32_t landed_count;   /* results so far, in the order they landed */
	uint32_t reported_count; /* results already reported to the host */
	bool queued;             /* in waiters.landed */
	bool handing;            /* a modelled device is transferring blocks of it */
	uint32_t to_hand;        /* blocks to transfer after those */
	struct ofs_sqe sqe;
	uint64_t begun_ns;   /* when the core got it, */
	uint64_t decided_ns; /* and had decided (only where moments are noted) */
	uint32_t waited;     /* demands that were not staged */
	uint64_t taken_ns;   /* of a timed step: when the reactor took it, */
	uint64_t issued_ns;  /* when the storage got the last of its reads that landed (0: none), */
	uint64_t ended_ns;   /* and when that read ended */
	struct ofs_result *results; /* [demand_max] */
	uint8_t *ends;              /* [demand_max] how each demand ended, by demand */
};

struct ofs_waiters {
	struct ofs_waiter *entries;
	struct ofs_result *results;
	uint8_t *ends;
	uint32_t count;
	struct ofs_fifo free;
	struct ofs_fifo landed; /* waiters with results that the host does not know of */
};

void ofs_device_complete(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	int rc);
/* The same with results, which stand where those of a STEP do. */
void ofs_device_complete_with(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	uint32_t count, const struct ofs_result *results);
/* For a STEP that waits for blocks; there is one for every submission entry. */
uint32_t ofs_device_take_waiter(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	uint8_t **ends);
/* The core has taken the step; demands of blocks that its host has `seen` have ended with that. */
void ofs_device_begin_waiter(struct ofs_device *device, uint32_t waiter, const uint8_t *seen);
/* Its step ends without an answer here: the caller answers it, or the host has left. */
void ofs_device_drop_waiter(struct ofs_device *device, uint32_t waiter);
void ofs_device_drop_waiters(struct ofs_device *device, uint32_t port);
/* One demand of it has ended. The last one answers the step, once a modelled device has transferred
 * the blocks that landed. */
void ofs_device_land(struct ofs_device *device, uint32_t waiter, const struct ofs_result *result);
/* A modelled device has finished the transfer that it began. */
void ofs_device_handed(struct ofs_device *device, uint32_t waiter);
/* Reports landed blocks of unfinished steps to hosts. */
void ofs_device_tell_landed(struct ofs_device *device);

#endif
