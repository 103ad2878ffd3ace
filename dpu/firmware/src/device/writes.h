/*
 * device/writes.h: puts of hosts and flushes of dirty slots, to the store.
 *
 * Model: belongs to the reactor's thread. `live` entries are not free; of these `waiting` are in
 * their tenants' lines, `parked` are flushes that failed, and the store has the others. A put
 * counts in `puts_in_flight` of its port as long as it names one. Every dirty slot has one flush,
 * and `dirty` counts them.
 */
#ifndef OFS_DEVICE_WRITES_H
#define OFS_DEVICE_WRITES_H

#include "device.h"
#include "device/fifo.h"
#include "device/values.h"

#include <stdbool.h>

struct ofs_device_session;

enum ofs_write_state {
	OFS_WRITE_FREE = 0,
	OFS_WRITE_PENDING = 1, /* in the waiting line */
	OFS_WRITE_SENT = 2,    /* the store has its memory */
	OFS_WRITE_PARKED = 3   /* a flush that failed, until retry_ns */
};

/* One put of a host, or one flush of a dirty slot. */
struct ofs_write {
	uint32_t state;
	uint32_t kind; /* OFS_IO_PUT or OFS_IO_FLUSH */
	uint32_t port; /* OFS_NONE: no host waits for the answer */
	uint32_t tenant;
	uint32_t chunk; /* FLUSH: its dirty slot keeps the chunk alive */
	uint32_t layer;
	uint32_t slot;   /* FLUSH */
	uint32_t bounce; /* PUT: which private copy; OFS_NONE: still in the host's window */
	bool answered;
	bool cancelled; /* cancelled: not to be sent */
	bool purged;    /* it was sent already; what it wrote is deleted */
	struct ofs_key store_key;
	struct ofs_value_name value; /* of which it is a piece; generation 0: of none */
	uint64_t deadline_ns;
	uint64_t retry_ns;
	uint64_t stage_ns; /* as in a read */
	struct ofs_sqe sqe;
};

struct ofs_writes {
	struct ofs_write *entries;
	uint32_t count;
	struct ofs_fifo free;
	uint32_t waiting; /* in the lines of all tenants */
	uint32_t live;
	uint32_t parked;
	uint32_t dirty; /* slots of all tenants */
};

/* Adds a write of a block; the caller sets slot or port. */
struct ofs_write *ofs_device_queue_write(struct ofs_device *device, uint32_t kind, uint32_t tenant,
	const struct ofs_sqe *sqe, const struct ofs_chunk_info *chunk);
/* The first write of the tenant's line, which must not be empty, has its turn: as for a read. */
int ofs_device_begin_write(struct ofs_device *device, uint32_t tenant, uint64_t now_s);
void ofs_device_write_done(struct ofs_device *device, uint32_t index, int rc);
bool ofs_device_scan_writes(struct ofs_device *device, uint64_t now_ns);
/* The host has exited: its puts need no answer, and its window must not be read. */
void ofs_device_abandon_puts(struct ofs_device *device, uint32_t port);
/* Drops writes that have not begun of blocks that no session refers to; NULL: of all sessions. */
void ofs_device_cancel_writes(struct ofs_device *device, uint32_t tenant,
	const struct ofs_device_session *session);
/* Counts a put that ends with this error. */
void ofs_device_count_refused(struct ofs_device *device, int rc);

#endif
