/* A hostile region and port: the host refuses them, or reads within its bounds. */
#include "driver.h"
#include "port.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define DEMANDS 8
#define PAYLOAD 512

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct ofs_region *region;
static struct ofs_port *port;
static struct ofs_attachment attachment;

static void
open_once(void)
{
	struct ofs_region_config region_config = {.tenant = 1,
		.slot_count = 4,
		.payload_size_bytes = PAYLOAD,
		.lba_size_bytes = 512,
		.boot_id = 1};
	struct ofs_port_config port_config = {.tenant = 1,
		.entry_count = 4,
		.demand_max = DEMANDS,
		.score_max = 8,
		.put_slot_count = 2,
		.put_stride_bytes = 1024,
		.boot_id = 1};
	struct ofs_share *share;

	assert(ofs_region_open(&region, &region_config) == 0);
	assert(ofs_share_open(&share, ofs_port_find("memory"), region) == 0);
	assert(ofs_port_open(&port, &port_config, share) == 0);
	assert(ofs_port_export(port, &attachment) == 0);
}

/* Pieces of [where u8][offset u16][length u8][bytes]: bit 0 of where says region or port. */
static void
scribble(const uint8_t *data, size_t size)
{
	while (size >= 4) {
		uint64_t size_bytes = port->rings.header.size_bytes;
		uint8_t *base =
			(data[0] & 1) != 0 ? ofs_region_base(region, &size_bytes) : port->rings.base;
		uint64_t offset = (uint64_t)data[1] | (uint64_t)data[2] << 8;
		size_t length = data[3] < size - 4 ? data[3] : size - 4;

		if (offset + length <= size_bytes)
			memcpy(base + offset, data + 4, length);
		data += 4 + length;
		size -= 4 + length;
	}
}

static void
use(struct ofs_driver *driver)
{
	uint32_t payload_size_bytes = ofs_driver_payload_size_bytes(driver);
	uint8_t *target = malloc((size_t)DEMANDS * payload_size_bytes);
	uint32_t ordinals[DEMANDS] = {0, 1, 2, 3, 4, 5, 6, 7};
	struct ofs_key keys[DEMANDS] = {{0, 0}, {1, 2}};
	uint8_t ends[DEMANDS];
	int32_t rcs[DEMANDS];
	uint32_t lengths[DEMANDS];
	uint64_t checksums[DEMANDS];
	struct ofs_fetch fetch = {.demand_count = DEMANDS,
		.selected_count = DEMANDS,
		.ordinals = ordinals,
		.keys = keys,
		.target = target,
		.target_index = ordinals,
		.target_stride_bytes = payload_size_bytes,
		.timeout_ns = 1,
		.ends = ends,
		.rcs = rcs,
		.lengths = lengths,
		.checksums = checksums};
	struct ofs_put put;
	uint32_t i;

	if (target == NULL)
		return;
	(void)ofs_driver_fetch(driver, &fetch);
	for (i = 0; i < DEMANDS; i++) {
		if (rcs[i] == 0) {
			assert(lengths[i] <= payload_size_bytes
				&& checksums[i]
					== ofs_checksum(target + (size_t)i * payload_size_bytes, lengths[i]));
		}
	}
	put = (struct ofs_put){.count = 1,
		.length_bytes = 1,
		.ordinals = ordinals,
		.source = target,
		.source_stride_bytes = payload_size_bytes,
		.timeout_ns = 1,
		.rcs = rcs};
	(void)ofs_driver_put(driver, &put);
	free(target);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ofs_region_header region_saved;
	struct ofs_port_header port_saved;
	struct ofs_region_header *region_header;
	struct ofs_port_header *port_header;
	struct ofs_fabric *fabric;
	struct ofs_driver *driver;
	uint64_t size_bytes;
	char error[256];

	if (size < 1)
		return 0;
	if (region == NULL)
		open_once();
	region_header = ofs_region_base(region, &size_bytes);
	port_header = (struct ofs_port_header *)port->rings.base;
	region_saved = *region_header;
	port_saved = *port_header;
	scribble(data + 1, size - 1);
	/* Mostly with a good checksum, or nothing behind it would ever be reached. */
	if ((data[0] & 7) != 0) {
		region_header->checksum =
			ofs_checksum(region_header, offsetof(struct ofs_region_header, checksum));
		port_header->checksum =
			ofs_checksum(port_header, offsetof(struct ofs_port_header, checksum));
	}
	if (ofs_fabric_open(&fabric, &attachment, error, sizeof(error)) == 0
		&& ofs_driver_open(&driver, fabric) == 0) {
		use(driver);
		ofs_driver_close(driver);
	}
	*region_header = region_saved;
	*port_header = port_saved;
	return 0;
}
