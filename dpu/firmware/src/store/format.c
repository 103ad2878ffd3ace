/* The device's format: superblock, segment header, trailer. Little-endian, like the machine. */
#include "internal.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is the machine's own order");

void
ofs_superblock_seal(struct ofs_superblock *super)
{
	super->checksum = ofs_checksum(super, offsetof(struct ofs_superblock, checksum));
}

int
ofs_superblock_valid(const struct ofs_superblock *super)
{
	return super->magic == OFS_STORE_MAGIC
		&& super->checksum == ofs_checksum(super, offsetof(struct ofs_superblock, checksum));
}

void
ofs_segment_header_fill(const struct ofs_store *store, uint32_t segment, uint32_t state, void *lba)
{
	const struct ofs_store_segment *of = &store->segments[segment];
	struct ofs_segment_header *header = lba;

	memset(lba, 0, store->storage->lba_size_bytes);
	header->magic = OFS_SEGMENT_MAGIC;
	header->index = segment;
	header->state = state;
	header->uuid = store->super.uuid;
	header->sequence = of->sequence;
	header->tenant = of->tenant;
	header->layer = of->layer;
	header->checksum = ofs_checksum(header, offsetof(struct ofs_segment_header, checksum));
}

int
ofs_segment_header_valid(const struct ofs_store *store, uint32_t segment, const void *lba)
{
	const struct ofs_segment_header *header = lba;

	return header->magic == OFS_SEGMENT_MAGIC
		&& header->checksum == ofs_checksum(header, offsetof(struct ofs_segment_header, checksum))
		&& header->index == segment && ofs_key_equal(&header->uuid, &store->super.uuid)
		&& header->sequence < OFS_STORE_SEQUENCE_MAX && header->tenant < store->super.tenant_max
		&& header->layer < store->config.layer_count;
}

uint64_t
ofs_store_segment_offset(const struct ofs_store *store, uint32_t segment)
{
	return OFS_STORE_SEGMENTS_OFFSET + (uint64_t)segment * store->config.segment_size_bytes;
}

uint64_t
ofs_store_record_offset(const struct ofs_store *store, uint32_t record)
{
	uint32_t segment = record / store->records_per_segment;
	uint32_t place = record % store->records_per_segment;

	return ofs_store_segment_offset(store, segment) + store->storage->lba_size_bytes
		+ (uint64_t)place * store->record_size_bytes;
}

struct ofs_trailer *
ofs_store_trailer(const struct ofs_store *store, const void *record)
{
	return (struct ofs_trailer *)((uintptr_t)record + store->config.payload_size_bytes);
}

static uint32_t
trailer_crc(const struct ofs_trailer *trailer)
{
	size_t from = offsetof(struct ofs_trailer, length);

	return (uint32_t)ofs_checksum(&trailer->length, offsetof(struct ofs_trailer, key) - from);
}

void
ofs_trailer_fill(const struct ofs_store *store, struct ofs_trailer *trailer, uint32_t record,
	uint32_t coded_bytes)
{
	const struct ofs_store_segment *segment = &store->segments[record / store->records_per_segment];
	const struct ofs_store_record *of = &store->records[record];

	trailer->magic = OFS_TRAILER_MAGIC;
	trailer->layer = (uint16_t)segment->layer;
	trailer->tenant = (uint16_t)segment->tenant;
	trailer->sequence = of->sequence;
	trailer->store_key = of->key;
	trailer->expire_s = of->written_s;
	/* These fields detect a stale write of an earlier use of the segment, and a misdirected one. */
	trailer->reserved[OFS_TRAILER_STORE] = store->super.uuid.lo;
	trailer->reserved[OFS_TRAILER_SEGMENT] = segment->sequence;
	trailer->reserved[OFS_TRAILER_PLACE] = (uint64_t)coded_bytes << 32 | record;
	trailer->crc = trailer_crc(trailer);
}

uint32_t
ofs_trailer_coded_bytes(const struct ofs_trailer *trailer)
{
	return (uint32_t)(trailer->reserved[OFS_TRAILER_PLACE] >> 32);
}

void
ofs_trailer_fill_wiped(const struct ofs_store *store, struct ofs_trailer *trailer, uint32_t record)
{
	const struct ofs_store_segment *segment = &store->segments[record / store->records_per_segment];

	*trailer = (struct ofs_trailer){.magic = OFS_TRAILER_MAGIC,
		.length = 1,
		.layer = (uint16_t)segment->layer,
		.tenant = (uint16_t)segment->tenant,
		.sequence = segment->sequence};
	trailer->reserved[OFS_TRAILER_STORE] = store->super.uuid.lo;
	trailer->reserved[OFS_TRAILER_SEGMENT] = segment->sequence;
	trailer->reserved[OFS_TRAILER_PLACE] = record;
	trailer->crc = trailer_crc(trailer);
}

int
ofs_trailer_wiped(const struct ofs_store *store, const struct ofs_trailer *trailer, uint32_t record)
{
	uint64_t life = store->segments[record / store->records_per_segment].sequence;

	return ofs_trailer_sound(store, trailer) && trailer->reserved[OFS_TRAILER_SEGMENT] == life
		&& trailer->sequence == life && (uint32_t)trailer->reserved[OFS_TRAILER_PLACE] == record;
}

/* A coded payload saves at least one logical block. */
static int
coded_fits(const struct ofs_store *store, uint32_t coded_bytes)
{
	return coded_bytes == 0
		|| (store->codes
			&& coded_bytes <= store->config.payload_size_bytes - store->storage->lba_size_bytes);
}

int
ofs_trailer_sound(const struct ofs_store *store, const struct ofs_trailer *trailer)
{
	return trailer->magic == OFS_TRAILER_MAGIC && trailer->crc == trailer_crc(trailer)
		&& trailer->length > 0 && trailer->length <= store->config.payload_size_bytes
		&& coded_fits(store, ofs_trailer_coded_bytes(trailer))
		&& trailer->reserved[OFS_TRAILER_STORE] == store->super.uuid.lo;
}

int
ofs_trailer_belongs(const struct ofs_store *store, const struct ofs_trailer *trailer,
	uint32_t record)
{
	const struct ofs_store_segment *segment = &store->segments[record / store->records_per_segment];

	return ofs_trailer_sound(store, trailer)
		&& trailer->reserved[OFS_TRAILER_SEGMENT] == segment->sequence
		&& (uint32_t)trailer->reserved[OFS_TRAILER_PLACE] == record
		&& trailer->sequence > segment->sequence && trailer->sequence < OFS_STORE_SEQUENCE_MAX
		&& trailer->layer == segment->layer && trailer->tenant == segment->tenant;
}
