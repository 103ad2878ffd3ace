/*
 * One-sided reads: look up, copy, check. The order of region.h: entry, trailer, payload, trailer
 * again, checksum of the copy. Whatever does not agree is a miss.
 */
#include "driver/internal.h"

#include <string.h>

static uint64_t
bucket_offset(const struct ofs_region_header *region, uint32_t bucket)
{
	return region->directory_offset
		+ (uint64_t)bucket * OFS_BUCKET_ENTRIES * sizeof(struct ofs_directory_entry);
}

/* An entry that was torn while we copied it names a slot whose trailer will not agree. */
static void
search_bucket(const struct ofs_region_header *region, struct ofs_block_read *read)
{
	for (uint32_t i = 0; i < OFS_BUCKET_ENTRIES; i++) {
		const struct ofs_directory_entry *entry = &read->bucket[i];

		if (ofs_key_equal(&entry->key, &read->key) && (entry->sequence & 1) == 0
			&& entry->slot < region->slot_count && entry->generation != 0) {
			read->slot = entry->slot;
			read->generation = entry->generation;
			return;
		}
	}
}

/* All of one round are posted before the first is looked at: their cache misses overlap. */
int
ofs_reads_lookup(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count)
{
	struct ofs_fabric *fabric = driver->fabric;
	const struct ofs_region_header *region = &fabric->region;

	for (uint32_t i = 0; i < count; i++)
		reads[i].slot = OFS_NONE;
	for (int round = 0; round < 2; round++) {
		int rc = 0;

		for (uint32_t i = 0; i < count && rc == 0; i++) {
			uint32_t bucket = round == 0 ? ofs_bucket_first(&reads[i].key, region->bucket_count)
										 : ofs_bucket_second(&reads[i].key, region->bucket_count);

			if (reads[i].slot == OFS_NONE) {
				rc = fabric->ops->read(fabric, bucket_offset(region, bucket), reads[i].bucket,
					sizeof(reads[i].bucket));
			}
		}
		if (rc == 0)
			rc = fabric->ops->flush(fabric, OFS_COMMAND_TIMEOUT_NS);
		if (rc != 0)
			return rc;
		for (uint32_t i = 0; i < count; i++)
			if (reads[i].slot == OFS_NONE)
				search_bucket(region, &reads[i]);
	}
	return 0;
}

static uint64_t
slot_offset(const struct ofs_region_header *region, uint32_t slot)
{
	return region->slots_offset + (uint64_t)slot * region->slot_stride_bytes;
}

static int
trailer_agrees(const struct ofs_region_header *region, const struct ofs_block_read *read,
	const struct ofs_trailer *trailer)
{
	return trailer->generation == read->generation && ofs_key_equal(&trailer->key, &read->key)
		&& trailer->length <= region->payload_size_bytes && trailer->cause > OFS_CAUSE_NONE
		&& trailer->cause < OFS_CAUSE_COUNT;
}

static int
post_trailer(struct ofs_fabric *fabric, const struct ofs_block_read *read,
	struct ofs_trailer *trailer)
{
	return fabric->ops->read(fabric,
		slot_offset(&fabric->region, read->slot) + fabric->region.trailer_offset, trailer,
		sizeof(*trailer));
}

static int
post_payload(struct ofs_fabric *fabric, struct ofs_block_read *read)
{
	int rc = fabric->ops->read(fabric, slot_offset(&fabric->region, read->slot), read->target,
		read->before.length);

	return rc != 0 ? rc : post_trailer(fabric, read, &read->after);
}

static void
verify(struct ofs_driver *driver, struct ofs_block_read *read, int checked)
{
	const struct ofs_trailer *after = &read->after;

	if (!trailer_agrees(&driver->fabric->region, read, after)
		|| after->length != read->before.length) {
		read->rc = -ESTALE;
		return;
	}
	read->length = after->length;
	read->cause = after->cause;
	read->checksum = checked ? ofs_checksum(read->target, after->length) : after->checksum;
	read->rc = read->checksum == after->checksum ? 0 : -EBADMSG;
	if (read->rc == 0)
		driver->stats.bytes_read += after->length;
}

int
ofs_reads_run(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count, int checked)
{
	struct ofs_fabric *fabric = driver->fabric;
	uint32_t batch_max = fabric->read_batch_max;
	int rc = 0;

	for (uint32_t i = 0; i < count && rc == 0; i++) {
		struct ofs_block_read *read = &reads[i];

		read->rc = read->slot == OFS_NONE ? -ENOENT : -EINPROGRESS;
		if (read->slot != OFS_NONE)
			rc = post_trailer(fabric, read, &read->before);
	}
	if (rc == 0)
		rc = fabric->ops->flush(fabric, OFS_COMMAND_TIMEOUT_NS);
	for (uint32_t first = 0; first < count && rc == 0; first += batch_max) {
		uint32_t end = count - first < batch_max ? count : first + batch_max;
		uint64_t stage_ns = 0;
		bool posted = false;

		for (uint32_t i = first; i < end && rc == 0; i++) {
			struct ofs_block_read *read = &reads[i];

			if (read->rc != -EINPROGRESS)
				continue;
			if (!trailer_agrees(&fabric->region, read, &read->before)) {
				read->rc = -ESTALE;
				continue;
			}
			if (!posted)
				stage_ns = ofs_driver_stage_begin(driver, OFS_STAGE_COPY);
			posted = true;
			rc = post_payload(fabric, read);
		}
		if (rc == 0)
			rc = fabric->ops->flush(fabric, OFS_COMMAND_TIMEOUT_NS);
		stage_ns = ofs_driver_stage_end(driver, OFS_STAGE_COPY, stage_ns);
		for (uint32_t i = first; i < end && rc == 0; i++) {
			struct ofs_block_read *read = &reads[i];

			if (read->rc == -EINPROGRESS)
				verify(driver, read, checked);
		}
		(void)ofs_driver_stage_end(driver, OFS_STAGE_CHECK, stage_ns);
	}
	return rc;
}
