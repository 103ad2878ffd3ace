/*
 * nixl/agent.h: one NIXL agent with its UCX back end, as both ends of the fabric use it.
 *
 * Model: an agent's owner serializes the calls on it. A *transfer* is a list of reads or of writes
 * that end together; its memory is registered with the agent, at both ends. Outcomes: 0;
 * -EINPROGRESS; -EPIPE the other end is gone, or refuses; -EIO, -ENOMEM NIXL refuses here.
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
	void *notified;                      /* the map that notifications are taken into */
	char name[OFS_NIXL_NAME_SIZE_BYTES]; /* differs from that of any other agent */
	enum ofs_nixl_memory memory;         /* what it registers and reads into; set after open */
	uint64_t device;                     /* of OFS_NIXL_VRAM: number of the GPU */
};

/*
 * `role` is part of its name. With `progress` a NIXL thread makes progress between calls; without,
 * only calls do. -ENOTSUP: NIXL is not loaded.
 */
int ofs_nixl_agent_open(struct ofs_nixl_agent *agent, const char *role, bool progress);
/* Nothing where nothing was opened. Registrations and transfers have ended before. */
void ofs_nixl_agent_close(struct ofs_nixl_agent *agent);

/* `registration` is what ends it. */
int ofs_nixl_register(struct ofs_nixl_agent *agent, const void *base, uint64_t size_bytes,
	void **registration);
void ofs_nixl_deregister(struct ofs_nixl_agent *agent, void *registration);

/* How it is reached, and what is registered so far; -ENOSPC more than `room_bytes`. */
int ofs_nixl_metadata(struct ofs_nixl_agent *agent, uint8_t *out, size_t room_bytes,
	uint32_t *size_bytes);
/* The same of another agent, whose name it gives. */
int ofs_nixl_meet(struct ofs_nixl_agent *agent, const uint8_t *metadata, size_t size_bytes,
	char name[OFS_NIXL_NAME_SIZE_BYTES]);
void ofs_nixl_forget(struct ofs_nixl_agent *agent, const char *name);

/* A notification to an agent that was met. */
int ofs_nixl_send(struct ofs_nixl_agent *agent, const char *name, const void *data,
	size_t size_bytes);
/* Every notification that has come, in the order of each sender. Returns how many. */
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
/* What is on its way is called back, which not every network can do: its memory stays. */
void ofs_nixl_transfer_close(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer);
int ofs_nixl_transfer_add(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer,
	const void *local, uint64_t remote, uint64_t size_bytes);
/*
 * A request of everything added, from or to `peer`, and behind it the notification `data`, where
 * there is one. It may be posted again when it has ended.
 */
int ofs_nixl_transfer_prepare(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer,
	enum ofs_nixl_op op, const char *peer, const void *data, size_t size_bytes);
/* -EINPROGRESS: `poll` says when it has ended, and moves it on; it is called until then. */
int ofs_nixl_transfer_post(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer);
int ofs_nixl_transfer_poll(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer);
/* Of requests that are used once: prepare and post in a row, and an end forgets the request. */
int ofs_nixl_transfer_run(struct ofs_nixl_agent *agent, struct ofs_nixl_transfer *transfer,
	enum ofs_nixl_op op, const char *peer, const void *data, size_t size_bytes);

#endif
