/*
 * Hosts of NVMe/TCP send any bytes, whole PDUs and halves: does each connection end or go on by
 * itself, and does everything that it had come back?
 *
 * Input: pieces of an operation's byte and its bytes; bit 7 says which of two connections. What is
 * built here has the digests that its connection asked for, so that what lies behind them is
 * reached. The tenant's driver is lost, so that every command on a value ends when it begins.
 */
#include "nvme/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/eventfd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz_input {
	const uint8_t *data;
	size_t size;
};

static struct ofs_nvme *nvme;
static uint64_t inputs, answered, values, refusals, invited;

static uint32_t
take(struct fuzz_input *input, size_t count)
{
	uint32_t value = 0;

	for (size_t i = 0; i < count && input->size > 0; i++) {
		value |= (uint32_t)input->data[0] << 8 * i;
		input->data++;
		input->size--;
	}
	return value;
}

/* Bytes of a host go where the target says, for as long as it takes any. */
static void
feed(struct ofs_nvme_connection *host, const uint8_t *bytes, size_t size)
{
	uint32_t wanted;
	uint8_t *at;

	while (size > 0 && (wanted = ofs_nvme_want(host, &at)) > 0) {
		uint32_t part = wanted < size ? wanted : (uint32_t)size;

		memcpy(at, bytes, part);
		ofs_nvme_got(host, part);
		bytes += part;
		size -= part;
	}
}

static void
put_u32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

/* A PDU whose head (8 bytes and `size`) is filled but for the first 8, and `length` data bytes. */
static void
send(struct ofs_nvme_connection *host, uint8_t type, uint8_t *pdu, uint32_t size, uint32_t length)
{
	uint32_t digest = host->link.head_digest ? 4 : 0;
	uint32_t tail = host->link.data_digest && length > 0 ? 4 : 0;

	pdu[0] = type;
	pdu[1] = (uint8_t)((digest ? 1 : 0) | (tail ? 2 : 0));
	pdu[2] = (uint8_t)size;
	pdu[3] = length > 0 ? (uint8_t)(size + digest) : 0;
	put_u32(pdu + 4, size + digest + length + tail);
	if (digest)
		put_u32(pdu + size, ofs_crc32c(0, pdu, size));
	memset(pdu + size + digest, 7, length);
	if (tail)
		put_u32(pdu + size + digest + length, ofs_crc32c(0, pdu + size + digest, length));
	feed(host, pdu, size + digest + length + tail);
}

static void
send_command(struct ofs_nvme_connection *host, struct fuzz_input *input)
{
	static const uint8_t opcodes[] = {0x01, 0x02, 0x06, 0x10, 0x14, 0x7f, 0x18, 0x0c};
	uint8_t pdu[72 + 8 + OFS_NVME_IN_CAPSULE_BYTES] = {0};
	uint32_t length = take(input, 3), how = take(input, 1);
	bool inside = (how & 1) != 0 && length <= OFS_NVME_IN_CAPSULE_BYTES;

	pdu[8] = opcodes[take(input, 1) % sizeof(opcodes)];
	pdu[10] = (uint8_t)take(input, 1);
	pdu[12] = (uint8_t)(how >> 4 & 7); /* namespace, or kind of a fabrics command */
	put_u32(pdu + 8 + 32, length);
	pdu[8 + 39] = inside ? 0x01 : 0x5a;
	put_u32(pdu + 8 + 40, how & 2 ? take(input, 4) : length);
	pdu[8 + 44] = how & 4 ? (uint8_t)take(input, 1) : 5;
	send(host, OFS_PDU_COMMAND, pdu, 72, inside ? length : 0);
}

