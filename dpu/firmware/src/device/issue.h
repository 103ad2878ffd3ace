/*
 * device/issue.h: the queue for the drive, and whose turn it is.
 *
 * Model: belongs to the reactor's thread. Waiting reads are in the arbiter, or in `late` if it had
 * no room; writes are in their tenants' lines. See issue.c.
 */
#ifndef OFS_DEVICE_ISSUE_H
#define OFS_DEVICE_ISSUE_H

#include "device.h"
#include "device/fifo.h"
#include "qos.h"

#include <stdbool.h>

#define OFS_TICKET UINT64_MAX /* in the arbiter: the first write of the tenant's line */

struct ofs_issue {
	struct ofs_qos *qos;
	uint64_t begin_ns;    /* of the arbiter's clock */
	struct ofs_fifo late; /* reads that it had no room for, or that the store could not take */
};

/* issue.c */
int ofs_device_open_issue(struct ofs_device *device);
void ofs_device_close_issue(struct ofs_device *device);
/* -EINVAL: no such tenant, or a number out of range. */
int ofs_device_share(struct ofs_device *device, uint32_t tenant,
	const struct ofs_tenant_share *share);
void ofs_device_queue_read(struct ofs_device *device, const struct ofs_action *action);
/* Puts back what could not begin. Returns whether anything waits. */
bool ofs_device_issue_again(struct ofs_device *device);
/* Returns the next item by turn, if the store has room. */
bool ofs_device_issue_next(struct ofs_device *device, struct ofs_qos_item *item);
/* One of the tenant's I/Os is in flight. */
void ofs_device_issue_began(struct ofs_device *device, uint32_t tenant);
/* After waiting reads ended without a turn: rebuilds the queue of those that wait. */
void ofs_device_issue_anew(struct ofs_device *device);
/* One of the tenant's I/Os in flight has ended. */
void ofs_device_issue_ended(struct ofs_device *device, uint32_t tenant);
/* When a bandwidth cap allows the next I/O, if none ends before. */
uint64_t ofs_device_issue_due_ns(const struct ofs_device *device);
void ofs_device_issue_figures(const struct ofs_device *device, uint32_t tenant,
	struct ofs_tenant_status *status);

/* begin.c: begins what has its turn. */
bool ofs_device_issue(struct ofs_device *device);

#endif
