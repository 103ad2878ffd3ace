/*
 * replay.c: feeds a decision log to a fresh core, event by event; built on that, replays a whole
 * log.
 *
 * Model: the bytes are untrusted. They are copied once, every record is checked (size, sequence,
 * chained checksum) before it is read, and every array in it against the record's size. The fresh
 * core then refuses bad events as usual. The first record whose outcome differs ends the replay.
 * This file may allocate: it is not part of a running core.
 */
#include <stdlib.h>

#include "internal.h"
#include "replay.h"

#define REPLAY_SIZE_MAX (8ull << 30) /* no core this large is logged here */

struct ofs_replay {
	struct ofs_core *core;
	unsigned char *log;
	uint64_t size_bytes, offset, sequence, check;
	int diverged;
	struct ofs_step step; /* of a step's record */
	struct ofs_log_record *record;
	const unsigned char *in;
	const unsigned char *out;
	const struct ofs_action *actions;
	unsigned char *answer; /* outputs of the event, as logged */
	uint64_t answer_size_bytes;
	struct ofs_action *taken;
	uint32_t taken_max;
};

typedef int replay_call(struct ofs_replay *r);

static uint32_t
number_at(const struct ofs_replay *r, uint32_t index)
{
	uint32_t number;

	memcpy(&number, r->in + 4 * index, sizeof(number));
	return number;
}

static int
replay_policy(struct ofs_replay *r)
{
	struct ofs_policy policy;

	memcpy(&policy, r->in, sizeof(policy));
	return ofs_core_set_policy(r->core, r->record->now_ns, &policy);
}

static int
replay_tenant(struct ofs_replay *r)
{
	struct ofs_tenant_config config;
	uint32_t *tenant = (uint32_t *)r->answer;

	memcpy(&config, r->in, sizeof(config));
	return ofs_core_tenant_add(r->core, r->record->now_ns, &config, tenant);
}

static int
replay_session_open(struct ofs_replay *r)
{
	struct ofs_session_config config;
	uint32_t *session = (uint32_t *)r->answer;

	memcpy(&config, r->in, sizeof(config));
	return ofs_core_session_open(r->core, r->record->now_ns, &config, session);
}

static int
replay_append(struct ofs_replay *r)
{
	uint64_t count = number_at(r, 1);

	if (r->record->in_bytes != 8 + count * sizeof(struct ofs_chunk_keys))
		return -EBADMSG;
	if (count > r->core->config.session_chunk_max)
		return -ENOSPC;
	return ofs_core_session_append_keys(r->core, r->record->now_ns, number_at(r, 0),
		(uint32_t)count, (const struct ofs_chunk_keys *)(r->in + 8),
		(struct ofs_chunk_info *)r->answer);
}

static int
replay_generating(struct ofs_replay *r)
{
	return ofs_core_session_set_generating(r->core, r->record->now_ns, number_at(r, 0),
		(int)number_at(r, 1));
}

static int
replay_close(struct ofs_replay *r)
{
	return ofs_core_session_close(r->core, r->record->now_ns, number_at(r, 0));
}

static int
replay_release(struct ofs_replay *r)
{
	return ofs_core_session_release(r->core, r->record->now_ns, number_at(r, 0));
}

static int
replay_stored(struct ofs_replay *r)
{
	return ofs_core_block_stored(r->core, r->record->now_ns, number_at(r, 0), number_at(r, 1));
}

static int
replay_lost(struct ofs_replay *r)
{
	return ofs_core_block_lost(r->core, r->record->now_ns, number_at(r, 0), number_at(r, 1));
}

static int
replay_restore(struct ofs_replay *r)
{
	return ofs_core_block_restore(r->core, r->record->now_ns, number_at(r, 0),
		(const struct ofs_key *)(r->in + 8), number_at(r, 1), (uint32_t *)r->answer);
}

static int
replay_forget(struct ofs_replay *r)
{
	return ofs_core_block_forget(r->core, r->record->now_ns, number_at(r, 0),
		(const struct ofs_key *)(r->in + 8), number_at(r, 1));
}

static int
replay_stage(struct ofs_replay *r)
{
	uint32_t *answer = (uint32_t *)r->answer;

	return ofs_core_block_stage(r->core, r->record->now_ns, number_at(r, 0), number_at(r, 1),
		&answer[0], &answer[1]);
}

static int
replay_clean(struct ofs_replay *r)
{
	return ofs_core_block_clean(r->core, r->record->now_ns, number_at(r, 0), number_at(r, 1));
}

static int
replay_drop(struct ofs_replay *r)
{
	return ofs_core_block_drop(r->core, r->record->now_ns, number_at(r, 0), number_at(r, 1));
}

