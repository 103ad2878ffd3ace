/* internal.h: the sides of timing.h that timing.c opens, each with an open that checks its part. */
#ifndef OFS_TIMING_INTERNAL_H
#define OFS_TIMING_INTERNAL_H

#include "timing.h"

#pragma GCC visibility push(hidden)

int ofs_timing_free_open(struct ofs_timing **out, const struct ofs_timing_config *config);
int ofs_timing_nvme_open(struct ofs_timing **out, const struct ofs_timing_config *config);
int ofs_timing_skeleton_open(struct ofs_timing **out, const struct ofs_timing_config *config);

#pragma GCC visibility pop

/* For a side that always knows the end immediately. */
static inline uint64_t
ofs_timing_no_next(const struct ofs_timing *timing)
{
	(void)timing;
	return OFS_TIMING_LATER;
}

static inline int
ofs_timing_no_poll(struct ofs_timing *timing, uint64_t now_ps, struct ofs_timing_end *ends, int max)
{
	(void)timing;
	(void)now_ps;
	(void)ends;
	(void)max;
	return 0;
}

#endif
