/*
 * device/ports.h: hosts and their sessions.
 *
 * Model: belongs to the reactor's thread; hosts come, go and open sessions by control calls. A
 * session belongs to one port, and through it to one tenant; when a host leaves, its sessions end
 * first. `steps_waiting` and `puts_in_flight` count entries of the waiters and of the writes that
 * name the port.
 */
#ifndef OFS_DEVICE_PORTS_H
#define OFS_DEVICE_PORTS_H

#include "device.h"
#include "device/values.h"
#include "port.h"

#include <stdbool.h>

struct ofs_device_tenant;

struct ofs_device_port {
	struct ofs_port *port;
	uint32_t tenant;
	bool owned; /* the keys of values are hashed under `owner` */
	struct ofs_key owner;
	uint32_t puts_in_flight; /* of this host, since it attached */
	uint32_t steps_waiting;
	bool used;
};

struct ofs_ports {
	struct ofs_device_port *entries; /* [config.port_max] */
	uint32_t count;                  /* entries in use */
};

/* What a session of a value is for; pieces of other values never get into it. */
enum ofs_value_role { OFS_VALUE_NO_ROLE = 0, OFS_VALUE_READS = 1, OFS_VALUE_WRITES = 2 };

struct ofs_device_session {
	bool used;
	enum ofs_value_role role;
	struct ofs_value_name value; /* unless it has no role */
	uint64_t serial;             /* unique */
	uint32_t port;
	uint32_t chunk_count;
	struct ofs_chunk_info *chunks; /* [session_chunk_max] */
};

struct ofs_sessions {
	struct ofs_device_session *entries; /* [session_max], numbered by the core */
	struct ofs_chunk_info *chunks;      /* sum over all entries */
	uint64_t serial;                    /* the last serial given */
	uint32_t *looked;                   /* [session_chunk_max] what an append would find */
};

/* 0, or -EPERM if the session is not one of this port's host. */
int ofs_device_check_session(const struct ofs_device *device, uint32_t port, uint32_t session);
int ofs_device_end_session(struct ofs_device *device, uint32_t session, bool keep);
/* control.c: a session with `count` chunks of one content, told in `values.infos`. */
int ofs_device_begin_session(struct ofs_device *device, uint32_t port,
	const struct ofs_session_config *config, const struct ofs_key *content, uint32_t count,
	uint32_t *session);
/* Deletes the blocks of a chunk, unless a session reads from its store key. */
void ofs_device_delete_named(struct ofs_device *device, uint32_t tenant,
	const struct ofs_key *store_key, uint32_t chunk);
/* Before the tenant's region is unmapped: no host reads it any more. All its ports are closed. */
void ofs_device_unshare(struct ofs_device_tenant *tenant);

#endif
