/* Is every wrong region or port refused in one line with cause and fix? */
#include "fabric.h"
#include "port.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct ofs_region *region;
static struct ofs_share *share;
static struct ofs_port *port;
static struct ofs_attachment attachment;
static char error[256];

static void
set_up(const char *side)
{
	struct ofs_region_config region_config = {.tenant = 3,
		.slot_count = 4,
		.payload_size_bytes = 1024,
		.lba_size_bytes = 512,
		.boot_id = 7};
	struct ofs_port_config port_config = {.tenant = 3,
		.entry_count = 4,
		.demand_max = 8,
		.score_max = 8,
		.put_slot_count = 2,
		.put_stride_bytes = 1536,
		.boot_id = 7};

	assert(ofs_region_open(&region, &region_config) == 0);
	assert(ofs_share_open(&share, ofs_port_find(side), region) == 0);
	assert(ofs_port_open(&port, &port_config, share) == 0);
	assert(ofs_port_export(port, &attachment) == 0);
}

static void
tear_down(void)
{
	for (uint32_t i = 0; i < attachment.fd_count; i++)
		close(attachment.fds[i]);
	ofs_port_close(port);
	ofs_share_close(share);
	ofs_region_close(region);
}

static int
open_again(void)
{
	struct ofs_fabric *fabric;
	int rc;

	memset(error, 0, sizeof(error));
	rc = ofs_fabric_open(&fabric, &attachment, error, sizeof(error));
	if (rc == 0)
		fabric->ops->close(fabric);
	else
		assert(strlen(error) > 20 && strchr(error, '\n') == NULL && strchr(error, ';') != NULL);
	return rc;
}

/* With one word of the region's header changed, and a valid checksum: what is the error of an
 * open? */
static int
with_region_word(size_t offset, uint64_t value, size_t size)
{
	uint64_t size_bytes;
	uint8_t *base = ofs_region_base(region, &size_bytes);
	struct ofs_region_header *header = (struct ofs_region_header *)base;
	struct ofs_region_header saved = *header;
	int rc;

	memcpy(base + offset, &value, size);
	header->checksum = ofs_checksum(header, offsetof(struct ofs_region_header, checksum));
	rc = open_again();
	*header = saved;
	return rc;
}

static int
with_port_word(size_t offset, uint64_t value, size_t size)
{
	uint8_t *base = port->rings.base;
	struct ofs_port_header *header = (struct ofs_port_header *)base;
	struct ofs_port_header saved = *header;
	int rc;

	memcpy(base + offset, &value, size);
	header->checksum = ofs_checksum(header, offsetof(struct ofs_port_header, checksum));
	rc = open_again();
	*header = saved;
	return rc;
}

#define REGION(field, value)                                           \
	with_region_word(offsetof(struct ofs_region_header, field), value, \
		sizeof(((struct ofs_region_header *)0)->field))
#define PORT(field, value)                                         \
	with_port_word(offsetof(struct ofs_port_header, field), value, \
		sizeof(((struct ofs_port_header *)0)->field))

