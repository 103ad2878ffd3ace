/* Pieces of values: each is one block, and a call of the driver; see value_io.h. */
#include "driver/value_tasks.h"

#include <string.h>

static const uint32_t first_row[1] = {0};

/* The task's memory at `offset` if `size` bytes follow in one iovec, else NULL. */
static uint8_t *
at(const struct ofs_value_task *task, uint64_t offset, uint64_t size)
{
	for (uint32_t i = 0; i < task->iovec_count; i++) {
		const struct iovec *one = &task->iovecs[i];

		if (offset < one->iov_len)
			return one->iov_len - offset >= size ? (uint8_t *)one->iov_base + offset : NULL;
		offset -= one->iov_len;
	}
	return NULL;
}

void
ofs_task_copy(const struct ofs_value_task *task, uint64_t offset, uint8_t *row, uint64_t size,
	bool out)
{
	for (uint32_t i = 0; i < task->iovec_count && size > 0; i++) {
		uint64_t length = task->iovecs[i].iov_len;
		uint8_t *place = (uint8_t *)task->iovecs[i].iov_base + offset;
		uint64_t part;

		if (offset >= length) {
			offset -= length;
			continue;
		}
		part = length - offset < size ? length - offset : size;
		if (out)
			memcpy(place, row, part);
		else
			memcpy(row, place, part);
		row += part;
		size -= part;
		offset = 0;
	}
}

/* The bytes that move: a value may be longer than the memory that it is read into. */
static uint64_t
bytes_of(const struct ofs_value_task *task)
{
	return task->length < task->value_length ? task->length : task->value_length;
}

static int
begin_fetch(struct ofs_value_io *io, struct ofs_task_piece *piece, uint32_t layer)
{
	struct ofs_value_task *task = piece->task;
	uint8_t *direct = at(task, piece->offset, io->payload_size_bytes);

	/* A whole payload may be overwritten at the target, so it must be the caller's to fill. */
	piece->in_row = direct == NULL || piece->offset + io->payload_size_bytes > task->length;
	ofs_fold_key(&task->chunk, piece->ordinal, &piece->key);
	ofs_block_key(&piece->key, layer, &piece->key);
	piece->fetch = (struct ofs_fetch){.session = task->session,
		.step = 1,
		.layer = layer,
		.selected_count = 1,
		.demand_count = 1,
		.ordinals = &piece->ordinal,
		.keys = &piece->key,
		.target = piece->in_row ? piece->row : direct,
		.target_index = first_row,
		.target_stride_bytes = io->payload_size_bytes,
		.timeout_ns = io->timeout_ns,
		.ends = &piece->end,
		.rcs = &piece->rc,
		.lengths = &piece->length};
	return ofs_driver_fetch_begin(io->driver, &piece->fetch, &piece->ticket);
}

static int
begin_put(struct ofs_value_io *io, struct ofs_task_piece *piece, uint32_t layer)
{
	struct ofs_value_task *task = piece->task;
	uint8_t *direct = at(task, piece->offset, piece->size_bytes);
	int rc;

	piece->in_row = direct == NULL;
	if (piece->in_row)
		ofs_task_copy(task, piece->offset, piece->row, piece->size_bytes, false);
	piece->put = (struct ofs_put){.session = task->session,
		.layer = layer,
		.count = 1,
		.length_bytes = piece->size_bytes,
		.ordinals = &piece->ordinal,
		.source = piece->in_row ? piece->row : direct,
		.source_stride_bytes = piece->size_bytes,
		.timeout_ns = io->timeout_ns,
		.rcs = &piece->rc};
	rc = ofs_driver_put_begin(io->driver, &piece->put, &piece->ticket);
	io->puts_flying += rc == 0;
	return rc;
}

static struct ofs_task_piece *
free_piece(struct ofs_value_io *io)
{
	for (uint32_t i = 0; i < io->piece_max; i++)
		if (io->pieces[i].task == NULL)
			return &io->pieces[i];
	return NULL;
}

/* Whether the task's next piece may be sent. */
static bool
may_begin(const struct ofs_value_io *io, const struct ofs_value_task *task)
{
	uint64_t end = (task->pieces_begun + 1ull) * io->payload_size_bytes;

	if (task->rc != 0 || task->dropped || task->pieces_begun == task->piece_count)
		return false;
	if (task->verb != OFS_VALUE_STORE)
		return true;
	return io->puts_flying < io->put_max
		&& (end < task->length ? end : task->length) <= task->filled;
}

