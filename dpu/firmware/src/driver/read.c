/*
 * One-sided reads: look up, copy, check. region.h says what proves a copy right; any mismatch is a
 * miss.
 *
 * Over a network a hit costs two round trips: both buckets in which the key may be, then the record
 * with its trailer; if the slot is remembered, it costs one. In local memory the second bucket is
 * read only if the first does not have the key, and the copy is hashed as it is made.
 */
#include "driver/internal.h"

#include <assert.h>
#include <string.h>

static uint64_t
bucket_offset(const struct ofs_region_header *region, uint32_t bucket)
{
	return region->directory_offset
		+ (uint64_t)bucket * OFS_BUCKET_ENTRIES * sizeof(struct ofs_directory_entry);
}

/* An entry that was torn while we copied it names a slot whose trailer will not match. */
static void
search_bucket(const struct ofs_region_header *region, struct ofs_block_read *read,
	const struct ofs_directory_entry *bucket)
{
	for (uint32_t i = 0; i < OFS_BUCKET_ENTRIES && read->slot == OFS_NONE; i++) {
		const struct ofs_directory_entry *entry = &bucket[i];

		if (ofs_key_equal(&entry->key, &read->key) && (entry->sequence & 1) == 0
			&& entry->slot < region->slot_count && entry->generation != 0) {
			read->slot = entry->slot;
			read->generation = entry->generation;
		}
	}
}

static int
post_bucket(struct ofs_fabric *fabric, struct ofs_block_read *read, int second)
{
	const struct ofs_region_header *region = &fabric->region;
	uint32_t bucket = second ? ofs_bucket_second(&read->key, region->bucket_count)
							 : ofs_bucket_first(&read->key, region->bucket_count);
	struct ofs_span span = {read->buckets[second], sizeof(read->buckets[second])};

	return fabric->ops->read(fabric, bucket_offset(region, bucket), &span, 1);
}

static int
post_buckets(struct ofs_fabric *fabric, struct ofs_block_read *read)
{
	int rc = post_bucket(fabric, read, 0);

	return rc != 0 ? rc : post_bucket(fabric, read, 1);
}

/* One round trip for all. */
static int
lookup_far(struct ofs_fabric *fabric, struct ofs_block_read *reads, uint32_t count)
{
	int rc = 0;

	for (uint32_t i = 0; i < count && rc == 0; i++)
		rc = post_buckets(fabric, &reads[i]);
	if (rc == 0)
		rc = fabric->ops->flush(fabric, OFS_COMMAND_TIMEOUT_NS);
	for (uint32_t i = 0; i < count && rc == 0; i++) {
		search_bucket(&fabric->region, &reads[i], reads[i].buckets[0]);
		search_bucket(&fabric->region, &reads[i], reads[i].buckets[1]);
	}
	return rc;
}

/* All of one round are prefetched before the first is read: their cache misses overlap. */
static int
lookup_near(struct ofs_fabric *fabric, struct ofs_block_read *reads, uint32_t count)
{
	int rc = 0;

	for (int round = 0; round < 2 && rc == 0; round++) {
		for (uint32_t i = 0; i < count && rc == 0; i++)
			if (reads[i].slot == OFS_NONE)
				rc = post_bucket(fabric, &reads[i], round);
		for (uint32_t i = 0; i < count && rc == 0; i++)
			if (reads[i].slot == OFS_NONE)
				search_bucket(&fabric->region, &reads[i], reads[i].buckets[round]);
	}
	return rc;
}

int
ofs_reads_lookup(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		reads[i].slot = OFS_NONE;
	return driver->fabric->ops->copy != NULL ? lookup_near(driver->fabric, reads, count)
											 : lookup_far(driver->fabric, reads, count);
}

static uint64_t
slot_offset(const struct ofs_region_header *region, uint32_t slot)
{
	assert(slot < region->slot_count); /* the number was checked before */
	return region->slots_offset + (uint64_t)slot * region->slot_stride_bytes;
}

