/*
 * Does a reader get the bytes of one store, whole, whatever two writers of its key do, leave
 * unfinished or delete, wherever any of the three dies?
 *
 * A history has every store, delete and read with the steps between which it took effect. What was
 * read must have been the key's value at one of the read's steps.
 */
#include "support_errands.h"

#include <stdio.h>
#include <string.h>

enum { WRITERS = 2, READER = 2, SEEDS = 150, STEPS = 400, OPS_MAX = STEPS, RUN_NS = 30000 };
#define NEVER UINT32_MAX

/* A store (of its seed) or a delete (0). */
struct op {
	uint32_t seed;
	uint32_t from;  /* no effect before this step; NEVER: none at all so far */
	uint32_t until; /* nor after this one */
	bool certain;   /* it had its effect */
};

struct history {
	struct bed bed;
	struct op ops[OPS_MAX];
	uint32_t op_count;
	uint32_t step;
	struct op *writes[WRITERS]; /* under way */
	bool reads;                 /* the reader's errand is under way */
	uint32_t read_from;
};

static struct {
	uint32_t whole, absent, deleted, dropped, killed, overlapped;
} found;

/* ---- the judge ---- */

/* Whether another op surely came after this one, and had ended before the read began. */
static bool
is_over(const struct history *history, uint32_t until)
{
	for (uint32_t i = 0; i < history->op_count; i++) {
		const struct op *op = &history->ops[i];

		if (op->certain && op->from > until && op->until < history->read_from)
			return true;
	}
	return false;
}

/* The key may have had the value of this seed, or (0) none, while the read was under way. */
static bool
may_be(const struct history *history, uint32_t seed)
{
	/* Before the first op there is no value. */
	bool found_one = seed == 0 && !is_over(history, 0);

	for (uint32_t i = 0; i < history->op_count && !found_one; i++) {
		const struct op *op = &history->ops[i];

		found_one = op->seed == seed && op->from != NEVER && !is_over(history, op->until);
	}
	return found_one;
}

static void
judge(const struct history *history, const struct errand *errand)
{
	static uint8_t expected[VALUE_MAX];
	const struct ofs_value_task *task = &errand->task;
	bool one_of_them = false;

	assert(task->rc == 0 || task->rc == -ENOENT);
	if (task->rc != 0 || task->flags & OFS_TASK_HOLD) {
		assert(task->rc == 0 || may_be(history, 0));
		found.absent += task->rc != 0;
		return;
	}
	for (uint32_t i = 0; i < history->op_count && !one_of_them; i++) {
		uint32_t seed = history->ops[i].seed;
		uint64_t length = errand_length_of(seed);

		if (seed == 0 || length != task->value_length)
			continue;
		errand_fill(seed, expected);
		one_of_them = memcmp(errand->bytes, expected, length) == 0 && may_be(history, seed);
	}
	assert(one_of_them);
	found.whole++;
	for (uint32_t i = 0; i < WRITERS; i++)
		found.overlapped += history->writes[i] != NULL;
}

/* ---- the hosts ---- */

static void
begin_write(struct history *history, uint32_t host)
{
	struct op *op = &history->ops[history->op_count++];
	struct errand *errand = &errands[host];

	*op = (struct op){.from = history->step, .until = NEVER};
	if (errand_below(&history->bed, 6) == 0) {
		errand_name(errand, OFS_VALUE_DELETE, 1);
	} else {
		op->seed = history->op_count;
		errand_store(&history->bed, errand, 1, op->seed);
		if (errand_below(&history->bed, 2)) {
			errand->task.filled = errand->task.committed = 0;
			op->from = NEVER;
		}
	}
	history->writes[host] = op;
	errand_submit(&history->bed, host, errand);
}

static void
begin_read(struct history *history)
{
	struct errand *errand = &errands[READER];

	if (errand_below(&history->bed, 4) == 0) {
		errand_name(errand, OFS_VALUE_RETRIEVE, 1);
		errand->task.flags = OFS_TASK_HOLD;
		errand->task.hold_ns = errand_below(&history->bed, 20) * RUN_NS;
	} else {
		errand_retrieve(&history->bed, errand, 1, VALUE_MAX);
	}
	history->reads = true;
	history->read_from = history->step;
	errand_submit(&history->bed, READER, errand);
}

