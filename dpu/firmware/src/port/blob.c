/* The blob of an attach, which one end of a fabric writes and the other reads; see attach.h. */
#include "attach.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static uint64_t
checksum_of(const uint8_t *blob, uint32_t size_bytes)
{
	uint8_t copy[OFS_BLOB_SIZE_BYTES_MAX];

	memcpy(copy, blob, size_bytes);
	memset(copy + offsetof(struct ofs_blob_header, checksum), 0, sizeof(uint64_t));
	return ofs_checksum(copy, size_bytes);
}

void
ofs_blob_write(struct ofs_attachment *attachment, const char *fabric, const void *content,
	uint32_t content_size_bytes)
{
	struct ofs_blob_header header = {.magic = OFS_BLOB_MAGIC,
		.version = OFS_BLOB_VERSION,
		.size_bytes = (uint32_t)sizeof(header) + content_size_bytes,
		.fd_count = attachment->fd_count};

	assert(header.size_bytes <= sizeof(attachment->blob) && strlen(fabric) < sizeof(header.fabric));
	snprintf(header.fabric, sizeof(header.fabric), "%s", fabric);
	memset(attachment->blob, 0, sizeof(attachment->blob));
	memcpy(attachment->blob, &header, sizeof(header));
	memcpy(attachment->blob + sizeof(header), content, content_size_bytes);
	header.checksum = checksum_of(attachment->blob, header.size_bytes);
	memcpy(attachment->blob, &header, sizeof(header));
	attachment->blob_size_bytes = header.size_bytes;
}

static int
refuse(char *error, size_t error_size_bytes, int rc, const char *what, const char *fix)
{
	snprintf(error, error_size_bytes, "attach blob: %s; %s", what, fix);
	return rc;
}

int
ofs_blob_read(const struct ofs_attachment *attachment, struct ofs_blob_header *header,
	void *content, uint32_t content_size_bytes, char *error, size_t error_size_bytes)
{
	uint32_t size_bytes = attachment->blob_size_bytes;
	char what[96];

	if (size_bytes > sizeof(attachment->blob) || size_bytes < sizeof(*header)) {
		return refuse(error, error_size_bytes, -EINVAL, "is cut short, or too long",
			"start the host again");
	}
	memcpy(header, attachment->blob, sizeof(*header));
	if (header->magic != OFS_BLOB_MAGIC) {
		return refuse(error, error_size_bytes, -EPROTO, "not an Offstage blob (wrong magic)",
			"give what the daemon handed out");
	}
	if (header->version != OFS_BLOB_VERSION) {
		snprintf(what, sizeof(what), "has version %u, this host knows %u", header->version,
			OFS_BLOB_VERSION);
		return refuse(error, error_size_bytes, -EPROTO, what,
			"install the same release on both sides");
	}
	if (header->size_bytes != size_bytes
		|| header->checksum != checksum_of(attachment->blob, size_bytes)
		|| memchr(header->fabric, '\0', sizeof(header->fabric)) == NULL) {
		return refuse(error, error_size_bytes, -EINVAL, "is cut short or damaged",
			"start the host again");
	}
	if (header->fd_count != attachment->fd_count || header->fd_count > OFS_ATTACH_FDS_MAX) {
		snprintf(what, sizeof(what), "came with %u descriptors instead of %u", attachment->fd_count,
			header->fd_count);
		return refuse(error, error_size_bytes, -EINVAL, what,
			"give the descriptors the daemon handed out, in their order");
	}
	if (content == NULL)
		return 0;
	if (size_bytes - sizeof(*header) != content_size_bytes) {
		return refuse(error, error_size_bytes, -EINVAL,
			"the part for its fabric has the wrong size", "install the same release on both sides");
	}
	memcpy(content, attachment->blob + sizeof(*header), content_size_bytes);
	return 0;
}
