/*
 * port/verbs_link.h: one reliable queue pair with its completion queue, for both ends of `verbs`.
 *
 * Model: a link belongs to one thread; only ofs_link_connect may run on another, while the link is
 * not connected. Work requests are posted in chains; of a chain at most the last is signalled, and
 * that often that the send queue can be taken stock of. What arrives with an immediate value, and
 * what has been sent, comes out of ofs_link_poll; a failure sticks: `rc` is the first, and nothing
 * is posted after it. The queue pair then does not touch memory any more.
 *
 * The adapter is the process's, opened once (verbs.h), under a lock.
 */
#ifndef OFS_PORT_VERBS_LINK_H
#define OFS_PORT_VERBS_LINK_H

#include "port/verbs_blob.h"
#include "side.h"
#include "verbs.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#define OFS_LINK_POLL_MAX 32
#define OFS_LINK_INLINE_BYTES 64 /* commands and completions go without a read of our memory */

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
	struct ibv_pd *pd; /* the opener's */
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
 * tail of the completion ring and the head of the other. 16 bits of a number that grows are enough,
 * since no ring has as many entries.
 */
#define OFS_VERBS_FAREWELL 0xffff0000u
#define OFS_VERBS_NEWS(tail, head) ((uint32_t)(uint16_t)(head) << 16 | (uint16_t)(tail))
_Static_assert(2 * OFS_PORT_ENTRIES_MAX < 1u << 16, "a ring fits its half of the value");

/* The number whose lower 16 bits came, counted on from one that is known. */
static inline uint32_t
ofs_verbs_wider(uint32_t known, uint16_t came)
{
	return known + (uint16_t)(came - (uint16_t)known);
}

/* The host's end (fabric/verbs.c), for the table of the side. */
int ofs_fabric_verbs_open(struct ofs_fabric **out, const struct ofs_attachment *attachment,
	char *error, size_t error_size_bytes);

/* ---- the adapter (verbs_adapter.c) ---- */
/* NULL before ofs_verbs_open. The adapter stays as it is until it is released as often. */
const struct ofs_link_adapter *ofs_link_adapter_use(void);
void ofs_link_adapter_release(void);
const struct ofs_services *ofs_link_services(void);

/* ---- one queue pair (verbs_link.c) ---- */
/*
 * Ready to be connected. `remote_access`: IBV_ACCESS_REMOTE_* that the other side is granted.
 * -ENODEV no adapter, -ENOMEM, -errno.
 */
int ofs_link_open(struct ofs_link *link, struct ibv_pd *pd, uint32_t send_depth,
	uint32_t receive_depth, unsigned int remote_access);
/* In any state that open can leave; NULL members are passed over. */
void ofs_link_close(struct ofs_link *link);
/* What the other side needs. */
struct ofs_verbs_address ofs_link_address(const struct ofs_link *link);
/* From any state; what was under way is forgotten. -EINVAL it cannot be, -EHOSTUNREACH no way. */
int ofs_link_connect(struct ofs_link *link, const struct ofs_verbs_address *peer,
	unsigned int remote_access);
/*
 * A chain of `count` requests that stand one behind the other; the last is signalled if `signal`,
 * or where it is time. 0; -EAGAIN no room, nothing posted; or the link's failure.
 */
int ofs_link_post(struct ofs_link *link, struct ibv_send_wr *requests, uint32_t count, int signal);
/* Takes what has ended, a bounded number; the immediate values that came, at most _POLL_MAX. */
uint32_t ofs_link_poll(struct ofs_link *link, uint32_t *values);
/*
 * The next immediate value or failure, or with `any` whatever ends next, makes the channel
 * readable. Poll once more behind it: what ended before does not.
 */
int ofs_link_arm(struct ofs_link *link, int any);
/* Takes what made it readable. */
void ofs_link_disarm(struct ofs_link *link);
/* Nothing is sent or received any more, and memory is left alone: `rc` is why. */
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

/* One part of memory that is registered, for a work request. */
static inline struct ibv_sge
ofs_link_sge(const void *base, uint32_t size_bytes, uint32_t lkey)
{
	return (struct ibv_sge){.addr = (uintptr_t)base, .length = size_bytes, .lkey = lkey};
}

#endif
