/*
 * device/values.h: values under keys of 16 bytes.
 *
 * Model: belongs to the reactor's thread. A value is as many chunks as its pieces need, each with
 * a piece in every layer. Their content is the key and the *generation*, which numbers the stores:
 * each store of a key has chunks of its own, and the table says which are the key's value. So a
 * value is replaced in one step, no block of it is ever of two stores, and core, store and
 * directory see blocks as of any session. The table is rebuilt at open from the tags behind
 * trailers (value_tag.h). An entry whose blocks are gone (expired, purged, unreadable) is absent,
 * and leaves the table when it is looked at.
 *
 * With an archive (value_archive.c) an entry may be *away*: the archive has the value and the store
 * does not. It comes back when a host asks for it. One that was deleted is *leaving* until that is
 * noted for the archive too, and so is a key unknown here that the archive may have. Entries that
 * the archive has yet to hear of are in a list, so that nothing is said twice or lost, and the
 * table bounds all of it.
 *
 * A value's *name* is the key that its volume has for it, kept so that a LIST can tell it; nothing
 * is found by it. A volume is not kept: a name is of the volume under which it hashes to the key.
 *
 * Whoever stores or reads a value has a session of it, so that its blocks stay; a value that was
 * replaced or deleted meanwhile goes with the last of these.
 */
#ifndef OFS_DEVICE_VALUES_H
#define OFS_DEVICE_VALUES_H

#include "device.h"
#include "region.h"

#include <stdbool.h>

struct ofs_device;
struct ofs_command;

struct ofs_value_name {
	struct ofs_key key;
	uint64_t length;
	uint64_t generation; /* 0: no value; a later store has a higher one */
	uint16_t flags;      /* of its STORE, while it is stored */
	uint16_t name_bytes; /* 0: its store gave no name */
	struct ofs_key name; /* what its volume calls it: `key` is the hash of both */
};

enum ofs_value_place {
	OFS_VALUE_HERE = 0,
	OFS_VALUE_AWAY = 1,
	OFS_VALUE_LEAVING = 2,
	OFS_VALUE_GONE = 3 /* noted; the entry stays for who deletes, until the archive is listed */
};
/* What the archive hears of at once, and what may go up when it has room. */
enum ofs_value_list {
	OFS_LIST_NONE = 0,
	OFS_LIST_NOW = 1,
	OFS_LIST_STORED = 2,
	OFS_LIST_COUNT = 3
};

struct ofs_value {
	struct ofs_value_name name; /* generation 0: the entry is empty */
	struct ofs_key store_key;   /* of its first chunk: ofs_fold_key has the others */
	uint32_t tenant;
	uint8_t place; /* enum ofs_value_place */
	bool archived; /* the archive has it */
	uint8_t list;  /* enum ofs_value_list */
	uint32_t next, previous;
	uint64_t wanted_ns; /* away: when it was first asked for; 0: it was not */
};

struct ofs_values {
	struct ofs_value *entries; /* [mask + 1], open addressing; NULL: none are stored by key */
	uint32_t mask;
	uint32_t count;
	uint32_t noted; /* in lists */
	uint32_t firsts[OFS_LIST_COUNT], lasts[OFS_LIST_COUNT];
	uint32_t news;                /* bits of lists that are not empty; under the mailbox's mutex */
	bool listed;                  /* what has no entry is not in the archive either */
	uint64_t generation;          /* the last one given, or seen */
	uint32_t unnamed;             /* values without a name that were found at open; blocks */
	uint64_t left_out;            /* of values of which the core does not take all chunks */
	uint32_t swept;               /* where the search for entries without blocks goes on */
	struct ofs_value_told *told;  /* of one command */
	struct ofs_chunk_info *infos; /* [session_chunk_max] of the session that was begun last */
};

