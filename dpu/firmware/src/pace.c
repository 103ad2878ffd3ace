/*
 * The ends of pace.h: those that the timing knows immediately wait in a heap for each user, the
 * others in the timing, which is polled as the clock advances.
 */
#include "pace.h"

#include "due_heap.h"

#include <assert.h>
#include <stdlib.h>

#define PS_PER_NS 1000u
#define BATCH 64
#define USER_SHIFT 32 /* of a timing's tag: the user above, its own tag below */

struct ofs_pace {
	struct ofs_timing *timing;
	struct ofs_clock *clock;
	uint64_t now_ps; /* of the last call to the timing: its time must not go back */
	uint32_t owed;   /* ends that the timing has not given yet */
	struct ofs_timing_request storage_for; /* tenant, cause and deadline of a storage I/O */
	struct ofs_due_heap due[OFS_PACE_USERS];
};

int
ofs_pace_open(struct ofs_pace **out, struct ofs_timing *timing, struct ofs_clock *clock,
	const uint32_t *in_flight_max)
{
	struct ofs_pace *pace;
	uint64_t all = 0;
	int rc = ofs_timing_check(timing);

	*out = NULL;
	if (rc != 0)
		return rc;
	for (int user = 0; user < OFS_PACE_USERS; user++)
		all += in_flight_max[user];
	if (all > timing->in_flight_max)
		return -EINVAL;
	pace = calloc(1, sizeof(*pace));
	if (pace == NULL)
		return -ENOMEM;
	pace->timing = timing;
	pace->storage_for.session = OFS_NONE;
	pace->clock = clock;
	for (int user = 0; user < OFS_PACE_USERS && rc == 0; user++)
		rc =
			in_flight_max[user] == 0 ? 0 : ofs_due_heap_open(&pace->due[user], in_flight_max[user]);
	if (rc != 0) {
		ofs_pace_close(pace);
		return rc;
	}
	*out = pace;
	return 0;
}

void
ofs_pace_close(struct ofs_pace *pace)
{
	if (pace == NULL)
		return;
	for (int user = 0; user < OFS_PACE_USERS; user++)
		ofs_due_heap_close(&pace->due[user]);
	free(pace);
}

/* Never before the model's time. */
static void
push(struct ofs_pace *pace, uint32_t user, uint64_t end_ps, uint32_t tag)
{
	ofs_due_heap_push(&pace->due[user], (end_ps + PS_PER_NS - 1) / PS_PER_NS, tag);
}

/* The ends that the timing owes and that are due by then. */
static void
poll(struct ofs_pace *pace, uint64_t now_ns)
{
	struct ofs_timing_end ends[BATCH];
	uint64_t now_ps = now_ns * PS_PER_NS;
	int count;

	if (pace->owed == 0)
		return;
	pace->now_ps = now_ps > pace->now_ps ? now_ps : pace->now_ps;
	do {
		count = pace->timing->ops->poll(pace->timing, pace->now_ps, ends, BATCH);
		for (int i = 0; i < count; i++)
			push(pace, (uint32_t)(ends[i].tag >> USER_SHIFT), ends[i].end_ps,
				(uint32_t)ends[i].tag);
		pace->owed -= (uint32_t)count;
	} while (count == BATCH);
}

void
ofs_pace_for(struct ofs_pace *pace, const struct ofs_timing_request *request)
{
	pace->storage_for =
		request == NULL ? (struct ofs_timing_request){.session = OFS_NONE} : *request;
}

void
ofs_pace_ask(struct ofs_pace *pace, enum ofs_pace_user user, enum ofs_pace_kind kind,
	uint64_t now_ns, const struct ofs_timing_request *request)
{
	const struct ofs_timing_ops *ops = pace->timing->ops;
	struct ofs_timing_request asked = *request;
	uint64_t end_ps;

	assert(request->tag <= UINT32_MAX);
	asked.tag |= (uint64_t)user << USER_SHIFT;
	if (user == OFS_PACE_STORAGE) {
		asked.tenant = pace->storage_for.tenant;
		asked.session = pace->storage_for.session;
		asked.layer = pace->storage_for.layer;
		asked.cause = pace->storage_for.cause;
		asked.deadline_ps = pace->storage_for.deadline_ps;
	}
	poll(pace, now_ns); /* the timing must be polled first for what ended before */
	now_ns *= PS_PER_NS;
	pace->now_ps = now_ns > pace->now_ps ? now_ns : pace->now_ps;
	switch (kind) {
	case OFS_PACE_READ:
		end_ps = ops->read(pace->timing, pace->now_ps, &asked);
		break;
	case OFS_PACE_WRITE:
		end_ps = ops->write(pace->timing, pace->now_ps, &asked);
		break;
	case OFS_PACE_HIT:
		end_ps = ops->hit(pace->timing, pace->now_ps, &asked);
		break;
	default:
		end_ps = ops->command(pace->timing, pace->now_ps, &asked);
	}
	if (end_ps == OFS_TIMING_LATER)
		pace->owed++;
	else
		push(pace, user, end_ps, (uint32_t)request->tag);
}

int
ofs_pace_take(struct ofs_pace *pace, enum ofs_pace_user user, uint64_t now_ns,
	struct ofs_pace_end *end)
{
	struct ofs_due_heap *heap = &pace->due[user];

	poll(pace, now_ns);
	end->due_ns = ofs_due_heap_next_ns(heap);
	if (heap->count == 0 || end->due_ns > now_ns)
		return 0;
	end->tag = ofs_due_heap_pop(heap);
	return 1;
}

uint64_t
ofs_pace_next_ns(const struct ofs_pace *pace)
{
	uint64_t next_ns = UINT64_MAX, next_ps;

	for (int user = 0; user < OFS_PACE_USERS; user++) {
		uint64_t due_ns = ofs_due_heap_next_ns(&pace->due[user]);

		next_ns = due_ns < next_ns ? due_ns : next_ns;
	}
	if (pace->owed == 0)
		return next_ns;
	next_ps = pace->timing->ops->next_ps(pace->timing);
	if (next_ps != OFS_TIMING_LATER && next_ps / PS_PER_NS < next_ns)
		next_ns = next_ps / PS_PER_NS;
	return next_ns;
}
