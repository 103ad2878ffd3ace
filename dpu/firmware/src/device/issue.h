/*
 * device/issue.h: what waits for the drive, and whose turn it is.
 *
 * Model: belongs to the reactor's thread. The arbiter holds what waits, `late` the reads that it
 * had no room for; writes stand in the lines of their tenants. See issue.c.
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
	uint64_t begin_ns;    /* of its time */
	struct ofs_fifo late; /* reads that it had no room for, or that the store could not take */
};

/* issue.c */
int ofs_device_open_issue(struct ofs_device *device);
void ofs_device_close_issue(struct ofs_device *device);
/* -EINVAL: no such tenant, or a number out of range. */
int ofs_device_share(struct ofs_device *device, uint32_t tenant,
	const struct ofs_tenant_share *share);
void ofs_device_queue_read(struct ofs_device *device, const struct ofs_action *action);
/* What could not begin waits again. Whether anything waits. */
bool ofs_device_issue_again(struct ofs_device *device);
/* Whose turn it is, where the store has room. */
bool ofs_device_issue_next(struct ofs_device *device, struct ofs_qos_item *item);
/* One of the tenant's flies. */
void ofs_device_issue_began(struct ofs_device *device, uint32_t tenant);
/* After reads that waited have ended without a turn: who waits is known anew. */
void ofs_device_issue_anew(struct ofs_device *device);
/* One of the tenant's, which flew, has ended. */
void ofs_device_issue_ended(struct ofs_device *device, uint32_t tenant);
/* When a bucket lets something go, if nothing ends before. */
uint64_t ofs_device_issue_due_ns(const struct ofs_device *device);
void ofs_device_issue_figures(const struct ofs_device *device, uint32_t tenant,
	struct ofs_tenant_status *status);

/* begin.c: what has its turn begins. */
bool ofs_device_issue(struct ofs_device *device);

#endif
