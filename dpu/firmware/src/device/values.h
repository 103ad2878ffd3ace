/*
 * device/values.h: values under keys of 16 bytes.
 *
 * Model: belongs to the reactor's thread. A value is one chunk, piece i in its layer i, and the
 * chunk's content is the key and the *generation*, which numbers the stores: each store of a key is
 * a chunk of its own, and the table says which is the key's value. So a value is replaced in one
 * step, no block of it is ever of two stores, and core, store and directory see blocks as of any
 * session. The table is rebuilt at open from the tags behind trailers (value_tag.h). An entry whose
 * blocks are gone (expired, purged, unreadable) is absent, and leaves the table when it is looked
 * at.
 *
 * Whoever stores or reads a value has a session of it, so that its blocks stay; a value that was
 * replaced or deleted meanwhile goes with the last of these.
 */
#ifndef OFS_DEVICE_VALUES_H
#define OFS_DEVICE_VALUES_H

#include "region.h"

#include <stdbool.h>

struct ofs_device;
struct ofs_command;

struct ofs_value_name {
	struct ofs_key key;
	uint64_t length;
	uint32_t generation; /* 0: no value */
	uint32_t flags;      /* of its STORE, while it is stored */
};

struct ofs_value {
	struct ofs_value_name name; /* generation 0: the entry is empty */
	struct ofs_key store_key;   /* of its chunk */
	uint32_t tenant;
};

struct ofs_values {
	struct ofs_value *entries; /* [mask + 1], open addressing; NULL: none are stored by key */
	uint32_t mask;
	uint32_t count;
	uint32_t generation;         /* the last one given */
	uint32_t swept;              /* where the search for entries without blocks goes on */
	struct ofs_value_told *told; /* of one command */
};

int ofs_device_open_values(struct ofs_device *device);
/* Carries out a VALUES command, and answers it. */
void ofs_device_values(struct ofs_device *device, uint32_t port, const struct ofs_command *command);
/* Whether all pieces of a value of this length are there. */
bool ofs_value_is_whole(const struct ofs_device *device, uint32_t tenant,
	const struct ofs_key *store_key, uint64_t length);
/* Deletes its blocks, unless a session reads them: then they go with it. */
void ofs_value_drop(struct ofs_device *device, uint32_t tenant, const struct ofs_key *store_key);
/* The same of an entry, which leaves the table. */
void ofs_value_forget(struct ofs_device *device, struct ofs_value *entry);

/* value_table.c: the value that a session stores or reads; generation 0: none. */
const struct ofs_value_name *ofs_device_value_of(const struct ofs_device *device, uint32_t session);
/* Whether a PUT may write this block: of a value's session only pieces of the one being stored. */
bool ofs_device_is_piece(const struct ofs_device *device, const struct ofs_sqe *sqe);
/* Whether the session's blocks are, at its end, those of its key's value. */
bool ofs_device_value_stays(const struct ofs_device *device, uint32_t session);

#endif
