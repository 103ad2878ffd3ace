/*
 * The mailbox: calls from other threads to the reactor. The call is in the caller's stack frame, so
 * nothing is allocated; the caller returns only after the reactor's answer, or before the reactor
 * took the call. A reactor that ends answers all waiting calls.
 */
#include "internal.h"

#include <time.h>
#include <unistd.h>

#define CALL_TIMEOUT_S 10

static void
unlink_call(struct ofs_device *device, struct ofs_control_call *call)
{
	struct ofs_control_call **link = &device->mailbox.calls;

	while (*link != call) {
		assert(*link != NULL); /* calls that have not been taken are in the list */
		link = &(*link)->next;
	}
	*link = call->next;
	device->mailbox.calls_last = NULL;
	for (call = device->mailbox.calls; call != NULL; call = call->next)
		device->mailbox.calls_last = call;
	atomic_fetch_sub(&device->mailbox.call_count, 1);
}

struct timespec
ofs_device_until(uint64_t timeout_ns)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += (long)(timeout_ns % 1000000000ull);
	until.tv_sec += (time_t)(timeout_ns / 1000000000ull) + until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	return until;
}

/* Waits for the answer; a reactor that does not even take the call within the limit is stuck. */
static int
await_answer(struct ofs_device *device, struct ofs_control_call *call)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += CALL_TIMEOUT_S;
	while (!call->done) {
		if (pthread_cond_timedwait(&device->mailbox.cond, &device->mailbox.mutex, &until)
			== ETIMEDOUT) {
			if (!call->taken) {
				unlink_call(device, call);
				return -ETIMEDOUT;
			}
			until.tv_sec += CALL_TIMEOUT_S; /* the call runs on our frame: we cannot leave */
		}
	}
	return call->rc;
}

int
ofs_device_call(struct ofs_device *device, int (*run)(struct ofs_device *, void *), void *argument)
{
	struct ofs_control_call call = {.run = run, .argument = argument};
	uint64_t one = 1;
	int rc;

	if (!device->reactor.threaded)
		return run(device, argument);
	/* The reactor would wait for itself. */
	assert(!pthread_equal(pthread_self(), device->reactor.thread));
	pthread_mutex_lock(&device->mailbox.mutex);
	if (device->mailbox.stopped) {
		pthread_mutex_unlock(&device->mailbox.mutex);
		return -ESHUTDOWN;
	}
	if (device->mailbox.calls_last == NULL)
		device->mailbox.calls = &call;
	else
		device->mailbox.calls_last->next = &call;
	device->mailbox.calls_last = &call;
	atomic_fetch_add(&device->mailbox.call_count, 1);
	if (write(device->mailbox.wake_fd, &one, sizeof(one)) < 0) {
		/* The counter is at its limit: the reactor is awake already. */
	}
	rc = await_answer(device, &call);
	pthread_mutex_unlock(&device->mailbox.mutex);
	return rc;
}

bool
ofs_device_serve_calls(struct ofs_device *device)
{
	struct ofs_control_call *call;

	if (atomic_load_explicit(&device->mailbox.call_count, memory_order_relaxed) == 0)
		return false;
	pthread_mutex_lock(&device->mailbox.mutex);
	call = device->mailbox.calls;
	if (call != NULL) {
		device->mailbox.calls = call->next;
		if (device->mailbox.calls == NULL)
			device->mailbox.calls_last = NULL;
		assert(!call->taken && !call->done);
		call->taken = true;
		atomic_fetch_sub(&device->mailbox.call_count, 1);
		pthread_mutex_unlock(&device->mailbox.mutex);
		call->rc = call->run(device, call->argument);
		pthread_mutex_lock(&device->mailbox.mutex);
		call->done = true;
		pthread_cond_broadcast(&device->mailbox.cond);
	}
	pthread_mutex_unlock(&device->mailbox.mutex);
	return call != NULL;
}

void
ofs_device_refuse_calls(struct ofs_device *device)
{
	struct ofs_control_call *call;

	pthread_mutex_lock(&device->mailbox.mutex);
	device->mailbox.stopped = true;
	for (call = device->mailbox.calls; call != NULL; call = call->next) {
		call->taken = true;
		call->rc = -ESHUTDOWN;
		call->done = true;
	}
	device->mailbox.calls = NULL;
	device->mailbox.calls_last = NULL;
	atomic_store(&device->mailbox.call_count, 0);
	pthread_cond_broadcast(&device->mailbox.cond);
	pthread_mutex_unlock(&device->mailbox.mutex);
}
