/*
 * store_memory.h: a device in memory that a test controls at every step.
 *
 * Model: one polling thread. Nothing happens between submit and poll; poll ends a random part of
 * the requests in flight, in random order, from one seed. A power cut ends all requests in flight
 * as on a real device: of each write, a random set of logical blocks has reached the medium, and of
 * each discard a random set has lost its bytes. Nothing but submit can fail, except at the fault
 * rates.
 */
#ifndef OFS_TEST_STORE_MEMORY_H
#define OFS_TEST_STORE_MEMORY_H

#include "store.h"

enum { MEMORY_FLYING_MAX = 256 };

struct memory {
	struct ofs_storage storage; /* first: this is a back end */
	struct ofs_clock clock;
	uint8_t *bytes;
	struct ofs_io flying[MEMORY_FLYING_MAX];
	uint32_t flying_count;
	uint32_t depth;
	uint64_t random;
	uint32_t end_percent; /* of the requests in flight, per poll */
	uint32_t write_eio_percent;
	uint32_t read_eio_percent;
	uint32_t read_flip_percent;
	int write_rc;       /* not 0: how every write ends */
	uint64_t hold_from; /* writes that begin in [hold_from, hold_to) stay in flight */
	uint64_t hold_to;
	uint64_t writes;      /* that were sent */
	uint64_t reads;       /* that were sent */
	uint64_t not_durable; /* writes without OFS_STORAGE_DURABLE */
	uint64_t discarded_bytes;
	uint32_t lifetimes; /* of the writes that were sent, one bit each */
};

void memory_open(struct memory *memory, uint64_t size_bytes, uint32_t lba_size_bytes,
	uint64_t seed);
void memory_close(struct memory *memory);
void memory_cut(struct memory *memory);
uint64_t memory_random(struct memory *memory);

/* A block's bytes follow from its name, so that any test can tell whether it was served the
 * right ones. */
void block_name(uint32_t number, struct ofs_key *key);
void block_fill(const struct ofs_store_config *config, uint32_t number, uint32_t layer,
	uint8_t *record);
int block_matches(const struct ofs_store_config *config, uint32_t number, uint32_t layer,
	const uint8_t *record, uint32_t length);
/* Polls until `user` has ended, or says -ETIMEDOUT after many idle polls; others' ends are
 * dropped. */
int store_finish(struct ofs_store *store, uint64_t user);
int store_put_now(struct ofs_store *store, const struct ofs_store_config *config, uint32_t number,
	uint32_t layer, uint8_t *record, uint64_t now_s);
/* 0 only if the bytes are right; -EILSEQ for others. */
int store_get_now(struct ofs_store *store, const struct ofs_store_config *config, uint32_t number,
	uint32_t layer, uint8_t *record, uint64_t now_s);

#endif
