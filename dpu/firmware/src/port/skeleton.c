/*
 * The template for a new side of the port seam. It works: it is the `memory` port, whose host is in
 * this process, and the DPU's end of the `memory` fabric (fabric/skeleton.c).
 *
 * To add a side, copy this file; keep the functions and their order; name its table in internal.h
 * and in port.c, define its blob in attach.h, and write the host's end. The contract suite
 * (test/test_contract_port.c, tests/contract/test_fabric.py) then runs over it too. The comment
 * above each function says what it must do, and what an RDMA side would do instead. The rings are
 * the same for all: commands arrive in DPU memory as region.h lays it out, and ofs_rings_* reads
 * them.
 */
#include "port/internal.h"
#include "region/shared.h"

#include <stdlib.h>

/* First member: the base, whose rings ofs_rings_* fill in. The side's own fields follow. */
struct skeleton_port {
	struct ofs_port base;
	struct ofs_local *local;
};

/*
 * Called once for each tenant. RDMA: a protection domain of the tenant, with its region registered
 * there for remote reads only. Its key opens this region and nothing else.
 */
static int
skeleton_share(struct ofs_share **out, struct ofs_region *region)
{
	(void)region;
	*out = calloc(1, sizeof(**out));
	return *out == NULL ? -ENOMEM : 0;
}

/*
 * Called before the region is unmapped. RDMA: deregister, so that no read reaches what is mapped
 * there next.
 */
static void
skeleton_unshare(struct ofs_share *share)
{
	free(share);
}

/*
 * Memory for the rings, zeroed, laid out by ofs_rings_place. RDMA: registered for remote writes; a
 * queue pair; answers are sent from there, where the rings of every side are.
 */
static int
skeleton_open(struct ofs_port **out, const struct ofs_port_config *config, struct ofs_share *share)
{
	struct skeleton_port *skeleton = calloc(1, sizeof(*skeleton));
	int rc = skeleton == NULL ? -ENOMEM : ofs_rings_init(&skeleton->base.rings, config);

	if (rc == 0) {
		rc = ofs_local_open(&skeleton->local, share->region, &config->memory,
			skeleton->base.rings.header.size_bytes);
	}
	if (rc != 0) {
		free(skeleton);
		return rc;
	}
	ofs_rings_place(&skeleton->base.rings, skeleton->local->memory.base,
		skeleton->local->memory.size_bytes);
	*out = &skeleton->base;
	return 0;
}

/* The host must learn of it, even while it sleeps. RDMA: the disconnect. */
static void
skeleton_close(struct ofs_port *port)
{
	struct skeleton_port *skeleton = (struct skeleton_port *)port;

	ofs_word_store_ordered(&port->rings.words->closed, 1);
	ofs_local_withdraw(skeleton->local);
	free(skeleton);
}

/*
 * What the host's end needs. RDMA: number and address of the queue pair, address and key of region
 * and rings; no descriptors.
 */
static int
skeleton_export(const struct ofs_port *port, struct ofs_attachment *attachment)
{
	ofs_local_write_blob(((const struct skeleton_port *)port)->local, "memory", attachment);
	return 0;
}

/* No `connect`: hosts of this side send nothing back. RDMA: connect the queue pair. */

/* The next command. RDMA: the same rings, which the host writes remotely. */
static int
skeleton_poll(struct ofs_port *port, struct ofs_command *command)
{
	return ofs_rings_poll(&port->rings, command);
}

/* RDMA: results and completion are written into the host's memory, in this order. */
static int
skeleton_complete(struct ofs_port *port, const struct ofs_cqe *cqe,
	const struct ofs_result *results)
{
	int rc = ofs_rings_write_results(&port->rings, cqe, results);

	if (rc == 0)
		ofs_rings_push_answer(&port->rings, cqe);
	return rc;
}

/* RDMA: the put window is in the registered rings too. */
static void *
skeleton_put_slot(const struct ofs_port *port, uint32_t put_slot)
{
	return ofs_rings_put_slot(&port->rings, put_slot);
}

/* 1: this side must be polled. RDMA: arm the completion channel, then poll once more. */
static int
skeleton_sleep(struct ofs_port *port)
{
	(void)port;
	return 1;
}

/* RDMA: take the events of the completion channel. */
static void
skeleton_wake(struct ofs_port *port)
{
	(void)port;
}

/* RDMA: the completion channel's descriptor. */
static int
skeleton_wake_fd(const struct ofs_port *port)
{
	(void)port;
	return -1;
}

const struct ofs_port_ops ofs_port_ops_memory = {
	.name = "memory",
	.share = skeleton_share,
	.unshare = skeleton_unshare,
	.open = skeleton_open,
	.close = skeleton_close,
	.export = skeleton_export,
	.poll = skeleton_poll,
	.complete = skeleton_complete,
	.put_slot = skeleton_put_slot,
	.sleep = skeleton_sleep,
	.wake = skeleton_wake,
	.wake_fd = skeleton_wake_fd,
};
