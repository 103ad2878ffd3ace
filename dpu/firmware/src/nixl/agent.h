/*
 * nixl/agent.h: one NIXL agent with its UCX back end, as both ends of the fabric use it.
 *
 * Model: an agent's owner serializes the calls on it. A *transfer* is a list of reads or of writes
 * that end together; its memory is registered with the agent, at both ends. Outcomes: 0;
 * -EINPROGRESS; -EPIPE the other end has gone away, or refuses; -EIO, -ENOMEM NIXL refuses here.
 */
#ifndef OFS_NIXL_AGENT_H
#define OFS_NIXL_AGENT_H

#include "nixl/api.h"
#include "side.h"

#define OFS_NIXL_NAME_SIZE_BYTES 48

/* Both ends of the fabric, for the table of sides. */
extern const struct ofs_port_ops ofs_port_ops_nixl;
int ofs_fabric_nixl_open(struct ofs_fabric **out, const struct ofs_attachment *attachment,
	char *error, size_t error_size_bytes);

struct ofs_nixl_agent {
	const struct ofs_nixl_api *api;
	void *handle;
	void *backend;
	void *options;                       /* names the back end */
	void *notified;                      /* the map that receives notifications */
	char name[OFS_NIXL_NAME_SIZE_BYTES]; /* differs from every other agent's */
	enum ofs_nixl_memory memory;         /* what it registers and reads into; set after open */
	uint64_t device;                     /* of OFS_NIXL_VRAM: number of the GPU */
};

/*
 * `role` is part of its name. With `progress` a NIXL thread makes progress between calls; without,
 * only calls do. -ENOTSUP: NIXL is not loaded.
 */
int ofs_nixl_agent_open(struct ofs_nixl_agent *agent, const char *role, bool progress);
/* Does nothing if nothing was opened. Registrations and transfers must have ended. */
void ofs_nixl_agent_close(struct ofs_nixl_agent *agent);

/* `registration` is needed to end it. */
int ofs_nixl_register(struct ofs_nixl_agent *agent, const void *base, uint64_t size_bytes,
	void **registration);
void ofs_nixl_deregister(struct ofs_nixl_agent *agent, void *registration);

/* The agent's address, and what is registered so far; -ENOSPC more than `room_bytes`. */
int ofs_nixl_metadata(struct ofs_nixl_agent *agent, uint8_t *out, size_t room_bytes,
	uint32_t *size_bytes);
/* Loads another agent's metadata and returns its name. */
int ofs_nixl_meet(struct ofs_nixl_agent *agent, const uint8_t *metadata, size_t size_bytes,
	char name[OFS_NIXL_NAME_SIZE_BYTES]);
void ofs_nixl_forget(struct ofs_nixl_agent *agent, const char *name);

/* A notification to an agent that was met. */
int ofs_nixl_send(struct ofs_nixl_agent *agent, const char *name, const void *data,
	size_t size_bytes);
/* Takes every notification that has arrived, in the order of each sender. Returns how many. */
int ofs_nixl_take(struct ofs_nixl_agent *agent,
	void (*take)(void *context, const char *from, const uint8_t *data, size_t size_bytes),
	void *context);

struct ofs_nixl_transfer {
	void *local;
	void *remote;
	void *request;  /* NULL: none is prepared */
	uint32_t count; /* of reads or writes added */
	bool flying;
	bool once;
};
int ofs_nixl_transfer_open(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer);
/* Cancels a transfer in flight, which not every network can do: its memory must stay. */
void ofs_nixl_transfer_close(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer);
int ofs_nixl_transfer_add(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer,
	const void *local, uint64_t remote, uint64_t size_bytes);
/*
 * Makes a request of everything added, from or to `peer`, followed by the notification `data`, if
 * there is one. It may be posted again once it has ended.
 */
int ofs_nixl_transfer_prepare(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer,
	enum ofs_nixl_op op, const char *peer, const void *data, size_t size_bytes);
/* -EINPROGRESS: call `poll` until it says that the transfer has ended; it also drives progress. */
int ofs_nixl_transfer_post(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer);
int ofs_nixl_transfer_poll(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer);
/* For requests that are used once: prepares and posts, and frees the request at its end. */
int ofs_nixl_transfer_run(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer,
	enum ofs_nixl_op op, const char *peer, const void *data, size_t size_bytes);

#endif
