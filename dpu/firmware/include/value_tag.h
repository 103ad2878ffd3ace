/*
 * value_tag.h: which value a block is a piece of, in memory and on NVMe.
 *
 * Model: a value is the bytes under a key of 16 bytes, in pieces, one in each layer of a chunk.
 * Each piece says so behind its trailer, in the record's last logical block: key, the value's
 * length, and the *generation*, which numbers the stores, so that pieces of two stores of one key
 * are distinct: the later has the higher, on another drive too. A check ties the tag to the
 * trailer's chunk and payload. A block of no value has zeros there, and a tag that does not match
 * its trailer counts as none. The *name* is what the value's volume calls it, where the store said:
 * it has a check of its own, and without it the value has no name. Nothing here can fail.
 */
#ifndef OFS_VALUE_TAG_H
#define OFS_VALUE_TAG_H

#include "granules.h"

#define OFS_VALUE_MAGIC 0x5653464fu /* "OFSV" */

struct ofs_value_tag {
	uint32_t magic;
	uint32_t name_bytes; /* 0: no name */
	uint64_t generation;
	uint64_t length; /* bytes of the whole value */
	struct ofs_key key;
	uint64_t check;
	struct ofs_key name;
	uint64_t name_check;
};
#define OFS_VALUE_TAG_OFFSET 416 /* from the trailer */
_Static_assert(sizeof(struct ofs_trailer) + sizeof(struct ofs_granule_table)
		<= OFS_VALUE_TAG_OFFSET,
	"it stands behind the granules");
_Static_assert(OFS_VALUE_TAG_OFFSET + sizeof(struct ofs_value_tag) <= 512,
	"in the smallest logical block");

static inline struct ofs_value_tag *
ofs_value_tag_behind(const struct ofs_trailer *trailer)
{
	return (struct ofs_value_tag *)((uintptr_t)trailer + OFS_VALUE_TAG_OFFSET);
}

/* Of the tag, and of the chunk and payload that it stands behind. */
static inline uint64_t
ofs_value_tag_check(const struct ofs_value_tag *tag, const struct ofs_trailer *trailer,
	const struct ofs_key *store_key)
{
	uint64_t words[8] = {tag->magic, tag->generation, tag->length, tag->key.lo, tag->key.hi,
		trailer->checksum, store_key->lo, store_key->hi};

	return ofs_checksum(words, sizeof(words));
}

/* Of a tag whose check is there. */
static inline uint64_t
ofs_value_tag_name_check(const struct ofs_value_tag *tag)
{
	uint64_t words[4] = {tag->check, tag->name_bytes, tag->name.lo, tag->name.hi};

	return ofs_checksum(words, sizeof(words));
}

static inline int
ofs_value_tag_has_name(const struct ofs_value_tag *tag)
{
	return tag->name_bytes > 0 && tag->name_bytes <= sizeof(tag->name)
		&& tag->name_check == ofs_value_tag_name_check(tag);
}

/* Whether the block is a piece of the value that the tag names. */
static inline int
ofs_value_tag_agrees(const struct ofs_value_tag *tag, const struct ofs_trailer *trailer)
{
	return tag->magic == OFS_VALUE_MAGIC
		&& tag->check == ofs_value_tag_check(tag, trailer, &trailer->store_key);
}

#endif
