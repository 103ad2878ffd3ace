/*
 * placement.h: when each member of a pod would take each shard, for weighted rendezvous hashing.
 *
 * Model: a pure function in integers, so that every machine gives the same times. They are part of
 * a pod's format: others would give its shards other homes. Nothing can fail.
 */
#ifndef OFS_PLACEMENT_H
#define OFS_PLACEMENT_H

#include "ofs_base.h"

/* cdef: order 1 */
/* cdef: begin */
/*
 * -log2(h) / weight of every shard and member, in units of 2^-52, h being a hash of both names:
 * `times` [shard_count * member_count], those of a shard in a row. A member is a hash of its name
 * and a weight, at least 1.
 */
void ofs_placement_times(const struct ofs_key *shards, uint32_t shard_count, const uint64_t *names,
	const uint64_t *weights, uint32_t member_count, uint64_t *times);
/* cdef: end */

#endif
