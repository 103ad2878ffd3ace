/*
 * pace.h: the times of a modelled device, kept by software that does its work.
 *
 * Model: whoever does in software what a device would do asks here when the device would have ended
 * it, and gets the end handed out when the clock has come to it. One side of timing.h stands behind
 * all that ask, so that they contend for the device as they would on it. Each of them is a user
 * with tags of its own. The clock may be dilated (clock.h): then the software has as many times
 * longer as the device would have. Whether it was enough is for the user to count, by
 * ofs_pace_late. Tables are sized at open and nothing fails after it. One thread owns a pace; the
 * timing is the caller's, until the pace is closed.
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

/* What one has waited for: its end by the model, in the clock's time. */
struct ofs_pace_end {
	uint64_t due_ns;
	uint32_t tag;
};

struct ofs_pace;

/*
 * `in_flight_max` [OFS_PACE_USERS]: ends that each may be owed at once; 0: it asks nothing.
 * -EINVAL: more than the timing takes; -EPROTO: a timing of another version; -ENOMEM.
 */
int ofs_pace_open(struct ofs_pace **out, struct ofs_timing *timing, struct ofs_clock *clock,
	const uint32_t *in_flight_max);
void ofs_pace_close(struct ofs_pace *pace);
/* Begins at now_ns, which does not go back; the request's tag, below 2^32, comes with the end. */
void ofs_pace_ask(struct ofs_pace *pace, enum ofs_pace_user user, enum ofs_pace_kind kind,
	uint64_t now_ns, const struct ofs_timing_request *request);
/*
 * What reads and writes are for that are asked from now on: tenant, session, cause and deadline of
 * the request. The storage seam, which asks, has no words for it. NULL: for nobody.
 */
void ofs_pace_for(struct ofs_pace *pace, const struct ofs_timing_request *request);
/* 1 and the user's earliest end, if that has come by now_ns; 0. */
int ofs_pace_take(struct ofs_pace *pace, enum ofs_pace_user user, uint64_t now_ns,
	struct ofs_pace_end *end);
/* When there may be an end for anybody; UINT64_MAX: not before more is asked. */
uint64_t ofs_pace_next_ns(const struct ofs_pace *pace);

#define OFS_PACE_LATE_SHARE 20u    /* late: by more than 1/20 of the modelled time ... */
#define OFS_PACE_LATE_NS_MIN 1000u /* ... and by at least this */

/* Whether what began and was due then and was done only now counts as not having kept the pace. */
static inline bool
ofs_pace_late(uint64_t begun_ns, uint64_t due_ns, uint64_t now_ns)
{
	uint64_t late_ns = now_ns > due_ns ? now_ns - due_ns : 0;

	return late_ns >= OFS_PACE_LATE_NS_MIN && late_ns > (due_ns - begun_ns) / OFS_PACE_LATE_SHARE;
}

#endif
