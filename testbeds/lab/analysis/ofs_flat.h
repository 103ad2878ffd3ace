/*
 * ofs_flat.h: a trace of single accesses through a decision core.
 *
 * Model: the core alone decides; what it wants read has been read when the access returns. The core
 * is the caller's, used by one thread. What can fail: what the core refuses, and -EPROTO for a core
 * of another build.
 */
#ifndef OFS_FLAT_H
#define OFS_FLAT_H

#include "core_calls.h"

/* cdef: order 1 */
/* cdef: begin */
struct ofs_core;
struct ofs_core_calls;

/*
 * A flat trace through layer 0: one ordinal a step, demand only, reads take no time. *hits counts
 * what was resident. With LRU eviction this is the textbook LRU.
 */
int ofs_flat_run(const struct ofs_core_calls *calls, struct ofs_core *core, uint32_t session,
	const uint32_t *ordinals, uint64_t count, uint64_t *hits);
/* The version of the firmware's headers that this was built from. */
int ofs_analysis_version(void);
/* cdef: end */

#endif
