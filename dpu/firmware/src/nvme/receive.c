/*
 * What comes from a host, byte by byte: the head of a PDU, its digest, its data, their digest. A
 * head that breaks the protocol ends the connection; data that does not match its digest fails its
 * command alone (NVMe/TCP Transport 1.0, 3.5.2).
 */
#include "nvme/internal.h"

#include <errno.h>

#define START 8 /* bytes that every PDU begins with */
#define FABRICS 0x7f
#define CONNECT 0x01
#define SGL_IN_CAPSULE 0x01
#define SGL_TRANSPORT 0x5a

/* ---- a command ---- */

/* All its data is here: it is carried out. */
static void
begin(struct ofs_nvme_request *request)
{
	struct ofs_nvme_connection *connection = request->connection;

	connection->filling_count--;
	if (request->status != OFS_NVME_OK) {
		ofs_nvme_reply(request, request->status);
	} else if (connection->tenant != NULL && request->sqe[0] != FABRICS) {
		ofs_nvme_kv_begin(request);
	} else {
		request->state = OFS_NVME_ASKED;
		ofs_nvme_push(&connection->nvme->asked, request);
	}
}

/* Direction of a command's data, from its opcode: 1 to the controller, 2 to the host. */
static uint32_t
direction_of(const uint8_t *sqe)
{
	return (sqe[0] == FABRICS ? sqe[4] : sqe[0]) & 3;
}

/* What is wrong with the command before its data is here; OFS_NVME_OK: nothing. */
static uint16_t
check(const struct ofs_nvme_connection *connection, const struct ofs_nvme_request *request)
{
	const uint8_t *sqe = request->sqe;
	uint8_t type = sqe[39];
	bool serves = connection->tenant != NULL && sqe[0] != FABRICS;
	uint16_t status = serves ? ofs_nvme_kv_check(request) : OFS_NVME_OK;

	if (request->length > 0 && type != SGL_TRANSPORT && type != SGL_IN_CAPSULE)
		return OFS_NVME_SGL_TYPE | OFS_NVME_FINAL;
	if (!serves && !request->to_host && request->length > OFS_NVME_CHUNK_BYTES)
		return OFS_NVME_SGL_LENGTH | OFS_NVME_FINAL;
	return status;
}

/* Its place in the queue, as the host counts it. */
static void
count(struct ofs_nvme_connection *connection, const uint8_t *sqe)
{
	if (connection->queue_size == 0 && sqe[0] == FABRICS && sqe[4] == CONNECT) {
		connection->queue_size = (uint16_t)(ofs_nvme_u16(sqe + 44) + 1u);
		connection->flow_off = (sqe[46] & 0x4) != 0;
	}
	if (connection->queue_size > 0)
		connection->queue_head = (uint16_t)((connection->queue_head + 1u) % connection->queue_size);
}

/* 0, -EAGAIN: it finds no room now, or enum ofs_nvme_fes. */
static int
take_command(struct ofs_nvme_connection *connection)
{
	const uint8_t *sqe = connection->head + START;
	uint32_t direction = direction_of(sqe), inside = connection->pdu.data_bytes;
	uint32_t length = direction == 0 ? 0 : ofs_nvme_u32(sqe + 32), room;
	struct ofs_nvme_request *request;

	if (inside > 0
		&& (direction != 1 || sqe[39] != SGL_IN_CAPSULE || length != inside
			|| ofs_nvme_u32(sqe + 24) != 0))
		return OFS_FES_HEADER;
	if (inside == 0 && direction == 1 && sqe[39] == SGL_IN_CAPSULE && length > 0)
		return OFS_FES_HEADER;
	request = ofs_nvme_take(connection);
	if (request == NULL)
		return -EAGAIN;
	memcpy(request->sqe, sqe, OFS_NVME_SQE_BYTES);
	request->to_host = direction == 2;
	room = connection->tenant != NULL ? OFS_NVME_VALUE_BYTES_MAX : OFS_NVME_CHUNK_BYTES;
	request->length = request->to_host && length > room ? room : length;
	request->status = check(connection, request);
	if ((request->status == OFS_NVME_OK || inside > 0)
		&& !ofs_nvme_take_chunks(connection->nvme, request, request->length)) {
		ofs_nvme_release(connection->nvme, request);
		return -EAGAIN;
	}
	count(connection, sqe);
	connection->filling_count++;
	if (inside > 0)
		connection->filling = request;
	else if (direction == 1 && length > 0 && request->status == OFS_NVME_OK)
		ofs_nvme_invite(request);
	else
		begin(request);
	return 0;
}

