/*
 * side.h: sides of the fabric seam that need a library which not every machine has.
 *
 * Model: the firmware never links such a library. The side is a table of functions, handed over
 * once by its address; from then on both ends find it by name, like a built-in one. A side in a
 * separate extension (verbs) gets `ofs_services` in return: what must exist once in a process, such
 * as the list of held memory; all other firmware code it uses is compiled into it. Both tables
 * carry the version of this header they were built for. An added side stays until the process ends.
 *
 * A side may be added from any thread at any time; an open that runs meanwhile may or may not find
 * it.
 */
#ifndef OFS_SIDE_H
#define OFS_SIDE_H

#include "fabric.h"
#include "port.h"

#define OFS_SIDE_VERSION 1

/* cdef: order 9 */
/* cdef: begin */
struct ofs_fabric_side;
struct ofs_services;

/* 0; -EPROTO built for another version of this header; -EEXIST; -ENOSPC too many sides. */
int ofs_fabric_add(const struct ofs_fabric_side *side);
const struct ofs_services *ofs_services_get(void);
/* cdef: end */

typedef int (*ofs_fabric_opener)(struct ofs_fabric **out, const struct ofs_attachment *attachment,
	char *error, size_t error_size_bytes);

struct ofs_fabric_side {
	uint32_t version; /* OFS_SIDE_VERSION */
	uint32_t reserved;
	const struct ofs_port_ops *port; /* its name is the side's */
	ofs_fabric_opener open;          /* the blob's header has been checked */
};

struct ofs_services {
	uint32_t version; /* OFS_SIDE_VERSION */
	uint32_t reserved;
	int (*dma_alloc)(struct ofs_dma *out, const struct ofs_dma_config *config, uint64_t size_bytes,
		const char *name);
	void (*dma_free)(struct ofs_dma *dma);
	void *(*region_base)(const struct ofs_region *region, uint64_t *size_bytes);
};

/* The DPU's half of ofs_fabric_add. */
int ofs_port_add(const struct ofs_port_ops *ops);

#endif
