/*
 * port/internal.h: what the sides of the port seam share: the rings.
 *
 * Model: the reactor's thread owns a ring, as it owns the port.
 */
#ifndef OFS_PORT_INTERNAL_H
#define OFS_PORT_INTERNAL_H

#include "port.h"
#include "port/local.h"

extern const struct ofs_port_ops ofs_port_ops_shm;
extern const struct ofs_port_ops ofs_port_ops_sim;
extern const struct ofs_port_ops ofs_port_ops_memory;

/* ---- rings.c ---- */
/* Fills in the header: the offset of each part, and the total size. -EINVAL. */
int ofs_rings_init(struct ofs_rings *rings, const struct ofs_port_config *config);
/* The memory is allocated: zeros, at least header.size_bytes of them. */
void ofs_rings_place(struct ofs_rings *rings, void *base, uint64_t size_bytes);
int ofs_rings_poll(struct ofs_rings *rings, struct ofs_command *command);
/* Answers an invalid command, so that an honest host with a bug learns of it. Returns -EPROTO. */
int ofs_rings_refuse(struct ofs_rings *rings, const struct ofs_sqe *sqe, int rc);
/* Writes results into the payload area; -EINVAL an index or count out of range, none written. */
int ofs_rings_write_results(struct ofs_rings *rings, const struct ofs_cqe *cqe,
	const struct ofs_result *results);
/* Completes a command that poll returned. */
void ofs_rings_push_answer(struct ofs_rings *rings, const struct ofs_cqe *cqe);
/* Whether there is a command that poll would take. */
int ofs_rings_ready(struct ofs_rings *rings);
/* Whether there is room for one more completion of any command. */
int ofs_rings_has_room(struct ofs_rings *rings);
int ofs_rings_announce_sleep(struct ofs_rings *rings);
/* Whether the host said that it sleeps; clears that, so that one sleep is woken once. */
int ofs_rings_host_slept(struct ofs_rings *rings);
void *ofs_rings_put_slot(const struct ofs_rings *rings, uint32_t put_slot);

#endif
