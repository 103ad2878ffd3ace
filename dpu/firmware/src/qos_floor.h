/*
 * qos_floor.h: the rate below which a tenant that has something waiting does not fall (qos.h).
 *
 * Model: a time at which the tenant's next item is due. Every item that is served, out of turn or
 * in it, puts off the next by its own time at the rate of the floor. What the tenant got beyond its
 * floor is not held against it, what it did not get is made up for at most `late_ps_max`, and time
 * without anything waiting earns nothing. It is the reservation of mClock (Gulati, Merchant,
 * Varman, OSDI '10), with the caller's clock. Pure.
 */
#ifndef OFS_QOS_FLOOR_H
#define OFS_QOS_FLOOR_H

#include "ofs_base.h"

struct ofs_qos_floor {
	uint64_t bytes_per_s; /* 0: none */
	uint64_t due_ps;
};

/* The tenant had nothing waiting, and now has. */
static inline void
ofs_qos_floor_begin(struct ofs_qos_floor *floor, uint64_t now_ps)
{
	if (floor->due_ps < now_ps)
		floor->due_ps = now_ps;
}

static inline void
ofs_qos_floor_served(struct ofs_qos_floor *floor, uint64_t now_ps, uint64_t late_ps_max,
	uint32_t cost_bytes)
{
	uint64_t from_ps = floor->due_ps < now_ps ? floor->due_ps : now_ps;

	if (floor->bytes_per_s == 0)
		return;
	if (now_ps - from_ps > late_ps_max)
		from_ps = now_ps - late_ps_max;
	floor->due_ps =
		from_ps + (uint64_t)((unsigned __int128)cost_bytes * 1000000000000ull / floor->bytes_per_s);
}

#endif
