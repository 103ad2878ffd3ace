/* What becomes of tasks and their sessions at the end: returned, over, or held. */
#include "driver/value_tasks.h"

#include <assert.h>
#include <string.h>

#define STEP_NS 1000000ull /* of a session of a value: the unit of a guess's deadline */

void
ofs_task_finish(struct ofs_value_io *io, struct ofs_value_task *task, int rc)
{
	task->rc = rc;
	ofs_task_push(&io->ended, task);
}

void
ofs_task_over(struct ofs_value_io *io, uint32_t session)
{
	assert(io->over_count < io->sessions_max); /* it is one of session_count */
	io->over[io->over_count++] = session;
}

static void
end_hold(struct ofs_value_io *io, uint32_t i)
{
	ofs_task_over(io, io->holds[i].session);
	memmove(&io->holds[i], &io->holds[i + 1], (--io->hold_count - i) * sizeof(*io->holds));
}

void
ofs_task_end_holds_until(struct ofs_value_io *io, uint64_t now_ns)
{
	io->holds_until_ns = OFS_NEVER_NS;
	for (uint32_t i = io->hold_count; i-- > 0;)
		if (io->holds[i].until_ns <= now_ns)
			end_hold(io, i);
		else if (io->holds[i].until_ns < io->holds_until_ns)
			io->holds_until_ns = io->holds[i].until_ns;
}

void
ofs_task_yield(struct ofs_value_io *io, uint32_t count)
{
	while (io->hold_count > 0 && count-- > 0)
		end_hold(io, 0);
}

void
ofs_task_end_holds_of(struct ofs_value_io *io, const struct ofs_key *key, bool once)
{
	for (uint32_t i = io->hold_count; i-- > 0;)
		if (ofs_key_equal(&io->holds[i].key, key) && (!once || io->holds[i].once))
			end_hold(io, i);
}

/* Guesses for every block of the value: that it will be read by then. */
static int
announce(struct ofs_value_io *io, const struct ofs_value_task *task)
{
	uint64_t payload = io->payload_size_bytes, steps = task->due_ns / STEP_NS;
	uint32_t count = (uint32_t)((task->value_length + payload - 1) / payload);
	struct ofs_guess guesses[OFS_TASK_BATCH];
	int rc = 0;

	for (uint32_t first = 0; rc >= 0 && first < count; first += OFS_TASK_BATCH) {
		uint32_t some = count - first < OFS_TASK_BATCH ? count - first : OFS_TASK_BATCH;

		for (uint32_t i = 0; i < some; i++)
			guesses[i] = (struct ofs_guess){.layer = (uint16_t)((first + i) % io->layer_count),
				.ordinal = (first + i) / io->layer_count,
				.steps = steps < UINT16_MAX ? (uint16_t)steps : UINT16_MAX,
				.probability = (uint16_t)task->probability,
				.cause = OFS_CAUSE_LOOKAHEAD};
		rc = ofs_driver_hint(io->driver, task->session, guesses, some);
	}
	return rc < 0 ? rc : 0;
}

void
ofs_task_hold(struct ofs_value_io *io, struct ofs_value_task *task)
{
	struct ofs_task_hold *hold = &io->holds[io->hold_count++];
	uint64_t now_ns = ofs_driver_now_ns(io->driver);

	*hold = (struct ofs_task_hold){.key = task->key,
		.session = task->session,
		.once = (task->flags & OFS_TASK_ONCE) != 0,
		.until_ns = task->hold_ns < OFS_NEVER_NS - now_ns ? now_ns + task->hold_ns : OFS_NEVER_NS};
	if (hold->until_ns < io->holds_until_ns)
		io->holds_until_ns = hold->until_ns;
	if (task->probability > 0)
		(void)announce(io, task); /* advice: a lost connection shows elsewhere */
	ofs_task_finish(io, task, 0);
}
