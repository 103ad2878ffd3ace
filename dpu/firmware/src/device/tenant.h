/*
 * device/tenant.h: the reactor's state of one tenant, and the tenant's bounds.
 *
 * Model: belongs to the reactor's thread; a tenant, once added, stays. Its counters are parts of
 * the sums over all tenants: `writes.count` of writes.waiting, `parked` of writes.parked and
 * `dirty` of writes.dirty.
 */
#ifndef OFS_DEVICE_TENANT_H
#define OFS_DEVICE_TENANT_H

#include "device.h"
#include "device/fifo.h"
#include "port.h"

#include <stdbool.h>

struct ofs_write;

struct ofs_device_tenant {
	struct ofs_region *region;
	struct ofs_share *shares[OFS_PORT_SIDES_MAX]; /* of the region, by side; NULL: none yet */
	uint32_t slot_count;
	uint32_t *flush_of; /* [slot_count] the write that flushes the slot; OFS_NONE: not dirty */
	struct ofs_tenant_share share;
	struct ofs_fifo writes; /* waiting writes, in order of arrival */
	uint32_t tickets;       /* of them, those with an item in the arbiter */
	bool writes_refused;    /* the first of them, despite room in the store: one ticket retries */
	bool writes_tried;      /* and no other is tried in this turn */
	uint32_t flying;        /* reads and writes at the drive */
	uint32_t flying_max;
	uint32_t reads_live;      /* reads that have not ended for the core */
	uint32_t demands_waiting; /* of steps that have not been answered */
	int32_t credit;           /* for commands in this turn */
	struct ofs_step_times *steps;
	struct ofs_tenant_quota quota;
	uint32_t sessions;      /* open, of values too */
	uint32_t dirty;         /* in slots */
	uint32_t flushes_sent;  /* of them, those that the store is writing */
	uint32_t parked;        /* and those whose flush has failed and waits */
	uint64_t quota_refused; /* of appends and blocks */
	uint64_t purged;        /* chunks that it lost because a table or the store was full */
	uint64_t deletes;       /* number of deletes of its blocks */
	uint64_t held_back;     /* turns in which its commands stayed in their rings */
};

/* quota.c: a tenant's limits, which apply even if there is room. */
/* 0: the session may append these (`folded`: of one content); -EDQUOT. May delete kept chunks of
 * the tenant. */
int ofs_device_quota_append(struct ofs_device *device, uint32_t session, uint32_t count,
	bool folded, const struct ofs_key *contents);
/* 0: the block may be written; -EAGAIN: not in this turn; -EDQUOT. As above. */
int ofs_device_quota_put(struct ofs_device *device, const struct ofs_write *write);
/* The blocks that the tenant may have in the store; UINT64_MAX: as many as there is room for. */
uint64_t ofs_device_quota_blocks(const struct ofs_device *device, uint32_t tenant);
/* Whether one more block may be staged before it is written. */
bool ofs_device_quota_stage(const struct ofs_device *device, uint32_t tenant);
void ofs_device_quota_figures(const struct ofs_device *device, uint32_t tenant,
	struct ofs_tenant_status *status);

#endif
