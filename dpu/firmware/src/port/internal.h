/*
 * port/internal.h: what the sides of the port seam share: the rings, and the ports of this process.
 *
 * Model: a ring belongs to the reactor's thread, as its port does. The table of local ports is
 * under a mutex of its own: the host's end of such a port may be opened by another thread.
 */
#ifndef OFS_PORT_INTERNAL_H
#define OFS_PORT_INTERNAL_H

#include "port.h"

extern const struct ofs_port_ops ofs_port_ops_shm;
extern const struct ofs_port_ops ofs_port_ops_sim;
extern const struct ofs_port_ops ofs_port_ops_memory;

/* ---- rings.c ---- */
/* Fills in the header: what lies where, and how large it all is. -EINVAL. */
int ofs_rings_init(struct ofs_rings *rings, const struct ofs_port_config *config);
/* The memory is there: zeros, at least header.size_bytes of them. */
void ofs_rings_place(struct ofs_rings *rings, void *base, uint64_t size_bytes);
int ofs_rings_poll(struct ofs_rings *rings, struct ofs_command *command);
/* Answers nonsense, so that an honest host with a bug learns of it. Returns -EPROTO. */
int ofs_rings_refuse(struct ofs_rings *rings, const struct ofs_sqe *sqe, int rc);
/* Results into the payload area; -EINVAL an index or count out of range, nothing written. */
int ofs_rings_write_results(struct ofs_rings *rings, const struct ofs_cqe *cqe,
	const struct ofs_result *results);
/* The completion of a command that poll handed out. */
void ofs_rings_push_answer(struct ofs_rings *rings, const struct ofs_cqe *cqe);
/* Whether there is a command that poll would take. */
int ofs_rings_ready(const struct ofs_rings *rings);
/* Whether there is room for one more completion, whoever it is for. */
int ofs_rings_has_room(const struct ofs_rings *rings);
int ofs_rings_announce_sleep(struct ofs_rings *rings);
/* Whether the host said that it sleeps; takes that back, so that it is woken once for one sleep. */
int ofs_rings_host_slept(struct ofs_rings *rings);
void *ofs_rings_put_slot(const struct ofs_rings *rings, uint32_t put_slot);

/* ---- local.c: ports whose host is in this process ---- */
/* The memory of one such port; the port and every host's end hold it. */
struct ofs_local {
	uint64_t number;
	struct ofs_region *region; /* which outlives every host's end */
	uint8_t *base;
	uint64_t size_bytes;
	uint32_t holder_count; /* under the table's mutex */
};

/* Memory for a port, found by its number until it is withdrawn; -ENOMEM, -ENOSPC. */
int ofs_local_open(struct ofs_local **out, struct ofs_region *region, uint64_t size_bytes);
/* Its port is closed: nobody finds it any more. */
void ofs_local_withdraw(struct ofs_local *local);
/* What `ofs_local_write_blob` described, held until ofs_local_release; NULL none. */
struct ofs_local *ofs_local_find(const struct ofs_blob_local *content);
void ofs_local_release(struct ofs_local *local);
void ofs_local_write_blob(const struct ofs_local *local, const char *fabric,
	struct ofs_attachment *attachment);

#endif
