/*
 * ofs_caches.h: many least-recently-used caches over the same numbered blocks.
 *
 * Model: the stores and arenas of a pod's daemons, and the pools of its hosts, as which blocks each
 * holds; no bytes and no time. A cache has room for so many blocks, and a block may be in any
 * number of caches. One hash table finds (cache, block), one list for each says who leaves. Nothing
 * is allocated by a question; a use may grow the table. One thread. What can fail: memory, and a
 * cache that is none (-EINVAL).
 */
#ifndef OFS_CACHES_H
#define OFS_CACHES_H

#include "core_calls.h"

/* cdef: order 12 */
/* cdef: begin */
struct ofs_caches;

/* `room` [cache_count]: blocks that each holds at most; 0: it holds none. */
int ofs_caches_open(struct ofs_caches **out, uint32_t cache_count, const uint64_t *room);
void ofs_caches_close(struct ofs_caches *caches);
/* Blocks that a cache holds, or -EINVAL. */
int64_t ofs_caches_held(const struct ofs_caches *caches, uint32_t cache);
/* It holds nothing any more. */
int ofs_caches_clear(struct ofs_caches *caches, uint32_t cache);
/*
 * found[i]: cache at[i] holds block[i]; UINT32_MAX in `at` is no cache, and holds nothing. Returns
 * how many are found before the first that is not. No recency changes.
 */
int64_t ofs_caches_find(const struct ofs_caches *caches, const uint32_t *at, const uint32_t *blocks,
	uint32_t count, uint8_t *found);
/*
 * In order: a block that is there becomes the most recent of its cache, one that is not enters, and
 * where that is full the least recent leaves. Returns how many entered, or -errno.
 */
int64_t ofs_caches_use(struct ofs_caches *caches, const uint32_t *at, const uint32_t *blocks,
	uint32_t count);
/* matched[c]: how many of the blocks, from the front, cache c holds. */
void ofs_caches_matched(const struct ofs_caches *caches, const uint32_t *blocks, uint32_t count,
	uint32_t *matched);
/* cdef: end */

#endif