/* `checksum` is the checksum of the copy's `length` bytes. */
static void
judge(struct ofs_driver *driver, struct ofs_block_read *read, uint32_t length, uint64_t checksum)
{
	const struct ofs_trailer *trailer = &read->trailer;

	if (!ofs_read_trailer_agrees(&driver->fabric->region, read) || trailer->length != length) {
		read->rc = -ESTALE;
		return;
	}
	read->length = length;
	read->cause = trailer->cause;
	read->checksum = checksum;
	read->rc = checksum == trailer->checksum ? 0 : -EBADMSG;
	if (read->rc == 0) {
		driver->stats.bytes_read += length;
		ofs_remember_keep(driver, read);
	}
}

/* Payload and trailer are adjacent: one read. */
static int
post_record(struct ofs_fabric *fabric, struct ofs_block_read *read)
{
	struct ofs_span spans[OFS_READ_SPANS_MAX] = {
		{read->target, fabric->region.payload_size_bytes},
		{&read->trailer, sizeof(read->trailer)},
	};

	return fabric->ops->read(fabric, slot_offset(&fabric->region, read->slot), spans, 2);
}

/* The read is complete: payload and trailer arrived together. */
static void
check_record(struct ofs_driver *driver, struct ofs_block_read *read, bool checked)
{
	uint32_t length = read->trailer.length;
	uint64_t checksum = read->trailer.checksum;

	read->stage_ns = ofs_driver_stage_end(driver, OFS_STAGE_COPY, read->stage_ns);
	if (length > driver->fabric->region.payload_size_bytes)
		length = 0; /* no trailer that names such a length can match */
	if (checked)
		checksum = ofs_checksum(read->target, length);
	judge(driver, read, length, checksum);
	(void)ofs_driver_stage_end(driver, OFS_STAGE_CHECK, read->stage_ns);
}

static int
run_far(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count, bool checked)
{
	struct ofs_fabric *fabric = driver->fabric;
	uint32_t first = 0;
	int rc = 0;

	while (first < count && rc == 0) {
		uint32_t posted_count = 0;
		uint32_t end = first;

		for (; end < count && posted_count < fabric->read_batch_max && rc == 0; end++) {
			if (reads[end].rc == -EINPROGRESS) {
				reads[end].stage_ns = ofs_driver_stage_begin(driver, OFS_STAGE_COPY);
				rc = post_record(fabric, &reads[end]);
				posted_count++;
			}
		}
		if (rc == 0 && posted_count > 0)
			rc = fabric->ops->flush(fabric, OFS_COMMAND_TIMEOUT_NS);
		for (; first < end && rc == 0; first++)
			if (reads[first].rc == -EINPROGRESS)
				check_record(driver, &reads[first], checked);
	}
	return rc;
}

static int
read_trailer(struct ofs_fabric *fabric, struct ofs_block_read *read)
{
	struct ofs_span span = {&read->trailer, sizeof(read->trailer)};

	return fabric->ops->read(fabric,
		slot_offset(&fabric->region, read->slot) + fabric->region.trailer_offset, &span, 1);
}

static int
run_near(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count, bool checked)
{
	struct ofs_fabric *fabric = driver->fabric;
	int rc = 0;

	for (uint32_t i = 0; i < count && rc == 0; i++)
		if (reads[i].rc == -EINPROGRESS)
			rc = read_trailer(fabric, &reads[i]);
	for (uint32_t i = 0; i < count && rc == 0; i++) {
		struct ofs_block_read *read = &reads[i];
		uint32_t length = read->trailer.length;
		uint64_t checksum = read->trailer.checksum;

		if (read->rc != -EINPROGRESS)
			continue;
		if (!ofs_read_trailer_names(&fabric->region, read)) { /* the bytes are not worth copying */
			read->rc = -ESTALE;
			continue;
		}
		assert(length <= fabric->region.payload_size_bytes); /* of our copy of the trailer */
		read->stage_ns = ofs_driver_stage_begin(driver, OFS_STAGE_COPY);
		if (checked) {
			rc = fabric->ops->copy(fabric, slot_offset(&fabric->region, read->slot), read->target,
				length, &checksum);
		} else {
			struct ofs_span span = {read->target, length};

			rc = fabric->ops->read(fabric, slot_offset(&fabric->region, read->slot), &span, 1);
		}
		read->stage_ns = ofs_driver_stage_end(driver, OFS_STAGE_COPY, read->stage_ns);
		if (rc == 0)
			rc = read_trailer(fabric, read);
		if (rc == 0)
			judge(driver, read, length, checksum);
		(void)ofs_driver_stage_end(driver, OFS_STAGE_CHECK, read->stage_ns);
	}
	return rc;
}

