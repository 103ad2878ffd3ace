/* The region of one tenant, DPU side: header, directory, slots; see region.h. */
#include "region.h"
#include "region/shared.h"
#include "sealed.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096u

struct ofs_region {
	struct ofs_region_header header; /* our own copy: the one in the mapping is for hosts */
	struct ofs_dma memory;
};

static int
check_config(const struct ofs_region_config *config)
{
	uint32_t lba = config->lba_size_bytes;

	if (lba < sizeof(struct ofs_trailer) || (lba & (lba - 1)) != 0 || lba > PAGE * 16
		|| config->payload_size_bytes == 0 || config->payload_size_bytes % lba != 0
		|| config->payload_size_bytes > OFS_PAYLOAD_SIZE_BYTES_MAX || config->slot_count == 0
		|| config->slot_count > OFS_REGION_SLOTS_MAX || config->granule_count > 32
		|| (config->granule_count > 1 && lba < 512)) {
		return -EINVAL;
	}
	return 0;
}

static struct ofs_region_header
make_header(const struct ofs_region_config *config)
{
	struct ofs_region_header header = {.magic = OFS_REGION_MAGIC,
		.version = OFS_MEMORY_MAP_VERSION,
		.tenant = config->tenant,
		.boot_id = config->boot_id,
		.slot_count = config->slot_count,
		.payload_size_bytes = config->payload_size_bytes,
		.trailer_offset = config->payload_size_bytes,
		.slot_stride_bytes = config->payload_size_bytes + config->lba_size_bytes,
		.granule_count = config->granule_count,
		.layer_count = config->layer_count,
		.bucket_entries = OFS_BUCKET_ENTRIES,
		.bucket_count = 2,
		.directory_offset = PAGE};
	uint64_t align = config->lba_size_bytes > PAGE ? config->lba_size_bytes : PAGE;
	uint64_t end;

	/* Twice as many entries as slots. */
	while ((uint64_t)header.bucket_count * OFS_BUCKET_ENTRIES < 2ull * config->slot_count)
		header.bucket_count *= 2;
	end = header.directory_offset
		+ (uint64_t)header.bucket_count * OFS_BUCKET_ENTRIES * sizeof(struct ofs_directory_entry);
	header.slots_offset = (end + align - 1) & ~(align - 1);
	end = header.slots_offset + (uint64_t)header.slot_count * header.slot_stride_bytes;
	header.size_bytes = (end + PAGE - 1) & ~(uint64_t)(PAGE - 1);
	return header;
}

static struct ofs_directory_entry *
bucket_at(const struct ofs_region *region, uint32_t bucket)
{
	return (struct ofs_directory_entry *)((uint8_t *)region->memory.base
			   + region->header.directory_offset)
		+ (uint64_t)bucket * OFS_BUCKET_ENTRIES;
}

int
ofs_region_open(struct ofs_region **out, const struct ofs_region_config *config)
{
	struct ofs_region *region;
	int rc = check_config(config);

	if (rc != 0)
		return rc;
	region = calloc(1, sizeof(*region));
	if (region == NULL)
		return -ENOMEM;
	region->header = make_header(config);
	rc = ofs_sealed_alloc(&region->memory, &config->memory, region->header.size_bytes,
		"offstage-region", 1);
	if (rc != 0) {
		free(region);
		return rc;
	}
	region->header.size_bytes = region->memory.size_bytes; /* pages may be larger than ours */
	region->header.checksum =
		ofs_checksum(&region->header, offsetof(struct ofs_region_header, checksum));
	for (uint64_t i = 0; i < (uint64_t)region->header.bucket_count * OFS_BUCKET_ENTRIES; i++)
		bucket_at(region, 0)[i].slot = OFS_NONE;
	memcpy(region->memory.base, &region->header, sizeof(region->header));
	*out = region;
	return 0;
}

void
ofs_region_close(struct ofs_region *region)
{
	if (region != NULL) {
		ofs_dma_free(&region->memory);
		free(region);
	}
}

int
ofs_region_share_fd(const struct ofs_region *region)
{
	return ofs_sealed_readonly_fd(&region->memory);
}

void *
ofs_region_slot(const struct ofs_region *region, uint32_t slot)
{
	if (slot >= region->header.slot_count)
		return NULL;
	return (uint8_t *)region->memory.base + region->header.slots_offset
		+ (uint64_t)slot * region->header.slot_stride_bytes;
}

struct ofs_trailer *
ofs_region_trailer(const struct ofs_region *region, uint32_t slot)
{
	uint8_t *record = ofs_region_slot(region, slot);

	return record == NULL ? NULL : (struct ofs_trailer *)(record + region->header.trailer_offset);
}

