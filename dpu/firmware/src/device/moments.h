/*
 * device/moments.h: when each read and command passed each station, and what turns cost.
 *
 * Model: a ring that the recorder drains, of as many moments as were configured; none: nothing is
 * noted, and no clock is read for it. A read and a command leave one moment each, when they end, a
 * turn that did something one at its end, and a window of such turns one. Moments that find the
 * ring full are lost, and the next says how many. Belongs to the reactor's thread. Nothing here can
 * fail.
 */
#ifndef OFS_DEVICE_MOMENTS_H
#define OFS_DEVICE_MOMENTS_H

#include "device.h"

#include <stdbool.h>

struct ofs_read;
struct ofs_waiter;

struct ofs_moments {
	bool on;
	struct ofs_moment *entries; /* [config.moment_max] */
	uint32_t first;
	uint32_t count;
	uint32_t lost;      /* since the last that found room */
	uint64_t polled_ns; /* when the turn before this one began: until then nothing had ended */
	uint64_t reaped_ns; /* when this turn's ends were taken from the store */
	uint64_t began_ns;  /* the turn */
	uint64_t phase_ns;  /* the phase */
	uint64_t window_ns; /* the window, and the thread's processor time then */
	uint64_t window_cpu_ns;
	uint32_t window_turns;
	uint64_t starts;        /* of the storage when the turn began, */
	uint64_t wakes;         /* and its wakes */
	uint64_t worked_ns;     /* end of the last turn with a command or a read */
	struct ofs_moment turn; /* its work and its phases so far */
};

static inline bool
ofs_moments_on(const struct ofs_moments *moments)
{
	return moments->on;
}

/* -ENOMEM. */
int ofs_device_moments_open(struct ofs_device *device);
/* Between turns or within one, which then counts from here. Never on without a ring. */
void ofs_device_moments_switch(struct ofs_device *device, bool on);
void ofs_device_turn_begins(struct ofs_device *device, uint64_t now_ns);
/* A phase of the turn is over that did something (`busy`) or not. */
void ofs_device_phase_ends(struct ofs_device *device, enum ofs_phase phase, bool busy);
void ofs_device_turn_ends(struct ofs_device *device, bool busy);
/* Before the reactor sleeps, and after. */
void ofs_device_window_ends(struct ofs_device *device);
void ofs_device_window_begins(struct ofs_device *device);
/* The read has ended: it was taken from the store's ends at `begun_ns`. */
void ofs_device_note_read(struct ofs_device *device, const struct ofs_read *read,
	uint64_t begun_ns);
/* The step of this waiter is answered now. */
void ofs_device_note_command(struct ofs_device *device, const struct ofs_waiter *waiter);

#endif
