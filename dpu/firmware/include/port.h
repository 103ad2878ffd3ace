/*
 * port.h: seam 3 at the DPU's end, how the reactor takes a host's commands and answers them.
 *
 * Model: a host that attaches gets a port. Its commands are in a submission ring in the DPU's own
 * memory, laid out as in region.h, whether written by stores of a host on the same machine or by
 * RDMA. The reactor's thread owns the port and calls only the functions here; none blocks, each
 * does a bounded amount of work, and nothing that a host writes breaks a port. One `complete`
 * reports the outcome of a command; how it reaches the host is up to the side.
 *
 * A tenant's region is shared with each side once, before the first port of that side, and unshared
 * before it is unmapped: an RDMA side registers it, under the tenant's protection domain, so that
 * one tenant's key gives no access to another's memory.
 *
 * Sides: shm (a mapping and a socket pair), sim (in this process, in virtual time, with seeded
 * faults), memory (in this process: the commented skeleton), and where their library is found nixl
 * and verbs (RDMA; both come by side.h). One contract suite runs over all, together with the host's
 * end of each (fabric.h).
 */
#ifndef OFS_PORT_H
#define OFS_PORT_H

#include "attach.h"
#include "region.h"

struct ofs_clock;
struct ofs_port;

/* cdef: order 6 */
/* cdef: begin */
/* sim: seeded faults of a port. */
struct ofs_port_sim_config {
	uint64_t seed;
	uint64_t delay_ns_max;         /* longest delay of an answer; answers may overtake others */
	uint32_t late_per_million;     /* polls that miss a command in the ring */
	uint32_t nonsense_per_million; /* polls that return a command which no host sent */
};
/* cdef: end */

struct ofs_port_config {
	uint32_t tenant;
	uint32_t entry_count; /* power of two */
	uint32_t demand_max;
	uint32_t score_max;
	uint32_t put_slot_count;
	uint32_t put_stride_bytes; /* a whole record: payload and trailer's LBA */
	uint64_t boot_id;
	struct ofs_dma_config memory;
	struct ofs_clock *clock; /* the device's; sim: where delays are counted; NULL none */
	struct ofs_port_sim_config sim;
};

/* A command copied out of the ring and checked: none of its pointers leads into shared memory. */
struct ofs_command {
	struct ofs_sqe sqe;
	uint32_t *ordinals;         /* [demand_max], owned by the caller */
	uint32_t *granules;         /* [demand_max], of a STEP with OFS_STEP_GRANULES */
	uint8_t *seen;              /* [demand_max] */
	uint16_t *scores;           /* [score_max] */
	struct ofs_guess *guesses;  /* [demand_max] */
	struct ofs_value_ask *asks; /* [demand_max / 2] */
};

/* First member of a side's data on a region that it shares. */
struct ofs_share {
	const struct ofs_port_ops *ops;
	struct ofs_region *region;
	uint32_t port_count;
};

struct ofs_port_ops {
	const char *name;
	/* Make a region readable for hosts of this side: open, register. 0 or -errno. */
	int (*share)(struct ofs_share **out, struct ofs_region *region);
	/* After this no host can read it. */
	void (*unshare)(struct ofs_share *share);
	/* Everything that allocates or can be refused happens here. */
	int (*open)(struct ofs_port **out, const struct ofs_port_config *config,
		struct ofs_share *share);
	/* Tells the host that the port is closed, and wakes it if it sleeps. */
	void (*close)(struct ofs_port *port);
	/* What the host needs to open its end; it closes the descriptors. May be called again. */
	int (*export)(const struct ofs_port *port, struct ofs_attachment *attachment);
	/*
	 * Takes the blob that the host's end exports; NULL: hosts of this side export none. It may take
	 * as long as resolving an address, so it alone is called from outside the owner's thread, never
	 * while the port is being opened or closed. -EPROTO, -EINVAL not such a blob; -ESTALE an answer
	 * to an export from before the last connection; -EBUSY the last host is still connected;
	 * -EHOSTUNREACH no route.
	 */
	int (*connect)(struct ofs_port *port, const struct ofs_attachment *answer);
	/*
	 * Ends the host's connection, even if it looks alive; `export` and `connect` make another.
	 * NULL: hosts of this side have none. -EAGAIN: commands are still in progress, and their
	 * answers would reach the next connection; call again.
	 */
	int (*disconnect)(struct ofs_port *port);
	/*
	 * 1: a command; 0: idle, or the host does not take its completions; -EPROTO: the host wrote
	 * nonsense (answered with a CQE of -EPROTO or -EINVAL; the port stays usable). Every 1 must be
	 * answered by one `complete`.
	 */
	int (*poll)(struct ofs_port *port, struct ofs_command *command);
	/*
	 * Answer with the results [first, count) of `results`, for the payload area named in the sqe,
	 * and wake the host if it sleeps. There is always room for one final answer to each command; an
	 * earlier one, with rc -EINPROGRESS, is refused with -EAGAIN if there is no room. -EINVAL: an
	 * index or count out of range. After either nothing has been done.
	 */
	int (*complete)(struct ofs_port *port, const struct ofs_cqe *cqe,
		const struct ofs_result *results);
	/* A record written by the host, which may change at any time. NULL: out of range. */
	void *(*put_slot)(const struct ofs_port *port, uint32_t put_slot);
	/*
	 * Announce sleep. 1: do not sleep: a submission has arrived, or this side cannot wake a sleeper
	 * and must be polled.
	 */
	int (*sleep)(struct ofs_port *port);
	/* End of sleep. */
	void (*wake)(struct ofs_port *port);
	/* Descriptor that becomes readable when the host wakes the reactor; -1: none. */
	int (*wake_fd)(const struct ofs_port *port);
};

