/*
 * nvme/internal.h: what the files of the NVMe/TCP target share; see nvme_tcp.h.
 *
 * A *request* is a command from its capsule to its last byte of answer. Its data lies in chunks of
 * one pool, behind iovecs. FILLING: data is to come, in the capsule or by an R2T. ASKED: the caller
 * has it. MOVING: the driver has its task, also after its connection has closed. REPLYING: it waits
 * in its connection's row to be sent.
 *
 * pdu.c knows the bytes of PDUs and nothing else. receive.c says where the next bytes of a
 * connection belong and what they mean; send.c does the other direction. Neither reads a socket:
 * target.c does, and a test or a fuzzer may in its place.
 */
#ifndef OFS_NVME_INTERNAL_H
#define OFS_NVME_INTERNAL_H

#include "nvme_tcp.h"

#include <stdbool.h>
#include <string.h>

#define OFS_NVME_CONNECTIONS 64
#define OFS_NVME_REQUESTS 512
#define OFS_NVME_CHUNKS 1024
#define OFS_NVME_IOVECS (OFS_NVME_VALUE_BYTES_MAX / OFS_NVME_CHUNK_BYTES)
#define OFS_NVME_TENANTS 64
#define OFS_NVME_VOLUMES 64     /* of one tenant */
#define OFS_NVME_HEAD_BYTES 132 /* of an ICReq, and a digest */
#define OFS_NVME_PLAIN_BYTES 152
#define OFS_NVME_H2C_BYTES (1u << 20) /* of one H2CData */
#define OFS_NVME_ALIGN_MAX 128
#define OFS_NVME_STRANGER_REQUESTS 4
#define OFS_NVME_STRANGER_NS 10000000000ull
#define OFS_NVME_SILENT_NS 30000000000ull

enum ofs_nvme_type {
	OFS_PDU_ICREQ = 0,
	OFS_PDU_ICRESP = 1,
	OFS_PDU_H2C_TERM = 2,
	OFS_PDU_C2H_TERM = 3,
	OFS_PDU_COMMAND = 4,
	OFS_PDU_RESPONSE = 5,
	OFS_PDU_H2C_DATA = 6,
	OFS_PDU_C2H_DATA = 7,
	OFS_PDU_R2T = 9
};
/* Fatal errors, of a C2HTermReq. */
enum ofs_nvme_fes {
	OFS_FES_HEADER = 1,
	OFS_FES_SEQUENCE = 2,
	OFS_FES_DIGEST = 3,
	OFS_FES_RANGE = 4,
	OFS_FES_LIMIT = 5,
	OFS_FES_PARAMETER = 6
};
enum ofs_nvme_code {
	OFS_NVME_OK = 0x00,
	OFS_NVME_OPCODE = 0x01,
	OFS_NVME_FIELD = 0x02,
	OFS_NVME_INTERNAL = 0x06,
	OFS_NVME_NAMESPACE = 0x0b,
	OFS_NVME_SGL_LENGTH = 0x0f,
	OFS_NVME_SGL_TYPE = 0x11,
	OFS_NVME_INTERRUPTED = 0x21,
	OFS_NVME_TRANSPORT = 0x22,
	OFS_NVME_FULL = 0x81,
	OFS_NVME_VALUE_SIZE = 0x85,
	OFS_NVME_KEY_SIZE = 0x86,
	OFS_NVME_NO_KEY = 0x87,
	OFS_NVME_UNREADABLE = 0x88,
	OFS_NVME_KEY_EXISTS = 0x89
};

/* Of a connection: whether it was initialized, and its digests. */
struct ofs_nvme_link {
	bool open, head_digest, data_digest;
	uint32_t align_bytes; /* of data to the host */
};

struct ofs_nvme_pdu {
	uint8_t type;
	uint32_t head_bytes; /* its digest included */
	uint32_t data_bytes;
	bool data_digest;
};

enum ofs_nvme_state {
	OFS_NVME_FREE = 0,
	OFS_NVME_FILLING = 1,
	OFS_NVME_ASKED = 2,
	OFS_NVME_MOVING = 3,
	OFS_NVME_REPLYING = 4
};

struct ofs_nvme_connection;

