/*
 * port/verbs_link.h: one reliable queue pair with its completion queue, for both ends of `verbs`.
 *
 * Model: a link belongs to one thread; only ofs_link_connect may run on another, while the link is
 * not connected. Work requests are posted in chains; at most the last of a chain is signalled,
 * often enough to know how full the send queue is. ofs_link_poll returns immediate values that
 * arrived and counts finished sends; a failure sticks: `rc` is the first, and nothing is posted
 * after it. The queue pair then no longer accesses memory.
 *
 * There is one adapter per process, opened once (verbs.h), under a lock.
 */
#ifndef OFS_PORT_VERBS_LINK_H
#define OFS_PORT_VERBS_LINK_H

#include "port/verbs_blob.h"
#include "side.h"
#include "verbs.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#define OFS_LINK_POLL_MAX 32
#define OFS_LINK_INLINE_BYTES 64 /* commands and completions up to this size are sent inline */

struct ofs_link_adapter {
	struct ibv_context *context;
	struct ofs_verbs_adapter opened;
	uint32_t lid;
	uint32_t message_size_bytes_max;
	uint32_t send_depth_max;
	uint32_t serves_reads_max; /* of one queue pair */
	uint32_t asks_reads_max;
};

struct ofs_link {
	const struct ofs_link_adapter *adapter; /* NULL: not open */
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_pd *pd; /* set by the opener */
	uint64_t posted;   /* work requests since connect */
	uint64_t ended;    /* of them, those known to have ended */
	uint64_t signalled_last;
	uint32_t send_depth;
	uint32_t receive_depth;
	uint32_t inline_max;
	uint32_t first_packet;
	uint32_t events_unacked;
	int rc;
};

/*
 * Immediate values. The host's is the tail of the submission ring, or its farewell; the DPU's the
 * tail of the completion ring and the head of the other. 16 bits of a growing number are enough,
 * since no ring has that many entries.
 */
#define OFS_VERBS_FAREWELL 0xffff0000u
#define OFS_VERBS_NEWS(tail, head) ((uint32_t)(uint16_t)(head) << 16 | (uint16_t)(tail))
_Static_assert(2 * OFS_PORT_ENTRIES_MAX < 1u << 16, "a ring fits its half of the value");

/* The number whose lower 16 bits arrived, continued from a known one. */
static inline uint32_t
ofs_verbs_wider(uint32_t known, uint16_t came)
{
	return known + (uint16_t)(came - (uint16_t)known);
}

/* The host's end (fabric/verbs.c), for the table of the side. */
int ofs_fabric_verbs_open(struct ofs_fabric **out, const struct ofs_attachment *attachment,
	char *error, size_t error_size_bytes);

/* ---- the adapter (verbs_adapter.c) ---- */
/* NULL before ofs_verbs_open. The adapter stays unchanged until it is released as often. */
const struct ofs_link_adapter *ofs_link_adapter_use(void);
void ofs_link_adapter_release(void);
const struct ofs_services *ofs_link_services(void);

/* ---- one queue pair (verbs_link.c) ---- */
/*
 * Creates a link, ready to be connected. `remote_access`: IBV_ACCESS_REMOTE_* that the other end is
 * granted. -ENODEV no adapter, -ENOMEM, -errno.
 */
int ofs_link_open(struct ofs_link *link, struct ibv_pd *pd, uint32_t send_depth,
	uint32_t receive_depth, unsigned int remote_access);
/* From any state that open can leave; NULL members are skipped. */
void ofs_link_close(struct ofs_link *link);
/* What the other end needs to connect. */
struct ofs_verbs_address ofs_link_address(const struct ofs_link *link);
/* From any state; work in flight is forgotten. -EINVAL invalid peer, -EHOSTUNREACH no route. */
int ofs_link_connect(struct ofs_link *link, const struct ofs_verbs_address *peer,
	unsigned int remote_access);
/*
 * Posts a chain of `count` requests in an array; the last is signalled if `signal`, or when one is
 * due. 0; -EAGAIN no room, nothing posted; or the link's failure.
 */
int ofs_link_post(struct ofs_link *link, struct ibv_send_wr *requests, uint32_t count, int signal);
/* Collects what has ended, a bounded number; returns the immediate values that arrived, at most
 * _POLL_MAX. */
uint32_t ofs_link_poll(struct ofs_link *link, uint32_t *values);
/*
 * Makes the channel readable on the next immediate value or failure, or with `any` on the next
 * completion of any kind. Poll once more afterwards: earlier completions do not trigger it.
 */
int ofs_link_arm(struct ofs_link *link, int any);
/* Takes the events that made it readable. */
void ofs_link_disarm(struct ofs_link *link);
/* Nothing is sent or received any more, and memory is no longer accessed: `rc` is the reason. */
void ofs_link_fail(struct ofs_link *link, int rc);

static inline int
ofs_link_wait_fd(const struct ofs_link *link)
{
	return link->channel == NULL ? -1 : link->channel->fd;
}

static inline uint32_t
ofs_link_room(const struct ofs_link *link)
{
	return link->send_depth - (uint32_t)(link->posted - link->ended);
}

/* A part of registered memory, for a work request. */
static inline struct ibv_sge
ofs_link_sge(const void *base, uint32_t size_bytes, uint32_t lkey)
{
	return (struct ibv_sge){.addr = (uintptr_t)base, .length = size_bytes, .lkey = lkey};
}

#endif