static void
test_headers(void)
{
	set_up("memory");
	assert(open_again() == 0);
	assert(REGION(magic, 0) == -EPROTO && strstr(error, "magic") != NULL);
	assert(
		REGION(version, OFS_MEMORY_MAP_VERSION + 1) == -EPROTO && strstr(error, "version") != NULL);
	assert(REGION(size_bytes, 1ull << 40) == -EINVAL && strstr(error, "sizes") != NULL);
	assert(REGION(slot_count, 5000) == -EINVAL);
	assert(REGION(slot_count, 0) == -EINVAL);
	assert(REGION(slot_count, UINT32_MAX) == -EINVAL);
	assert(REGION(slot_stride_bytes, UINT32_MAX & ~63u) == -EINVAL);
	assert(REGION(slot_stride_bytes, 64) == -EINVAL);
	assert(REGION(payload_size_bytes, 2048) == -EINVAL);
	assert(REGION(trailer_offset, 1500) == -EINVAL);
	/* A table of granules behind the trailer of a slot that has no room for it, or of too many. */
	assert(REGION(granule_count, 2) == 0 && REGION(granule_count, 3) == -EINVAL);
	assert(REGION(granule_count, 64) == -EINVAL && strstr(error, "sizes") != NULL);
	assert(REGION(bucket_count, 3) == -EINVAL);
	assert(REGION(bucket_count, 1u << 31) == -EINVAL);
	assert(REGION(bucket_entries, 9) == -EINVAL);
	assert(REGION(directory_offset, UINT64_MAX & ~63ull) == -EINVAL);
	assert(REGION(slots_offset, UINT64_MAX & ~63ull) == -EINVAL);
	assert(REGION(boot_id, 8) == -EINVAL && strstr(error, "belong together") != NULL);
	assert(REGION(tenant, 4) == -EINVAL);
	assert(PORT(magic, 0) == -EPROTO && strstr(error, "magic") != NULL);
	assert(PORT(version, 9) == -EPROTO);
	assert(PORT(entry_count, 3) == -EINVAL);
	assert(PORT(entry_count, 1u << 20) == -EINVAL);
	assert(PORT(payload_size_bytes, 64) == -EINVAL);
	assert(PORT(demand_max, UINT32_MAX) == -EINVAL);
	assert(PORT(score_max, UINT32_MAX) == -EINVAL);
	assert(PORT(put_slot_count, 4000) == -EINVAL);
	assert(PORT(put_stride_bytes, 64) == -EINVAL);
	assert(PORT(submissions_offset, 0) == -EINVAL);
	assert(PORT(completions_offset, UINT64_MAX & ~63ull) == -EINVAL);
	assert(PORT(payloads_offset, 1ull << 50) == -EINVAL);
	assert(PORT(puts_offset, 64) == -EINVAL);
	assert(open_again() == 0);
	/* Changed without a new checksum. */
	uint64_t size_bytes;
	struct ofs_region_header *header = ofs_region_base(region, &size_bytes);

	header->slot_count--;
	assert(open_again() == -EINVAL && strstr(error, "checksum") != NULL);
	tear_down();
}

/* Opens with descriptor `at` replaced; the error is one line with cause and fix. */
static int
with_fd(uint32_t at, int fd)
{
	struct ofs_attachment saved = attachment;
	int rc;

	attachment.fds[at] = fd;
	rc = open_again();
	attachment = saved;
	return rc;
}

/* Descriptors that are something else: swapped, a plain file, memory that can shrink, closed. */
static void
test_descriptors(void)
{
	int loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int file = open("/proc/self/exe", O_RDONLY);

	set_up("shm");
	assert(ftruncate(loose, 1 << 20) == 0);
	assert(attachment.fd_count == 3 && open_again() == 0);
	assert(with_fd(0, attachment.fds[1]) == -EPROTO);
	assert(with_fd(1, attachment.fds[0]) != 0);
	assert(with_fd(0, loose) == -EINVAL && strstr(error, "sealed") != NULL);
	assert(with_fd(0, file) == -EINVAL);
	assert(with_fd(0, -1) == -EINVAL);
	assert(with_fd(1, loose) == -EINVAL && with_fd(1, -1) == -EINVAL);
	assert(with_fd(2, -1) == -EBADF);
	close(loose);
	close(file);
	tear_down();
}

static void
test_port_config(void)
{
	static const struct ofs_port_config bad[] = {
		{.entry_count = 0, .demand_max = 1, .put_slot_count = 1, .put_stride_bytes = 1},
		{.entry_count = 3, .demand_max = 1, .put_slot_count = 1, .put_stride_bytes = 1},
		{.entry_count = 8192, .demand_max = 1, .put_slot_count = 1, .put_stride_bytes = 1},
		{.entry_count = 4, .demand_max = 0, .put_slot_count = 1, .put_stride_bytes = 1},
		{.entry_count = 4, .demand_max = 1, .put_slot_count = 0, .put_stride_bytes = 1},
		{.entry_count = 4, .demand_max = 1, .put_slot_count = 1, .put_stride_bytes = 0},
		{.entry_count = 4,
			.demand_max = 1,
			.put_slot_count = 1,
			.put_stride_bytes = 1,
			.score_max = UINT32_MAX},
	};
	struct ofs_port *opened;

	for (uint32_t side = 0; ofs_port_side(side) != NULL; side++) {
		set_up(ofs_port_side(side)->name);
		for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
			assert(ofs_port_open(&opened, &bad[i], share) == -EINVAL);
		tear_down();
	}
}

int
main(void)
{
	test_headers();
	test_descriptors();
	test_port_config();
	return 0;
}
