/*
 * work.h: the cost of an event, counted where the work is done.
 *
 * Model: core->tally is the entry of the current kind of event, which ofs_event_enter chooses. Work
 * outside an event (ofs_core_verify, the references of a chunk) is not counted. A visit to an entry
 * counts all of it, and a list operation counts the neighbours on both sides even at an end of the
 * list, so the counts depend on decisions only. Frequent work is one number here, from which
 * ofs_core_work derives the totals.
 */
#ifndef OFS_CORE_WORK_H
#define OFS_CORE_WORK_H

#define OFS_LINK_BYTES 8u   /* next and prev of an entry in a list */
#define OFS_BLOCK_BYTES 25u /* all words of one block */

/* Bytes of tables that were read, written or both. */
static inline void
ofs_work_touch(const struct ofs_core *core, enum ofs_table table, uint64_t bytes)
{
	core->tally->work.table_bytes[table] += bytes;
}

/* `visits` entries of a list, and its head, because one entry was added or removed. */
static inline void
ofs_work_order(const struct ofs_core *core, enum ofs_table entries, uint32_t visits)
{
	core->tally->lists[entries][visits]++;
}

/* `count` values of `size_bytes` were applied or compared, each while a row was scanned. */
static inline void
ofs_work_values(const struct ofs_core *core, uint64_t count, uint32_t size_bytes)
{
	core->tally->work.values += count;
	core->tally->work.table_bytes[OFS_TABLE_LAYER] += count * size_bytes;
}

#endif
