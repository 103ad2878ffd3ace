/* Finding, creating or refusing the store on a device. */
#include "internal.h"

#include <string.h>

/* A superblock as read, or all zero if neither try succeeded. */
static int
read_copy(struct ofs_store *store, uint64_t offset, struct ofs_superblock *super)
{
	int rc = 0;

	memset(super, 0, sizeof(*super));
	for (int tries = 0; tries < OFS_READ_TRIES; tries++) {
		rc = ofs_store_io(store, OFS_STORAGE_READ, offset, store->scratch,
			store->storage->lba_size_bytes);
		if (rc == -ETIMEDOUT)
			return rc;
		if (rc == 0) {
			memcpy(super, store->scratch, sizeof(*super));
			if (ofs_superblock_valid(super))
				return 0;
		}
	}
	return rc;
}

static int
look_blank(struct ofs_store *store)
{
	uint32_t lba = store->storage->lba_size_bytes;
	uint64_t torn = 0;
	int rc = ofs_store_io(store, OFS_STORAGE_READ, 0, store->scratch, OFS_STORE_SEGMENTS_OFFSET);

	if (rc != 0)
		return rc;
	memcpy(&torn, store->scratch + OFS_STORE_COPY_OFFSET, sizeof(torn));
	if (torn == OFS_STORE_MAGIC)
		memset(store->scratch + OFS_STORE_COPY_OFFSET, 0, lba);
	for (uint64_t i = 0; i < OFS_STORE_SEGMENTS_OFFSET; i++)
		if (store->scratch[i] != 0)
			return 0;
	rc = ofs_store_io(store, OFS_STORAGE_READ, OFS_STORE_SEGMENTS_OFFSET, store->scratch, lba);
	for (uint64_t i = 0; rc == 0 && i < lba; i++)
		if (store->scratch[i] != 0)
			return 0;
	return rc == 0 ? 1 : rc;
}

/* 1: there is no data where a store begins, or only a torn first format. A corrupted read can make
 * a blank device look used, but hardly a used one look blank. */
static int
is_blank(struct ofs_store *store)
{
	int rc = 0;

	for (int tries = 0; tries < OFS_READ_TRIES && rc != 1 && rc != -ETIMEDOUT; tries++)
		rc = look_blank(store);
	return rc;
}

static void
make(struct ofs_store *store, uint64_t now_s)
{
	struct ofs_superblock *super = &store->super;

	memset(super, 0, sizeof(*super));
	super->magic = OFS_STORE_MAGIC;
	super->version = store->config.codec == 0 ? OFS_STORE_VERSION : OFS_STORE_VERSION_CODED;
	super->lba_size_bytes = store->storage->lba_size_bytes;
	super->size_bytes = store->storage->size_bytes;
	super->payload_size_bytes = store->config.payload_size_bytes;
	super->segment_size_bytes = store->config.segment_size_bytes;
	super->segment_count = store->segment_count;
	super->records_per_segment = store->records_per_segment;
	super->layer_count = store->config.layer_count;
	super->tenant_max = store->config.tenant_max;
	super->created_s = now_s;
	ofs_store_uuid(&super->uuid);
}

static int
compare(const struct ofs_store *store, char *error, size_t error_size_bytes)
{
	const struct ofs_superblock *super = &store->super;
	const struct ofs_store_config *config = &store->config;
	const struct {
		const char *what;
		uint64_t has;
		uint64_t asked;
	} rows[] = {
		{"a logical block of", super->lba_size_bytes, store->storage->lba_size_bytes},
		{"blocks of", super->payload_size_bytes, config->payload_size_bytes},
		{"segments of", super->segment_size_bytes, config->segment_size_bytes},
		{"a size of", super->size_bytes, store->storage->size_bytes},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (rows[i].has != rows[i].asked) {
			return ofs_store_refuse(error, error_size_bytes, -EINVAL,
				"the store has %s %llu B, not %llu B; configure it so, or give a new path",
				rows[i].what, (unsigned long long)rows[i].has, (unsigned long long)rows[i].asked);
		}
	}
	if (super->layer_count != config->layer_count) {
		return ofs_store_refuse(error, error_size_bytes, -EINVAL,
			"the store has %u layers, not %u; it belongs to another model, give a new path",
			super->layer_count, config->layer_count);
	}
	/* The checksum guards it, so only a store made by other code can disagree here. */
	if (super->segment_count != store->segment_count || super->tenant_max == 0
		|| super->tenant_max > UINT16_MAX || super->openings >= OFS_STORE_OPENINGS_MAX
		|| super->records_per_segment != store->records_per_segment
		|| (uint64_t)super->tenant_max * super->layer_count > 1u << 24) {
		return ofs_store_refuse(error, error_size_bytes, -EINVAL,
			"the store's superblock contradicts itself; give a new path");
	}
	return 0;
}

static int
is_known(uint32_t version)
{
	return version == OFS_STORE_VERSION || version == OFS_STORE_VERSION_CODED;
}

