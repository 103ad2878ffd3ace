/*
 * log.c: the decision log: every event, its outputs and its actions.
 *
 * Model: a buffer the owner empties with ofs_core_log. A record is written after its event, whole
 * or not at all; its sequence number and a checksum chained from the record before it make a hole,
 * a torn end and a flipped bit visible. Integers are little-endian, as on every machine that runs
 * this. It contains no secret and no hash of contents: a tenant is logged without its secret, and
 * an append with the derived keys, from which it is replayed.
 */
#include "internal.h"

static uint64_t
padded(uint64_t size_bytes)
{
	return (size_bytes + 7) & ~7ull;
}

uint64_t
ofs_log_check(struct ofs_log_record *record, uint64_t before)
{
	record->check = before;
	return ofs_checksum(record, record->size_bytes);
}

/* Append the pieces and zeros up to a multiple of 8; returns the bytes before the zeros. */
static uint64_t
bytes_copy(unsigned char *to, const struct ofs_bytes *pieces, uint32_t count)
{
	uint64_t size_bytes = 0;

	for (uint32_t i = 0; i < count; i++) {
		if (pieces[i].size_bytes)
			memcpy(to + size_bytes, pieces[i].data, pieces[i].size_bytes);
		size_bytes += pieces[i].size_bytes;
	}
	memset(to + size_bytes, 0, padded(size_bytes) - size_bytes);
	return size_bytes;
}

static void
log_append(struct ofs_core *core, struct ofs_log_record *record)
{
	uint64_t size_bytes = record->size_bytes;
	struct ofs_ledger *ledger = &core->ledgers[0];

	record->sequence = core->log_sequence++;
	if (core->log_tail + size_bytes > core->config.log_size_bytes && core->log_head) {
		memmove(core->log, core->log + core->log_head, core->log_tail - core->log_head);
		core->log_tail -= core->log_head;
		core->log_head = 0;
	}
	if (core->log_tail + size_bytes > core->config.log_size_bytes) {
		ledger->log_bytes_lost += size_bytes;
		return;
	}
	core->log_check = record->check = ofs_log_check(record, core->log_check);
	memcpy(core->log + core->log_tail, record, size_bytes);
	core->log_tail += size_bytes;
}

void
ofs_log_event(struct ofs_core *core, uint32_t type, uint64_t now_ns, int rc,
	const struct ofs_bytes *in, uint32_t in_count, const struct ofs_bytes *out, uint32_t out_count)
{
	struct ofs_log_record *record = (struct ofs_log_record *)core->log_scratch;
	uint32_t action_count = core->action_tail - core->logged_actions;
	uint64_t action_bytes = action_count * sizeof(struct ofs_action), used;
	uint64_t in_bytes = 0, out_bytes = 0;
	unsigned char *body;

	if (core->config.log_size_bytes == 0)
		return;
	for (uint32_t i = 0; i < in_count; i++)
		in_bytes += in[i].size_bytes;
	for (uint32_t i = 0; i < out_count; i++)
		out_bytes += out[i].size_bytes;
	/* An append may be larger than any step; one too large for the scratch is lost, and counted. */
	if (sizeof(*record) + padded(in_bytes) + padded(out_bytes) + action_bytes
		> core->log_scratch_bytes) {
		core->log_sequence++;
		core->ledgers[0].log_bytes_lost += in_bytes;
		return;
	}
	memset(record, 0, sizeof(*record));
	body = core->log_scratch + sizeof(*record);
	record->in_bytes = (uint32_t)bytes_copy(body, in, in_count);
	used = padded(record->in_bytes);
	record->out_bytes = (uint32_t)bytes_copy(body + used, out, out_count);
	used += padded(record->out_bytes);
	memcpy(body + used, core->actions + core->logged_actions, action_bytes);
	used += action_bytes;
	record->size_bytes = (uint32_t)(sizeof(*record) + used);
	record->type = (uint16_t)type;
	record->rc = rc;
	record->now_ns = now_ns;
	record->action_count = action_count;
	log_append(core, record);
}

void
ofs_log_numbers(struct ofs_core *core, uint32_t type, uint64_t now_ns, int rc, uint32_t a,
	uint32_t b)
{
	uint32_t numbers[2] = {a, b};
	struct ofs_bytes in = {numbers, sizeof(numbers)};

	ofs_log_event(core, type, now_ns, rc, &in, 1, NULL, 0);
}

void
ofs_log_step(struct ofs_core *core, uint64_t now_ns, const struct ofs_step *step,
	const uint8_t *ends)
{
	struct ofs_log_step head = {
		.session = step->session,
		.step = step->step,
		.layer = step->layer,
		.selected_count = step->selected_count,
		.demand_count = step->demand_count,
		.score_count = step->score_count,
		.waiter = step->waiter,
		.flags = step->flags,
		.has_seen = step->seen != NULL,
		.hint_bytes = step->hint_bytes,
		.has_granules = step->granules != NULL,
	};
	/* Widest first, so that every array of the record is aligned. */
	struct ofs_bytes in[5] = {
		{&head, sizeof(head)},
		{step->demands, step->demand_count * sizeof(*step->demands)},
		{step->granules, step->granules ? step->demand_count * sizeof(*step->granules) : 0},
		{step->scores, step->score_count * sizeof(*step->scores)},
		{step->seen, step->seen ? step->demand_count : 0},
	};
	struct ofs_bytes out = {ends, step->demand_count};

	ofs_log_event(core, OFS_EVENT_STEP, now_ns, 0, in, 5, &out, 1);
}

void
ofs_log_open(struct ofs_core *core)
{
	struct ofs_log_open open = {
		.magic = OFS_LOG_MAGIC,
		.abi_version = OFS_ABI_VERSION,
		.config = core->config,
		.policy = core->policy,
	};
	struct ofs_bytes in = {&open, sizeof(open)};

	ofs_log_event(core, OFS_EVENT_OPEN, 0, 0, &in, 1, NULL, 0);
}

int
ofs_core_log(struct ofs_core *core, void *bytes, int size_bytes)
{
	uint64_t copied = 0;

	if (size_bytes < 0)
		return -EINVAL;
	while (core->log_head + copied < core->log_tail) {
		struct ofs_log_record record;

		memcpy(&record, core->log + core->log_head + copied, sizeof(record));
		if (copied + record.size_bytes > (uint64_t)size_bytes)
			break;
		copied += record.size_bytes;
	}
	if (copied)
		memcpy(bytes, core->log + core->log_head, copied);
	core->log_head += copied;
	if (core->log_head == core->log_tail)
		core->log_head = core->log_tail = 0;
	return (int)copied;
}
