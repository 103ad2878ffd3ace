/*
 * store_format.h: what the store writes apart from records: superblocks and segment headers.
 *
 * Model: bytes on the medium, little-endian, one structure at the start of a logical block. The
 * trailer of a record is `struct ofs_trailer` (region.h), up to its field `key`. Tools that inspect
 * a store without opening it read these. A change of any of them needs a new OFS_STORE_VERSION.
 */
#ifndef OFS_STORE_FORMAT_H
#define OFS_STORE_FORMAT_H

#include "ofs_base.h"

#define OFS_STORE_MAGIC 0x3145524f5453464full   /* "OFSTORE1" */
#define OFS_FORWARD_MAGIC 0x3145564f4d53464full /* "OFSMOVE1" */
#define OFS_SEGMENT_MAGIC 0x31474d474553464full /* "OFSEGMG1" */

/* cdef: order 6 */
/* cdef: begin */
#define OFS_STORE_VERSION 1
#define OFS_STORE_VERSION_CODED 2   /* as 1, and payloads may be coded */
#define OFS_STORE_COPY_OFFSET 65536 /* second superblock: another erase unit, another page */
#define OFS_STORE_SEGMENTS_OFFSET 131072
#define OFS_STORE_FORWARD_OFFSET 32768  /* the forward record of a store that moved */
#define OFS_STORE_FORWARD_LBA_MAX 32768 /* with larger LBAs there is no room for it */

/* In the first LBA of the device; a copy is at OFS_STORE_COPY_OFFSET. */
struct ofs_superblock {
	uint64_t magic;
	uint32_t version;
	uint32_t lba_size_bytes;
	struct ofs_key uuid;
	uint64_t size_bytes;
	uint32_t payload_size_bytes;
	uint32_t segment_size_bytes;
	uint32_t segment_count;
	uint32_t records_per_segment;
	uint32_t layer_count;
	uint32_t tenant_max;
	uint64_t openings;  /* incremented at every open: no two runs share a sequence */
	uint64_t created_s; /* Unix time */
	uint64_t reserved[5];
	uint64_t checksum; /* XXH3-64 of the fields above */
};

/* In the first LBA of a segment. */
struct ofs_segment_header {
	uint64_t magic;
	uint32_t index;
	uint32_t state; /* 1 in use, 2 free */
	struct ofs_key uuid;
	uint64_t sequence; /* in the store's log; its records have later ones */
	uint32_t tenant;
	uint32_t layer;
	uint64_t reserved[2];
	uint64_t checksum; /* XXH3-64 of the fields above */
};

/* At OFS_STORE_FORWARD_OFFSET, in as many LBAs as it takes: the blocks of this store have moved
 * elsewhere and it can no longer be opened. The strings end with a zero. */
struct ofs_store_forward {
	uint64_t magic;
	struct ofs_key uuid; /* of the store that was here */
	struct ofs_key next; /* of the store that replaced it, at: */
	uint64_t size_bytes;
	uint64_t moved_s; /* Unix time */
	char backend[16];
	char inner[16];
	char path[512];
	uint64_t checksum; /* XXH3-64 of the fields above */
};

enum ofs_header_state { OFS_HEADER_USED = 1, OFS_HEADER_FREE = 2 };
/* cdef: end */

_Static_assert(sizeof(struct ofs_superblock) == 128, "part of the format");
_Static_assert(sizeof(struct ofs_segment_header) == 72, "part of the format");
_Static_assert(sizeof(struct ofs_store_forward) == 608, "part of the format");

#endif
