/* May any thread submit tasks on values while one serves, and wake that one? */
#include "support_errands.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

enum { THREADS = 3, EACH = TASKS / THREADS, TURNS = 40 };

struct submitter {
	pthread_t thread;
	struct bed *bed;
	struct errand *errands;
};

static void *
submit(void *argument)
{
	struct submitter *submitter = argument;

	for (uint32_t i = 0; i < EACH; i++)
		errand_submit(submitter->bed, 0, &submitter->errands[i]);
	return NULL;
}

/* Serves until so many tasks have ended, each of which is told once. */
static void
serve(struct bed *bed, uint32_t count)
{
	struct ofs_value_task *ended[TASKS];
	bool told[TASKS] = {false};

	while (count > 0) {
		int some = ofs_value_io_serve(bed->ios[0], SECOND_NS, ended, TASKS);

		assert(some >= 0 && (uint32_t)some <= count);
		count -= (uint32_t)some;
		for (int i = 0; i < some; i++) {
			uint32_t number = (uint32_t)(((struct errand *)(void *)ended[i]) - errands);

			assert(number < TASKS && !told[number] && ended[i]->state == OFS_TASK_IDLE);
			told[number] = true;
		}
	}
}

/* Each key is stored, read and deleted by one thread: what comes back is what a table says. */
static void
test_tasks_of_several_threads_end_once(void)
{
	struct submitter submitters[THREADS];
	struct bed bed;

	bed_open(&bed, 1, 3);
	for (uint32_t turn = 0; turn < TURNS; turn++) {
		uint32_t round = turn / 2;

		for (uint32_t i = 0; i < TASKS; i++)
			if (turn % 2 == 0)
				errand_store(&bed, &errands[i], i, round * TASKS + i);
			else
				errand_retrieve(&bed, &errands[i], i, VALUE_MAX);
		for (uint32_t i = 0; i < THREADS; i++) {
			submitters[i] = (struct submitter){.bed = &bed, .errands = &errands[i * EACH]};
			assert(pthread_create(&submitters[i].thread, NULL, submit, &submitters[i]) == 0);
		}
		serve(&bed, TASKS);
		for (uint32_t i = 0; i < THREADS; i++)
			assert(pthread_join(submitters[i].thread, NULL) == 0);
		assert(ofs_value_io_count(bed.ios[0]) == 0);
		for (uint32_t i = 0; i < TASKS; i++)
			if (turn % 2 == 0)
				assert(errands[i].task.rc == 0);
			else
				errand_check(&errands[i], round * TASKS + i);
	}
	bed_close(&bed);
}

static void *
wake(void *argument)
{
	const struct timespec pause = {.tv_nsec = 20000000};

	nanosleep(&pause, NULL);
	ofs_value_io_wake(argument);
	return NULL;
}

/* Before it serves, and while it sleeps; a store that is not filled is no work for it. */
static void
test_a_wake_ends_one_serve(void)
{
	struct ofs_value_task *ended[1];
	struct bed bed;
	pthread_t thread;

	bed_open(&bed, 2, 3);
	errand_store(&bed, &errands[0], 0, LONG);
	errands[0].task.filled = errands[0].task.committed = 0;
	errand_submit(&bed, 0, &errands[0]);
	for (uint32_t i = 0; i < 3; i++) {
		ofs_value_io_wake(bed.ios[0]);
		assert(ofs_value_io_serve(bed.ios[0], UINT64_MAX, ended, 1) == 0);
	}
	assert(pthread_create(&thread, NULL, wake, bed.ios[0]) == 0);
	assert(ofs_value_io_serve(bed.ios[0], UINT64_MAX, ended, 1) == 0);
	assert(pthread_join(thread, NULL) == 0);
	ofs_value_io_fill(bed.ios[0], &errands[0].task, errand_length_of(LONG), 1);
	serve(&bed, 1);
	assert(errands[0].task.rc == 0);
	bed_close(&bed);
}

/* Sessions that are over end without a task, and what ended together is told together. */
static void
test_ends_are_told_when_nothing_moves_without_a_wait(void)
{
	struct ofs_value_task *ended[TASKS];
	struct bed bed;

	bed_open(&bed, 3, TASKS);
	errand_store(&bed, &errands[0], 1, LONG);
	errand_submit(&bed, 0, &errands[0]);
	serve(&bed, 1);
	for (uint32_t i = 0; i < 2; i++) {
		errand_retrieve(&bed, &errands[i], 1, VALUE_MAX);
		errand_submit(&bed, 0, &errands[i]);
	}
	serve(&bed, 2);
	while (ofs_value_io_busy(bed.ios[0])) {
		ofs_value_io_wake(bed.ios[0]);
		assert(ofs_value_io_serve(bed.ios[0], SECOND_NS, ended, TASKS) == 0);
		assert(ofs_value_io_run(bed.ios[0], SECOND_NS, ended, TASKS) == 0);
	}
	world_pass(&bed.world, SECOND_NS / 10);
	assert(world_status(&bed.world).sessions == 0);
	bed_close(&bed);
}

int
main(void)
{
	test_tasks_of_several_threads_end_once();
	test_a_wake_ends_one_serve();
	test_ends_are_told_when_nothing_moves_without_a_wait();
	return 0;
}
