/*
 * device/mailbox.h: calls from other threads to the reactor.
 *
 * Model: a call is in its caller's frame, so nothing is allocated; the caller returns only after
 * the reactor has answered, or before the reactor took the call. The mutex guards the list of calls
 * and the reactor's start and end; `call_count` may be read without it. A reactor that ends answers
 * all calls that still wait.
 */
#ifndef OFS_DEVICE_MAILBOX_H
#define OFS_DEVICE_MAILBOX_H

#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

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
	bool opened;  /* open_rc is set */
	bool stopped; /* no more calls are taken */
	int open_rc;
	char *open_error; /* [open_error_size_bytes], the opener's */
	size_t open_error_size_bytes;
	atomic_uint call_count;
};

int ofs_device_call(struct ofs_device *device, int (*run)(struct ofs_device *, void *),
	void *argument);
/* The end of a wait for the mailbox's condition. */
struct timespec ofs_device_until(uint64_t timeout_ns);
bool ofs_device_serve_calls(struct ofs_device *device);
/* No call is taken from now on; those that wait end with -ESHUTDOWN. */
void ofs_device_refuse_calls(struct ofs_device *device);

#endif