/* The oldest that may go on, except that tasks of parts take turns. */
struct ofs_value_task *
ofs_task_next(const struct ofs_value_io *io)
{
	struct ofs_value_task *best = NULL;
	uint32_t best_rank = 0;

	for (struct ofs_value_task *task = io->moving.head; task != NULL; task = task->next) {
		uint32_t rank = task->flags & OFS_TASK_PARTS ? task->pieces_begun : 0;

		if (may_begin(io, task) && (best == NULL || rank < best_rank)) {
			best = task;
			best_rank = rank;
			if (rank == 0)
				break;
		}
	}
	return best;
}

int
ofs_task_pieces_begin(struct ofs_value_io *io)
{
	struct ofs_task_piece *piece;
	struct ofs_value_task *task;

	while ((piece = free_piece(io)) != NULL && (task = ofs_task_next(io)) != NULL) {
		uint32_t index = task->pieces_begun, layer = index % io->layer_count;
		uint64_t left;
		int rc;

		piece->task = task;
		piece->ordinal = index / io->layer_count;
		piece->offset = (uint64_t)index * io->payload_size_bytes;
		left = task->value_length - piece->offset;
		piece->size_bytes = left < io->payload_size_bytes ? (uint32_t)left : io->payload_size_bytes;
		rc = task->verb == OFS_VALUE_STORE ? begin_put(io, piece, layer)
										   : begin_fetch(io, piece, layer);
		if (rc != 0) {
			piece->task = NULL;
			return rc == -EAGAIN ? 0 : rc;
		}
		task->pieces_begun++;
		io->flying_count++;
	}
	return 0;
}

/* Everything before the first piece that is still in flight. */
static void
note_landed(struct ofs_value_io *io, struct ofs_value_task *task)
{
	uint64_t landed = (uint64_t)task->pieces_begun * io->payload_size_bytes;

	for (uint32_t i = 0; i < io->piece_max; i++)
		if (io->pieces[i].task == task && io->pieces[i].offset < landed)
			landed = io->pieces[i].offset;
	landed = landed < bytes_of(task) ? landed : bytes_of(task);
	io->news |= task->flags & OFS_TASK_PARTS && landed > task->landed;
	task->landed = landed;
}

int
ofs_task_piece_end(struct ofs_value_io *io, struct ofs_task_piece *piece)
{
	struct ofs_value_task *task = piece->task;
	bool put = task->verb == OFS_VALUE_STORE;
	int rc = put ? ofs_driver_put_end(io->driver, piece->ticket)
				 : ofs_driver_fetch_end(io->driver, piece->ticket);
	int said = rc != 0 ? rc : piece->rc;

	io->puts_flying -= put;
	io->flying_count--;
	if (!put && said == 0 && piece->length != piece->size_bytes)
		said = -EBADMSG;
	if (!put && said == 0) {
		uint64_t left = bytes_of(task) - piece->offset;

		task->ends[piece->end]++;
		if (piece->in_row)
			ofs_task_copy(task, piece->offset, piece->row,
				left < piece->size_bytes ? left : piece->size_bytes, true);
	}
	if (task->rc == 0)
		task->rc = said;
	task->pieces_ended++;
	piece->task = NULL;
	if (!put && task->rc == 0)
		note_landed(io, task);
	/* A daemon that lives answers within its own deadlines, which are shorter. */
	return rc == -EPIPE || rc == -EPROTO || rc == -ETIMEDOUT ? rc : 0;
}

void
ofs_task_pieces_cancel(struct ofs_value_io *io, const struct ofs_value_task *task)
{
	for (uint32_t i = 0; i < io->piece_max; i++) {
		struct ofs_task_piece *piece = &io->pieces[i];
		bool put = piece->task != NULL && piece->task->verb == OFS_VALUE_STORE;

		if (piece->task == NULL || (task != NULL && piece->task != task))
			continue;
		(void)ofs_call_cancel(io->driver, piece->ticket, put ? &ofs_put_ops : &ofs_fetch_ops);
		io->puts_flying -= put;
		io->flying_count--;
		piece->task = NULL;
	}
}