struct ofs_nvme_request {
	struct ofs_nvme_connection *connection; /* NULL: it has closed */
	struct ofs_nvme_request *next;          /* in the one row that has it */
	uint64_t serial;
	uint8_t state; /* enum ofs_nvme_state */
	uint8_t sqe[OFS_NVME_SQE_BYTES];
	bool r2t; /* what is sent next is an R2T */
	bool to_host;
	uint32_t length; /* of its data, in either direction */
	uint32_t filled;
	uint16_t status;
	uint64_t result;
	uint32_t send_bytes; /* data of the answer */
	uint32_t chunk_count;
	struct iovec iovecs[OFS_NVME_IOVECS];
	struct ofs_value_task task;
};

struct ofs_nvme_row {
	struct ofs_nvme_request *head, *tail;
};

struct ofs_nvme_tenant {
	struct ofs_nvme *nvme;
	struct ofs_value_io *values;
	bool lost; /* its driver's connection */
	uint64_t value_bytes_max;
	uint32_t volume_count;
	struct ofs_nvme_volume volumes[OFS_NVME_VOLUMES];
};

struct ofs_nvme_connection {
	struct ofs_nvme *nvme;
	uint64_t id; /* 0: free */
	int fd;
	bool admitted, closed, said; /* closed: until its ask was taken, where one is `said` */
	int32_t rc;
	uint32_t events; /* epoll waits for these */
	struct ofs_nvme_link link;
	struct ofs_nvme_tenant *tenant; /* NULL: no I/O queue */
	uint64_t opened_ns, heard_ns;
	uint32_t request_count, filling_count;
	uint16_t queue_size, queue_head;
	bool flow_off; /* the host keeps no account of the queue's head */
	/* what comes */
	uint8_t head[OFS_NVME_HEAD_BYTES];
	uint32_t head_got;
	struct ofs_nvme_pdu pdu;
	bool stalled;                     /* its head is here, and finds no room */
	struct ofs_nvme_request *filling; /* the data that comes is this one's */
	uint32_t data_left, digest_got;
	uint32_t crc;
	uint8_t digest[4];
	/* what goes */
	uint8_t plain[OFS_NVME_PLAIN_BYTES];
	uint32_t plain_bytes, plain_sent;
	bool ending; /* closed when `plain` is sent */
	struct ofs_nvme_row row;
	uint64_t sent; /* of the row's first */
	uint8_t lead[24 + 4 + OFS_NVME_ALIGN_MAX], trail[4 + 24 + 4];
	struct iovec parts[OFS_NVME_IOVECS + 2];
	uint32_t part_count;
};

struct ofs_nvme {
	int listener, epoll;
	uint64_t now_ns, serial, connection_serial;
	struct ofs_nvme_connection *connections; /* [OFS_NVME_CONNECTIONS] */
	struct ofs_nvme_request *requests;       /* [OFS_NVME_REQUESTS] */
	struct ofs_nvme_row free, asked;
	uint8_t *memory;
	uint16_t free_chunks[OFS_NVME_CHUNKS];
	uint32_t free_chunk_count;
	struct ofs_nvme_tenant tenants[OFS_NVME_TENANTS];
	uint32_t tenant_count;
};

