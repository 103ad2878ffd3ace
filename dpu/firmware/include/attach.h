/*
 * attach.h: what a host is given when it attaches to a port: a blob, and descriptors.
 *
 * Model: the DPU's end of a fabric writes the blob (port.h), the host's end of the same fabric
 * reads it (fabric.h), and everything in between passes it on as bytes: only the two ends know what
 * a fabric needs, such as a size, an address or a key of remote memory. Descriptors come with it if
 * host and DPU share a kernel; otherwise there are none.
 *
 * A blob is ofs_blob_header and then the fabric's own content, little-endian. A host does not trust
 * it: ofs_blob_read checks the header, and each fabric checks its content.
 */
#ifndef OFS_ATTACH_H
#define OFS_ATTACH_H

#include "ofs_base.h"

#define OFS_BLOB_MAGIC 0x31424f4c4253464full /* "OFSBLOB1" */

/* cdef: order 5 */
/* cdef: begin */
#define OFS_BLOB_VERSION 3           /* 3: a value that is stored has a name */
#define OFS_BLOB_SIZE_BYTES_MAX 8192 /* the addresses of an agent with many network devices */
#define OFS_ATTACH_FDS_MAX 4
#define OFS_FABRIC_NAME_SIZE_BYTES 16

struct ofs_attachment {
	uint32_t blob_size_bytes;
	uint32_t fd_count;
	int32_t fds[OFS_ATTACH_FDS_MAX];
	uint8_t blob[OFS_BLOB_SIZE_BYTES_MAX];
};
/* cdef: end */

struct ofs_blob_header {
	uint64_t magic;
	uint32_t version;
	uint32_t size_bytes;                     /* header and content */
	char fabric[OFS_FABRIC_NAME_SIZE_BYTES]; /* whose content it is; zero-terminated */
	uint32_t fd_count;                       /* how many descriptors come with it */
	uint32_t reserved;
	uint64_t checksum; /* of the whole blob, this field as 0 */
};
_Static_assert(sizeof(struct ofs_blob_header) == 48, "part of the protocol");

/* Content of `shm`; descriptors: region (read-only), port, the host's end of the wake pair. */
struct ofs_blob_shm {
	uint64_t region_size_bytes;
	uint64_t port_size_bytes;
	uint64_t dilation; /* of the device's clock, which its hosts use too; 1: the machine's */
};

/* Content of `memory` and `sim`: which port of this process. */
struct ofs_blob_local {
	uint64_t process;
	uint64_t number;
};

/* A blob of `fabric` around `content`, into `attachment`; its descriptors are set already. */
void ofs_blob_write(struct ofs_attachment *attachment, const char *fabric, const void *content,
	uint32_t content_size_bytes);
/*
 * Checks everything of the header and that the content is `content_size_bytes` long, or, with a
 * `content` of NULL, only the header. -EPROTO no blob, or one of another version; -EINVAL cut
 * short, damaged, or without its descriptors. `error` names cause and fix.
 */
int ofs_blob_read(const struct ofs_attachment *attachment, struct ofs_blob_header *header,
	void *content, uint32_t content_size_bytes, char *error, size_t error_size_bytes);

#endif