static void
send_data(struct ofs_nvme_connection *host, struct fuzz_input *input)
{
	uint8_t pdu[24 + 8 + 4096] = {0};
	uint32_t tag = take(input, 2) % OFS_NVME_REQUESTS, length = take(input, 2) % 4097;
	const struct ofs_nvme_request *request = &nvme->requests[tag];

	memcpy(pdu + 8, request->sqe + 2, 2);
	memcpy(pdu + 10, &tag, 2);
	put_u32(pdu + 12, take(input, 1) < 0xf0 ? request->filled : take(input, 4));
	put_u32(pdu + 16, length);
	send(host, OFS_PDU_H2C_DATA, pdu, 24, length);
}

/* The host reads so much, and its commands are answered. */
static void
turn(struct ofs_nvme_connection *host, uint32_t bytes)
{
	static const uint8_t answer[4096];
	struct iovec parts[OFS_NVME_IOVECS + 2];
	struct ofs_nvme_request *request;
	uint32_t count;

	while ((request = ofs_nvme_pop(&nvme->asked)) != NULL) {
		uint32_t room = request->to_host ? request->length : 0;

		assert(ofs_nvme_answer(nvme, ofs_nvme_ticket(nvme, request), 0, 1, answer,
				   room < sizeof(answer) ? room : sizeof(answer))
			== 0);
		answered++;
	}
	(void)ofs_nvme_resume(host);
	while (bytes > 0 && (count = ofs_nvme_outgoing(host, parts, OFS_NVME_IOVECS + 2)) > 0) {
		uint32_t some = parts[0].iov_len < bytes ? (uint32_t)parts[0].iov_len : bytes;

		if (host->row.head != NULL && host->sent == 0 && host->plain_bytes == 0) {
			values += host->tenant != NULL && !host->row.head->r2t;
			invited += host->row.head->r2t;
		}
		ofs_nvme_went(host, some);
		bytes -= some;
	}
	refusals += host->ending;
}

static void
check_reached(void)
{
	if (inputs > 10000)
		assert(answered > 0 && values > 0 && refusals > 0 && invited > 0);
}

static void
open_once(void)
{
	assert(ofs_nvme_open(&nvme, eventfd(0, 0)) == 0);
	nvme->tenants[0] = (struct ofs_nvme_tenant){.nvme = nvme,
		.lost = true,
		.value_bytes_max = OFS_NVME_VALUE_BYTES_MAX,
		.volume_count = 2};
	nvme->tenant_count = 1;
	assert(atexit(check_reached) == 0);
}

static void
step(struct ofs_nvme_connection *host, uint8_t op, struct fuzz_input *input)
{
	uint8_t init[128] = {OFS_PDU_ICREQ, 0, 128, 0, 128};
	size_t length;

	switch (op & 7) {
	case 0:
		length = take(input, 1);
		length = length < input->size ? length : input->size;
		feed(host, input->data, length);
		input->data += length;
		input->size -= length;
		break;
	case 1:
		init[11] = (uint8_t)(op >> 3 & 3);
		init[10] = (uint8_t)(op >> 5 & 1);
		feed(host, init, sizeof(init));
		break;
	case 2:
		send_command(host, input);
		break;
	case 3:
		turn(host, take(input, 2));
		break;
	case 4:
		send_data(host, input);
		break;
	case 5:
		(void)ofs_nvme_admit(nvme, host->id, 0);
		break;
	default:
		turn(host, UINT32_MAX);
		break;
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input input = {data, size};
	struct ofs_nvme_connection *hosts[2];
	uint32_t count = 0;

	if (inputs++ == 0)
		open_once();
	for (int i = 0; i < 2; i++)
		hosts[i] = ofs_nvme_connection_open(nvme, -1);
	while (input.size > 0) {
		uint8_t op = (uint8_t)take(&input, 1);

		step(hosts[op >> 7], op, &input);
	}
	for (int i = 0; i < 2; i++)
		ofs_nvme_connection_close(hosts[i], 0, false);
	for (const struct ofs_nvme_request *one = nvme->free.head; one != NULL; one = one->next)
		count++;
	assert(count == OFS_NVME_REQUESTS && nvme->free_chunk_count == OFS_NVME_CHUNKS);
	assert(nvme->asked.head == NULL);
	return 0;
}
