/*
 * device/answers.h: what hosts get, and the steps that wait for their blocks.
 *
 * Model: belongs to the reactor's thread. There is a waiter for every submission entry of every
 * port, so that taking one never fails. `results` and `ends` of an entry are its stretch of the two
 * tables; of its demands `landed_count` have ended and `remaining` have not.
 */
#ifndef OFS_DEVICE_ANSWERS_H
#define OFS_DEVICE_ANSWERS_H

#include "device.h"
#include "device/fifo.h"

#include <stdbool.h>

/* One STEP whose blocks are not all there yet. */
struct ofs_waiter {
	bool used;
	uint32_t port;
	uint32_t remaining;      /* demands that have not landed */
	uint32_t landed_count;   /* results by now, in the order they landed */
	uint32_t reported_count; /* of which the host knows */
	bool queued;             /* in waiters.landed */
	bool handing;            /* a modelled device hands blocks of it over, and has more after */
	uint32_t to_hand;        /* that many, once it has handed over those */
	struct ofs_sqe sqe;
	uint64_t taken_ns;  /* of a step that is timed: when the reactor took it, */
	uint64_t issued_ns; /* when the storage had the last of its reads that landed (0: none), */
	uint64_t ended_ns;  /* and when that ended */
	struct ofs_result *results; /* [demand_max] */
	uint8_t *ends;              /* [demand_max] how each demand ended, by demand */
};

struct ofs_waiters {
	struct ofs_waiter *entries;
	struct ofs_result *results;
	uint8_t *ends;
	uint32_t count;
	struct ofs_fifo free;
	struct ofs_fifo landed; /* those with results that the host does not know of */
};

void ofs_device_complete(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	int rc);
/* For a STEP with `missing` blocks still to come; there is one for every submission entry. */
uint32_t ofs_device_take_waiter(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	uint8_t **ends);
/* The core has taken the step; what its host has `seen` has ended by that. */
void ofs_device_begin_waiter(struct ofs_device *device, uint32_t waiter, const uint8_t *seen);
/* Its step ends unanswered here: the caller answers it, or the host is gone. */
void ofs_device_drop_waiter(struct ofs_device *device, uint32_t waiter);
void ofs_device_drop_waiters(struct ofs_device *device, uint32_t port);
/* One demand of it has ended. The last one answers the step, once a modelled device has handed
 * over what landed. */
void ofs_device_land(struct ofs_device *device, uint32_t waiter, const struct ofs_result *result);
/* A modelled device has handed over what it had begun to. */
void ofs_device_handed(struct ofs_device *device, uint32_t waiter);
/* Reports to hosts what has landed of steps that go on. */
void ofs_device_tell_landed(struct ofs_device *device);

#endif
