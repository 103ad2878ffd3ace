/*
 * rank.h: the value at a rank of an array of scores.
 *
 * Model: a pure function, used by the core that receives scores and by the driver that sends them:
 * both must cut at the same value, or decisions would depend on packing.
 */
#ifndef OFS_RANK_H
#define OFS_RANK_H

#include <stdint.h>

/* The rank-th largest value, at least 1; 1 where fewer are above zero. */
uint32_t ofs_rank_cut(const uint16_t *values, uint32_t count, uint32_t rank);

#endif
