/*
 * Rebuilds the index from the device. Headers say which segments are in use, trailers what is in
 * them. In a full segment the trailer is enough, since no acknowledged write can be torn there and
 * every read checks again. The payload is read too where a write may have been cut short (segments
 * that are not full, the newest) and where two records claim one block, or two values one key, so
 * that a torn newer one never hides a whole older one. Nothing is written.
 */
#include "internal.h"

#include <string.h>

struct recovery {
	uint32_t cursor;
	uint64_t sequence_max;
	uint64_t now_s;
	int rc; /* of what the trailers' reader could not do */
};

static int
is_zero(const uint8_t *bytes, size_t size_bytes)
{
	for (size_t i = 0; i < size_bytes; i++)
		if (bytes[i] != 0)
			return 0;
	return 1;
}

static void
note_sequence(struct recovery *recovery, uint64_t sequence)
{
	if (sequence > recovery->sequence_max)
		recovery->sequence_max = sequence;
}

static int
next_header(struct ofs_store *store, void *context, uint32_t *item, uint64_t *offset)
{
	struct recovery *recovery = context;

	if (recovery->cursor == store->segment_count)
		return 0;
	*item = recovery->cursor++;
	*offset = ofs_store_segment_offset(store, *item);
	return 1;
}

static int
seen_header(struct ofs_store *store, void *context, uint32_t item, const uint8_t *bytes, int last)
{
	struct ofs_store_segment *segment = &store->segments[item];
	struct ofs_segment_header header;

	if (bytes == NULL) {
		segment->state = OFS_SEGMENT_RETIRED;
		return 0;
	}
	if (!ofs_segment_header_valid(store, item, bytes)) {
		/* The read may have been corrupted, and a lost header loses a whole segment. */
		return !last && !is_zero(bytes, sizeof(header));
	}
	memcpy(&header, bytes, sizeof(header));
	note_sequence(context, header.sequence);
	if (header.state == OFS_HEADER_USED) {
		segment->state = OFS_SEGMENT_SEALED;
		segment->header = OFS_WRITTEN_YES;
		segment->sequence = header.sequence;
		segment->tenant = header.tenant;
		segment->layer = header.layer;
	}
	return 0;
}

static int
next_trailer(struct ofs_store *store, void *context, uint32_t *item, uint64_t *offset)
{
	struct recovery *recovery = context;

	while (recovery->cursor < store->record_count
		&& store->segments[recovery->cursor / store->records_per_segment].state
			!= OFS_SEGMENT_SEALED) {
		recovery->cursor += store->records_per_segment; /* always in a segment's first */
	}
	if (recovery->cursor >= store->record_count)
		return 0;
	*item = recovery->cursor++;
	*offset = ofs_store_record_offset(store, *item) + store->config.payload_size_bytes;
	return 1;
}

/* The place was written since its segment was last opened. */
static void
note_place(struct ofs_store *store, uint32_t item)
{
	struct ofs_store_segment *segment = &store->segments[item / store->records_per_segment];
	uint32_t place = item % store->records_per_segment;

	segment->next = place + 1 > segment->next ? place + 1 : segment->next;
	segment->writing++;
}

/* Of a piece of a value: of any, since one that lacks others must be found too. */
static void
note_value(struct ofs_store *store, struct recovery *recovery, uint32_t item, const uint8_t *bytes)
{
	struct ofs_trailer trailer;
	struct ofs_value_tag tag;

	memcpy(&trailer, bytes, sizeof(trailer));
	memcpy(&tag, bytes + OFS_VALUE_TAG_OFFSET, sizeof(tag));
	if (ofs_value_tag_agrees(&tag, &trailer) && ofs_store_note_value(store, item, &tag) != 0)
		recovery->rc = -ENOMEM;
}

static int
seen_trailer(struct ofs_store *store, void *context, uint32_t item, const uint8_t *bytes, int last)
{
	struct ofs_store_record *record = &store->records[item];
	struct ofs_trailer trailer;

	if (bytes == NULL) {
		store->stats.recovery_torn++;
		return 0;
	}
	memcpy(&trailer, bytes, sizeof(trailer));
	if (ofs_trailer_wiped(store, &trailer, item)) {
		record->state = OFS_RECORD_DEAD;
		record->wipe = OFS_WIPE_DONE;
		note_place(store, item);
		return 0;
	}
	if (!ofs_trailer_belongs(store, &trailer, item)) {
		/* Valid but of an earlier use of the segment: an old record. Else torn, if a trailer at
		 * all. */
		if (ofs_trailer_sound(store, &trailer) || is_zero(bytes, sizeof(trailer)))
			return 0;
		store->stats.recovery_torn += last
			&& (trailer.magic == OFS_TRAILER_MAGIC
				|| trailer.reserved[OFS_TRAILER_STORE] == store->super.uuid.lo);
		return !last;
	}
	note_sequence(context, trailer.sequence);
	record->key = trailer.store_key;
	record->sequence = trailer.sequence;
	record->expire_s = record->written_s = trailer.expire_s;
	record->checksum = trailer.checksum;
	record->coded_bytes = ofs_trailer_coded_bytes(&trailer);
	record->state = OFS_RECORD_WRITING; /* a candidate */
	note_place(store, item);
	note_value(store, context, item, bytes);
	return 0;
}

static int
next_doubted(struct ofs_store *store, void *context, uint32_t *item, uint64_t *offset)
{
	struct recovery *recovery = context;

	while (recovery->cursor < store->record_count && !store->records[recovery->cursor].doubted)
		recovery->cursor++;
	if (recovery->cursor >= store->record_count)
		return 0;
	*item = recovery->cursor++;
	*offset = ofs_store_record_offset(store, *item);
	return 1;
}

