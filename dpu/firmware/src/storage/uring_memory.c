/*
 * The fixed buffers of io_uring: ranges registered with the kernel, in pieces of at most 1 GiB.
 *
 * Model: a table of regions; the ring's thread alone uses it. A range that the kernel takes no more
 * works through the plain opcodes, with a warning.
 */
#include "internal.h"

#ifdef OFS_HAVE_URING

#include "uring.h"

#include <string.h>

static uint32_t
uring_piece_count(uint64_t size_bytes)
{
	return (uint32_t)((size_bytes + URING_PIECE_SIZE_BYTES - 1) / URING_PIECE_SIZE_BYTES);
}

int
ofs_uring_piece(const struct uring *uring, const uint8_t *buffer, uint32_t size_bytes)
{
	uintptr_t address = (uintptr_t)buffer;

	for (uint32_t i = 0; i < uring->region_count; i++) {
		const struct uring_region *region = &uring->regions[i];
		uint64_t at = address - region->base;

		if (address < region->base || at >= region->size_bytes
			|| size_bytes > region->size_bytes - at)
			continue;
		if (at / URING_PIECE_SIZE_BYTES != (at + size_bytes - 1) / URING_PIECE_SIZE_BYTES)
			return -1;
		return (int)(region->piece_first + at / URING_PIECE_SIZE_BYTES);
	}
	return -1;
}

/* Points entries [first, first + count) of the kernel's buffer table at `pieces`. */
static int
uring_update_pieces(struct uring *uring, uint32_t first, const struct iovec *pieces, uint32_t count)
{
	int rc;

	if (!uring->sparse)
		return -ENOTSUP;
	rc = io_uring_register_buffers_update_tag(&uring->ring, first, pieces, NULL, count);
	return rc < 0 ? rc : 0;
}

/* First fit; the table is small and regions come and go with hosts. -1 when there is no room. */
static int
uring_find_room(const struct uring *uring, uint32_t count)
{
	uint32_t run = 0;

	for (uint32_t i = 0; i < URING_PIECES_MAX; i++) {
		run = uring->piece_used[i] ? 0 : run + 1;
		if (run >= count)
			return (int)(i + 1 - count);
	}
	return -1;
}

static int
uring_drop_region(struct uring *uring, uint32_t at)
{
	static const struct iovec nothing[URING_PIECES_MAX];
	struct uring_region region = uring->regions[at];
	uint32_t count = uring_piece_count(region.size_bytes);

	uring->regions[at] = uring->regions[--uring->region_count];
	memset(&uring->piece_used[region.piece_first], 0, count);
	return uring_update_pieces(uring, region.piece_first, nothing, count);
}

int
ofs_uring_unregister_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	struct uring *uring = (struct uring *)storage;
	uintptr_t begin = (uintptr_t)base;
	uint32_t i = 0;
	int rc = 0;

	while (i < uring->region_count) {
		const struct uring_region *region = &uring->regions[i];

		if (region->base < begin + size_bytes && begin < region->base + region->size_bytes)
			rc = uring_drop_region(uring, i);
		else
			i++;
	}
	return rc;
}

int
ofs_uring_register_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	struct uring *uring = (struct uring *)storage;
	struct iovec pieces[URING_PIECES_MAX];
	uint32_t count = uring_piece_count(size_bytes);
	int first;
	int rc;

	if (base == NULL || size_bytes == 0)
		return -EINVAL;
	(void)ofs_uring_unregister_memory(storage, base, size_bytes);
	first = uring_find_room(uring, count);
	for (uint32_t i = 0; i < count && first >= 0; i++) {
		uint64_t at = i * URING_PIECE_SIZE_BYTES;
		uint64_t left = size_bytes - at;

		pieces[i].iov_base = (uint8_t *)base + at;
		pieces[i].iov_len = left < URING_PIECE_SIZE_BYTES ? left : URING_PIECE_SIZE_BYTES;
	}
	rc = first >= 0 ? uring_update_pieces(uring, (uint32_t)first, pieces, count) : -ENOBUFS;
	if (rc != 0) {
		if (!uring->unregistered++)
			ofs_storage_warn(storage,
				"memory is not registered (%s): plain reads "
				"instead; see RLIMIT_MEMLOCK",
				strerror(-rc));
		return 0;
	}
	memset(&uring->piece_used[first], 1, count);
	uring->regions[uring->region_count++] =
		(struct uring_region){(uintptr_t)base, size_bytes, (uint32_t)first};
	return 0;
}

#endif
