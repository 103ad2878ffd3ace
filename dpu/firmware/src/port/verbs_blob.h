/*
 * port/verbs_blob.h: the blobs that the two ends of `verbs` send each other, checked.
 *
 * Model: neither end trusts the other's blob: a host checks the daemon's because it came over a
 * network, the DPU the host's because hosts are not trusted. What a blob does not show, such as a
 * queue pair or key that does not exist, the adapter refuses on use.
 */
#ifndef OFS_PORT_VERBS_BLOB_H
#define OFS_PORT_VERBS_BLOB_H

#include "attach.h"
#include "region.h"

/* The address of one queue pair. */
struct ofs_verbs_address {
	uint8_t gid[16];
	uint32_t queue_pair;
	uint32_t first_packet; /* number of the first packet that it sends */
	uint32_t mtu_bytes;    /* the smaller of the two ends' values applies */
	uint16_t lid;          /* InfiniBand; 0 on Ethernet */
	uint16_t reads_max;    /* concurrent reads by the other end that it serves */
};

/* Memory that the other end may reach by this queue pair, and by no other of the process. */
struct ofs_verbs_memory {
	uint64_t address;
	uint32_t key;
	uint32_t reserved;
};

/* From the DPU: content of a blob of `verbs`, which has no descriptors. */
struct ofs_blob_verbs {
	struct ofs_verbs_address address;
	struct ofs_verbs_memory region; /* to read from */
	struct ofs_verbs_memory port;   /* to write to */
	uint32_t generation;            /* connections that the port has had; the answer repeats it */
	uint32_t submission_tail;       /* where the next host continues */
	uint32_t completion_tail;
	uint32_t reserved;
	struct ofs_region_header region_header; /* copies of the headers there */
	struct ofs_port_header port_header;
};
_Static_assert(sizeof(struct ofs_blob_header) + sizeof(struct ofs_blob_verbs)
		<= OFS_BLOB_SIZE_BYTES_MAX,
	"it fits");

/* The host's answer. */
struct ofs_blob_verbs_host {
	struct ofs_verbs_address address;
	struct ofs_verbs_memory port; /* its copy of the port: completions and results go there */
	uint32_t generation;          /* of the blob that it answers */
	uint32_t reserved;
};

/* ofs_fabric_check checks the headers in it. -EPROTO, -EINVAL with `error` as usual. */
int ofs_verbs_blob_check(const struct ofs_attachment *attachment, struct ofs_blob_verbs *blob,
	char *error, size_t error_size_bytes);
/* -EPROTO, -EINVAL. */
int ofs_verbs_answer_check(const struct ofs_attachment *answer, struct ofs_blob_verbs_host *blob);

#endif
