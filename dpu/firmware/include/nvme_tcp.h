/*
 * nvme_tcp.h: values as namespaces of NVMe over TCP.
 *
 * Model: one target over one listening socket, owned by one thread, which calls `run` in turns.
 * The target reads and writes PDUs and moves values: commands of the Key Value command set on a
 * connection that is *served* become tasks (value_io.h) of its tenant's driver. Every other command
 * is an *ask*: the caller answers it by its ticket, now or later, and says which connections are
 * served. So all that is rare (connects, authentication, Identify) is the caller's.
 *
 * Memory is bounded at open: connections, requests, and chunks of data. A command that finds none
 * free waits, and its connection is not read meanwhile. A length of a host is compared with what
 * may be before anything is taken for it. What breaks the protocol ends that connection alone.
 *
 * A connection that is not admitted is a stranger's: it has 10 s and four commands at once, and
 * where there are as many connections as may be the oldest such yields to a new one. One that owes
 * the rest of a PDU, or data, or does not read, is closed after 30 s without a byte.
 *
 * NVM Express: Base 2.0, NVMe/TCP Transport 1.0, Key Value Command Set 1.0.
 */
#ifndef OFS_NVME_TCP_H
#define OFS_NVME_TCP_H

#include "value_io.h"

/* cdef: order 11 */
/* cdef: begin */
#define OFS_NVME_SQE_BYTES 64
#define OFS_NVME_DEPTH 64 /* commands of one connection */
#define OFS_NVME_VALUE_BYTES_MAX 16777216
#define OFS_NVME_IN_CAPSULE_BYTES 8192
#define OFS_NVME_CHUNK_BYTES 65536 /* data of an ask and of its answer, at most */
#define OFS_NVME_FINAL 0x4000      /* in a status: Do Not Retry */

struct ofs_nvme;

struct ofs_nvme_volume {
	uint8_t nguid[16];
	uint32_t durable; /* a store ends on the drive */
};

struct ofs_nvme_ask {
	uint64_t connection; /* no two are alike, ever */
	uint64_t ticket;     /* 0: the connection has closed */
	uint8_t sqe[OFS_NVME_SQE_BYTES];
	const uint8_t *data; /* [length] that came with it, until it is answered */
	uint32_t length;
	uint32_t room; /* bytes that the host takes in answer */
	int32_t rc;    /* why it has closed: 0 by the host, else -errno */
};

/* `listener`: a listening socket, non-blocking, which stays the caller's. 0, -ENOMEM, -errno. */
int ofs_nvme_open(struct ofs_nvme **out, int listener);
/* Closes every connection. Drivers stay the caller's. */
void ofs_nvme_close(struct ofs_nvme *nvme);
/*
 * Values of one tenant, by its driver, which makes no other calls from now on: namespace n + 1 is
 * volumes[n]. `value_bytes_max`: of the daemon. Returns its number, or -errno.
 */
int ofs_nvme_tenant_add(struct ofs_nvme *nvme, struct ofs_driver *driver, uint64_t value_bytes_max,
	const struct ofs_nvme_volume *volumes, uint32_t volume_count);
/* Moves everything on, and waits up to `timeout_ns` for something to do. Writes at most `max` asks
 * and returns how many. `now_ns`: of any clock that does not go back. -errno: of epoll. */
int ofs_nvme_run(struct ofs_nvme *nvme, uint64_t now_ns, uint64_t timeout_ns,
	struct ofs_nvme_ask *asks, uint32_t max);
/* Ends a command. `status`: type and code (SCT << 8 | SC), with OFS_NVME_FINAL. -ESTALE: its
 * connection has closed. -EMSGSIZE: more data than its host takes. */
int ofs_nvme_answer(struct ofs_nvme *nvme, uint64_t ticket, uint16_t status, uint64_t result,
	const uint8_t *data, uint32_t length);
/* The connection is admitted; as the I/O queue of a tenant where `tenant` is not negative. */
int ofs_nvme_admit(struct ofs_nvme *nvme, uint64_t connection, int tenant);
/* Closes a connection. Nothing is said of it in an ask. */
void ofs_nvme_hang_up(struct ofs_nvme *nvme, uint64_t connection);
/* cdef: end */

#endif
