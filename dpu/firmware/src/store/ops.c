/* The pool of ops: four free lists over one table, the ready list, and submission to the device. */
#include "internal.h"

#include <assert.h>

uint32_t
ofs_op_index(const struct ofs_store *store, const struct ofs_store_op *op)
{
	assert(op >= store->ops && op < store->ops + store->op_count);
	return (uint32_t)(op - store->ops);
}

struct ofs_store_op *
ofs_op_take(struct ofs_store *store, uint32_t *list)
{
	struct ofs_store_op *op;

	if (*list == OFS_NONE)
		return NULL;
	op = &store->ops[*list];
	assert(op->kind == OFS_STORE_IDLE);
	*list = op->next;
	op->next = OFS_NONE;
	op->joined = OFS_NONE;
	op->old = OFS_NONE;
	op->record = OFS_NONE;
	op->segment = OFS_NONE;
	op->length = 0;
	op->rc = 0;
	op->dropped = 0;
	op->fill = op->failed = op->stalled = 0;
	op->granules = op->next_from = op->stretches = 0;
	op->expected_bytes = op->got_bytes = 0;
	store->ops_used++;
	return op;
}

/* Each op returns to the list it came from, which its number tells. */
void
ofs_op_give(struct ofs_store *store, struct ofs_store_op *op)
{
	uint32_t number = ofs_op_index(store, op);
	uint32_t *list = number < store->config.io_max                      ? &store->op_free
		: number < store->config.io_max + OFS_HEADER_OPS                ? &store->header_free
		: number < store->config.io_max + OFS_HEADER_OPS + OFS_WIPE_OPS ? &store->wipe_free
																		: &store->clean_free;

	assert(store->ops_used > 0 && !op->stalled);
	op->kind = OFS_STORE_IDLE;
	op->next = *list;
	*list = number;
	store->ops_used--;
}

void
ofs_op_append(struct ofs_store *store, struct ofs_store_list *list, struct ofs_store_op *op)
{
	uint32_t number = ofs_op_index(store, op);

	op->next = OFS_NONE;
	if (list->count == 0)
		list->first = number;
	else
		store->ops[list->last].next = number;
	list->last = number;
	list->count++;
}

void
ofs_op_ready(struct ofs_store *store, struct ofs_store_op *op, int32_t rc)
{
	assert(ofs_op_index(store, op) < store->config.io_max); /* the others have no waiting caller */
	assert(op->kind != OFS_STORE_IDLE && !op->stalled);
	op->rc = rc;
	ofs_op_append(store, &store->ready, op);
}

int
ofs_op_submit(struct ofs_store *store, const struct ofs_store_op *op, int io, uint64_t offset,
	void *memory, uint32_t size_bytes, uint32_t lifetime)
{
	struct ofs_io request = {
		.user = ofs_op_index(store, op),
		.offset = offset,
		.buffer = memory,
		.size_bytes = size_bytes,
		.op = (uint16_t)io,
		.flags = io == OFS_STORAGE_WRITE && store->config.durable ? OFS_STORAGE_DURABLE : 0,
		.lifetime = lifetime,
	};

	int rc = ofs_storage_submit(store->storage, &request);

	store->flying += rc == 0;
	return rc;
}

/* The result of an I/O for a caller: a full disk has its own code, everything else is -EIO. */
int32_t
ofs_store_rc(int64_t result, uint32_t size_bytes)
{
	if (result == (int64_t)size_bytes)
		return 0;
	return result == -ENOSPC ? -ENOSPC : -EIO;
}

int
ofs_store_refuses(const struct ofs_store *store)
{
	return store->refused >= OFS_SEGMENT_ERRORS_MAX;
}
