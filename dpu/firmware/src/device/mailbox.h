/*
 * device/mailbox.h: how other threads ask the reactor for something.
 *
 * Model: a call lies in its caller's frame, so nothing is allocated; the caller leaves only when
 * the reactor has answered, or before the reactor took the call. The list of calls and what is said
 * of the reactor's beginning and end are under the mutex; `call_count` may be read without it. A
 * reactor that ends answers all calls that still wait.
 */
#ifndef OFS_DEVICE_MAILBOX_H
#define OFS_DEVICE_MAILBOX_H

#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Runs on the reactor's thread; its caller waits. */
struct ofs_control_call {
	int (*run)(struct ofs_device *device, void *argument);
	void *argument;
	int rc;
	bool taken;
	bool done;
	struct ofs_control_call *next;
};

struct ofs_mailbox {
	int wake_fd;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	struct ofs_control_call *calls;
	struct ofs_control_call *calls_last;
	bool opened;  /* open_rc stands */
	bool stopped; /* no call is taken any more */
	int open_rc;
	char *open_error; /* [open_error_size_bytes], the opener's */
	size_t open_error_size_bytes;
	atomic_uint call_count;
};

int ofs_device_call(struct ofs_device *device, int (*run)(struct ofs_device *, void *),
	void *argument);
bool ofs_device_serve_calls(struct ofs_device *device);
/* No call is taken from now on; those that wait end with -ESHUTDOWN. */
void ofs_device_refuse_calls(struct ofs_device *device);

#endif