static int
replay_step(struct ofs_replay *r)
{
	struct ofs_log_step head;
	uint64_t demands = sizeof(head), granules, scores, seen;

	memcpy(&head, r->in, sizeof(head));
	granules = demands + 4ull * head.demand_count;
	scores = granules + (head.has_granules ? 4ull * head.demand_count : 0);
	seen = scores + 2ull * head.score_count;
	if (r->record->in_bytes != seen + (head.has_seen ? head.demand_count : 0))
		return -EBADMSG;
	r->step = (struct ofs_step){
		.session = head.session,
		.step = head.step,
		.layer = head.layer,
		.selected_count = head.selected_count,
		.demand_count = head.demand_count,
		.score_count = head.score_count,
		.waiter = head.waiter,
		.flags = head.flags,
		.hint_bytes = head.hint_bytes,
		.demands = (const uint32_t *)(r->in + demands),
		.granules = head.has_granules ? (const uint32_t *)(r->in + granules) : NULL,
		.scores = (const uint16_t *)(r->in + scores),
		.seen = head.has_seen ? r->in + seen : NULL,
	};
	return ofs_core_step(r->core, r->record->now_ns, &r->step, r->answer);
}

static int
replay_io_done(struct ofs_replay *r)
{
	return ofs_core_io_done(r->core, r->record->now_ns, number_at(r, 0), (int)number_at(r, 1));
}

static int
replay_slot_free(struct ofs_replay *r)
{
	return ofs_core_slot_free(r->core, r->record->now_ns, number_at(r, 0), number_at(r, 1));
}

static int
replay_tick(struct ofs_replay *r)
{
	return ofs_core_tick(r->core, r->record->now_ns, (uint64_t *)r->answer);
}

static int
replay_hint(struct ofs_replay *r)
{
	uint64_t count = number_at(r, 1);

	if (r->record->in_bytes != 8 + count * sizeof(struct ofs_guess))
		return -EBADMSG;
	return ofs_core_hint(r->core, r->record->now_ns, number_at(r, 0),
		(const struct ofs_guess *)(r->in + 8), (uint32_t)count);
}

static int
replay_reset(struct ofs_replay *r)
{
	return ofs_core_reset(r->core, r->record->now_ns);
}

static const struct {
	replay_call *call;
	uint32_t in_bytes_min;
} calls[OFS_EVENT_COUNT] = {
	[OFS_EVENT_POLICY] = {replay_policy, sizeof(struct ofs_policy)},
	[OFS_EVENT_TENANT] = {replay_tenant, sizeof(struct ofs_tenant_config)},
	[OFS_EVENT_SESSION_OPEN] = {replay_session_open, sizeof(struct ofs_session_config)},
	[OFS_EVENT_APPEND] = {replay_append, 8},
	[OFS_EVENT_GENERATING] = {replay_generating, 8},
	[OFS_EVENT_CLOSE] = {replay_close, 8},
	[OFS_EVENT_RELEASE] = {replay_release, 8},
	[OFS_EVENT_STORED] = {replay_stored, 8},
	[OFS_EVENT_LOST] = {replay_lost, 8},
	[OFS_EVENT_RESTORE] = {replay_restore, 24},
	[OFS_EVENT_FORGET] = {replay_forget, 24},
	[OFS_EVENT_STAGE] = {replay_stage, 8},
	[OFS_EVENT_CLEAN] = {replay_clean, 8},
	[OFS_EVENT_STEP] = {replay_step, sizeof(struct ofs_log_step)},
	[OFS_EVENT_IO_DONE] = {replay_io_done, 8},
	[OFS_EVENT_SLOT_FREE] = {replay_slot_free, 8},
	[OFS_EVENT_TICK] = {replay_tick, 0},
	[OFS_EVENT_RESET] = {replay_reset, 0},
	[OFS_EVENT_HINT] = {replay_hint, 8},
	[OFS_EVENT_DROP] = {replay_drop, 8},
};

/* The next record is whole and follows the one before it; then it becomes the current record. */
static int
record_check(struct ofs_replay *r)
{
	struct ofs_log_record *record = (struct ofs_log_record *)(r->log + r->offset);
	uint64_t in, out, check, left = r->size_bytes - r->offset;

	if (left < sizeof(*record) || record->size_bytes > left || record->size_bytes % 8
		|| record->size_bytes < sizeof(*record) || record->sequence != r->sequence)
		return -EBADMSG;
	in = (record->in_bytes + 7ull) & ~7ull;
	out = (record->out_bytes + 7ull) & ~7ull;
	if (sizeof(*record) + in + out + record->action_count * sizeof(struct ofs_action)
		!= record->size_bytes)
		return -EBADMSG;
	check = record->check;
	if (ofs_log_check(record, r->check) != check)
		return -EBADMSG;
	record->check = r->check = check;
	r->record = record;
	r->offset += record->size_bytes;
	r->sequence++;
	r->in = (const unsigned char *)(record + 1);
	r->out = r->in + in;
	r->actions = (const struct ofs_action *)(r->out + out);
	return 0;
}

