/*
 * timing.h: how long a modelled device takes, in virtual time.
 *
 * Model: a simulator asks a side when an operation of the device will end: a block read from the
 * medium or written to it, a command taken and decided, staged blocks handed to a host. A side
 * returns the time if it is known; the end then costs no further call. If a later request may still
 * overtake this one, the side returns OFS_TIMING_LATER and `poll` hands out the end when it is due;
 * the caller polls earlier ends before it makes a new request. Nothing here moves bytes or decides
 * anything. Times are integer picoseconds and do not go back from call to call; the same requests
 * after open or reset have the same times. A side allocates at open and nothing fails after it; the
 * caller has at most in_flight_max ends outstanding. One thread owns a side.
 *
 * A side may come from another shared object: it begins with `struct ofs_timing`, and its ops carry
 * the version of this header they were built for. Sides here: nvme (an NVMe drive as modelled by
 * nvme_model.h, with constants for the rest), free (constants only, 0 by default), skeleton (the
 * commented example, a queue). One contract suite runs over all.
 */
#ifndef OFS_TIMING_H
#define OFS_TIMING_H

#include "nvme_model.h"

/* cdef: order 7 */
/* cdef: begin */
#define OFS_TIMING_VERSION 5
#define OFS_TIMING_LATER 0xffffffffffffffff

struct ofs_timing_request {
	uint64_t tag;           /* returned with the end by poll */
	uint64_t offset_bytes;  /* of a read or write, on the medium */
	uint64_t deadline_ps;   /* when the end is needed; 0: at once */
	const uint32_t *blocks; /* [count] of a command: their ordinals in the session; NULL: unknown */
	uint32_t size_bytes;    /* of one block */
	uint32_t count;         /* blocks: a command's demands, those of a hit; else 1 */
	uint32_t score_count;   /* scores that come with a command */
	uint32_t tenant;
	uint32_t cause;   /* of a read: enum ofs_cause, a demand or which prefetcher */
	uint32_t session; /* of the core; OFS_NONE: none in particular */
	uint32_t layer;   /* of the blocks */
	uint32_t chunk;   /* of a read or write: the core's chunk number; 0: unknown */
};

struct ofs_timing_end {
	uint64_t tag;
	uint64_t end_ps;
};

struct ofs_timing;

/* The request is the caller's and is not kept. */
struct ofs_timing_ops {
	const char *name;
	uint32_t version; /* OFS_TIMING_VERSION */
	uint32_t reserved;
	/* When it ends, not before now_ps, or OFS_TIMING_LATER. */
	uint64_t (*read)(struct ofs_timing *timing, uint64_t now_ps,
		const struct ofs_timing_request *request);
	uint64_t (*write)(struct ofs_timing *timing, uint64_t now_ps,
		const struct ofs_timing_request *request);
	uint64_t (
		*hit)(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request);
	uint64_t (*command)(struct ofs_timing *timing, uint64_t now_ps,
		const struct ofs_timing_request *request);
	/*
	 * The time before which `poll` returns nothing; OFS_TIMING_LATER: nothing until another
	 * request. It may be early, but after a poll that returned less than `max` it is later than
	 * now_ps.
	 */
	uint64_t (*next_ps)(const struct ofs_timing *timing);
	/* At most `max` ends up to now_ps, in order of time; each OFS_TIMING_LATER has one. */
	int (*poll)(struct ofs_timing *timing, uint64_t now_ps, struct ofs_timing_end *ends, int max);
	/* As after open: outstanding requests never end, and time may restart at 0. */
	void (*reset)(struct ofs_timing *timing);
	void (*close)(struct ofs_timing *timing);
};

/* The shared part of every side comes first in it. */
struct ofs_timing {
	const struct ofs_timing_ops *ops;
	uint32_t in_flight_max; /* ends outstanding at once */
	uint32_t reserved;
};

struct ofs_timing_config {
	char side[16];          /* "nvme", "free", "skeleton" */
	uint32_t in_flight_max; /* of a side that queues: skeleton */
	uint32_t writes;        /* nvme: 1: writes use the drive; 0: they take write_ps */
	uint64_t read_ps;       /* constants; nvme: for what the drive does not do */
	uint64_t write_ps;
	uint64_t hit_ps;
	uint64_t command_ps;
	uint64_t seed; /* nvme */
	struct ofs_nvme_params nvme;
};

/* -ENOENT: no such side; -EINVAL: parameters out of range. */
int ofs_timing_open(struct ofs_timing **out, const struct ofs_timing_config *config);
/* 0: usable; -EPROTO: built for another version of this header; -EINVAL: NULL. */
int ofs_timing_check(const struct ofs_timing *timing);
/* cdef: end */

/* The sides that ofs_timing_open knows; NULL past the end. */
const char *ofs_timing_name(uint32_t index);

#endif