static int
refuse_unknown(struct ofs_store *store, const struct ofs_superblock *copies, char *error,
	size_t error_size_bytes)
{
	int i;

	for (i = 0; i < 2; i++) {
		if (copies[i].magic == OFS_STORE_MAGIC && !is_known(copies[i].version)) {
			return ofs_store_refuse(error, error_size_bytes, -EINVAL,
				"the store has format version %u, this release knows %u and %u; use the "
				"release that made it, or give a new path",
				copies[i].version, OFS_STORE_VERSION, OFS_STORE_VERSION_CODED);
		}
	}
	i = is_blank(store);
	if (i < 0) {
		return ofs_store_refuse(error, error_size_bytes, i,
			"the device cannot be read (%s); look at dmesg", strerror(-i));
	}
	if (i == 1) {
		return ofs_store_refuse(error, error_size_bytes, -EINVAL,
			"there is no store here; set format to make one");
	}
	return ofs_store_refuse(error, error_size_bytes, -EINVAL, "%s",
		copies[0].magic == OFS_STORE_MAGIC || copies[1].magic == OFS_STORE_MAGIC
			? "both superblocks of the store are damaged; restore it, or give a new path"
			: "this is no store and not empty; give another path, or clear its first 256 KiB");
}

/* A store must not serve the blocks that it had when they moved to another store. */
static int
refuse_moved(struct ofs_store *store, char *error, size_t error_size_bytes)
{
	struct ofs_store_forward forward;
	int rc = ofs_store_forwarded(store, &forward);

	if (rc == 1) {
		return ofs_store_refuse(error, error_size_bytes, -EINVAL,
			"the store moved to %.511s (%.15s); set storage.path and storage.backend to it",
			forward.path, forward.backend);
	}
	return rc == 0
		? 0
		: ofs_store_refuse(error, error_size_bytes, rc,
			  "the device cannot be read (%s); look at dmesg and the device", strerror(-rc));
}

/* A store that another store names as the new place of its blocks. */
static int
is_the_one(const struct ofs_store *store, int found)
{
	const struct ofs_key *uuid = &store->config.uuid;

	return (uuid->lo | uuid->hi) == 0 || (found && ofs_key_equal(uuid, &store->super.uuid));
}

int
ofs_store_load(struct ofs_store *store, uint64_t now_s, int *fresh, char *error,
	size_t error_size_bytes)
{
	static const uint64_t offsets[2] = {0, OFS_STORE_COPY_OFFSET};
	struct ofs_superblock copies[2];
	int best = -1;
	int failed = 0; /* either copy: an unreadable one does not prove that there is no store */
	int rc = 0;

	*fresh = 0;
	for (int i = 0; i < 2 && rc != -ETIMEDOUT; i++) {
		rc = read_copy(store, offsets[i], &copies[i]);
		failed = rc != 0 ? rc : failed;
		if (rc == 0 && ofs_superblock_valid(&copies[i]) && is_known(copies[i].version)
			&& (best < 0 || copies[i].openings > copies[best].openings)) {
			best = i;
		}
	}
	if (best >= 0)
		store->super = copies[best];
	if (failed == 0 && !is_the_one(store, best >= 0)) {
		return ofs_store_refuse(error, error_size_bytes, -EINVAL,
			"this is not the store that the blocks moved to; find that one, or set storage.path");
	}
	if (best < 0 && failed == 0 && store->config.format != OFS_STORE_MAKE_NEVER
		&& is_blank(store) == 1) {
		*fresh = 1;
		make(store, now_s);
		return 0;
	}
	if (failed != 0 && best < 0) {
		return ofs_store_refuse(error, error_size_bytes, failed,
			"the device cannot be read (%s); look at dmesg and the device", strerror(-failed));
	}
	if (best < 0)
		return refuse_unknown(store, copies, error, error_size_bytes);
	if (store->config.format == OFS_STORE_MAKE_NEW) {
		return ofs_store_refuse(error, error_size_bytes, -EINVAL,
			"there is a store here already; give a new path, or remove that store");
	}
	rc = refuse_moved(store, error, error_size_bytes);
	rc = rc == 0 ? compare(store, error, error_size_bytes) : rc;
	if (rc == 0 && store->super.tenant_max < store->config.tenant_max)
		store->super.tenant_max = store->config.tenant_max;
	if (rc == 0 && store->config.codec != 0)
		store->super.version = OFS_STORE_VERSION_CODED; /* and never backwards */
	return rc;
}

/* The copy first: one of the two is whole at any moment. */
int
ofs_superblock_begin(struct ofs_store *store, char *error, size_t error_size_bytes)
{
	static const uint64_t offsets[2] = {OFS_STORE_COPY_OFFSET, 0};
	uint32_t lba = store->storage->lba_size_bytes;

	/* The count of openings is the upper half of every sequence: a write of an earlier run that
	 * left no trace in any header can never be taken for a record of this run. */
	if (store->sequence >> 32 > store->super.openings)
		store->super.openings = store->sequence >> 32;
	store->super.openings++;
	store->sequence = store->super.openings << 32;
	ofs_superblock_seal(&store->super);
	for (int i = 0; i < 2; i++) {
		int tries;
		int rc = -EIO;

		for (tries = 0; tries < OFS_READ_TRIES && rc != 0 && rc != -ETIMEDOUT; tries++) {
			memset(store->scratch, 0, lba);
			memcpy(store->scratch, &store->super, sizeof(store->super));
			rc = ofs_store_io(store, OFS_STORAGE_WRITE, offsets[i], store->scratch, lba);
		}
		if (rc != 0) {
			return ofs_store_refuse(error, error_size_bytes, rc,
				"the superblock cannot be written (%s); look at the device and its space",
				strerror(-rc));
		}
	}
	return 0;
}