/* Runs the event of the current record. */
static int
record_run(struct ofs_replay *r, struct ofs_replay_event *event)
{
	const struct ofs_log_record *record = r->record;
	uint32_t count;
	int rc;

	if (record->type >= OFS_EVENT_COUNT || calls[record->type].call == NULL
		|| record->in_bytes < calls[record->type].in_bytes_min
		|| record->out_bytes > r->answer_size_bytes)
		return -EBADMSG;
	memset(r->answer, 0, record->out_bytes);
	rc = calls[record->type].call(r);
	if (rc == -EBADMSG)
		return rc;
	count = (uint32_t)ofs_core_actions(r->core, r->taken, (int)r->taken_max);
	*event = (struct ofs_replay_event){
		.offset = (uint64_t)((const unsigned char *)record - r->log),
		.now_ns = record->now_ns,
		.type = record->type,
		.rc = rc,
		.agreed = rc == record->rc && count == record->action_count
			&& memcmp(r->taken, r->actions, count * sizeof(*r->taken)) == 0
			&& memcmp(r->answer, r->out, record->out_bytes) == 0,
		.input_bytes = record->in_bytes,
		.input = r->in,
		.answer_bytes = record->out_bytes,
		.answer = r->answer,
		.action_count = count,
		.actions = r->taken,
	};
	if (record->type == OFS_EVENT_STEP) {
		event->step = &r->step;
		event->ends = r->answer;
		event->end_count = rc == 0 ? r->step.demand_count : 0;
	}
	return 0;
}

static int
replay_begin(struct ofs_replay *r)
{
	struct ofs_log_open open;
	int rc;

	if (r->record->type != OFS_EVENT_OPEN || r->record->in_bytes != sizeof(open))
		return -EBADMSG;
	memcpy(&open, r->in, sizeof(open));
	if (open.magic != OFS_LOG_MAGIC || open.abi_version != OFS_ABI_VERSION)
		return -EBADMSG;
	open.config.log_size_bytes = 0;
	open.config.record_max = 0;
	if (ofs_core_size_bytes(&open.config) == 0
		|| ofs_core_size_bytes(&open.config) > REPLAY_SIZE_MAX)
		return -EBADMSG;
	rc = ofs_core_open(&r->core, &open.config, &open.policy);
	if (rc)
		return rc == -EINVAL ? -EBADMSG : rc;
	r->taken_max = r->core->action_max;
	r->answer_size_bytes =
		64 + open.config.demand_max + open.config.session_chunk_max * sizeof(struct ofs_chunk_info);
	r->taken = malloc(r->taken_max * sizeof(*r->taken));
	r->answer = malloc(r->answer_size_bytes);
	return r->taken && r->answer ? 0 : -ENOMEM;
}

void
ofs_replay_close(struct ofs_replay *r)
{
	if (r->core)
		ofs_core_close(r->core);
	free(r->taken);
	free(r->answer);
	free(r->log);
	free(r);
}

int
ofs_replay_open(struct ofs_replay **out, const void *log, uint64_t size_bytes)
{
	struct ofs_replay *r = calloc(1, sizeof(*r));
	int rc = -ENOMEM;

	*out = NULL;
	if (r == NULL)
		return rc;
	r->size_bytes = size_bytes;
	r->log = malloc(size_bytes ? size_bytes : 1);
	if (r->log) {
		memcpy(r->log, log, size_bytes);
		rc = record_check(r);
	}
	if (rc == 0)
		rc = replay_begin(r);
	if (rc) {
		ofs_replay_close(r);
		return rc;
	}
	*out = r;
	return 0;
}

int
ofs_replay_next(struct ofs_replay *r, struct ofs_replay_event *event)
{
	int rc;

	if (r->diverged || r->offset == r->size_bytes)
		return 0;
	rc = record_check(r);
	if (rc == 0)
		rc = record_run(r, event);
	/* The replay cannot continue after an error: the next record would not follow. */
	r->diverged = rc != 0 || !event->agreed;
	return rc ? rc : 1;
}

const struct ofs_core *
ofs_replay_core(const struct ofs_replay *r)
{
	return r->core;
}

int64_t
ofs_core_replay(const void *log, uint64_t size_bytes, uint64_t *diverged_at, struct ofs_work *work)
{
	struct ofs_replay_event event;
	struct ofs_replay *r;
	int64_t agreed = 0;
	int rc;

	*diverged_at = UINT64_MAX;
	rc = ofs_replay_open(&r, log, size_bytes);
	if (rc)
		return rc;
	while ((rc = ofs_replay_next(r, &event)) > 0)
		if (event.agreed)
			agreed += event.action_count + event.end_count;
		else
			*diverged_at = event.offset;
	if (work)
		ofs_core_work(r->core, work);
	ofs_replay_close(r);
	return rc ? rc : agreed;
}
