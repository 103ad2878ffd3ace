/*
 * fabric/verbs.h: what the files of the host's end of `verbs` share; see verbs.c.
 *
 * Model: all of it belongs to the thread that owns the fabric. Only ofs_verbs_make_room, for as
 * long as an adapter takes to send, and ofs_verbs_sleep wait.
 */
#ifndef OFS_FABRIC_VERBS_H
#define OFS_FABRIC_VERBS_H

#include "fabric/host_port.h"
#include "port/verbs_link.h"

#define OFS_VERBS_READ_BATCH_MAX 64

struct verbs_fabric {
	struct ofs_fabric base;
	struct ofs_host_port port; /* on our copy */
	struct ofs_dma memory;     /* the copy */
	struct ofs_link link;
	struct ibv_pd *pd;
	struct ibv_mr *copy;
	struct ibv_mr *targets[OFS_FABRIC_MEMORIES_MAX]; /* of base.registered, in its order */
	struct ofs_verbs_memory region_there;
	struct ofs_verbs_memory port_there;
	uint32_t generation;
	uint32_t told_head; /* the completion head that the DPU was last told */
	uint32_t flying;    /* commands without their final completion */
	uint64_t spin_ns;
	uint64_t put_last; /* number of the last write out of the caller's memory */
	uint64_t question; /* number of the last empty write that checks on the DPU */
	struct ibv_send_wr reads[OFS_VERBS_READ_BATCH_MAX];
	struct ibv_sge parts[OFS_VERBS_READ_BATCH_MAX][OFS_READ_SPANS_MAX];
	uint32_t read_count; /* gathered, not posted */
};

extern const struct ofs_fabric_ops ofs_fabric_verbs_ops;

uint64_t ofs_verbs_now_ns(struct ofs_fabric *fabric);
/* A write to the place in the DPU's port that corresponds to `part` in the copy. */
struct ibv_send_wr ofs_verbs_write(const struct verbs_fabric *verbs, struct ibv_sge *part);
/* Collects whatever arrived; returns the link's failure, or 0. */
int ofs_verbs_turn(struct verbs_fabric *verbs);
/* The error that ended the connection; 0: none. A DPU that said it closes has not failed. */
int ofs_verbs_ending(const struct verbs_fabric *verbs);
/* Waits until `count` requests fit; returns the link's failure. */
int ofs_verbs_make_room(struct verbs_fabric *verbs, uint32_t count);
/* An empty write: it completes after all before it, or fails if the DPU has gone away. */
int ofs_verbs_post_empty(struct verbs_fabric *verbs);
/* Sleeps on the completion channel for at most `left_ns`; the caller checks what arrived. */
void ofs_verbs_sleep(struct verbs_fabric *verbs, uint64_t left_ns);

#endif