int ofs_device_open_values(struct ofs_device *device);
/* Carries out a VALUES command, and answers it. */
void ofs_device_values(struct ofs_device *device, uint32_t port, const struct ofs_command *command);
/* value_list.c: carries out a LIST, whose asks are `count`. */
void ofs_device_list_values(struct ofs_device *device, uint32_t port,
	const struct ofs_value_ask *ask, struct ofs_value_told *told, uint32_t count);
/* value_blocks.c */
uint32_t ofs_value_chunks(const struct ofs_device *device, uint64_t length);
/* Whether a session has room for a value of this length. */
bool ofs_value_fits(const struct ofs_device *device, uint64_t length);
/* 0, or why no value of this length can be stored, whatever else is deleted for it: -EMSGSIZE,
 * -ENOSPC; -EDQUOT: the tenant's quota. */
int ofs_value_never_fits(const struct ofs_device *device, uint32_t tenant, uint64_t length);
/* Of a value's first chunk: whether this is the store key of one of its chunks. */
bool ofs_value_has_chunk(const struct ofs_device *device, const struct ofs_value *value,
	const struct ofs_key *store_key);
/* A content of its own for each store of a key. */
struct ofs_key ofs_value_content(const struct ofs_value_name *name);
/* Whether all pieces of the value are there; `stored`: on the drive. */
bool ofs_value_is_whole(const struct ofs_device *device, const struct ofs_value *value,
	bool stored);
/* Deletes its blocks, unless a session reads them: then they go with it. */
void ofs_value_drop(struct ofs_device *device, const struct ofs_value *value);
/* The same of an entry, which leaves the table. */
void ofs_value_forget(struct ofs_device *device, struct ofs_value *entry);

/* The key's entry; NULL: it has none, or one that has lost blocks and is in no archive. */
struct ofs_value *ofs_value_look(struct ofs_device *device, uint32_t tenant,
	const struct ofs_key *key);
/* Whether the table takes one more entry, or can be made to. */
bool ofs_values_room(struct ofs_device *device);

/* value_archive.c. The archive is to be told of the entry; nothing without an archive. */
void ofs_value_note(struct ofs_device *device, struct ofs_value *entry, enum ofs_value_list list);
/* Of an entry that is away: whether it counts as absent, since it did not come back. */
bool ofs_value_failed(struct ofs_device *device, const struct ofs_value *entry);
/* The same, and asks for its return: -EAGAIN, or -ENOENT. */
int ofs_value_want(struct ofs_device *device, struct ofs_value *entry);
/* Deletes the key's value (NULL: it has none). 0, -ENOENT, -EAGAIN: not noted yet, -ENOSPC. */
int ofs_value_leave(struct ofs_device *device, uint32_t tenant, const struct ofs_key *key,
	struct ofs_value *entry);
/* A block from the archive. Whether it is a piece of an entry that is away, or of no value. */
bool ofs_value_awaits(const struct ofs_device *device, uint32_t tenant,
	const struct ofs_archive_block *block);
/* Behind its trailer the name that its entry has; the archive keeps none. */
void ofs_value_name_block(const struct ofs_device *device, uint32_t tenant,
	const struct ofs_archive_block *block, const struct ofs_trailer *trailer);
/* It has been written: what nobody awaits any more is dropped. */
void ofs_value_arrived(struct ofs_device *device, uint32_t tenant,
	const struct ofs_archive_block *block);
/* A purge of all that the tenant has, in the archive too. */
void ofs_values_purge(struct ofs_device *device, uint32_t tenant);

/* value_table.c: the value that a session stores or reads; generation 0: none. */
const struct ofs_value_name *ofs_device_value_of(const struct ofs_device *device, uint32_t session);
/* Whether a PUT may write this block: of a value's session only pieces of the one being stored. */
bool ofs_device_is_piece(const struct ofs_device *device, const struct ofs_sqe *sqe);
/* Whether the session's blocks are, at its end, those of its key's value. */
bool ofs_device_value_stays(const struct ofs_device *device, uint32_t session);

#endif
