/*
 * side.h: sides of the fabric seam that need a library which not every machine has.
 *
 * Model: the firmware never links such a library. The side is a table of functions, handed over
 * once by its address; from then on it is found by its name at both ends, and nothing tells it from
 * a built-in one. The table says for which version of this header it was built. A side that has
 * been added stays until the process ends.
 *
 * Adding may come from any thread, at any time; what is being opened meanwhile finds it or not.
 */
#ifndef OFS_SIDE_H
#define OFS_SIDE_H

#include "fabric.h"
#include "port.h"

#define OFS_SIDE_VERSION 1

struct ofs_fabric_side;

/* 0; -EPROTO built for another version of this header; -EEXIST; -ENOSPC too many sides. */
int ofs_fabric_add(const struct ofs_fabric_side *side);
typedef int (*ofs_fabric_opener)(struct ofs_fabric **out, const struct ofs_attachment *attachment,
	char *error, size_t error_size_bytes);

struct ofs_fabric_side {
	uint32_t version; /* OFS_SIDE_VERSION */
	uint32_t reserved;
	const struct ofs_port_ops *port; /* its name is the side's */
	ofs_fabric_opener open;          /* the blob's header has been checked */
};

/* The DPU's half of ofs_fabric_add. */
int ofs_port_add(const struct ofs_port_ops *ops);

#endif
