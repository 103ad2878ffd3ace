/* Whether the trailer that was read is that of the wanted block; region.h says why. */
#include "driver/internal.h"

/* The trailer is of the entry's record, as far as visible before the payload is copied. */
bool
ofs_read_trailer_names(const struct ofs_region_header *region, const struct ofs_block_read *read)
{
	const struct ofs_trailer *trailer = &read->trailer;

	return trailer->generation == read->generation && ofs_key_equal(&trailer->key, &read->key)
		&& trailer->length <= region->payload_size_bytes && trailer->cause > OFS_CAUSE_NONE
		&& trailer->cause < OFS_CAUSE_COUNT;
}

bool
ofs_read_trailer_agrees(const struct ofs_region_header *region, const struct ofs_block_read *read)
{
	return ofs_read_trailer_names(region, read)
		&& read->trailer.seal == ofs_trailer_seal(&read->trailer);
}
