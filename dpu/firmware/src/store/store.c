/* Opening and closing a store. */
#include "internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_SIZE_BYTES 4096u

/* The size of a wipe's write. */
static uint64_t
wipe_size_bytes(const struct ofs_store *store)
{
	return store->config.erase ? store->record_size_bytes : store->storage->lba_size_bytes;
}

/* Recovery reads into it; later it is the buffers of headers, wipes and the cleaner. */
static int
take_scratch(struct ofs_store *store)
{
	uint64_t lba = store->storage->lba_size_bytes;
	uint64_t size_bytes = OFS_CLEAN_OPS * (uint64_t)store->record_size_bytes + OFS_HEADER_OPS * lba
		+ OFS_WIPE_OPS * wipe_size_bytes(store);
	uint64_t align = lba > PAGE_SIZE_BYTES ? lba : PAGE_SIZE_BYTES;
	int rc;

	size_bytes = size_bytes > 64 * lba ? size_bytes : 64 * lba;
	if (size_bytes < OFS_STORE_SEGMENTS_OFFSET)
		size_bytes = OFS_STORE_SEGMENTS_OFFSET;
	store->scratch_size_bytes = (size_bytes + align - 1) / align * align;
	rc = ofs_dma_alloc(&store->memory, &store->config.memory, store->scratch_size_bytes, NULL);
	if (rc != 0)
		return rc;
	store->scratch = store->memory.base;
	rc = ofs_storage_register_memory(store->storage, store->memory.base, store->memory.size_bytes);
	store->registered = rc == 0;
	return rc;
}

static int
take_tables(struct ofs_store *store)
{
	size_t slots = 16;

	while (slots < 2 * (size_t)store->record_count)
		slots *= 2;
	store->index_mask = (uint32_t)(slots - 1);
	store->lane_count = store->super.tenant_max * store->config.layer_count;
	store->op_count = store->config.io_max + OFS_HEADER_OPS + OFS_WIPE_OPS + OFS_CLEAN_OPS;
	store->segments = calloc(store->segment_count, sizeof(*store->segments));
	store->records = calloc(store->record_count, sizeof(*store->records));
	store->index = malloc(slots * sizeof(*store->index));
	store->lane_open = malloc(store->lane_count * sizeof(*store->lane_open));
	store->lane_gap = malloc(store->lane_count * sizeof(*store->lane_gap));
	store->ops = calloc(store->op_count, sizeof(*store->ops));
	store->wipes = calloc(store->super.tenant_max, sizeof(*store->wipes));
	store->tenant_blocks = calloc(store->super.tenant_max, sizeof(*store->tenant_blocks));
	if (store->segments == NULL || store->records == NULL || store->index == NULL
		|| store->lane_open == NULL || store->lane_gap == NULL || store->ops == NULL
		|| store->wipes == NULL || store->tenant_blocks == NULL) {
		return -ENOMEM;
	}
	memset(store->lane_open, 0xff, store->lane_count * sizeof(*store->lane_open));
	ofs_store_index_clear(store);
	for (uint32_t i = 0; i < store->record_count; i++)
		store->records[i].copy_next = store->records[i].copy_before = i;
	for (uint32_t i = 0; i < store->super.tenant_max; i++)
		store->wipes[i].turn = 1;
	return 0;
}

/* Divides the ops among callers, headers, wipes and the cleaner; all but the first get buffers
 * here. A wipe's is zero but for its trailer. */
static void
arrange_ops(struct ofs_store *store)
{
	uint32_t lba = store->storage->lba_size_bytes;
	uint32_t headers = store->config.io_max;
	uint32_t wipes = headers + OFS_HEADER_OPS;
	uint32_t moves = wipes + OFS_WIPE_OPS;
	uint8_t *wiping = store->scratch + (size_t)OFS_CLEAN_OPS * store->record_size_bytes
		+ (size_t)OFS_HEADER_OPS * lba;

	store->op_free = OFS_NONE;
	store->header_free = OFS_NONE;
	store->wipe_free = OFS_NONE;
	store->clean_free = OFS_NONE;
	memset(wiping, 0, OFS_WIPE_OPS * wipe_size_bytes(store));
	store->ops_used = store->op_count; /* returning each op brings it to 0 */
	for (uint32_t i = store->op_count; i-- > 0;) {
		struct ofs_store_op *op = &store->ops[i];

		if (i >= moves) {
			op->buffer = store->scratch + (size_t)(i - moves) * store->record_size_bytes;
			op->coded = op->buffer;
		} else if (i >= wipes) {
			op->buffer = wiping + (i - wipes) * wipe_size_bytes(store);
		} else if (i >= headers) {
			op->buffer = store->scratch + (size_t)OFS_CLEAN_OPS * store->record_size_bytes
				+ (size_t)(i - headers) * lba;
		} else if (store->codes) {
			op->coded = (uint8_t *)store->coded.base + (size_t)i * store->record_size_bytes;
		}
		ofs_op_give(store, op);
	}
	assert(store->ops_used == 0);
	ofs_clean_open(store);
}

