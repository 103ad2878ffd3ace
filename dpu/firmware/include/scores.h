/*
 * scores.h: how the scores of a STEP stand in its payload area, whole or as the policy limits them.
 *
 * Model: a host that knows the policy's limits (ofs_core.h, hint_*) sends only the scores that the
 * core would use. Whole, they are u16[score_count]. Packed, they are a byte for each of
 * score_count; or, if sqe.ordinal is not 0, the ordinals of that many best scores, u16 or u32 as
 * score_count needs, followed by their scores. A byte is a score's upper half. Scores that cannot
 * be packed without further loss are sent whole, so the core decides as it would with all scores.
 * Pure functions over memory of the caller.
 */
#ifndef OFS_SCORES_H
#define OFS_SCORES_H

#include "region.h"

/* cdef: order 5 */
/* cdef: begin */
/* The policy's limits; 0: none. */
struct ofs_score_limits {
	uint32_t scores_max;
	uint32_t every_steps;
	uint32_t score_bits;
};

/*
 * The scores of the step that `sqe` names, into `to`, of 2 * count bytes; fills in score_count,
 * ordinal and the flags. Of a step whose scores are not taken in, score_count is 0.
 */
void ofs_scores_pack(const struct ofs_score_limits *limits, const uint16_t *scores, uint32_t count,
	struct ofs_sqe *sqe, uint8_t *to);
/* Bytes of the scores as sent. */
uint64_t ofs_scores_bytes(const struct ofs_sqe *sqe);
/* 0; -EINVAL: more best ones than scores, or more bytes than whole scores have. */
int ofs_scores_check(const struct ofs_sqe *sqe);
/*
 * What ofs_scores_check let pass, into `scores` [score_count]; what was not sent is 0. -EINVAL: an
 * ordinal out of range.
 */
int ofs_scores_unpack(const struct ofs_sqe *sqe, const uint8_t *from, uint16_t *scores);
/* cdef: end */

#endif
