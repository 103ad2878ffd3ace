/* A reliable queue pair: create, connect, post and poll; see verbs_link.h. */
#include "port/verbs_link.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/*
 * A packet that is not acknowledged after 4.096 us * 2^16 = 0.27 s is resent six times: a peer that
 * does not answer for about two seconds counts as gone. If a receiver is not ready, the sender
 * waits and retries without limit; this ends, since no more is sent than the rings have entries.
 */
#define ACK_TIMEOUT 16
#define RETRY_COUNT 6 /* soft-RoCE takes 7 as unlimited */
#define RETRY_NOT_READY_FOREVER 7
#define NOT_READY_TIMER 12 /* 0.64 ms */
#define HOP_LIMIT 64
#define PACKET_NUMBER_MASK 0xffffffu

static const struct ibv_recv_wr no_receive; /* an immediate value needs no memory */

static enum ibv_mtu
mtu_code(uint32_t mtu_bytes)
{
	enum ibv_mtu code = IBV_MTU_256;

	while (code < IBV_MTU_4096 && (128u << code) < mtu_bytes)
		code++;
	return code;
}

static int
post_receives(struct ofs_link *link, uint32_t count)
{
	struct ibv_recv_wr *bad;
	int rc = 0;

	for (uint32_t i = 0; i < count && rc == 0; i++) {
		struct ibv_recv_wr receive = no_receive;

		rc = -ibv_post_recv(link->qp, &receive, &bad);
	}
	return rc;
}

static int
to_init(struct ofs_link *link, unsigned int remote_access)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
		.port_num = (uint8_t)link->adapter->opened.port,
		.qp_access_flags = remote_access};
	int rc = -ibv_modify_qp(link->qp, &attr,
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	return rc;
}

static int
make(struct ofs_link *link, struct ibv_pd *pd, uint32_t send_depth, uint32_t receive_depth)
{
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = send_depth,
			.max_recv_wr = receive_depth,
			.max_send_sge = OFS_READ_SPANS_MAX,
			.max_recv_sge = 1,
			.max_inline_data = OFS_LINK_INLINE_BYTES}};
	int flags;

	link->channel = ibv_create_comp_channel(link->adapter->context);
	if (link->channel == NULL)
		return -errno;
	flags = fcntl(link->channel->fd, F_GETFL);
	if (flags < 0 || fcntl(link->channel->fd, F_SETFL, flags | O_NONBLOCK) != 0)
		return -errno;
	/* Room for the failure of everything that may be posted. */
	link->cq = ibv_create_cq(link->adapter->context, (int)(send_depth + receive_depth), NULL,
		link->channel, 0);
	if (link->cq == NULL)
		return -errno;
	attr.send_cq = attr.recv_cq = link->cq;
	link->qp = ibv_create_qp(pd, &attr);
	if (link->qp == NULL && errno == EINVAL) { /* the adapter has no inline data */
		attr.cap.max_inline_data = 0;
		link->qp = ibv_create_qp(pd, &attr);
	}
	if (link->qp == NULL)
		return -errno;
	link->inline_max = attr.cap.max_inline_data;
	return 0;
}

int
ofs_link_open(struct ofs_link *link, struct ibv_pd *pd, uint32_t send_depth, uint32_t receive_depth,
	unsigned int remote_access)
{
	int rc;

	*link = (struct ofs_link){.pd = pd, .adapter = ofs_link_adapter_use()};
	if (link->adapter == NULL)
		return -ENODEV;
	if (send_depth > link->adapter->send_depth_max)
		send_depth = link->adapter->send_depth_max;
	link->send_depth = send_depth;
	link->receive_depth = receive_depth;
	if (getrandom(&link->first_packet, sizeof(link->first_packet), 0) < 0)
		link->first_packet = 1;
	link->first_packet &= PACKET_NUMBER_MASK;
	rc = make(link, pd, send_depth, receive_depth);
	if (rc == 0)
		rc = to_init(link, remote_access);
	if (rc != 0)
		ofs_link_close(link);
	return rc;
}

void
ofs_link_close(struct ofs_link *link)
{
	if (link->qp != NULL)
		ibv_destroy_qp(link->qp);
	ofs_link_disarm(link);
	if (link->cq != NULL) {
		ibv_ack_cq_events(link->cq, link->events_unacked);
		ibv_destroy_cq(link->cq);
	}
	if (link->channel != NULL)
		ibv_destroy_comp_channel(link->channel);
	if (link->adapter != NULL)
		ofs_link_adapter_release();
	*link = (struct ofs_link){0};
}

struct ofs_verbs_address
ofs_link_address(const struct ofs_link *link)
{
	const struct ofs_link_adapter *adapter = link->adapter;
	struct ofs_verbs_address address = {.queue_pair = link->qp->qp_num,
		.first_packet = link->first_packet,
		.mtu_bytes = adapter->opened.mtu_bytes,
		.lid = (uint16_t)adapter->lid,
		.reads_max = (uint16_t)adapter->serves_reads_max};

	memcpy(address.gid, adapter->opened.gid, sizeof(address.gid));
	return address;
}