static int
open_on(struct ofs_store *store, uint64_t now_s, char *error, size_t error_size_bytes)
{
	int fresh;
	int rc = ofs_store_load(store, now_s, &fresh, error, error_size_bytes);

	if (rc != 0)
		return rc;
	rc = ofs_coded_open(store);
	if (rc == 0)
		rc = take_tables(store);
	if (rc != 0) {
		return ofs_store_refuse(error, error_size_bytes, rc,
			"no memory for an index of %u blocks; make the store smaller", store->record_count);
	}
	/* A new store is scanned too: it is quick, and fills the free list. Its uuid is new, so that
	 * whatever an earlier store left on the device is foreign. */
	rc = ofs_store_recover(store, now_s);
	if (rc != 0) {
		return ofs_store_refuse(error, error_size_bytes, rc,
			"the store cannot be read (%s); look at dmesg and the device", strerror(-rc));
	}
	rc = ofs_superblock_begin(store, error, error_size_bytes);
	arrange_ops(store);
	store->running = rc == 0;
	return rc;
}

int
ofs_store_open(struct ofs_store **out, struct ofs_storage *storage, const char *lock_path,
	const struct ofs_store_config *config, uint64_t now_s, char *error, size_t error_size_bytes)
{
	struct ofs_store *store = calloc(1, sizeof(*store));
	int rc;

	*out = NULL;
	if (error != NULL && error_size_bytes > 0)
		error[0] = '\0';
	if (store == NULL)
		return ofs_store_refuse(error, error_size_bytes, -ENOMEM, "out of memory");
	store->storage = storage;
	store->config = *config;
	store->now_s = now_s;
	store->lock_fd = -1;
	rc = ofs_store_plan(store, error, error_size_bytes);
	if (rc == 0)
		rc = ofs_store_lock(lock_path, &store->lock_fd, error, error_size_bytes);
	if (rc == 0) {
		rc = take_scratch(store);
		if (rc != 0) {
			(void)ofs_store_refuse(error, error_size_bytes, rc,
				"no buffers for the store (%s); raise the limit of locked memory "
				"(ulimit -l)",
				strerror(-rc));
		}
	}
	if (rc == 0)
		rc = open_on(store, now_s, error, error_size_bytes);
	if (rc != 0) {
		ofs_store_close(store);
		return rc;
	}
	*out = store;
	return 0;
}

void
ofs_store_close(struct ofs_store *store)
{
	struct ofs_patience patience = {0};
	struct ofs_store_done done[OFS_DRAIN_BATCH];

	if (store == NULL)
		return;
	store->closing = 1;
	while (store->running && store->flying > 0) {
		uint32_t flying = store->flying;

		(void)ofs_store_poll(store, done, OFS_DRAIN_BATCH);
		if (store->flying < flying)
			patience.idle = 0;
		else if (ofs_store_wait(store, &patience) != 0)
			break;
	}
	ofs_store_unlock(store->lock_fd);
	if (store->flying == 0) { /* else the device may still write there */
		if (store->registered) {
			(void)ofs_storage_unregister_memory(store->storage, store->memory.base,
				store->memory.size_bytes);
		}
		ofs_dma_free(&store->memory);
		ofs_coded_close(store);
	}
	free(store->values);
	free(store->plain);
	free(store->tenant_blocks);
	free(store->wipes);
	free(store->ops);
	free(store->lane_gap);
	free(store->lane_open);
	free(store->index);
	free(store->records);
	free(store->segments);
	free(store);
}