/* More of a store is filled, or all of it, or it is dropped. */
static void
fill_more(struct history *history, uint32_t host)
{
	struct ofs_value_task *task = &errands[host].task;
	uint32_t draw = errand_below(&history->bed, 8);

	if (task->verb != OFS_VALUE_STORE || task->committed || task->dropped)
		return;
	if (draw == 0) {
		ofs_value_io_drop(history->bed.ios[host], task);
	} else if (draw < 4) {
		history->writes[host]->from = history->step;
		ofs_value_io_fill(history->bed.ios[host], task, task->length, 1);
	} else {
		ofs_value_io_fill(history->bed.ios[host], task,
			task->filled + errand_below(&history->bed, 2 * PAYLOAD), 0);
	}
}

static void
end_write(struct history *history, uint32_t host, bool killed)
{
	const struct ofs_value_task *task = &errands[host].task;
	struct op *op = history->writes[host];

	history->writes[host] = NULL;
	op->until = history->step;
	if (killed)
		return;
	if (task->verb == OFS_VALUE_DELETE)
		assert(task->rc == 0 || task->rc == -ENOENT);
	else
		assert(task->rc == (op->from == NEVER ? -ECANCELED : 0));
	op->certain = op->from != NEVER;
	found.deleted += task->verb == OFS_VALUE_DELETE;
	found.dropped += !op->certain;
}

static void
run(struct history *history, uint32_t host)
{
	struct ofs_value_task *ended[1];
	uint64_t wait_ns = errand_below(&history->bed, 3) * errand_below(&history->bed, RUN_NS);
	int count = ofs_value_io_run(history->bed.ios[host], wait_ns, ended, 1);

	assert(count >= 0);
	if (count == 0)
		return;
	assert(ended[0] == &errands[host].task);
	if (host == READER)
		judge(history, &errands[host]);
	else
		end_write(history, host, false);
	history->reads &= host != READER;
}

static void
kill(struct history *history, uint32_t host)
{
	bed_kill(&history->bed, host);
	found.killed++;
	if (host == READER)
		history->reads = false;
	else if (history->writes[host] != NULL)
		end_write(history, host, true);
	bed_attach(&history->bed, host);
}

/* ---- a history ---- */

static void
turn(struct history *history)
{
	uint32_t host = errand_below(&history->bed, HOSTS);
	bool works = host == READER ? history->reads : history->writes[host] != NULL;

	history->step++;
	if (!works && host == READER)
		begin_read(history);
	else if (!works)
		begin_write(history, host);
	else if (errand_below(&history->bed, 40) == 0)
		kill(history, host);
	else if (host != READER && errand_below(&history->bed, 2))
		fill_more(history, host);
	else
		run(history, host);
}

/* When all hosts have left and the key is deleted, nothing is left of any store. */
static void
end(struct history *history)
{
	struct bed *bed = &history->bed;

	for (uint32_t i = 0; i < HOSTS; i++)
		kill(history, i);
	errand_store(bed, &errands[0], 1, LONG);
	assert(errand_alone(bed, &errands[0]) == 0);
	errand_retrieve(bed, &errands[1], 1, VALUE_MAX);
	assert(errand_alone(bed, &errands[1]) == 0);
	errand_check(&errands[1], LONG);
	errand_name(&errands[0], OFS_VALUE_DELETE, 1);
	assert(errand_alone(bed, &errands[0]) == 0);
	world_pass(&bed->world, SECOND_NS);
	assert(world_status(&bed->world).store.blocks == 0);
	bed_close(bed);
}

int
main(void)
{
	for (uint32_t seed = 1; seed <= SEEDS; seed++) {
		static struct history history;

		history = (struct history){0};
		bed_open_mode(&history.bed, seed, 2, seed % 2 ? OFS_WRITE_THROUGH : OFS_WRITE_BACK);
		while (history.step < STEPS)
			turn(&history);
		end(&history);
	}
	printf("whole %u, overlapped %u, absent %u, deleted %u, dropped %u, killed %u\n", found.whole,
		found.overlapped, found.absent, found.deleted, found.dropped, found.killed);
	assert(found.overlapped > 10 * SEEDS && found.absent > SEEDS && found.deleted > SEEDS
		&& found.dropped > SEEDS && found.killed > 5 * SEEDS);
	return 0;
}
