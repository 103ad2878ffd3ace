/*
 * What every back end does alike: fill the shared part, check an I/O, count its completion.
 * Compiled into each shared object that contains a back end.
 */
#include "internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void
ofs_storage_init(struct ofs_storage *storage, const struct ofs_storage_ops *ops,
	const struct ofs_storage_config *config, struct ofs_clock *clock)
{
	storage->ops = ops;
	storage->clock = clock;
	storage->queue_depth_max = config->queue_depth_max;
	storage->lba_size_bytes = config->lba_size_bytes > 0 ? config->lba_size_bytes : 512;
	storage->size_bytes = config->size_bytes & ~(uint64_t)(storage->lba_size_bytes - 1);
}

int
ofs_storage_check(struct ofs_storage *storage, const struct ofs_io *io)
{
	uint64_t mask = storage->lba_size_bytes - 1;

	if (io->op == OFS_STORAGE_SYNC) {
		if (io->size_bytes != 0 || io->offset != 0)
			return -EINVAL;
	} else if (io->op == OFS_STORAGE_READ || io->op == OFS_STORAGE_WRITE
		|| (io->op == OFS_STORAGE_DISCARD && storage->discards)) {
		if (io->size_bytes == 0 || (io->buffer == NULL) != (io->op == OFS_STORAGE_DISCARD)
			|| ((io->offset | io->size_bytes | (uintptr_t)io->buffer) & mask) != 0
			|| io->offset >= storage->size_bytes
			|| io->size_bytes > storage->size_bytes - io->offset)
			return -EINVAL;
	} else {
		return -EINVAL;
	}
	if (storage->stats.in_flight >= storage->queue_depth_max) {
		storage->stats.busy++;
		return -EAGAIN;
	}
	return 0;
}

void
ofs_storage_count(struct ofs_storage *storage, uint16_t op, int64_t result)
{
	struct ofs_storage_stats *stats = &storage->stats;

	assert(stats->in_flight > 0);
	if (--stats->in_flight == 0)
		storage->idle_since_ns = ofs_clock_now_ns(storage->clock);
	if (result < 0) {
		stats->errors++;
	} else if (op == OFS_STORAGE_READ) {
		stats->reads++;
		stats->bytes_read += (uint64_t)result;
	} else if (op == OFS_STORAGE_WRITE) {
		stats->writes++;
		stats->bytes_written += (uint64_t)result;
	} else if (op == OFS_STORAGE_DISCARD) {
		stats->discards++;
		stats->bytes_discarded += (uint64_t)result;
	} else {
		stats->syncs++;
	}
}

void
ofs_storage_warn(struct ofs_storage *storage, const char *format, ...)
{
	size_t used = strlen(storage->warning);
	va_list arguments;

	if (used > 0) {
		snprintf(storage->warning + used, sizeof(storage->warning) - used, "; ");
		used = strlen(storage->warning);
	}
	va_start(arguments, format);
	vsnprintf(storage->warning + used, sizeof(storage->warning) - used, format, arguments);
	va_end(arguments);
}
