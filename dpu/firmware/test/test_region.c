/* Does the DPU's side of the memory map keep the promises of region.h, and can no host write it? */
#include "region.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOTS 4096

static struct ofs_key
key_of(uint64_t number)
{
	static const struct ofs_key secret = {3, 4};
	struct ofs_key key;

	ofs_siphash(&secret, &number, sizeof(number), &key);
	return key;
}

static struct ofs_region *
open_region(uint32_t slot_count, uint32_t payload_size_bytes)
{
	struct ofs_region_config config = {.tenant = 1,
		.slot_count = slot_count,
		.payload_size_bytes = payload_size_bytes,
		.lba_size_bytes = 512,
		.boot_id = 9};
	struct ofs_region *region;

	assert(ofs_region_open(&region, &config) == 0);
	return region;
}

/* The directory as a host sees it: how many entries name `key`, and the slot of one. */
static int
lookup(const struct ofs_region *region, const struct ofs_key *key, uint32_t *slot)
{
	uint64_t size_bytes;
	const uint8_t *base = ofs_region_base(region, &size_bytes);
	const struct ofs_region_header *header = (const struct ofs_region_header *)base;
	const struct ofs_directory_entry *entries =
		(const struct ofs_directory_entry *)(base + header->directory_offset);
	uint64_t total = (uint64_t)header->bucket_count * header->bucket_entries;
	int found = 0;

	for (uint64_t i = 0; i < total; i++) {
		uint32_t bucket = (uint32_t)(i / OFS_BUCKET_ENTRIES);

		assert((entries[i].sequence & 1) == 0);
		if (entries[i].slot != OFS_NONE && ofs_key_equal(&entries[i].key, key)) {
			assert(bucket == ofs_bucket_first(key, header->bucket_count)
				|| bucket == ofs_bucket_second(key, header->bucket_count));
			*slot = entries[i].slot;
			found++;
		}
	}
	return found;
}

static void
test_publish_and_retract(void)
{
	struct ofs_region *region = open_region(8, 1024);
	struct ofs_key key = key_of(1);
	uint32_t slot;

	assert(ofs_region_publish(region, &key, 5, 11, OFS_CAUSE_DEMAND, 0) == 0);
	assert(lookup(region, &key, &slot) == 1 && slot == 5);
	assert(ofs_region_trailer(region, 5)->generation == 11);
	assert(ofs_key_equal(&ofs_region_trailer(region, 5)->key, &key));
	/* Published again elsewhere: the entry moves, there are not two. */
	assert(ofs_region_publish(region, &key, 6, 12, OFS_CAUSE_DEMAND, 0) == 0);
	assert(lookup(region, &key, &slot) == 1 && slot == 6);
	/* Retracting the old slot leaves the new entry alone. */
	ofs_region_retract(region, &key, 5);
	assert(lookup(region, &key, &slot) == 1 && slot == 6);
	assert(ofs_region_trailer(region, 5)->generation == 0);
	ofs_region_retract(region, &key, 6);
	assert(lookup(region, &key, &slot) == 0);
	assert(ofs_region_trailer(region, 6)->generation == 0);
	assert(ofs_region_slot(region, 8) == NULL && ofs_region_trailer(region, 8) == NULL);
	ofs_region_close(region);
}

/* Every slot full, a million publishes: is the claim about overflow in region.h true? */
static void
test_directory_load(void)
{
	struct ofs_region *region = open_region(SLOTS, 512);
	static uint64_t number_in[SLOTS];
	uint32_t overflow_count = 0;
	uint32_t slot;

	for (uint64_t i = 0; i < 1000000; i++) {
		struct ofs_key key = key_of(i + 1);
		int rc;

		slot = (uint32_t)(i * 2654435761u % SLOTS);
		if (number_in[slot] != 0) {
			struct ofs_key old = key_of(number_in[slot]);

			ofs_region_retract(region, &old, slot);
		}
		rc = ofs_region_publish(region, &key, slot, (uint32_t)i + 1, OFS_CAUSE_WINDOW, 0);
		assert(rc == 0 || rc == -ENOSPC);
		overflow_count += rc == -ENOSPC;
		/* Also without an entry: a STEP's answer must be readable. */
		assert(ofs_region_trailer(region, slot)->generation == (uint32_t)i + 1);
		number_in[slot] = i + 1;
	}
	printf("directory overflows in a million publishes at full load: %u\n", overflow_count);
	assert(overflow_count <= 1);
	for (slot = 0; slot < SLOTS; slot += 97) {
		struct ofs_key key = key_of(number_in[slot]);
		uint32_t found = OFS_NONE;

		assert(lookup(region, &key, &found) == 1 && found == slot);
	}
	ofs_region_close(region);
}

