/*
 * Tasks on their way from the threads that submit them to the io's own, which rests here while it
 * has nothing to do.
 *
 * Model: a queue under a mutex. What is in it belongs to the io, whose thread takes all of it at
 * its next turn; `count` tells it, without the mutex, that there is nothing.
 */
#include "driver/value_tasks.h"

#include <time.h>

#define SECOND_NS 1000000000ull
#define REST_NS_MAX (3600 * SECOND_NS)

int
ofs_task_inbox_open(struct ofs_task_inbox *inbox)
{
	pthread_condattr_t attributes;
	int rc = -pthread_condattr_init(&attributes);

	if (rc != 0)
		return rc;
	rc = -pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	if (rc == 0)
		rc = -pthread_cond_init(&inbox->cond, &attributes);
	(void)pthread_condattr_destroy(&attributes);
	if (rc != 0)
		return rc;
	rc = -pthread_mutex_init(&inbox->mutex, NULL);
	if (rc != 0)
		(void)pthread_cond_destroy(&inbox->cond);
	inbox->opened = rc == 0;
	return rc;
}

void
ofs_task_inbox_close(struct ofs_task_inbox *inbox)
{
	if (!inbox->opened)
		return;
	(void)pthread_mutex_destroy(&inbox->mutex);
	(void)pthread_cond_destroy(&inbox->cond);
}

/* Ends the rest of the io's thread, if it rests; the mutex is held, and released. */
static void
end_rest(struct ofs_task_inbox *inbox)
{
	bool resting = inbox->resting;

	inbox->resting = false;
	pthread_mutex_unlock(&inbox->mutex);
	if (resting)
		(void)pthread_cond_signal(&inbox->cond);
}

void
ofs_task_inbox_put(struct ofs_task_inbox *inbox, struct ofs_value_task *task)
{
	pthread_mutex_lock(&inbox->mutex);
	ofs_task_push(&inbox->tasks, task);
	atomic_fetch_add_explicit(&inbox->count, 1, memory_order_relaxed);
	end_rest(inbox);
}

struct ofs_task_queue
ofs_task_inbox_take(struct ofs_task_inbox *inbox)
{
	struct ofs_task_queue tasks = {NULL, NULL};

	if (atomic_load_explicit(&inbox->count, memory_order_relaxed) == 0)
		return tasks;
	pthread_mutex_lock(&inbox->mutex);
	tasks = inbox->tasks;
	inbox->tasks.head = NULL;
	atomic_store_explicit(&inbox->count, 0, memory_order_relaxed);
	pthread_mutex_unlock(&inbox->mutex);
	return tasks;
}

uint32_t
ofs_task_inbox_count(const struct ofs_task_inbox *inbox)
{
	return atomic_load_explicit(&inbox->count, memory_order_relaxed);
}

void
ofs_value_io_wake(struct ofs_value_io *io)
{
	struct ofs_task_inbox *inbox = &io->inbox;

	pthread_mutex_lock(&inbox->mutex);
	atomic_store_explicit(&inbox->woken, true, memory_order_relaxed);
	end_rest(inbox);
}

bool
ofs_task_inbox_woken(struct ofs_task_inbox *inbox)
{
	return atomic_load_explicit(&inbox->woken, memory_order_relaxed)
		&& atomic_exchange_explicit(&inbox->woken, false, memory_order_relaxed);
}

void
ofs_task_inbox_rest(struct ofs_task_inbox *inbox, uint64_t rest_ns)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	rest_ns = (rest_ns < REST_NS_MAX ? rest_ns : REST_NS_MAX) + (uint64_t)until.tv_nsec;
	until.tv_sec += (time_t)(rest_ns / SECOND_NS);
	until.tv_nsec = (long)(rest_ns % SECOND_NS);
	pthread_mutex_lock(&inbox->mutex);
	inbox->resting =
		inbox->tasks.head == NULL && !atomic_load_explicit(&inbox->woken, memory_order_relaxed);
	while (inbox->resting && pthread_cond_timedwait(&inbox->cond, &inbox->mutex, &until) == 0) {
	}
	inbox->resting = false;
	pthread_mutex_unlock(&inbox->mutex);
}
