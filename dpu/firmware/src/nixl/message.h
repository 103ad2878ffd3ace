/*
 * nixl/message.h: messages between the two ends of the nixl fabric: the blob's content, and
 * notifications.
 *
 * Model: plain layouts, little-endian. Every message begins with a header that carries the port's
 * token, known only to the host that got the blob: any process that reaches an agent can send it
 * notifications. The receiver checks every number.
 */
#ifndef OFS_NIXL_MESSAGE_H
#define OFS_NIXL_MESSAGE_H

#include "region.h"

#define OFS_NIXL_MAGIC 0x4e53464fu /* "OFSN" */
#define OFS_NIXL_TOKEN_SIZE_BYTES 16

enum ofs_nixl_kind {
	OFS_NIXL_HELLO = 1,   /* host: its metadata follows, so that it can be answered */
	OFS_NIXL_COMMAND = 2, /* host: an ofs_sqe, and of a STEP its payload area up to the results */
	OFS_NIXL_ANSWER = 3,  /* DPU: an ofs_cqe, and the results [first, count) */
	OFS_NIXL_CLOSED = 4   /* DPU: this port is closed, attach again */
};

struct ofs_nixl_header {
	uint32_t magic;
	uint32_t kind; /* enum ofs_nixl_kind */
	uint8_t token[OFS_NIXL_TOKEN_SIZE_BYTES];
};

struct ofs_nixl_command {
	struct ofs_nixl_header header;
	struct ofs_sqe sqe;
};

struct ofs_nixl_answer {
	struct ofs_nixl_header header;
	struct ofs_cqe cqe;
};

/* Content of the blob of `nixl`; the metadata of the DPU's agent follows. */
struct ofs_blob_nixl {
	uint8_t token[OFS_NIXL_TOKEN_SIZE_BYTES];
	uint64_t region_address; /* of the DPU's process, as are all that follow */
	uint64_t puts_address;
	struct ofs_region_header region;
	struct ofs_port_header port;
	uint32_t metadata_size_bytes;
	uint32_t reserved;
};

#endif
