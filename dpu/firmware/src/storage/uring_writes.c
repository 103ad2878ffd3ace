/*
 * Writes through the page cache: joined to those that follow on the file.
 *
 * Model: the kernel carries out such writes of one file one after the other, on a thread of its
 * own. So it is given one at a time, and a second one, to begin when the first ends, if that is as
 * large as can be. What comes meanwhile is *held*: of these, writes that follow each other on the
 * file become one write, which takes larger pages of the cache and one transaction of the file
 * system. If it fails or is cut short, what is not written is repeated write by write, so that each
 * has its own result. A write past the page cache is not held: the drive takes many at once.
 */
#include "internal.h"

#ifdef OFS_HAVE_URING

#include "uring.h"

#include <assert.h>

#define GROUP_SIZE_BYTES_MAX (1u << 20) /* the first of a group waits for the last */

static void
push(struct uring *uring, struct uring_list *list, uint32_t slot_index)
{
	uring->slots[slot_index].next = URING_NONE;
	if (list->first == URING_NONE)
		list->first = slot_index;
	else
		uring->slots[list->last].next = slot_index;
	list->last = slot_index;
}

uint32_t
ofs_uring_pop(struct uring *uring, struct uring_list *list)
{
	uint32_t slot_index = list->first;

	if (slot_index != URING_NONE)
		list->first = uring->slots[slot_index].next;
	return slot_index;
}

void
ofs_uring_open_writes(struct uring *uring)
{
	uring->ended.first = uring->held.first = URING_NONE;
	while (uring->groups_free < URING_GROUPS) {
		uring->free_groups[uring->groups_free] = &uring->groups[uring->groups_free];
		uring->groups_free++;
	}
}

int
ofs_uring_joins(const struct uring *uring, const struct ofs_io *io)
{
	return io->op == OFS_STORAGE_WRITE && !uring->base.direct;
}

/* Whether the slot's write follows `last` on the file, and neither is repeated. */
static int
follows(const struct uring_slot *last, const struct uring_slot *slot)
{
	return last->retries == 0 && slot->retries == 0 && slot->io.flags == last->io.flags
		&& slot->io.lifetime == last->io.lifetime
		&& slot->io.offset == last->io.offset + last->io.size_bytes;
}

/* The oldest that is held, and those that follow it: whether that is as much as one write has. */
static int
gather(const struct uring *uring, struct uring_group *group)
{
	const struct uring_slot *last = NULL;
	uint64_t size_bytes = 0;

	group->count = 0;
	for (uint32_t i = uring->held.first; i != URING_NONE; i = uring->slots[i].next) {
		const struct uring_slot *slot = &uring->slots[i];

		if (last != NULL && !follows(last, slot))
			continue;
		if (last != NULL && size_bytes + slot->io.size_bytes > GROUP_SIZE_BYTES_MAX)
			return 1;
		last = slot;
		size_bytes += slot->io.size_bytes;
		group->iovecs[group->count] = (struct iovec){slot->io.buffer, slot->io.size_bytes};
		group->slots[group->count++] = i;
		if (group->count == URING_GROUP_MAX)
			return 1;
	}
	return 0;
}

/* The slots of a group are in the order of the list. */
static void
unhold(struct uring *uring, const struct uring_group *group)
{
	struct uring_list kept = {URING_NONE, URING_NONE};
	uint32_t slot_index, taken = 0;

	while ((slot_index = ofs_uring_pop(uring, &uring->held)) != URING_NONE)
		if (taken < group->count && group->slots[taken] == slot_index)
			taken++;
		else
			push(uring, &kept, slot_index);
	uring->held = kept;
}

static void
prepare_group(struct uring *uring, const struct uring_group *group)
{
	const struct ofs_io *first = &uring->slots[group->slots[0]].io;
	struct io_uring_sqe *sqe;

	if (group->count == 1) {
		ofs_uring_prepare(uring, group->slots[0]);
		return;
	}
	sqe = ofs_uring_entry(uring);
	io_uring_prep_writev(sqe, 0, group->iovecs, group->count, first->offset);
	ofs_uring_mark_write(uring, sqe, first);
	io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	io_uring_sqe_set_data64(sqe, group->slots[0]);
}

void
ofs_uring_write_more(struct uring *uring)
{
	while (uring->held.first != URING_NONE && uring->groups_free > 0) {
		struct uring_group *group = uring->free_groups[uring->groups_free - 1];
		int full = gather(uring, group);

		if (!full && uring->groups_free < URING_GROUPS) {
			group->count = 0;
			return; /* what is with the kernel ends first */
		}
		uring->groups_free--;
		unhold(uring, group);
		prepare_group(uring, group);
	}
}

void
ofs_uring_write(struct uring *uring, uint32_t slot_index)
{
	push(uring, &uring->held, slot_index);
	ofs_uring_write_more(uring);
}

/* What each slot of a group has of the bytes that were written; after an error, nothing. */
static void
share_out(struct uring *uring, const struct uring_group *group, int count)
{
	for (uint32_t i = 0; i < group->count; i++) {
		struct uring_slot *slot = &uring->slots[group->slots[i]];
		int size = (int)slot->io.size_bytes;

		slot->count = count >= size ? size : count > 0 ? count : -EAGAIN;
		count -= size;
		push(uring, &uring->ended, group->slots[i]);
	}
}

void
ofs_uring_ended(struct uring *uring, uint32_t entry, int count)
{
	struct uring_group *group = NULL;

	assert(uring->entry_count > 0);
	uring->entry_count--;
	for (uint32_t i = 0; i < URING_GROUPS; i++)
		if (uring->groups[i].count > 0 && uring->groups[i].slots[0] == entry)
			group = &uring->groups[i];
	if (group != NULL && group->count > 1) {
		share_out(uring, group, count);
	} else {
		uring->slots[entry].count = count;
		push(uring, &uring->ended, entry);
	}
	if (group == NULL)
		return;
	group->count = 0;
	uring->free_groups[uring->groups_free++] = group;
}

#endif
