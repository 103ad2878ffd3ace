/* The bytes of PDUs (NVMe/TCP Transport 1.0, 3.6): every number is little-endian. */
#include "nvme/internal.h"

#define HEAD_DIGEST 0x1
#define DATA_DIGEST 0x2
#define LAST 0x4
#define INIT_BYTES 128
#define COMMAND_BYTES 72
#define DATA_BYTES 24
#define TERM_BYTES 24
#define TERM_BYTES_MAX 152

static void
put_u16(uint8_t *at, uint16_t value)
{
	memcpy(at, &value, sizeof(value));
}

static void
put_u32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

int
ofs_nvme_pdu_parse(const uint8_t *head, const struct ofs_nvme_link *link, struct ofs_nvme_pdu *pdu)
{
	uint8_t type = head[0], flags = head[1], head_bytes = head[2], offset = head[3];
	uint32_t bytes = ofs_nvme_u32(head + 4), digest = link->head_digest ? 4 : 0;

	*pdu = (struct ofs_nvme_pdu){.type = type};
	if (!link->open || type == OFS_PDU_ICREQ) {
		pdu->head_bytes = INIT_BYTES;
		if (type != OFS_PDU_ICREQ || link->open)
			return OFS_FES_SEQUENCE;
		return head_bytes == INIT_BYTES && bytes == INIT_BYTES && flags == 0 ? 0 : OFS_FES_HEADER;
	}
	if (type == OFS_PDU_H2C_TERM) {
		pdu->head_bytes = TERM_BYTES;
		return head_bytes == TERM_BYTES && bytes >= TERM_BYTES && bytes <= TERM_BYTES_MAX
			? 0
			: OFS_FES_HEADER;
	}
	if (type != OFS_PDU_COMMAND && type != OFS_PDU_H2C_DATA)
		return OFS_FES_HEADER;
	if (head_bytes != (type == OFS_PDU_COMMAND ? COMMAND_BYTES : DATA_BYTES)
		|| (flags & HEAD_DIGEST) != (link->head_digest ? HEAD_DIGEST : 0)
		|| bytes < head_bytes + digest)
		return OFS_FES_HEADER;
	pdu->head_bytes = head_bytes + digest;
	if (bytes == pdu->head_bytes)
		return type == OFS_PDU_COMMAND ? 0 : OFS_FES_HEADER;
	pdu->data_digest = link->data_digest;
	if (offset != pdu->head_bytes || !(flags & DATA_DIGEST) == link->data_digest
		|| bytes - pdu->head_bytes <= (pdu->data_digest ? 4u : 0u))
		return OFS_FES_HEADER;
	pdu->data_bytes = bytes - pdu->head_bytes - (pdu->data_digest ? 4 : 0);
	return pdu->data_bytes
			<= (type == OFS_PDU_COMMAND ? OFS_NVME_IN_CAPSULE_BYTES : OFS_NVME_H2C_BYTES)
		? 0
		: OFS_FES_LIMIT;
}

bool
ofs_nvme_pdu_is_whole(const uint8_t *head, const struct ofs_nvme_link *link,
	const struct ofs_nvme_pdu *pdu)
{
	uint32_t bytes = pdu->head_bytes - 4;

	if (!link->head_digest || pdu->type == OFS_PDU_H2C_TERM)
		return true;
	return ofs_crc32c(0, head, bytes) == ofs_nvme_u32(head + bytes);
}

/* The head's digest goes behind it: its bytes. */
static uint32_t
seal(uint8_t *out, const struct ofs_nvme_link *link, uint32_t bytes)
{
	if (!link->head_digest)
		return bytes;
	put_u32(out + bytes, ofs_crc32c(0, out, bytes));
	return bytes + 4;
}

static void
begin(uint8_t *out, uint8_t type, uint8_t flags, uint8_t head_bytes, uint32_t bytes)
{
	memset(out, 0, head_bytes);
	out[0] = type;
	out[1] = flags;
	out[2] = head_bytes;
	put_u32(out + 4, bytes);
}

int
ofs_nvme_pdu_init(const uint8_t *head, struct ofs_nvme_link *link, uint8_t *answer)
{
	uint8_t align = head[10], digests = head[11];

	if (ofs_nvme_u16(head + 8) != 0)
		return OFS_FES_PARAMETER;
	if (4u * (align + 1u) > OFS_NVME_ALIGN_MAX)
		return OFS_FES_HEADER;
	*link = (struct ofs_nvme_link){.open = true,
		.head_digest = (digests & HEAD_DIGEST) != 0,
		.data_digest = (digests & DATA_DIGEST) != 0,
		.align_bytes = 4u * (align + 1u)};
	begin(answer, OFS_PDU_ICRESP, 0, INIT_BYTES, INIT_BYTES);
	answer[11] = digests & (HEAD_DIGEST | DATA_DIGEST);
	put_u32(answer + 12, OFS_NVME_H2C_BYTES);
	return 0;
}

uint32_t
ofs_nvme_pdu_term(uint8_t *out, int fes, const uint8_t *head)
{
	begin(out, OFS_PDU_C2H_TERM, 0, TERM_BYTES, TERM_BYTES + 8);
	put_u16(out + 8, (uint16_t)fes);
	memcpy(out + TERM_BYTES, head, 8); /* the start of the PDU at fault */
	return TERM_BYTES + 8;
}

uint32_t
ofs_nvme_pdu_r2t(uint8_t *out, const struct ofs_nvme_link *link, uint16_t command, uint16_t tag,
	uint32_t length)
{
	uint32_t digest = link->head_digest ? 4 : 0;

	begin(out, OFS_PDU_R2T, link->head_digest ? HEAD_DIGEST : 0, DATA_BYTES, DATA_BYTES + digest);
	put_u16(out + 8, command);
	put_u16(out + 10, tag);
	put_u32(out + 16, length);
	return seal(out, link, DATA_BYTES);
}

uint32_t
ofs_nvme_pdu_data(uint8_t *out, const struct ofs_nvme_link *link, uint16_t command, uint32_t length)
{
	uint32_t head = DATA_BYTES + (link->head_digest ? 4 : 0);
	uint32_t offset = (head + link->align_bytes - 1) / link->align_bytes * link->align_bytes;
	uint8_t flags =
		LAST | (link->head_digest ? HEAD_DIGEST : 0) | (link->data_digest ? DATA_DIGEST : 0);

	begin(out, OFS_PDU_C2H_DATA, flags, DATA_BYTES, offset + length + (link->data_digest ? 4 : 0));
	out[3] = (uint8_t)offset;
	put_u16(out + 8, command);
	put_u32(out + 16, length);
	memset(out + head, 0, offset - head);
	(void)seal(out, link, DATA_BYTES);
	return offset;
}

uint32_t
ofs_nvme_pdu_response(uint8_t *out, const struct ofs_nvme_link *link, const uint8_t *cqe)
{
	uint32_t digest = link->head_digest ? 4 : 0;

	begin(out, OFS_PDU_RESPONSE, link->head_digest ? HEAD_DIGEST : 0, 24, 24 + digest);
	memcpy(out + 8, cqe, 16);
	return seal(out, link, 24);
}
