/*
 * store_small.h: a small store on the device of store_memory.h, alone in its program.
 *
 * Model: one device, one store on it at a time, of segments of four blocks; one thread. An open or
 * a verification that fails ends the program.
 */
#ifndef OFS_TEST_STORE_SMALL_H
#define OFS_TEST_STORE_SMALL_H

#include "store_memory.h"

#define SMALL_LBA 512u
#define SMALL_SEGMENT (SMALL_LBA + 4 * (2048 + SMALL_LBA))

extern const struct ofs_store_config small_config;
extern struct memory small_device;

struct ofs_store *small_begin(const struct ofs_store_config *config, uint32_t segments);
/* Closes and opens again, with no word to the device in between. */
struct ofs_store *small_reopen(struct ofs_store *store, const struct ofs_store_config *config,
	uint64_t now_s);
/* Verifies, and closes store and device. */
void small_end(struct ofs_store *store);
struct ofs_store_stats small_stats(const struct ofs_store *store);
struct ofs_trailer *small_trailer(uint8_t *record);

#endif
