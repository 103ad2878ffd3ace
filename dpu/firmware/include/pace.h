/*
 * pace.h: the times of a modelled device, kept by software that does its work.
 *
 * Model: software that does a device's work asks here when the device would have finished it, and
 * takes the end once the clock has reached it. All users share one side of timing.h, so that they
 * contend for the device as they would in hardware. Each user has its own tags. The clock may be
 * dilated (clock.h): the software then has that many times longer than the device. The user counts
 * with ofs_pace_late what took even longer. Tables are sized at open and nothing fails after it.
 * One thread owns a pace; the timing is the caller's and must outlive the pace.
 */
#ifndef OFS_PACE_H
#define OFS_PACE_H

#include "clock.h"
#include "timing.h"

#include <stdbool.h>

enum ofs_pace_user { OFS_PACE_STORAGE = 0, OFS_PACE_COMMANDS = 1, OFS_PACE_USERS = 2 };

enum ofs_pace_kind {
	OFS_PACE_READ = 0,
	OFS_PACE_WRITE = 1,
	OFS_PACE_HIT = 2,
	OFS_PACE_COMMAND = 3
};

/* The end of one request by the model, in the clock's time. */
struct ofs_pace_end {
	uint64_t due_ns;
	uint32_t tag;
};

struct ofs_pace;

/*
 * `in_flight_max` [OFS_PACE_USERS]: requests each user may have in flight; 0: it makes none.
 * -EINVAL: more than the timing takes; -EPROTO: a timing of another version; -ENOMEM.
 */
int ofs_pace_open(struct ofs_pace **out, struct ofs_timing *timing, struct ofs_clock *clock,
	const uint32_t *in_flight_max);
void ofs_pace_close(struct ofs_pace *pace);
/* Begins at now_ns, which does not go back; the request's tag, below 2^32, comes with the end. */
void ofs_pace_ask(struct ofs_pace *pace, enum ofs_pace_user user, enum ofs_pace_kind kind,
	uint64_t now_ns, const struct ofs_timing_request *request);
/*
 * Sets tenant, session, cause and deadline of the reads and writes that follow: the storage seam,
 * which makes them, does not carry these. NULL: none.
 */
void ofs_pace_for(struct ofs_pace *pace, const struct ofs_timing_request *request);
/* 1 and the user's earliest end if it is due by now_ns; else 0. */
int ofs_pace_take(struct ofs_pace *pace, enum ofs_pace_user user, uint64_t now_ns,
	struct ofs_pace_end *end);
/* Earliest time of the next end of any user; UINT64_MAX: none until another request. */
uint64_t ofs_pace_next_ns(const struct ofs_pace *pace);

#define OFS_PACE_LATE_SHARE 20u    /* late: by more than 1/20 of the modelled time ... */
#define OFS_PACE_LATE_NS_MIN 1000u /* ... and by at least this */

/* Whether work done at now_ns is late by the limits above. */
static inline bool
ofs_pace_late(uint64_t begun_ns, uint64_t due_ns, uint64_t now_ns)
{
	uint64_t late_ns = now_ns > due_ns ? now_ns - due_ns : 0;

	return late_ns >= OFS_PACE_LATE_NS_MIN && late_ns > (due_ns - begun_ns) / OFS_PACE_LATE_SHARE;
}

#endif
