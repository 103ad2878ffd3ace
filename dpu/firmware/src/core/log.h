/*
 * log.h: the format of the decision log.
 *
 * Model: a header record, then one record per accepted event: its input, its outputs, and its
 * actions with their number. log.c writes, replay.c reads.
 */
#ifndef OFS_CORE_LOG_H
#define OFS_CORE_LOG_H

#include "internal.h"

#pragma GCC visibility push(hidden)

struct ofs_bytes {
	const void *data;
	uint64_t size_bytes;
};
struct ofs_log_record {
	uint32_t size_bytes; /* the whole record, a multiple of 8 */
	uint16_t type;
	uint16_t reserved;
	uint32_t in_bytes;
	uint32_t out_bytes;
	uint32_t action_count;
	int32_t rc;
	uint64_t sequence;
	uint64_t now_ns;
	uint64_t check; /* XXH3 of the record with the previous record's check in this field */
};
struct ofs_log_open {
	uint64_t magic;
	uint32_t abi_version;
	uint32_t reserved;
	struct ofs_core_config config;
	struct ofs_policy policy;
};
#define OFS_LOG_MAGIC 0x32474f4c5346464full /* "OFFSLOG2" read as a little-endian word */
void ofs_log_event(struct ofs_core *core, uint32_t type, uint64_t now_ns, int rc,
	const struct ofs_bytes *in, uint32_t in_count, const struct ofs_bytes *out, uint32_t out_count);
void ofs_log_numbers(struct ofs_core *core, uint32_t type, uint64_t now_ns, int rc, uint32_t a,
	uint32_t b);
void ofs_log_open(struct ofs_core *core);
struct ofs_log_step {
	uint32_t session, step, layer, selected_count, demand_count, score_count, waiter, flags;
	uint32_t has_seen;
	uint32_t hint_bytes;
	uint32_t has_granules;
	uint32_t reserved;
};
void ofs_log_step(struct ofs_core *core, uint64_t now_ns, const struct ofs_step *step,
	const uint8_t *ends);
uint64_t ofs_log_check(struct ofs_log_record *record, uint64_t before);

#pragma GCC visibility pop

#endif