static int
to_ready(struct ofs_link *link, const struct ofs_verbs_address *peer)
{
	const struct ofs_link_adapter *adapter = link->adapter;
	uint32_t asks_max =
		adapter->asks_reads_max < peer->reads_max ? adapter->asks_reads_max : peer->reads_max;
	uint32_t mtu_bytes =
		adapter->opened.mtu_bytes < peer->mtu_bytes ? adapter->opened.mtu_bytes : peer->mtu_bytes;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu_code(mtu_bytes),
		.dest_qp_num = peer->queue_pair,
		.rq_psn = peer->first_packet,
		.max_dest_rd_atomic = (uint8_t)adapter->serves_reads_max,
		.min_rnr_timer = NOT_READY_TIMER,
		.ah_attr = {.is_global = 1,
			.dlid = peer->lid,
			.port_num = (uint8_t)adapter->opened.port,
			.grh = {.sgid_index = (uint8_t)adapter->opened.gid_index, .hop_limit = HOP_LIMIT}}};

	memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, sizeof(peer->gid));
	if (ibv_modify_qp(link->qp, &attr,
			IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
				| IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
		!= 0) {
		return -EHOSTUNREACH;
	}
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
		.timeout = ACK_TIMEOUT,
		.retry_cnt = RETRY_COUNT,
		.rnr_retry = RETRY_NOT_READY_FOREVER,
		.sq_psn = link->first_packet,
		.max_rd_atomic = (uint8_t)asks_max};
	return -ibv_modify_qp(link->qp, &attr,
		IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
			| IBV_QP_MAX_QP_RD_ATOMIC);
}

int
ofs_link_connect(struct ofs_link *link, const struct ofs_verbs_address *peer,
	unsigned int remote_access)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	struct ibv_wc left[OFS_LINK_POLL_MAX];
	int rc;

	if (peer->queue_pair > PACKET_NUMBER_MASK || peer->first_packet > PACKET_NUMBER_MASK
		|| peer->mtu_bytes < 256 || peer->mtu_bytes > 4096 || peer->reads_max == 0)
		return -EINVAL;
	rc = -ibv_modify_qp(link->qp, &reset, IBV_QP_STATE);
	/* Discards what is left of the last connection. */
	while (ibv_poll_cq(link->cq, OFS_LINK_POLL_MAX, left) > 0)
		;
	link->posted = link->ended = link->signalled_last = 0;
	if (rc == 0)
		rc = to_init(link, remote_access);
	if (rc == 0)
		rc = post_receives(link, link->receive_depth);
	if (rc == 0)
		rc = to_ready(link, peer);
	link->rc = rc;
	return rc;
}

int
ofs_link_post(struct ofs_link *link, struct ibv_send_wr *requests, uint32_t count, int signal)
{
	struct ibv_send_wr *bad;
	int rc;

	if (link->rc != 0)
		return link->rc;
	if (count > ofs_link_room(link))
		return -EAGAIN;
	for (uint32_t i = 0; i < count; i++) {
		requests[i].wr_id = link->posted + i + 1;
		requests[i].next = i + 1 < count ? &requests[i + 1] : NULL;
	}
	if (signal || link->posted + count - link->signalled_last >= link->send_depth / 4) {
		requests[count - 1].send_flags |= IBV_SEND_SIGNALED;
		link->signalled_last = link->posted + count;
	}
	rc = -ibv_post_send(link->qp, requests, &bad);
	if (rc == 0)
		link->posted += count;
	else /* how much of the chain was posted does not matter: this is a bug of ours */
		ofs_link_fail(link, rc);
	return rc;
}

/* The errno for the status of a work request; see fabric.h, `wait`. */
static int
meaning(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_SUCCESS:
		return 0;
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
	case IBV_WC_REM_ABORT_ERR:
		return -EHOSTUNREACH;
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
		return -EACCES;
	case IBV_WC_WR_FLUSH_ERR:
		return -EPIPE;
	default:
		return -EIO;
	}
}

uint32_t
ofs_link_poll(struct ofs_link *link, uint32_t *values)
{
	struct ibv_wc ended[OFS_LINK_POLL_MAX];
	int count = ibv_poll_cq(link->cq, OFS_LINK_POLL_MAX, ended);
	uint32_t value_count = 0;

	for (int i = 0; i < count; i++) {
		if (link->rc != 0)
			break;
		if (ended[i].status != IBV_WC_SUCCESS)
			ofs_link_fail(link, meaning(ended[i].status));
		else if (ended[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM)
			values[value_count++] = ntohl(ended[i].imm_data);
		else if (ended[i].opcode == IBV_WC_RECV)
			ofs_link_fail(link, -EPROTO); /* our own code never sends this */
		else
			link->ended = ended[i].wr_id;
	}
	if (value_count > 0 && link->rc == 0) {
		int rc = post_receives(link, value_count);

		if (rc != 0)
			ofs_link_fail(link, rc);
	}
	return value_count;
}

int
ofs_link_arm(struct ofs_link *link, int any)
{
	return -ibv_req_notify_cq(link->cq, !any);
}

void
ofs_link_disarm(struct ofs_link *link)
{
	struct ibv_cq *cq;
	void *context;

	while (link->channel != NULL && ibv_get_cq_event(link->channel, &cq, &context) == 0)
		if (++link->events_unacked == 64) {
			ibv_ack_cq_events(link->cq, link->events_unacked);
			link->events_unacked = 0;
		}
}

void
ofs_link_fail(struct ofs_link *link, int rc)
{
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};

	if (link->rc != 0)
		return;
	link->rc = rc;
	(void)ibv_modify_qp(link->qp, &error, IBV_QP_STATE);
}