/* A bucket pair that is full: -ENOSPC, and the trailer is written all the same. */
static void
test_full_buckets(void)
{
	struct ofs_region *region = open_region(8, 1024); /* 16 entries in 2 buckets */
	uint32_t slot;

	for (uint64_t i = 0; i < 16; i++) {
		struct ofs_key key = key_of(i);

		assert(
			ofs_region_publish(region, &key, (uint32_t)i % 8, (uint32_t)i + 1, OFS_CAUSE_WINDOW, 0)
			== 0);
	}
	struct ofs_key late = key_of(99);

	assert(ofs_region_publish(region, &late, 3, 50, OFS_CAUSE_DEMAND, 0) == -ENOSPC);
	assert(lookup(region, &late, &slot) == 0);
	assert(ofs_region_trailer(region, 3)->generation == 50);
	ofs_region_retract(region, &late, 3);
	assert(ofs_region_trailer(region, 3)->generation == 0);
	ofs_region_close(region);
}

static void
test_no_host_can_write(void)
{
	struct ofs_region *region = open_region(8, 1024);
	int fd = ofs_region_share_fd(region);
	char path[64];
	uint64_t size_bytes;
	int again;
	void *mapped;

	(void)ofs_region_base(region, &size_bytes);
	assert(fd >= 0);
	mapped = mmap(NULL, size_bytes, PROT_READ, MAP_SHARED, fd, 0);
	assert(mapped != MAP_FAILED);
	assert(memcmp(mapped, "FOSREGN1", 8) == 0);
	assert(mprotect(mapped, size_bytes, PROT_READ | PROT_WRITE) != 0);
	munmap(mapped, size_bytes);
	assert(mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	assert(write(fd, "x", 1) < 0);
	/* Through /proc even a read-only descriptor can be reopened for writing, by root at least. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR);
	if (again >= 0) {
		assert(mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
		assert(pwrite(again, "x", 1, 0) < 0);
		assert(ftruncate(again, 0) != 0);
		close(again);
	}
	close(fd);
	/* The DPU itself still writes. */
	memset(ofs_region_slot(region, 0), 1, 1024);
	ofs_region_close(region);
}

static void
test_refuses_nonsense(void)
{
	static const struct ofs_region_config bad[] = {
		{.slot_count = 0, .payload_size_bytes = 512, .lba_size_bytes = 512},
		{.slot_count = 1, .payload_size_bytes = 0, .lba_size_bytes = 512},
		{.slot_count = 1, .payload_size_bytes = 513, .lba_size_bytes = 512},
		{.slot_count = 1, .payload_size_bytes = 512, .lba_size_bytes = 0},
		{.slot_count = 1, .payload_size_bytes = 512, .lba_size_bytes = 64},
		{.slot_count = 1, .payload_size_bytes = 768, .lba_size_bytes = 384},
		{.slot_count = UINT32_MAX, .payload_size_bytes = 512, .lba_size_bytes = 512},
		{.slot_count = 1, .payload_size_bytes = 1u << 30, .lba_size_bytes = 512},
	};
	struct ofs_region *region;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert(ofs_region_open(&region, &bad[i]) == -EINVAL);
}

int
main(void)
{
	test_publish_and_retract();
	test_full_buckets();
	test_directory_load();
	test_no_host_can_write();
	test_refuses_nonsense();
	return 0;
}
