/*
 * spdk.h: what the extension `_spdk` exports to Python: a back end of the storage seam.
 *
 * Model: SPDK's user-space NVMe driver behind storage.h, in a separate shared object, so that
 * nothing else needs SPDK. The firmware gets its table by pointer (`ofs_storage_add`).
 */
#ifndef OFS_STORAGE_SPDK_H
#define OFS_STORAGE_SPDK_H

#include "storage.h"

/* cdef: begin */
uint32_t ofs_spdk_version(void);
/* SPDK's version as compiled in: "26.05". */
const char *ofs_spdk_release(void);
/* struct ofs_storage_ops of this back end. */
const void *ofs_spdk_ops(void);
/* Memory from SPDK, which every transport reaches without a copy; NULL if none is left, or nothing
 * has been opened yet. */
void *ofs_spdk_memory_alloc(uint64_t size_bytes);
void ofs_spdk_memory_free(void *memory);
/* Deallocates every block of the storage on its drives (dataset management), on its polling thread
 * and with nothing in flight. -EOPNOTSUPP if a drive has no such command. */
int ofs_spdk_erase(void *storage);
/* Whether SPDK's memory is in huge pages. */
int ofs_spdk_is_huge(void);
/* cdef: end */

#endif