static inline uint16_t
ofs_nvme_u16(const uint8_t *at)
{
	uint16_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static inline uint32_t
ofs_nvme_u32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static inline void
ofs_nvme_push(struct ofs_nvme_row *row, struct ofs_nvme_request *request)
{
	request->next = NULL;
	if (row->head == NULL)
		row->head = request;
	else
		row->tail->next = request;
	row->tail = request;
}

static inline struct ofs_nvme_request *
ofs_nvme_pop(struct ofs_nvme_row *row)
{
	struct ofs_nvme_request *request = row->head;

	if (request != NULL)
		row->head = request->next;
	return request;
}

/* ---- crc32c.c ---- */
void ofs_crc32c_prepare(void);
/* 0 begins; the result goes on. */
uint32_t ofs_crc32c(uint32_t crc, const uint8_t *data, uint64_t length);

/* ---- pdu.c ---- */
/* By the first 8 bytes, of a host: 0, or enum ofs_nvme_fes. */
int ofs_nvme_pdu_parse(const uint8_t *head, const struct ofs_nvme_link *link,
	struct ofs_nvme_pdu *pdu);
/* Whether the digest behind the head is its own. */
bool ofs_nvme_pdu_is_whole(const uint8_t *head, const struct ofs_nvme_link *link,
	const struct ofs_nvme_pdu *pdu);
/* By a whole ICReq: 0 and its answer (128 bytes), or enum ofs_nvme_fes. */
int ofs_nvme_pdu_init(const uint8_t *head, struct ofs_nvme_link *link, uint8_t *answer);
/* Each writes a head with its digest, and returns its bytes. */
uint32_t ofs_nvme_pdu_term(uint8_t *out, int fes, const uint8_t *head);
uint32_t ofs_nvme_pdu_r2t(uint8_t *out, const struct ofs_nvme_link *link, uint16_t command,
	uint16_t tag, uint32_t length);
uint32_t ofs_nvme_pdu_data(uint8_t *out, const struct ofs_nvme_link *link, uint16_t command,
	uint32_t length);
uint32_t ofs_nvme_pdu_response(uint8_t *out, const struct ofs_nvme_link *link, const uint8_t *cqe);

/* ---- pool.c ---- */
/* NULL: as many as may be are in use. */
struct ofs_nvme_request *ofs_nvme_take(struct ofs_nvme_connection *connection);
/* Memory for so many bytes of the request's data. False: it is not free now. */
bool ofs_nvme_take_chunks(struct ofs_nvme *nvme, struct ofs_nvme_request *request, uint32_t length);
void ofs_nvme_release(struct ofs_nvme *nvme, struct ofs_nvme_request *request);
/* The request of a ticket, if it is its connection's still. */
struct ofs_nvme_request *ofs_nvme_of_ticket(struct ofs_nvme *nvme, uint64_t ticket);
uint64_t ofs_nvme_ticket(const struct ofs_nvme *nvme, const struct ofs_nvme_request *request);
uint16_t ofs_nvme_tag(const struct ofs_nvme *nvme, const struct ofs_nvme_request *request);

/* ---- send.c ---- */
/* The request's answer goes out with what it has for it. */
void ofs_nvme_reply(struct ofs_nvme_request *request, uint16_t status);
/* Its data is to come. */
void ofs_nvme_invite(struct ofs_nvme_request *request);
/* The connection ends, and the host hears why. */
void ofs_nvme_refuse(struct ofs_nvme_connection *connection, int fes);
/* What is to be sent next, and how far it has been. 0: nothing. */
uint32_t ofs_nvme_outgoing(struct ofs_nvme_connection *connection, struct iovec *parts,
	uint32_t max);
void ofs_nvme_went(struct ofs_nvme_connection *connection, uint64_t bytes);

/* ---- kv.c ---- */
/* Of a command before its data is asked for. `length`: of its data. */
uint16_t ofs_nvme_kv_check(const struct ofs_nvme_request *request);
void ofs_nvme_kv_begin(struct ofs_nvme_request *request);
bool ofs_nvme_kv_busy(const struct ofs_nvme_tenant *tenant);
/* Whether a task of the tenant has ended. */
bool ofs_nvme_kv_pump(struct ofs_nvme_tenant *tenant, uint64_t wait_ns);

/* ---- receive.c ---- */
/* Where the next bytes of the connection belong. 0: it takes none now. */
uint32_t ofs_nvme_want(struct ofs_nvme_connection *connection, uint8_t **at);
/* So many of them are there. */
void ofs_nvme_got(struct ofs_nvme_connection *connection, uint32_t bytes);
/* Whether a command that found no room has found it now. */
bool ofs_nvme_resume(struct ofs_nvme_connection *connection);

/* ---- connection.c ---- */
/* NULL: there are as many as may be. */
struct ofs_nvme_connection *ofs_nvme_connection_open(struct ofs_nvme *nvme, int fd);
/* Who yields where there are as many as may be: the oldest that was not admitted. NULL: nobody. */
struct ofs_nvme_connection *ofs_nvme_connection_yields(struct ofs_nvme *nvme);
/* Its requests are released, or their tasks' when those have ended. `fd` is not closed. */
void ofs_nvme_connection_close(struct ofs_nvme_connection *connection, int rc, bool said);

#endif
