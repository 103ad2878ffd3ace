/* Given a hostile attach blob, does the host refuse it in one line, or open exactly what it
 * names? */
#include "fabric.h"
#include "port.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct ofs_port *ports[OFS_PORT_SIDES_MAX];
static struct ofs_attachment real[OFS_PORT_SIDES_MAX];
static uint32_t side_count;

static void
open_once(void)
{
	struct ofs_region_config region_config = {.slot_count = 1,
		.payload_size_bytes = 512,
		.lba_size_bytes = 512,
		.boot_id = 1};
	struct ofs_port_config port_config = {.entry_count = 4,
		.demand_max = 8,
		.put_slot_count = 2,
		.put_stride_bytes = 1024,
		.boot_id = 1};
	const struct ofs_port_ops *ops;

	for (; (ops = ofs_port_side(side_count)) != NULL; side_count++) {
		struct ofs_region *region;
		struct ofs_share *share;

		assert(ofs_region_open(&region, &region_config) == 0);
		assert(ofs_share_open(&share, ops, region) == 0);
		assert(ofs_port_open(&ports[side_count], &port_config, share) == 0);
		assert(ofs_port_export(ports[side_count], &real[side_count]) == 0);
	}
}

/*
 * Input: [side u8][how u8] and then, over a real blob of that side, pieces of
 * [offset u16][length u8][bytes]; bit 0 of how: make its checksum good again, or nothing behind the
 * checksum would ever be reached; bit 1: begin with the descriptors left out.
 */
int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ofs_attachment attachment;
	struct ofs_blob_header header;
	struct ofs_fabric *fabric;
	char error[256] = "";
	int rc;

	if (side_count == 0)
		open_once();
	if (size < 2)
		return 0;
	attachment = real[data[0] % side_count];
	attachment.fd_count = (data[1] & 2) != 0 ? 0 : attachment.fd_count;
	for (const uint8_t *at = data + 2, *end = data + size; end - at >= 3;) {
		size_t offset = ((size_t)at[0] | (size_t)at[1] << 8) % (sizeof(attachment.blob) + 4);
		size_t length = at[2] < end - at - 3 ? at[2] : (size_t)(end - at - 3);

		if (offset + length <= sizeof(attachment.blob))
			memcpy(attachment.blob + offset, at + 3, length);
		else
			attachment.blob_size_bytes = (uint32_t)length * 8;
		at += 3 + length;
	}
	if ((data[1] & 1) != 0 && attachment.blob_size_bytes >= sizeof(header)
		&& attachment.blob_size_bytes <= sizeof(attachment.blob)) {
		memcpy(&header, attachment.blob, sizeof(header));
		header.size_bytes = attachment.blob_size_bytes;
		header.checksum = 0;
		memcpy(attachment.blob, &header, sizeof(header));
		header.checksum = ofs_checksum(attachment.blob, attachment.blob_size_bytes);
		memcpy(attachment.blob, &header, sizeof(header));
	}
	rc = ofs_fabric_open(&fabric, &attachment, error, sizeof(error));
	if (rc == 0) {
		assert(fabric->port.entry_count == 4);
		fabric->ops->close(fabric);
	} else {
		assert(strlen(error) > 20 && strchr(error, '\n') == NULL && strchr(error, ';') != NULL);
	}
	return 0;
}