static int
seen_doubted(struct ofs_store *store, void *context, uint32_t item, const uint8_t *bytes, int last)
{
	struct ofs_store_record *record = &store->records[item];

	(void)context;
	if (bytes != NULL && ofs_record_intact(store, bytes, item, store->plain)) {
		record->verified = 1;
		return 0;
	}
	if (last) {
		record->state = OFS_RECORD_DEAD;
		store->stats.recovery_torn++;
	}
	return 1;
}

/* Whether the payload has to be read: see the head of this file. */
static void
doubt(struct ofs_store *store)
{
	uint64_t newest = 0;

	for (uint32_t i = 0; i < store->segment_count; i++)
		if (store->segments[i].state == OFS_SEGMENT_SEALED && store->segments[i].sequence > newest)
			newest = store->segments[i].sequence;
	for (uint32_t i = 0; i < store->record_count; i++) {
		struct ofs_store_record *record = &store->records[i];
		const struct ofs_store_segment *segment = &store->segments[i / store->records_per_segment];
		uint32_t found;

		if (record->state != OFS_RECORD_WRITING)
			continue;
		record->doubted =
			segment->writing < store->records_per_segment || segment->sequence == newest;
		found = ofs_store_index_find(store, &record->key, segment->layer);
		if (found == OFS_NONE) {
			ofs_store_index_insert(store, i);
		} else {
			record->doubted = 1;
			store->records[found].doubted = 1;
		}
	}
	ofs_store_index_clear(store);
	ofs_store_doubt_values(store);
}

/* Fills the index: of two whole records of one block the later one is kept. */
static void
elect(struct ofs_store *store, uint64_t now_s)
{
	for (uint32_t i = 0; i < store->record_count; i++) {
		struct ofs_store_record *record = &store->records[i];
		uint32_t layer = store->segments[i / store->records_per_segment].layer;
		uint32_t found;

		if (record->state != OFS_RECORD_WRITING)
			continue;
		found = ofs_store_index_find(store, &record->key, layer);
		if (found == OFS_NONE) {
			ofs_store_index_insert(store, i);
			continue;
		}
		ofs_copies_join(store, i, found);
		if (store->records[found].sequence < record->sequence) {
			store->records[found].state = OFS_RECORD_DEAD;
			ofs_store_index_replace(store, found, i);
		} else {
			record->state = OFS_RECORD_DEAD;
		}
	}
	for (uint32_t i = 0; i < store->record_count; i++) {
		struct ofs_store_record *record = &store->records[i];

		if (record->state != OFS_RECORD_WRITING)
			continue;
		if (ofs_record_expired(store, i, now_s)) {
			ofs_store_index_remove(store, i);
			record->state = OFS_RECORD_DEAD;
			ofs_copies_wipe(store, i);
			store->stats.expired++;
		} else {
			ofs_record_enliven(store, i);
			store->stats.recovered++;
		}
	}
}

/* Empty segments become free once nothing that an open could find is left in them; of a lane's
 * unfinished segments the one with the most room is appended to. */
static void
arrange(struct ofs_store *store)
{
	for (uint32_t i = 0; i < store->segment_count; i++) {
		struct ofs_store_segment *segment = &store->segments[i];
		uint32_t *open;

		segment->writing = 0;
		if (segment->state == OFS_SEGMENT_SEALED && segment->next == 0)
			segment->state = OFS_SEGMENT_FREE;
		if (segment->state == OFS_SEGMENT_FREE)
			ofs_list_put(store, &store->free, i);
		if (segment->state == OFS_SEGMENT_SEALED && segment->live == 0) {
			if (store->config.erase)
				segment->next = store->records_per_segment; /* torn records too */
			ofs_wipe_list(store, i);
			continue;
		}
		if (segment->state != OFS_SEGMENT_SEALED || segment->next == store->records_per_segment)
			continue;
		open = &store->lane_open[ofs_lane_of(store, i)];
		if (*open != OFS_NONE && store->segments[*open].next <= segment->next)
			continue;
		if (*open != OFS_NONE)
			store->segments[*open].state = OFS_SEGMENT_SEALED;
		store->open_count += *open == OFS_NONE;
		segment->state = OFS_SEGMENT_OPEN;
		segment->waiters = OFS_NONE;
		*open = i;
	}
	store->taken = ofs_store_taken(store);
}

int
ofs_store_recover(struct ofs_store *store, uint64_t now_s)
{
	struct recovery recovery = {.now_s = now_s};
	struct ofs_batch batch = {
		.size_bytes = store->storage->lba_size_bytes,
		.context = &recovery,
		.next = next_header,
		.seen = seen_header,
	};
	int rc = ofs_batch_read(store, &batch);

	if (rc != 0)
		return rc;
	recovery.cursor = 0;
	batch.next = next_trailer;
	batch.seen = seen_trailer;
	rc = ofs_batch_read(store, &batch);
	rc = rc == 0 ? recovery.rc : rc;
	if (rc != 0)
		return rc;
	doubt(store);
	recovery.cursor = 0;
	batch.size_bytes = store->record_size_bytes;
	batch.next = next_doubted;
	batch.seen = seen_doubted;
	rc = ofs_batch_read(store, &batch);
	if (rc != 0)
		return rc;
	elect(store, now_s);
	arrange(store);
	store->sequence = recovery.sequence_max;
	return 0;
}
