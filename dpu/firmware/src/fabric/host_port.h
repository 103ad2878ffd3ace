/*
 * fabric/host_port.h: the host's half of a port in memory that it can load and store; for the sides
 * shm, sim and memory.
 *
 * Model: owned by the thread that owns the fabric. The DPU is trusted not to be malicious, but a
 * corrupt word must not lead outside the mapping: every access is bounded here.
 */
#ifndef OFS_FABRIC_HOST_PORT_H
#define OFS_FABRIC_HOST_PORT_H

#include "fabric.h"

struct ofs_host_port {
	uint8_t *base;
	struct ofs_port_words *words;
	struct ofs_sqe *submissions;
	const struct ofs_cqe *completions;
	uint32_t submission_tail;
	uint32_t submission_head; /* the DPU's, as last read */
	uint32_t completion_head;
	uint32_t completion_mask;
	int dpu_bell_fd; /* written to when the DPU sleeps; -1 none */
};

/* First member of the sides with such a port: shm and memory. */
struct ofs_mapped_fabric {
	struct ofs_fabric base;
	struct ofs_host_port port;
};

/* Copies both headers from the mappings and checks them; `error` gets cause and fix. */
int ofs_fabric_check(struct ofs_fabric *fabric, const uint8_t *region_base,
	uint64_t region_size_bytes, const uint8_t *port_base, uint64_t port_size_bytes, char *error,
	size_t error_size_bytes);

/* Opens the sides by name, for ofs_fabric_open; the blob's header has been checked. */
int ofs_fabric_shm_open(struct ofs_fabric **out, const struct ofs_attachment *attachment,
	char *error, size_t error_size_bytes);
int ofs_fabric_memory_open(struct ofs_fabric **out, const struct ofs_attachment *attachment,
	char *error, size_t error_size_bytes);

/* `header` is the checked copy. A second driver on a port continues where the first stopped. */
void ofs_host_port_init(struct ofs_host_port *port, uint8_t *base,
	const struct ofs_port_header *header, int dpu_bell_fd);
int ofs_host_port_submit(struct ofs_host_port *port, const struct ofs_port_header *header,
	const struct ofs_sqe *sqe);
/* Wakes the DPU if it sleeps. */
void ofs_host_port_ring(struct ofs_host_port *port);
int ofs_host_port_poll(struct ofs_host_port *port, const struct ofs_port_header *header,
	struct ofs_cqe *cqes, int max);
/* Whether poll has something to return. */
int ofs_host_port_ready(const struct ofs_host_port *port);
int ofs_host_port_closed(const struct ofs_host_port *port);
/* A read in local memory: complete on return, and ordered before later reads. */
int ofs_host_port_read(const struct ofs_region_header *header, const uint8_t *region,
	uint64_t offset, const struct ofs_span *spans, uint32_t span_count);
/* NULL out of range. */
void *ofs_host_port_payload(const struct ofs_host_port *port, const struct ofs_port_header *header,
	uint32_t payload_index);
const struct ofs_result *ofs_host_port_results(const struct ofs_host_port *port,
	const struct ofs_port_header *header, const struct ofs_cqe *cqe);
/* Where that many bytes of a put go; NULL out of range. */
uint8_t *ofs_host_port_put(const struct ofs_host_port *port, const struct ofs_port_header *header,
	uint32_t put_slot, uint32_t size_bytes);
int ofs_host_port_write_put(const struct ofs_host_port *port, const struct ofs_port_header *header,
	uint32_t put_slot, const void *source, uint32_t size_bytes, uint64_t *checksum);

/* Every side's table of the memory that reads go to (registered.c); see fabric.h. */
int ofs_fabric_register_memory(struct ofs_fabric *fabric, void *base, uint64_t size_bytes);
int ofs_fabric_unregister_memory(struct ofs_fabric *fabric, void *base, uint64_t size_bytes);

/* 0 when [offset, offset + size) lies inside the region. */
static inline int
ofs_region_range(const struct ofs_region_header *header, uint64_t offset, uint32_t size_bytes)
{
	return offset > header->size_bytes || size_bytes > header->size_bytes - offset ? -ERANGE : 0;
}

#endif
