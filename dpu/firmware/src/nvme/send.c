/* What goes to a host: answers and invitations in the order of their row. */
#include "nvme/internal.h"

#include <assert.h>

void
ofs_nvme_reply(struct ofs_nvme_request *request, uint16_t status)
{
	struct ofs_nvme_connection *connection = request->connection;

	request->status = status;
	request->r2t = false;
	request->state = OFS_NVME_REPLYING;
	if (status != OFS_NVME_OK)
		request->send_bytes = 0;
	ofs_nvme_push(&connection->row, request);
}

void
ofs_nvme_invite(struct ofs_nvme_request *request)
{
	request->r2t = true;
	ofs_nvme_push(&request->connection->row, request);
}

void
ofs_nvme_refuse(struct ofs_nvme_connection *connection, int fes)
{
	if (connection->ending)
		return;
	connection->ending = true;
	/* Behind half a PDU it would be read as the rest of it. */
	if (connection->sent == 0 && connection->plain_bytes == 0)
		connection->plain_bytes = ofs_nvme_pdu_term(connection->plain, fes, connection->head);
}

/* The completion queue entry of a request: result, head of its queue, command, status. */
static void
fill_entry(struct ofs_nvme_connection *connection, const struct ofs_nvme_request *request,
	uint8_t *cqe)
{
	uint16_t head = connection->flow_off ? 0xffff : connection->queue_head;
	uint16_t status = (uint16_t)(request->status << 1);

	memset(cqe, 0, 16);
	memcpy(cqe, &request->result, 8);
	memcpy(cqe + 8, &head, 2);
	memcpy(cqe + 12, request->sqe + 2, 2);
	memcpy(cqe + 14, &status, 2);
}

static void
add(struct ofs_nvme_connection *connection, uint8_t *base, uint32_t bytes)
{
	connection->parts[connection->part_count++] =
		(struct iovec){.iov_base = base, .iov_len = bytes};
}

/* The parts of what is sent next: once for each, since digests cost a pass. */
static void
prepare(struct ofs_nvme_connection *connection, const struct ofs_nvme_request *request)
{
	const struct ofs_nvme_link *link = &connection->link;
	uint16_t command = ofs_nvme_u16(request->sqe + 2);
	uint32_t crc = 0, trail = 0, left = request->send_bytes;
	uint8_t cqe[16];

	if (request->r2t) {
		add(connection, connection->lead,
			ofs_nvme_pdu_r2t(connection->lead, link, command,
				ofs_nvme_tag(connection->nvme, request), request->length));
		return;
	}
	if (left > 0)
		add(connection, connection->lead, ofs_nvme_pdu_data(connection->lead, link, command, left));
	for (uint32_t i = 0; left > 0; i++) {
		uint32_t part = (uint32_t)request->iovecs[i].iov_len;

		part = part < left ? part : left;
		if (link->data_digest)
			crc = ofs_crc32c(crc, request->iovecs[i].iov_base, part);
		add(connection, request->iovecs[i].iov_base, part);
		left -= part;
	}
	if (request->send_bytes > 0 && link->data_digest) {
		memcpy(connection->trail, &crc, 4);
		trail = 4;
	}
	fill_entry(connection, request, cqe);
	trail += ofs_nvme_pdu_response(connection->trail + trail, link, cqe);
	add(connection, connection->trail, trail);
}

uint32_t
ofs_nvme_outgoing(struct ofs_nvme_connection *connection, struct iovec *parts, uint32_t max)
{
	uint64_t skip = connection->sent;
	uint32_t count = 0;

	if (connection->plain_sent < connection->plain_bytes) {
		parts[0] = (struct iovec){.iov_base = connection->plain + connection->plain_sent,
			.iov_len = connection->plain_bytes - connection->plain_sent};
		return 1;
	}
	if (connection->row.head == NULL || connection->ending)
		return 0;
	if (connection->part_count == 0)
		prepare(connection, connection->row.head);
	for (uint32_t i = 0; i < connection->part_count && count < max; i++) {
		struct iovec part = connection->parts[i];

		if (skip >= part.iov_len) {
			skip -= part.iov_len;
			continue;
		}
		parts[count++] = (struct iovec){.iov_base = (uint8_t *)part.iov_base + skip,
			.iov_len = part.iov_len - skip};
		skip = 0;
	}
	return count;
}

void
ofs_nvme_went(struct ofs_nvme_connection *connection, uint64_t bytes)
{
	struct ofs_nvme_request *request;
	uint64_t whole = 0;

	if (connection->plain_sent < connection->plain_bytes) {
		connection->plain_sent += (uint32_t)bytes;
		if (connection->plain_sent == connection->plain_bytes)
			connection->plain_sent = connection->plain_bytes = 0;
		return;
	}
	connection->sent += bytes;
	for (uint32_t i = 0; i < connection->part_count; i++)
		whole += connection->parts[i].iov_len;
	assert(connection->sent <= whole);
	if (connection->sent < whole)
		return;
	connection->sent = connection->part_count = 0;
	request = ofs_nvme_pop(&connection->row);
	if (request->r2t)
		request->r2t = false;
	else
		ofs_nvme_release(connection->nvme, request);
}
