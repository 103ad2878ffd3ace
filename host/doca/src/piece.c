/*
 * Pieces of a value: each is one block, and a call of the driver. A whole piece that lies in one
 * iovec is read into it and written out of it; any other goes through a row of the link's own.
 */
#include "internal.h"

#include <string.h>

#define TICKETS 16

static const uint32_t first_ordinal[1] = {0};

/* The task's memory at `offset` if `size` bytes follow in one iovec, else NULL. */
static uint8_t *
at(const struct doca_task *task, uint64_t offset, uint64_t size)
{
	for (uint32_t i = 0; i < task->iovcnt; i++) {
		if (offset < task->iovecs[i].iov_len)
			return task->iovecs[i].iov_len - offset >= size
				? (uint8_t *)task->iovecs[i].iov_base + offset
				: NULL;
		offset -= task->iovecs[i].iov_len;
	}
	return NULL;
}

/* Copies `size` bytes between the task's memory at `offset` and `row`. */
static void
copy(const struct doca_task *task, uint64_t offset, uint8_t *row, uint64_t size, bool out)
{
	for (uint32_t i = 0; i < task->iovcnt && size > 0; i++) {
		uint64_t length = task->iovecs[i].iov_len;
		uint64_t part;

		if (offset >= length) {
			offset -= length;
			continue;
		}
		part = length - offset < size ? length - offset : size;
		if (out)
			memcpy((uint8_t *)task->iovecs[i].iov_base + offset, row, part);
		else
			memcpy(row, (uint8_t *)task->iovecs[i].iov_base + offset, part);
		row += part;
		size -= part;
		offset = 0;
	}
}

/* What a caller may be given from this piece on. */
static uint64_t
wanted(const struct doca_task *task, const struct kv_piece *piece)
{
	uint64_t end = task->value_len < task->length ? task->value_len : task->length;

	return end - piece->offset < piece->size_bytes ? end - piece->offset : piece->size_bytes;
}

static int
begin_fetch(struct kv_link *link, struct kv_piece *piece, uint32_t layer)
{
	struct doca_task *task = piece->task;
	uint8_t *direct = at(task, piece->offset, link->payload_size_bytes);

	/* A whole payload may be overwritten at the target, so it must be the caller's to fill. */
	piece->in_row = direct == NULL || piece->offset + link->payload_size_bytes > task->value_len;
	ofs_block_key(&task->chunk, layer, &piece->key);
	piece->fetch = (struct ofs_fetch){.session = task->session,
		.step = 1,
		.layer = layer,
		.selected_count = 1,
		.demand_count = 1,
		.ordinals = first_ordinal,
		.keys = &piece->key,
		.target = piece->in_row ? piece->row : direct,
		.target_index = first_ordinal,
		.target_stride_bytes = link->payload_size_bytes,
		.timeout_ns = KV_TIMEOUT_NS,
		.ends = &piece->end,
		.rcs = &piece->rc,
		.lengths = &piece->length};
	return ofs_driver_fetch_begin(link->driver, &piece->fetch, &piece->ticket);
}

static int
begin_put(struct kv_link *link, struct kv_piece *piece, uint32_t layer)
{
	struct doca_task *task = piece->task;
	uint8_t *direct = at(task, piece->offset, piece->size_bytes);

	piece->in_row = direct == NULL;
	if (piece->in_row)
		copy(task, piece->offset, piece->row, piece->size_bytes, false);
	piece->put = (struct ofs_put){.session = task->session,
		.layer = layer,
		.count = 1,
		.length_bytes = piece->size_bytes,
		.ordinals = first_ordinal,
		.source = piece->in_row ? piece->row : direct,
		.source_stride_bytes = piece->size_bytes,
		.timeout_ns = KV_TIMEOUT_NS,
		.rcs = &piece->rc};
	return ofs_driver_put_begin(link->driver, &piece->put, &piece->ticket);
}

static struct kv_piece *
free_piece(struct kv_link *link)
{
	for (uint32_t i = 0; i < link->piece_count; i++)
		if (link->pieces[i].task == NULL)
			return &link->pieces[i];
	return NULL;
}

int
kv_pieces_begin(struct kv_link *link, struct doca_task *task)
{
	while (task->rc == 0 && task->pieces_begun < task->piece_count) {
		struct kv_piece *piece = free_piece(link);
		uint32_t layer = task->pieces_begun;
		uint64_t left;
		int rc;

		if (piece == NULL)
			return 0;
		piece->task = task;
		piece->offset = (uint64_t)layer * link->payload_size_bytes;
		left = task->length - piece->offset;
		piece->size_bytes =
			left < link->payload_size_bytes ? (uint32_t)left : link->payload_size_bytes;
		rc = task->op == KV_STORE ? begin_put(link, piece, layer) : begin_fetch(link, piece, layer);
		if (rc != 0) {
			piece->task = NULL;
			return rc == -EAGAIN ? 0 : rc;
		}
		task->pieces_begun++;
	}
	return 0;
}

/* 0, or the error of the connection. */
static int
end_piece(struct kv_link *link, struct kv_piece *piece)
{
	struct doca_task *task = piece->task;
	bool put = task->op == KV_STORE;
	int rc = put ? ofs_driver_put_end(link->driver, piece->ticket)
				 : ofs_driver_fetch_end(link->driver, piece->ticket);
	int said = rc != 0 ? rc : piece->rc;

	if (!put && said == 0 && piece->length != piece->size_bytes)
		said = -EBADMSG;
	if (!put && said == 0) {
		*(piece->end <= OFS_END_RETAINED ? &task->on_time : &task->waited_for) += 1;
		if (piece->in_row)
			copy(task, piece->offset, piece->row, wanted(task, piece), true);
	}
	if (task->rc == 0)
		task->rc = said;
	task->pieces_ended++;
	piece->task = NULL;
	/* A daemon that lives answers within its own deadlines, which are shorter. */
	return rc == -EPIPE || rc == -EPROTO || rc == -ETIMEDOUT ? rc : 0;
}

int
kv_pieces_poll(struct kv_link *link)
{
	uint64_t tickets[TICKETS];
	int count = ofs_driver_poll(link->driver, 0, tickets, TICKETS);
	int rc = count < 0 ? count : 0;

	for (int i = 0; i < count; i++)
		for (uint32_t j = 0; j < link->piece_count; j++)
			if (link->pieces[j].task != NULL && link->pieces[j].ticket == tickets[i]) {
				int ended = end_piece(link, &link->pieces[j]);

				rc = rc == 0 ? ended : rc;
				break;
			}
	return rc;
}
