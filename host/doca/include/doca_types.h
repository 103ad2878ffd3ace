/* doca_types.h: what a caller attaches to a task, and the descriptor that it polls. */
#ifndef DOCA_TYPES_H
#define DOCA_TYPES_H

#include <stdint.h>

/* A file descriptor for poll and epoll. */
typedef int doca_notification_handle_t;
#define doca_event_invalid_handle (-1)

union doca_data {
	void *ptr;
	uint64_t u64;
};

#endif
