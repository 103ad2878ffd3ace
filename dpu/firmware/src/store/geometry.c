/* Sizes and limits of a store, and the error text for what does not fit. */
#include "codec.h"
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

int
ofs_store_refuse(char *error, size_t size_bytes, int rc, const char *format, ...)
{
	va_list arguments;

	if (error != NULL && size_bytes > 0) {
		va_start(arguments, format);
		vsnprintf(error, size_bytes, format, arguments);
		va_end(arguments);
	}
	return rc;
}

static int
check_config(const struct ofs_store *store, char *error, size_t size_bytes)
{
	const struct ofs_store_config *config = &store->config;
	uint32_t lba = store->storage->lba_size_bytes;

	if (lba < sizeof(struct ofs_superblock) || (lba & (lba - 1)) != 0
		|| OFS_STORE_COPY_OFFSET % lba != 0) {
		return ofs_store_refuse(error, size_bytes, -EINVAL,
			"a store cannot use logical blocks of %u B; choose a power of two from "
			"512 to 65536",
			lba);
	}
	if (config->payload_size_bytes == 0 || config->payload_size_bytes % lba != 0
		|| config->payload_size_bytes > 1u << 30) {
		return ofs_store_refuse(error, size_bytes, -EINVAL,
			"a block of %u B is not a multiple of the logical block of %u B; round it up",
			config->payload_size_bytes, lba);
	}
	if (config->segment_size_bytes % lba != 0
		|| config->segment_size_bytes < lba + store->record_size_bytes) {
		return ofs_store_refuse(error, size_bytes, -EINVAL,
			"a segment of %u B holds no block; give it a multiple of %u B, at least %u",
			config->segment_size_bytes, lba, lba + store->record_size_bytes);
	}
	if (config->layer_count == 0 || config->layer_count > UINT16_MAX || config->tenant_max == 0
		|| config->tenant_max > UINT16_MAX) {
		return ofs_store_refuse(error, size_bytes, -EINVAL,
			"%u layers and %u tenants: each must be 1 to 65535", config->layer_count,
			config->tenant_max);
	}
	if ((uint64_t)config->layer_count * config->tenant_max > 1u << 24) {
		return ofs_store_refuse(error, size_bytes, -EINVAL,
			"%u layers of %u tenants are more than 2^24 lanes; lower the tenants",
			config->layer_count, config->tenant_max);
	}
	if (config->codec > OFS_CODEC_FP8_E5M2) {
		return ofs_store_refuse(error, size_bytes, -EINVAL, "%u is not a codec; choose 0 to %u",
			config->codec, OFS_CODEC_FP8_E5M2);
	}
	if (config->granule_count > 32
		|| (config->granule_count > 1
			&& config->payload_size_bytes % (config->granule_count * lba) != 0)) {
		return ofs_store_refuse(error, size_bytes, -EINVAL,
			"%u granules cannot divide a block of %u B; choose at most 32, each a multiple of the "
			"logical block of %u B",
			config->granule_count, config->payload_size_bytes, lba);
	}
	if (config->room_percent > 50) {
		return ofs_store_refuse(error, size_bytes, -EINVAL,
			"%u %% of a store kept empty; choose 0 to 50", config->room_percent);
	}
	if (config->io_max == 0 || config->io_max > 1u << 20) {
		return ofs_store_refuse(error, size_bytes, -EINVAL,
			"%u I/Os in flight; ask for 1 to 1048576", config->io_max);
	}
	return 0;
}

int
ofs_store_plan(struct ofs_store *store, char *error, size_t error_size_bytes)
{
	struct ofs_store_config *config = &store->config;
	uint32_t lba = store->storage->lba_size_bytes;
	uint64_t size_bytes = store->storage->size_bytes;
	uint64_t segments;
	uint64_t need;
	int rc;

	store->record_size_bytes = config->payload_size_bytes + lba;
	rc = check_config(store, error, error_size_bytes);
	if (rc != 0)
		return rc;
	if (config->reserve_segments == 0)
		config->reserve_segments = 1; /* the cleaner needs free space to move blocks to */
	store->records_per_segment = (config->segment_size_bytes - lba) / store->record_size_bytes;
	segments = size_bytes > OFS_STORE_SEGMENTS_OFFSET
		? (size_bytes - OFS_STORE_SEGMENTS_OFFSET) / config->segment_size_bytes
		: 0;
	/* One tenant must be able to write one block of every layer. */
	need = (uint64_t)config->layer_count + config->reserve_segments + 1;
	if (segments < need) {
		return ofs_store_refuse(error, error_size_bytes, -ENOSPC,
			"%llu B hold %llu segments and %u layers need %llu; give the store %llu B, "
			"or smaller segments",
			(unsigned long long)size_bytes, (unsigned long long)segments, config->layer_count,
			(unsigned long long)need,
			(unsigned long long)(need * config->segment_size_bytes + OFS_STORE_SEGMENTS_OFFSET));
	}
	if (segments * store->records_per_segment >= 1u << 31) {
		return ofs_store_refuse(error, error_size_bytes, -EINVAL,
			"%llu B hold more than 2^31 blocks of %u B; make the store smaller",
			(unsigned long long)size_bytes, config->payload_size_bytes);
	}
	store->segment_count = (uint32_t)segments;
	store->record_count = store->segment_count * store->records_per_segment;
	return 0;
}
