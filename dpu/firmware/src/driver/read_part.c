/*
 * One-sided reads of granules: first the slot's last logical block, whose trailer names the block
 * and whose table has the checksum of each granule; then the wanted granules, each to its own
 * target. A copy that matches its checksum is right, whatever the slot has become meanwhile, so the
 * trailer need not be read again. Over a network that is one round trip more than a whole record
 * takes.
 */
#include "driver/internal.h"

#include <assert.h>

_Static_assert(offsetof(struct ofs_block_read, table)
		== offsetof(struct ofs_block_read, trailer) + sizeof(struct ofs_trailer),
	"both come with one read");

static bool
is_far(const struct ofs_fabric *fabric)
{
	return fabric->ops->copy == NULL;
}

/* Over a network, no more are in flight than one flush takes. */
static int
post(struct ofs_fabric *fabric, uint64_t offset, void *target, uint32_t size_bytes,
	uint32_t *posted_count)
{
	struct ofs_span span = {target, size_bytes};
	int rc = 0;

	if (is_far(fabric) && *posted_count == fabric->read_batch_max) {
		rc = fabric->ops->flush(fabric, OFS_COMMAND_TIMEOUT_NS);
		*posted_count = 0;
	}
	(*posted_count)++;
	return rc != 0 ? rc : fabric->ops->read(fabric, offset, &span, 1);
}

static int
flush(struct ofs_fabric *fabric, uint32_t *posted_count)
{
	uint32_t count = *posted_count;

	*posted_count = 0;
	return is_far(fabric) && count > 0 ? fabric->ops->flush(fabric, OFS_COMMAND_TIMEOUT_NS) : 0;
}

static uint64_t
slot_offset(const struct ofs_region_header *region, uint32_t slot)
{
	assert(slot < region->slot_count);
	return region->slots_offset + (uint64_t)slot * region->slot_stride_bytes;
}

/* The block in the slot, as far as its last logical block tells. */
static int
judge(const struct ofs_fabric *fabric, const struct ofs_block_read *read)
{
	uint32_t there = read->trailer.granules;

	if (!ofs_read_trailer_agrees(&fabric->region, read))
		return -ESTALE;
	if (!ofs_granules_agree(&read->table, &read->trailer, fabric->region.granule_count)
		|| read->table.granule_bytes > read->granule_stride_bytes)
		return -EBADMSG;
	if (there != 0 && (read->granules & ~there) != 0)
		return -ENOENT; /* the block is there, but not all that is wanted of it */
	return -EINPROGRESS;
}

/* Copies the granules; in local memory, each is checked as it is copied. */
static int
copy_granules(struct ofs_fabric *fabric, struct ofs_block_read *read, uint32_t *posted_count)
{
	uint64_t from = slot_offset(&fabric->region, read->slot);
	uint32_t size_bytes = read->table.granule_bytes;
	uint32_t number = 0;
	int rc = 0;

	for (uint32_t i = 0; i < read->table.count && rc == 0; i++) {
		uint8_t *target;

		if ((read->granules >> i & 1) == 0)
			continue;
		target = read->target + (uint64_t)read->rows[number++] * read->granule_stride_bytes;
		if (is_far(fabric)) {
			rc = post(fabric, from + (uint64_t)i * size_bytes, target, size_bytes, posted_count);
			continue;
		}
		rc = fabric->ops->copy(fabric, from + (uint64_t)i * size_bytes, target, size_bytes,
			&read->sums[number - 1]);
	}
	return rc;
}

static void
check_granules(struct ofs_driver *driver, struct ofs_block_read *read)
{
	const struct ofs_granule_table *table = &read->table;
	uint32_t number = 0;

	read->rc = 0;
	for (uint32_t i = 0; i < table->count; i++) {
		const uint8_t *copy;

		if ((read->granules >> i & 1) == 0)
			continue;
		copy = read->target + (uint64_t)read->rows[number] * read->granule_stride_bytes;
		if (is_far(driver->fabric))
			read->sums[number] = ofs_checksum(copy, table->granule_bytes);
		if (read->sums[number++] != table->sums[i])
			read->rc = -EBADMSG;
	}
	assert(number == (uint32_t)__builtin_popcount(read->granules));
	if (read->rc != 0)
		return;
	read->length = number * table->granule_bytes;
	read->cause = read->trailer.cause;
	read->checksum = read->trailer.checksum;
	driver->stats.bytes_read += read->length;
	driver->stats.granules_read += number;
}

int
ofs_parts_run(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count)
{
	struct ofs_fabric *fabric = driver->fabric;
	uint32_t posted_count = 0;
	int rc = 0;

	for (uint32_t i = 0; i < count && rc == 0; i++)
		if (reads[i].rc == -EINPROGRESS)
			rc = post(fabric,
				slot_offset(&fabric->region, reads[i].slot) + fabric->region.trailer_offset,
				&reads[i].trailer, sizeof(reads[i].trailer) + sizeof(reads[i].table),
				&posted_count);
	rc = rc == 0 ? flush(fabric, &posted_count) : rc;
	for (uint32_t i = 0; i < count && rc == 0; i++) {
		if (reads[i].rc == -EINPROGRESS)
			reads[i].rc = judge(fabric, &reads[i]);
		if (reads[i].rc == -EINPROGRESS) {
			reads[i].stage_ns = ofs_driver_stage_begin(driver, OFS_STAGE_COPY);
			rc = copy_granules(fabric, &reads[i], &posted_count);
			reads[i].stage_ns = ofs_driver_stage_end(driver, OFS_STAGE_COPY, reads[i].stage_ns);
		}
	}
	rc = rc == 0 ? flush(fabric, &posted_count) : rc;
	for (uint32_t i = 0; i < count && rc == 0; i++)
		if (reads[i].rc == -EINPROGRESS)
			check_granules(driver, &reads[i]);
	return rc;
}