int
ofs_reads_run(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count, bool checked)
{
	for (uint32_t i = 0; i < count; i++)
		reads[i].rc = reads[i].slot == OFS_NONE ? -ENOENT : -EINPROGRESS;
	if (count > 0 && reads[0].granules != 0)
		return ofs_parts_run(driver, reads, count);
	return driver->fabric->ops->copy != NULL ? run_near(driver, reads, count, checked)
											 : run_far(driver, reads, count, checked);
}

/* The read posted for it is complete: its buckets if it has no slot yet, else its record. */
static void
take_posted(struct ofs_driver *driver, struct ofs_block_read *read)
{
	if (read->slot == OFS_NONE) {
		search_bucket(&driver->fabric->region, read, read->buckets[0]);
		search_bucket(&driver->fabric->region, read, read->buckets[1]);
		if (read->slot == OFS_NONE)
			read->rc = -ENOENT;
		return;
	}
	check_record(driver, read, true);
	if (read->rc != 0 && read->remembered) { /* it may have moved: ask the directory */
		ofs_remember_drop(driver, read);
		driver->stats.moved_on++;
		read->remembered = false;
		read->slot = OFS_NONE;
		read->rc = -EINPROGRESS;
	}
}

/* One round trip for as many of the reads from `*first` on as one flush takes; returns how many. */
static int
trip(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count, uint32_t *first)
{
	struct ofs_fabric *fabric = driver->fabric;
	uint32_t record_count = 0;
	uint32_t posted_count = 0;
	uint32_t end = *first;
	int rc = 0;

	for (; end < count && record_count < fabric->read_batch_max && rc == 0; end++) {
		struct ofs_block_read *read = &reads[end];

		if (read->rc != -EINPROGRESS)
			continue;
		posted_count++;
		if (read->slot == OFS_NONE) {
			rc = post_buckets(fabric, read);
			continue;
		}
		read->stage_ns = ofs_driver_stage_begin(driver, OFS_STAGE_COPY);
		rc = post_record(fabric, read);
		record_count++;
	}
	if (rc == 0 && posted_count > 0)
		rc = fabric->ops->flush(fabric, OFS_COMMAND_TIMEOUT_NS);
	for (; *first < end && rc == 0; (*first)++)
		if (reads[*first].rc == -EINPROGRESS)
			take_posted(driver, &reads[*first]);
	return rc < 0 ? rc : (int)posted_count;
}

/* This ends: a read takes at most three trips, for the remembered slot, buckets and record. */
static int
find_far(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count)
{
	int posted_count = 1;

	for (int trips = 0; posted_count > 0; trips++) {
		uint32_t first = 0;

		assert(trips <= 3);
		posted_count = 0;
		while (first < count && posted_count >= 0) {
			int rc = trip(driver, reads, count, &first);

			posted_count = rc < 0 ? rc : posted_count + rc;
		}
	}
	return posted_count;
}

int
ofs_reads_find(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count)
{
	int rc;

	if (count > 0 && reads[0].granules != 0) { /* all blocks of a fetch are, or none */
		for (uint32_t i = 0; i < count; i++)
			reads[i].remembered = false;
		rc = ofs_reads_lookup(driver, reads, count);
		return rc != 0 ? rc : ofs_reads_run(driver, reads, count, true);
	}
	for (uint32_t i = 0; i < count; i++) {
		reads[i].slot = OFS_NONE;
		reads[i].rc = -EINPROGRESS;
		reads[i].remembered = driver->remembered != NULL && ofs_remember_recall(driver, &reads[i]);
	}
	if (driver->remembered != NULL)
		return find_far(driver, reads, count);
	rc = lookup_near(driver->fabric, reads, count);
	return rc != 0 ? rc : ofs_reads_run(driver, reads, count, true);
}
