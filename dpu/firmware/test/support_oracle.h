/*
 * support_oracle.h: the written and acknowledged blocks, by tenant, store key and layer.
 *
 * Model: a table of fixed size that only grows; it fails only if it is full (assert).
 */
#ifndef OFS_SUPPORT_ORACLE_H
#define OFS_SUPPORT_ORACLE_H

#include "ofs_base.h"

#include <stdbool.h>

enum { ORACLE_BLOCKS_MAX = 65536 };

struct oracle_block {
	struct ofs_key store_key;
	uint32_t layer;
	bool used;
	bool tried;        /* a write of it has begun */
	bool acknowledged; /* and it has not been deleted or reported lost since */
};

struct oracle {
	struct oracle_block *blocks; /* [ORACLE_BLOCKS_MAX] */
	uint32_t count;
};

void oracle_open(struct oracle *oracle);
void oracle_close(struct oracle *oracle);
struct oracle_block *oracle_find(struct oracle *oracle, const struct ofs_key *store_key,
	uint32_t layer);

#endif
