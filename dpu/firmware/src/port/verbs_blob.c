/* Checks the blobs of `verbs` for consistency before anything in them is used; needs no RDMA. */
#include "port/verbs_blob.h"

#include <stdio.h>
#include <string.h>

#define NUMBER_END (1u << 24) /* of queue pairs and packets */

static int
address_fits(const struct ofs_verbs_address *address)
{
	static const uint8_t none[16];
	uint32_t mtu_bytes = address->mtu_bytes;

	return address->queue_pair < NUMBER_END && address->first_packet < NUMBER_END
		&& mtu_bytes >= 256 && mtu_bytes <= 4096 && (mtu_bytes & (mtu_bytes - 1)) == 0
		&& address->reads_max > 0 && memcmp(address->gid, none, sizeof(none)) != 0;
}

/* Memory of `size_bytes` whose end does not wrap. */
static int
memory_fits(const struct ofs_verbs_memory *memory, uint64_t size_bytes)
{
	return memory->address != 0 && size_bytes <= UINT64_MAX - memory->address;
}

static int
is_ours(const struct ofs_blob_header *header)
{
	return strcmp(header->fabric, "verbs") == 0 && header->fd_count == 0;
}

int
ofs_verbs_blob_check(const struct ofs_attachment *attachment, struct ofs_blob_verbs *blob,
	char *error, size_t error_size_bytes)
{
	struct ofs_blob_header header;
	int rc = ofs_blob_read(attachment, &header, blob, sizeof(*blob), error, error_size_bytes);

	if (rc != 0)
		return rc;
	if (is_ours(&header) && address_fits(&blob->address)
		&& memory_fits(&blob->region, blob->region_header.size_bytes)
		&& memory_fits(&blob->port, blob->port_header.size_bytes)) {
		return 0;
	}
	snprintf(error, error_size_bytes,
		"attach blob: its addresses cannot be used; start the host again");
	return -EINVAL;
}

int
ofs_verbs_answer_check(const struct ofs_attachment *answer, struct ofs_blob_verbs_host *blob)
{
	struct ofs_blob_header header;
	char error[160];
	int rc = ofs_blob_read(answer, &header, blob, sizeof(*blob), error, sizeof(error));

	if (rc == 0 && (!is_ours(&header) || !address_fits(&blob->address) || blob->port.address == 0))
		rc = -EINVAL;
	return rc;
}
