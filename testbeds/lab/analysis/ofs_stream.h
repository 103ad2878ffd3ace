/*
 * ofs_stream.h: a drive that KV and a stream of weights read, as one side of timing.h.
 *
 * Model: a model's weights are read once, from front to back, in pieces of one size. Their pieces
 * and the reads of KV wait in the arbiter that a daemon has (qos.h): two tenants, KV with
 * `kv_weight` turns for each of the stream's, the stream with a floor and a cap. What has its turn
 * goes to the drive (nvme_model.h); each of the two is held while it has its bound there, KV's the
 * stream's times `kv_weight`, and the drive takes no more than its queue. The stream always has the
 * next piece waiting. An end of KV is owed until its time has come; the stream runs on between
 * calls. Writes take no time, hits and commands constants. With 0 bytes KV alone is in the arbiter:
 * the same drive without a stream. Integers decide. One thread owns a side. What can fail: opening
 * it, with -EINVAL or -ENOMEM.
 */
#ifndef OFS_STREAM_H
#define OFS_STREAM_H

#include "timing.h"

/* cdef: order 8 */
/* cdef: begin */
struct ofs_timing;

struct ofs_stream_config {
	struct ofs_nvme_params drive;
	uint64_t seed;
	uint64_t hit_ps;
	uint64_t command_ps;
	uint64_t bytes; /* of the weights */
	uint64_t begin_ps;
	uint64_t floor_bytes_per_s; /* 0: none */
	uint64_t cap_bytes_per_s;   /* 0: none */
	uint64_t in_flight_bytes;   /* of the stream at the drive, beside what its floor is owed */
	uint32_t kv_weight;
	uint32_t piece_bytes;   /* at least a read of KV */
	uint32_t in_flight_max; /* reads of KV that are owed */
	uint32_t reserved;
};

/* Of the stream, since open or reset. */
struct ofs_stream_stats {
	uint64_t read_bytes;
	uint64_t floor_bytes; /* of them, read before KV's turns because the floor was owed them */
	uint64_t end_ps;      /* of its last piece so far */
};

int ofs_stream_open(struct ofs_timing **out, const struct ofs_stream_config *config);
/* Nothing more is asked: the stream reads on until it is whole. */
void ofs_stream_finish(struct ofs_timing *timing);
void ofs_stream_stats(const struct ofs_timing *timing, struct ofs_stream_stats *stats);
/* The side's own close. */
void ofs_stream_close(struct ofs_timing *timing);
/* cdef: end */

#endif
