/*
 * device/internal.h: the device, made of its components.
 *
 * Model: everything here belongs to the reactor's thread, except as the components' headers say:
 * the mailbox's mutex guards the mailbox, and any thread may read the reactor's flags and the
 * storage's names. Tables are sized at open. A handle is an index into a table, so no pointer
 * leaves the device.
 */
#ifndef OFS_DEVICE_INTERNAL_H
#define OFS_DEVICE_INTERNAL_H

#include "clock_wait.h"
#include "device.h"
#include "device/admit.h"
#include "device/answers.h"
#include "device/archive.h"
#include "device/call.h"
#include "device/commands.h"
#include "device/components.h"
#include "device/issue.h"
#include "device/mailbox.h"
#include "device/moments.h"
#include "device/move.h"
#include "device/paced.h"
#include "device/ports.h"
#include "device/purge.h"
#include "device/puts.h"
#include "device/reactor.h"
#include "device/reads.h"
#include "device/stages.h"
#include "device/tenant.h"
#include "device/values.h"
#include "device/writes.h"

#include <assert.h>

struct ofs_device {
	struct ofs_device_config config;
	struct ofs_clock clock;
	uint64_t opened_ns;
	struct ofs_storage_names names;
	struct ofs_storage *storage;
	struct ofs_store *store;
	uint32_t stores_left;       /* moves that switched over: identifies a ticket's store */
	uint32_t record_size_bytes; /* payload and trailer's LBA */
	struct ofs_core *core;
	struct ofs_device_tenant *tenants; /* [tenant_max] */
	uint32_t tenant_count;
	struct ofs_ports ports;
	struct ofs_sessions sessions;
	struct ofs_values values;
	struct ofs_marks marks;
	struct ofs_admit admit;
	struct ofs_commands commands;
	struct ofs_waiters waiters;
	struct ofs_paced paced;
	struct ofs_issue issue;
	struct ofs_reads reads;
	struct ofs_writes writes;
	struct ofs_bounces bounces;
	struct ofs_archive archive;
	struct ofs_move move;
	struct ofs_stages stages;
	struct ofs_moments moments;
	struct ofs_device_status status;
	bool draining;
	struct ofs_reactor reactor;
	struct ofs_mailbox mailbox;
};

static inline uint64_t
ofs_device_now_ns(struct ofs_device *device)
{
	return ofs_clock_now_ns(&device->clock);
}

#endif
