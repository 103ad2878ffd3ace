/*
 * work.h: what an event cost, counted where it is done.
 *
 * Model: core->tally is the entry of the kind of event under way, which ofs_event_enter chooses.
 * What is asked outside of an event (ofs_core_verify, the references of a chunk) passes through
 * none of these. A visit to an entry counts all of it, and a list operation counts the entries on
 * both sides also where it stands at an end: the counts depend on decisions only. What is done
 * often is one number here, and ofs_core_work makes of it what it stands for.
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

/* `visits` entries of a list, and its head, because one entry was put in or taken out. */
static inline void
ofs_work_order(const struct ofs_core *core, enum ofs_table entries, uint32_t visits)
{
	core->tally->lists[entries][visits]++;
}

/* `count` values of `size_bytes` were taken in or compared, each on its way through a row. */
static inline void
ofs_work_values(const struct ofs_core *core, uint64_t count, uint32_t size_bytes)
{
	core->tally->work.values += count;
	core->tally->work.table_bytes[OFS_TABLE_LAYER] += count * size_bytes;
}

#endif