/* The DPU's view of the rings of one port; every side has them, in memory of its choice. */
struct ofs_rings {
	struct ofs_port_header header; /* our own copy: the host can write the one in the memory */
	uint8_t *base;
	struct ofs_port_words *words;
	struct ofs_sqe *submissions;
	struct ofs_cqe *completions;
	uint8_t *payloads;
	uint8_t *puts;
	uint32_t submission_head; /* our own words are never read back from the memory */
	uint32_t completion_tail;
	uint32_t completion_head;   /* the host's, when it was last looked at */
	uint32_t outstanding_count; /* commands handed out by poll and not completed */
	uint64_t nonsense_count;    /* commands and tails refused */
};

/* First member of every side's own structure. */
struct ofs_port {
	const struct ofs_port_ops *ops;
	struct ofs_share *share;
	struct ofs_rings rings;
};

/* The side of this name; NULL none. `ofs_port_side` lists them, NULL after the last. */
const struct ofs_port_ops *ofs_port_find(const char *name);
const struct ofs_port_ops *ofs_port_side(uint32_t index);
#define OFS_PORT_SIDES_MAX 8

int ofs_share_open(struct ofs_share **out, const struct ofs_port_ops *ops,
	struct ofs_region *region);
/* All its ports must be closed. NULL is allowed. */
void ofs_share_close(struct ofs_share *share);
/* A port of the share's side. -EINVAL a number out of range, -ENOMEM, -EMFILE. */
int ofs_port_open(struct ofs_port **out, const struct ofs_port_config *config,
	struct ofs_share *share);
void ofs_port_close(struct ofs_port *port);

static inline int
ofs_port_export(const struct ofs_port *port, struct ofs_attachment *attachment)
{
	return port->ops->export(port, attachment);
}

static inline int
ofs_port_connect(struct ofs_port *port, const struct ofs_attachment *answer)
{
	return port->ops->connect == NULL ? -EINVAL : port->ops->connect(port, answer);
}

static inline int
ofs_port_poll(struct ofs_port *port, struct ofs_command *command)
{
	return port->ops->poll(port, command);
}

static inline int
ofs_port_complete(struct ofs_port *port, const struct ofs_cqe *cqe,
	const struct ofs_result *results)
{
	return port->ops->complete(port, cqe, results);
}

static inline void *
ofs_port_put_slot(const struct ofs_port *port, uint32_t put_slot)
{
	return port->ops->put_slot(port, put_slot);
}

static inline int
ofs_port_sleep(struct ofs_port *port)
{
	return port->ops->sleep(port);
}

static inline void
ofs_port_wake(struct ofs_port *port)
{
	port->ops->wake(port);
}

static inline int
ofs_port_wake_fd(const struct ofs_port *port)
{
	return port->ops->wake_fd(port);
}

static inline uint64_t
ofs_port_nonsense_count(const struct ofs_port *port)
{
	return port->rings.nonsense_count;
}

#endif