void *
ofs_region_base(const struct ofs_region *region, uint64_t *size_bytes)
{
	*size_bytes = region->memory.size_bytes;
	return region->memory.base;
}

static void
write_entry(struct ofs_directory_entry *entry, const struct ofs_key *key, uint32_t slot,
	uint32_t generation, uint32_t cause)
{
	uint32_t sequence = entry->sequence; /* we are the only writer */

	ofs_word_store(&entry->sequence, sequence + 1);
	/* Every store below is a release, so none is seen before the odd sequence. */
	ofs_word_store(&entry->slot, slot);
	__atomic_store_n(&entry->key.lo, key->lo, __ATOMIC_RELEASE);
	__atomic_store_n(&entry->key.hi, key->hi, __ATOMIC_RELEASE);
	ofs_word_store(&entry->generation, generation);
	ofs_word_store(&entry->cause, cause);
	ofs_word_store(&entry->sequence, sequence + 2);
}

/* The entry of `key`, or NULL; and the bucket with more room, with its number of free entries. */
static struct ofs_directory_entry *
find_entry(const struct ofs_region *region, const struct ofs_key *key, uint32_t *roomy,
	uint32_t *room)
{
	uint32_t buckets[2] = {ofs_bucket_first(key, region->header.bucket_count),
		ofs_bucket_second(key, region->header.bucket_count)};

	*room = 0;
	*roomy = buckets[0];
	for (uint32_t b = 0; b < 2; b++) {
		struct ofs_directory_entry *entries = bucket_at(region, buckets[b]);
		uint32_t empty_count = 0;

		for (uint32_t i = 0; i < OFS_BUCKET_ENTRIES; i++)
			if (entries[i].slot == OFS_NONE)
				empty_count++;
			else if (ofs_key_equal(&entries[i].key, key))
				return &entries[i];
		if (empty_count > *room) {
			*room = empty_count;
			*roomy = buckets[b];
		}
	}
	return NULL;
}

static void
write_trailer(struct ofs_trailer *trailer, const struct ofs_key *key, uint32_t generation,
	uint32_t cause)
{
	struct ofs_trailer sealed = {.length = trailer->length,
		.checksum = trailer->checksum,
		.key = *key,
		.generation = generation,
		.cause = cause};

	/* Bytes from NVMe may contain the words of an earlier use: void them first. */
	ofs_word_store(&trailer->generation, 0);
	__atomic_store_n(&trailer->key.lo, key->lo, __ATOMIC_RELEASE);
	__atomic_store_n(&trailer->key.hi, key->hi, __ATOMIC_RELEASE);
	ofs_word_store(&trailer->cause, cause);
	__atomic_store_n(&trailer->seal, ofs_trailer_seal(&sealed), __ATOMIC_RELEASE);
	ofs_word_store(&trailer->generation, generation);
}

int
ofs_region_publish(struct ofs_region *region, const struct ofs_key *block_key, uint32_t slot,
	uint32_t generation, uint32_t cause, uint32_t granules)
{
	struct ofs_trailer *trailer = ofs_region_trailer(region, slot);
	struct ofs_directory_entry *entry;
	uint32_t bucket;
	uint32_t room;

	assert(trailer != NULL && generation != 0 && cause != OFS_CAUSE_NONE);
	ofs_word_store(&trailer->granules, granules);
	write_trailer(trailer, block_key, generation, cause);
	entry = find_entry(region, block_key, &bucket, &room);
	if (entry == NULL && room == 0)
		return -ENOSPC;
	for (uint32_t i = 0; entry == NULL; i++) {
		struct ofs_directory_entry *candidate = bucket_at(region, bucket) + i;

		entry = candidate->slot == OFS_NONE ? candidate : NULL;
	}
	write_entry(entry, block_key, slot, generation, cause);
	return 0;
}

void
ofs_region_extend(struct ofs_region *region, uint32_t slot, uint32_t granules)
{
	/* The bytes are written before a host can see them published. */
	ofs_word_store(&ofs_region_trailer(region, slot)->granules, granules);
}

void
ofs_region_retract(struct ofs_region *region, const struct ofs_key *block_key, uint32_t slot)
{
	static const struct ofs_key no_key;
	struct ofs_trailer *trailer = ofs_region_trailer(region, slot);
	struct ofs_directory_entry *entry;
	uint32_t bucket;
	uint32_t room;

	assert(trailer != NULL);
	entry = find_entry(region, block_key, &bucket, &room);
	if (entry != NULL && entry->slot == slot)
		write_entry(entry, &no_key, OFS_NONE, 0, 0);
	/* The slot's own word is cleared even for a block that no bucket had room for. */
	ofs_word_store(&trailer->generation, 0);
	OFS_FENCE_ALL(); /* the slot's next write comes after this */
}