/* 0, or enum ofs_nvme_fes. */
static int
take_data(struct ofs_nvme_connection *connection)
{
	const uint8_t *head = connection->head;
	uint32_t tag = ofs_nvme_u16(head + 10), length = ofs_nvme_u32(head + 16);
	struct ofs_nvme_request *request;

	if (tag >= OFS_NVME_REQUESTS)
		return OFS_FES_HEADER;
	request = &connection->nvme->requests[tag];
	if (request->connection != connection || request->state != OFS_NVME_FILLING || request->r2t
		|| request->to_host || ofs_nvme_u16(head + 8) != ofs_nvme_u16(request->sqe + 2))
		return OFS_FES_HEADER;
	if (ofs_nvme_u32(head + 12) != request->filled || length != connection->pdu.data_bytes
		|| length > request->length - request->filled)
		return OFS_FES_RANGE;
	connection->filling = request;
	return 0;
}

/* ---- bytes ---- */

static void
next(struct ofs_nvme_connection *connection)
{
	connection->head_got = connection->digest_got = 0;
	connection->crc = 0;
	connection->filling = NULL;
}

/* The whole head is here. 0, -EAGAIN, or enum ofs_nvme_fes. */
static int
take_head(struct ofs_nvme_connection *connection)
{
	int rc;

	if (connection->pdu.type == OFS_PDU_ICREQ) {
		rc = ofs_nvme_pdu_init(connection->head, &connection->link, connection->plain);
		connection->plain_bytes = rc == 0 ? 128 : 0;
	} else if (connection->pdu.type == OFS_PDU_H2C_TERM) {
		connection->ending = true;
		return 0;
	} else if (connection->pdu.type == OFS_PDU_COMMAND) {
		rc = take_command(connection);
	} else {
		rc = take_data(connection);
	}
	connection->stalled = rc == -EAGAIN;
	if (rc == 0) {
		connection->data_left = connection->pdu.data_bytes;
		if (connection->data_left == 0)
			next(connection);
	}
	return rc;
}

static void
end_data(struct ofs_nvme_connection *connection)
{
	struct ofs_nvme_request *request = connection->filling;

	if (connection->pdu.data_digest && ofs_nvme_u32(connection->digest) != connection->crc)
		request->status = OFS_NVME_TRANSPORT;
	next(connection);
	if (request->filled == request->length)
		begin(request);
}

uint32_t
ofs_nvme_want(struct ofs_nvme_connection *connection, uint8_t **at)
{
	struct ofs_nvme_request *request = connection->filling;

	if (connection->stalled || connection->ending || connection->closed)
		return 0;
	if (request == NULL) {
		*at = connection->head + connection->head_got;
		return (connection->head_got < START ? START : connection->pdu.head_bytes)
			- connection->head_got;
	}
	if (connection->data_left > 0) {
		struct iovec *part = &request->iovecs[request->filled / OFS_NVME_CHUNK_BYTES];
		uint32_t offset = request->filled % OFS_NVME_CHUNK_BYTES;
		uint32_t left = (uint32_t)part->iov_len - offset;

		*at = (uint8_t *)part->iov_base + offset;
		return left < connection->data_left ? left : connection->data_left;
	}
	*at = connection->digest + connection->digest_got;
	return sizeof(connection->digest) - connection->digest_got;
}

void
ofs_nvme_got(struct ofs_nvme_connection *connection, uint32_t bytes)
{
	struct ofs_nvme_request *request = connection->filling;
	uint8_t *at = NULL;
	int rc = 0;

	connection->heard_ns = connection->nvme->now_ns;
	if (request == NULL) {
		connection->head_got += bytes;
		if (connection->head_got == START)
			rc = ofs_nvme_pdu_parse(connection->head, &connection->link, &connection->pdu);
		else if (connection->head_got > START && connection->head_got == connection->pdu.head_bytes)
			rc = ofs_nvme_pdu_is_whole(connection->head, &connection->link, &connection->pdu)
				? take_head(connection)
				: OFS_FES_DIGEST;
		if (rc > 0)
			ofs_nvme_refuse(connection, rc);
		return;
	}
	if (connection->data_left > 0) {
		(void)ofs_nvme_want(connection, &at);
		if (connection->pdu.data_digest)
			connection->crc = ofs_crc32c(connection->crc, at, bytes);
		connection->data_left -= bytes;
		request->filled += bytes;
		if (connection->data_left > 0 || connection->pdu.data_digest)
			return;
	} else {
		connection->digest_got += bytes;
		if (connection->digest_got < sizeof(connection->digest))
			return;
	}
	end_data(connection);
}

bool
ofs_nvme_resume(struct ofs_nvme_connection *connection)
{
	int rc;

	if (!connection->stalled)
		return false;
	rc = take_head(connection);
	if (rc > 0)
		ofs_nvme_refuse(connection, rc);
	return rc != -EAGAIN;
}
