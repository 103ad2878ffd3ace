/* Checks that an attachment is a region and its port, with every number of their headers. */
#include "fabric/host_port.h"
#include "granules.h"

#include <stdio.h>
#include <string.h>

#define START_AGAIN "start the host again"

static int
refuse(char *error, size_t error_size_bytes, int rc, const char *where, const char *what,
	const char *fix)
{
	snprintf(error, error_size_bytes, "%s: %s; %s", where, what, fix);
	return rc;
}

/* Whether `count` things of `size` bytes fit between `offset` and `end`; no overflow below 2^64. */
static int
fits(uint64_t offset, uint64_t count, uint64_t size, uint64_t end)
{
	return offset <= end && (size == 0 || count <= (end - offset) / size);
}

static int
power_of_two(uint32_t value)
{
	return value != 0 && (value & (value - 1)) == 0;
}

/* Blocks are cut into equal granules whose checksums follow the trailer. */
static int
granules_fit(const struct ofs_region_header *h)
{
	uint32_t size_bytes = sizeof(struct ofs_trailer) + sizeof(struct ofs_granule_table);

	return h->granule_count < 2
		|| (h->granule_count <= 32 && h->payload_size_bytes % h->granule_count == 0
			&& fits(h->trailer_offset, 1, size_bytes, h->slot_stride_bytes));
}

static int
region_fits(const struct ofs_region_header *h, uint64_t size_bytes)
{
	return h->size_bytes == size_bytes && h->slot_count > 0 && h->slot_count <= OFS_REGION_SLOTS_MAX
		&& h->payload_size_bytes > 0 && h->payload_size_bytes <= OFS_PAYLOAD_SIZE_BYTES_MAX
		&& h->trailer_offset == h->payload_size_bytes && h->trailer_offset % 64 == 0
		&& fits(h->trailer_offset, 1, sizeof(struct ofs_trailer), h->slot_stride_bytes)
		&& granules_fit(h) && h->slot_stride_bytes % 64 == 0 && h->slots_offset % 64 == 0
		&& h->directory_offset % 64 == 0 && h->directory_offset >= sizeof(*h)
		&& h->bucket_entries == OFS_BUCKET_ENTRIES && h->bucket_count >= 2
		&& power_of_two(h->bucket_count)
		&& fits(h->directory_offset, h->bucket_count,
			OFS_BUCKET_ENTRIES * sizeof(struct ofs_directory_entry), size_bytes)
		&& fits(h->slots_offset, h->slot_count, h->slot_stride_bytes, size_bytes);
}

static int
port_fits(const struct ofs_port_header *h, uint64_t size_bytes)
{
	uint64_t words_end = OFS_PORT_WORDS_OFFSET + sizeof(struct ofs_port_words);

	return h->size_bytes == size_bytes && power_of_two(h->entry_count)
		&& h->entry_count <= OFS_PORT_ENTRIES_MAX && h->demand_max > 0
		&& h->demand_max <= OFS_PORT_DEMANDS_MAX && h->score_max <= OFS_PORT_SCORES_MAX
		&& h->put_slot_count > 0 && h->put_slot_count <= OFS_PORT_PUT_SLOTS_MAX
		&& h->payload_size_bytes >= ofs_payload_area_size_bytes(h->demand_max, h->score_max)
		&& h->payload_size_bytes % 64 == 0 && h->payloads_offset % 64 == 0
		&& h->submissions_offset % 64 == 0 && h->completions_offset % 64 == 0
		&& h->puts_offset % 64 == 0 && h->submissions_offset >= words_end
		&& h->completions_offset >= words_end && h->payloads_offset >= words_end
		&& h->puts_offset >= words_end
		&& fits(h->submissions_offset, h->entry_count, sizeof(struct ofs_sqe), size_bytes)
		&& fits(h->completions_offset, 2ull * h->entry_count, sizeof(struct ofs_cqe), size_bytes)
		&& fits(h->payloads_offset, h->entry_count, h->payload_size_bytes, size_bytes)
		&& fits(h->puts_offset, h->put_slot_count, h->put_stride_bytes, size_bytes);
}

static int
check_region(const struct ofs_region_header *h, uint64_t size_bytes, char *error, size_t room)
{
	if (h->magic != OFS_REGION_MAGIC) {
		return refuse(error, room, -EPROTO, "region", "not an Offstage region (wrong magic)",
			"give the descriptors the daemon handed out, in their order");
	}
	if (h->version != OFS_MEMORY_MAP_VERSION) {
		char what[96];

		snprintf(what, sizeof(what), "has version %u, this host knows %u", h->version,
			OFS_MEMORY_MAP_VERSION);
		return refuse(error, room, -EPROTO, "region", what,
			"install the same release on both sides");
	}
	if (h->checksum != ofs_checksum(h, offsetof(struct ofs_region_header, checksum)))
		return refuse(error, room, -EINVAL, "region", "its header fails its checksum", START_AGAIN);
	if (!region_fits(h, size_bytes)) {
		return refuse(error, room, -EINVAL, "region",
			"its header names sizes that do not fit the mapping", START_AGAIN);
	}
	return 0;
}

static int
check_port(const struct ofs_port_header *h, uint64_t size_bytes, char *error, size_t room)
{
	if (h->magic != OFS_PORT_MAGIC) {
		return refuse(error, room, -EPROTO, "port", "not an Offstage port (wrong magic)",
			"give the descriptors the daemon handed out, in their order");
	}
	if (h->version != OFS_MEMORY_MAP_VERSION) {
		char what[96];

		snprintf(what, sizeof(what), "has version %u, this host knows %u", h->version,
			OFS_MEMORY_MAP_VERSION);
		return refuse(error, room, -EPROTO, "port", what, "install the same release on both sides");
	}
	if (h->checksum != ofs_checksum(h, offsetof(struct ofs_port_header, checksum)))
		return refuse(error, room, -EINVAL, "port", "its header fails its checksum", START_AGAIN);
	if (!port_fits(h, size_bytes)) {
		return refuse(error, room, -EINVAL, "port",
			"its header names sizes that do not fit the mapping", START_AGAIN);
	}
	return 0;
}

int
ofs_fabric_check(struct ofs_fabric *fabric, const uint8_t *region_base, uint64_t region_size_bytes,
	const uint8_t *port_base, uint64_t port_size_bytes, char *error, size_t error_size_bytes)
{
	int rc;

	if (region_size_bytes < sizeof(fabric->region)
		|| port_size_bytes < OFS_PORT_WORDS_OFFSET + sizeof(struct ofs_port_words)) {
		return refuse(error, error_size_bytes, -EINVAL, "region or port",
			"too small to hold its header", START_AGAIN);
	}
	memcpy(&fabric->region, region_base, sizeof(fabric->region));
	memcpy(&fabric->port, port_base, sizeof(fabric->port));
	rc = check_region(&fabric->region, region_size_bytes, error, error_size_bytes);
	if (rc == 0)
		rc = check_port(&fabric->port, port_size_bytes, error, error_size_bytes);
	if (rc != 0)
		return rc;
	if (fabric->region.tenant != fabric->port.tenant
		|| fabric->region.boot_id != fabric->port.boot_id
		|| fabric->port.put_stride_bytes < fabric->region.payload_size_bytes) {
		return refuse(error, error_size_bytes, -EINVAL, "region and port",
			"they do not belong together", START_AGAIN);
	}
	return 0;
}
