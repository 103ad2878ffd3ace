/*
 * port.h: seam 3 at the DPU's end, how the reactor takes a host's commands and answers them.
 *
 * Model: a host that attaches gets a port. Its commands stand in a submission ring in the DPU's own
 * memory, laid out as region.h says, however they got there: stores of a host on the same machine,
 * or RDMA writes. The reactor's thread owns the port and calls nothing but the functions here; none
 * blocks, each does a bounded amount of work, and whatever a host writes, a port lives on. What
 * became of a command is reported by one `complete`; how it reaches the host is the side's own
 * affair.
 *
 * A tenant's region is shared with each side once, before the first port of that side, and taken
 * back before it is unmapped: an RDMA side registers it there, under a protection domain of the
 * tenant, so that one tenant's key opens nothing of another's.
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
	uint64_t delay_ns_max;         /* answers are held back by up to so much, and overtake others */
	uint32_t late_per_million;     /* looks at the ring that do not see what is there */
	uint32_t nonsense_per_million; /* looks that find a command which no host sent */
};
/* cdef: end */

struct ofs_port_config {
	uint32_t tenant;
	uint32_t entry_count; /* power of two */
	uint32_t demand_max;
	uint32_t score_max;
	uint32_t put_slot_count;
	uint32_t put_stride_bytes; /* a whole record: payload and trailer's LBA */
	uint64_t epoch;
	struct ofs_dma_config memory;
	struct ofs_clock *clock; /* the device's; sim: where delays are counted; NULL none */
	struct ofs_port_sim_config sim;
};

/* A command copied out of the ring and checked: no pointer of it leads into shared memory. */
struct ofs_command {
	struct ofs_sqe sqe;
	uint32_t *ordinals;        /* [demand_max], owned by the caller */
	uint32_t *granules;        /* [demand_max], of a STEP with OFS_STEP_GRANULES */
	uint8_t *seen;             /* [demand_max] */
	uint16_t *scores;          /* [score_max] */
	struct ofs_guess *guesses; /* [demand_max] */
};

/* First member of what a side keeps of a region that it shares. */
struct ofs_share {
	const struct ofs_port_ops *ops;
	struct ofs_region *region;
	uint32_t port_count;
};

struct ofs_port_ops {
	const char *name;
	/* Make a region readable for hosts of this side: open, register. 0 or -errno. */
	int (*share)(struct ofs_share **out, struct ofs_region *region);
	/* No host can read it from here on. */
	void (*unshare)(struct ofs_share *share);
	/* Everything that allocates or can be refused happens here. */
	int (*open)(struct ofs_port **out, const struct ofs_port_config *config,
		struct ofs_share *share);
	/* The host learns that the port is closed, also while it sleeps. */
	void (*close)(struct ofs_port *port);
	/* What the host needs to open its end; it closes the descriptors. May be called again. */
	int (*export)(const struct ofs_port *port, struct ofs_attachment *attachment);
	/*
	 * The host's own blob, where its end exports one; NULL: hosts of this side have none. It may
	 * take as long as an address takes to be resolved, so it is the one function that is called
	 * beside the owner's thread, and never while the port is being opened or closed. -EPROTO,
	 * -EINVAL no such blob; -ESTALE an answer to an export of before the last connection; -EBUSY
	 * the last host has not left; -EHOSTUNREACH no way there.
	 */
	int (*connect)(struct ofs_port *port, const struct ofs_attachment *answer);
	/*
	 * The host's connection is over, whatever it looks like from here: `export` and `connect` make
	 * another. NULL: hosts of this side have none. -EAGAIN: what the host asked for is still being
	 * worked on, and its answer would reach the next connection; call again.
	 */
	int (*disconnect)(struct ofs_port *port);
	/*
	 * 1: a command; 0: idle, or a host that does not take its completions; -EPROTO: the host wrote
	 * nonsense (answered with a CQE of -EPROTO or -EINVAL; the port lives on). Every 1 is to be
	 * answered by one `complete`.
	 */
	int (*poll)(struct ofs_port *port, struct ofs_command *command);
	/*
	 * Answer with the results [first, count) of `results`, for the payload area named in the sqe,
	 * and wake the host if it sleeps. There is room by construction for one answer to each command;
	 * those before it, whose rc is -EINPROGRESS, are refused with -EAGAIN where there is none, and
	 * nothing is done. -EINVAL: an index or count out of range, nothing done.
	 */
	int (*complete)(struct ofs_port *port, const struct ofs_cqe *cqe,
		const struct ofs_result *results);
	/* A record that the host put; it may change at any time. NULL out of range. */
	void *(*put_slot)(const struct ofs_port *port, uint32_t put_slot);
	/*
	 * Announce sleep. 1: do not sleep, a submission came in between, or this side cannot wake a
	 * sleeper and is to be polled.
	 */
	int (*sleep)(struct ofs_port *port);
	/* The reactor is awake again. */
	void (*wake)(struct ofs_port *port);
	/* What becomes readable when the host wants a sleeper; -1: nothing to wait on. */
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
	uint32_t submission_head; /* our own words are never read back out of the memory */
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

/* The side of this name; NULL none. `ofs_port_side` gives them in order, NULL behind the last. */
const struct ofs_port_ops *ofs_port_find(const char *name);
const struct ofs_port_ops *ofs_port_side(uint32_t index);
#define OFS_PORT_SIDES_MAX 8

int ofs_share_open(struct ofs_share **out, const struct ofs_port_ops *ops,
	struct ofs_region *region);
/* All its ports are closed: anything else is our own mistake. NULL is allowed. */
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
