/* Pieces of values: each is one block; those in a row are a call of the driver; see value_io.h. */
#include "driver/value_tasks.h"

#include <string.h>

static const uint32_t rows_in_order[OFS_TASK_RUN] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,
	14, 15};

/* The task's memory at `offset` if `size` bytes follow in one iovec, which a fabric over a network
 * can reach, else NULL. */
static uint8_t *
at(const struct ofs_value_io *io, const struct ofs_value_task *task, uint64_t offset, uint64_t size)
{
	const struct ofs_fabric *fabric = io->driver->fabric;

	for (uint32_t i = 0; i < task->iovec_count; i++) {
		const struct iovec *one = &task->iovecs[i];
		uint8_t *place = (uint8_t *)one->iov_base + offset;

		if (offset < one->iov_len)
			return one->iov_len - offset >= size
					&& (fabric->ops->copy != NULL || task->verb == OFS_VALUE_STORE
						|| ofs_fabric_is_registered(fabric, place, size))
				? place
				: NULL;
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

void
ofs_task_cut(const struct ofs_value_io *io, struct ofs_value_task *task,
	const struct ofs_key *chunk, uint64_t value_length)
{
	uint64_t payload = io->payload_size_bytes;

	task->chunk = *chunk;
	task->value_length = value_length;
	task->piece_count = (uint32_t)((bytes_of(task) + payload - 1) / payload);
}

static bool
is_put(const struct ofs_task_run *run)
{
	return run->task->verb == OFS_VALUE_STORE;
}

/* Of the run's piece `number`. */
static uint64_t
offset_of(const struct ofs_value_io *io, const struct ofs_task_run *run, uint32_t number)
{
	return run->offset + (uint64_t)number * io->payload_size_bytes;
}

static uint32_t
size_of(const struct ofs_value_io *io, const struct ofs_task_run *run, uint32_t number)
{
	uint64_t left = run->task->value_length - offset_of(io, run, number);

	return left < io->payload_size_bytes ? (uint32_t)left : io->payload_size_bytes;
}

static int
begin_fetch(struct ofs_value_io *io, struct ofs_task_run *run, uint32_t layer)
{
	uint8_t *direct = at(io, run->task, run->offset, run->direct_count * io->payload_size_bytes);

	for (uint32_t i = 0; i < run->count; i++) {
		ofs_fold_key(&run->task->chunk, run->ordinals[i], &run->keys[i]);
		ofs_block_key(&run->keys[i], layer, &run->keys[i]);
	}
	run->fetch = (struct ofs_fetch){.session = run->task->session,
		.step = 1,
		.layer = layer,
		.selected_count = run->count,
		.demand_count = run->count,
		.ordinals = run->ordinals,
		.keys = run->keys,
		.target = run->direct_count > 0 ? direct : run->row,
		.target_index = rows_in_order,
		.target_stride_bytes = io->payload_size_bytes,
		.spare = run->row,
		.target_rows = run->direct_count,
		.timeout_ns = io->timeout_ns,
		.ends = run->ends,
		.rcs = run->rcs,
		.lengths = run->lengths};
	return ofs_fetch_begin(io->driver, OFS_CALLS_VALUES, &run->fetch, &run->ticket);
}

static int
begin_put(struct ofs_value_io *io, struct ofs_task_run *run, uint32_t layer)
{
	uint32_t size_bytes = size_of(io, run, 0);
	int rc;

	if (run->direct_count == 0)
		ofs_task_copy(run->task, run->offset, run->row, size_bytes, false);
	run->put = (struct ofs_put){.session = run->task->session,
		.layer = layer,
		.count = run->count,
		.length_bytes = size_bytes,
		.ordinals = run->ordinals,
		.source = run->direct_count > 0 ? at(io, run->task, run->offset, run->count * size_bytes)
										: run->row,
		.source_stride_bytes = size_bytes,
		.timeout_ns = io->timeout_ns,
		.rcs = run->rcs};
	rc = ofs_put_begin(io->driver, OFS_CALLS_VALUES, &run->put, &run->ticket);
	io->puts_flying += rc == 0 ? run->count : 0;
	return rc;
}

static struct ofs_task_run *
free_run(struct ofs_value_io *io)
{
	for (uint32_t i = 0; i < io->run_max; i++)
		if (io->runs[i].task == NULL)
			return &io->runs[i];
	return NULL;
}

/* How many of the task's next pieces may be sent. */
static uint32_t
ready_count(const struct ofs_value_io *io, const struct ofs_value_task *task)
{
	uint32_t left = task->piece_count - task->pieces_begun, filled;

	if (task->rc != 0 || task->dropped)
		return 0;
	if (task->verb != OFS_VALUE_STORE)
		return left;
	if (io->puts_flying >= io->put_max)
		return 0;
	filled = task->filled < task->length ? (uint32_t)(task->filled / io->payload_size_bytes)
										 : task->piece_count;
	return filled > task->pieces_begun ? filled - task->pieces_begun : 0;
}

/* The oldest that may go on, except that tasks of parts take turns. */
struct ofs_value_task *
ofs_task_next(const struct ofs_value_io *io)
{
	struct ofs_value_task *best = NULL;
	uint32_t best_rank = 0;

	for (struct ofs_value_task *task = io->moving.head; task != NULL; task = task->next) {
		uint32_t rank = task->flags & OFS_TASK_PARTS ? task->pieces_begun : 0;

		if (ready_count(io, task) > 0 && (best == NULL || rank < best_rank)) {
			best = task;
			best_rank = rank;
			if (rank == 0)
				break;
		}
	}
	return best;
}

/* Pieces that follow each other in the layer and, but for the last one of a fetch, lie in a row in
 * the task's memory. Parts take turns, so that theirs are alone. */
static void
gather(const struct ofs_value_io *io, struct ofs_task_run *run)
{
	const struct ofs_value_task *task = run->task;
	/* A fetch may overwrite a whole payload at its target, which must be the caller's to fill. */
	uint64_t payload = io->payload_size_bytes,
			 end = is_put(run) ? task->value_length : task->length;
	uint32_t most = ready_count(io, task);

	if (io->layer_count > 1 || task->flags & OFS_TASK_PARTS)
		most = 1;
	most = most < OFS_TASK_RUN ? most : OFS_TASK_RUN;
	run->count = 0;
	while (run->count < most && run->offset + (run->count + 1) * payload <= end
		&& at(io, task, run->offset, (run->count + 1) * payload) != NULL)
		run->count++;
	run->direct_count = run->count;
	if (run->count == 0 && is_put(run))
		run->direct_count = at(io, task, run->offset, size_of(io, run, 0)) != NULL;
	if (run->count == 0 || (run->count < most && !is_put(run)))
		run->count++;
	for (uint32_t i = 0; i < run->count; i++)
		run->ordinals[i] = (task->pieces_begun + i) / io->layer_count;
}

static int
begin_run(struct ofs_value_io *io, struct ofs_task_run *run, struct ofs_value_task *task)
{
	uint32_t layer = task->pieces_begun % io->layer_count;
	int rc;

	run->task = task;
	run->offset = (uint64_t)task->pieces_begun * io->payload_size_bytes;
	gather(io, run);
	rc = is_put(run) ? begin_put(io, run, layer) : begin_fetch(io, run, layer);
	if (rc != 0) {
		run->task = NULL;
		return rc;
	}
	task->pieces_begun += run->count;
	io->flying_count++;
	return 0;
}

int
ofs_task_runs_begin(struct ofs_value_io *io)
{
	struct ofs_value_task *task;
	struct ofs_task_run *run;
	bool begun = false;
	int rc = 0;

	/* A DPU that wakes up at each piece may take the processor that copies the next one. */
	io->driver->fabric->bell_held = true;
	while (rc == 0 && (run = free_run(io)) != NULL && (task = ofs_task_next(io)) != NULL) {
		begun = true;
		rc = begin_run(io, run, task);
	}
	ofs_fabric_bell_release(io->driver->fabric, begun);
	return rc == -EAGAIN ? 0 : rc;
}

/* Everything before the first run that is still in flight. */
static void
note_landed(struct ofs_value_io *io, struct ofs_value_task *task)
{
	uint64_t landed = (uint64_t)task->pieces_begun * io->payload_size_bytes;

	for (uint32_t i = 0; i < io->run_max; i++)
		if (io->runs[i].task == task && io->runs[i].offset < landed)
			landed = io->runs[i].offset;
	landed = landed < bytes_of(task) ? landed : bytes_of(task);
	io->news |= task->flags & OFS_TASK_PARTS && landed > task->landed;
	task->landed = landed;
}

/* What became of the run's piece `number`, of which the call said `rc`. */
static int
end_piece(struct ofs_value_io *io, struct ofs_task_run *run, uint32_t number, int rc)
{
	struct ofs_value_task *task = run->task;
	uint64_t offset = offset_of(io, run, number), left = bytes_of(task) - offset;
	uint32_t size_bytes = size_of(io, run, number);

	rc = rc != 0 ? rc : run->rcs[number];
	if (is_put(run) || rc != 0)
		return rc;
	if (run->lengths[number] != size_bytes)
		return -EBADMSG;
	if (run->ends[number] < OFS_END_COUNT) /* or the daemon wrote nonsense */
		task->ends[run->ends[number]]++;
	if (number >= run->direct_count)
		ofs_task_copy(task, offset, run->row, left < size_bytes ? left : size_bytes, true);
	return 0;
}

int
ofs_task_run_end(struct ofs_value_io *io, struct ofs_task_run *run)
{
	struct ofs_value_task *task = run->task;
	bool put = is_put(run);
	int rc = put ? ofs_driver_put_end(io->driver, run->ticket)
				 : ofs_driver_fetch_end(io->driver, run->ticket);

	io->puts_flying -= put ? run->count : 0;
	io->flying_count--;
	for (uint32_t i = 0; i < run->count; i++) {
		int said = end_piece(io, run, i, rc);

		if (task->rc == 0)
			task->rc = said;
	}
	task->pieces_ended += run->count;
	run->task = NULL;
	if (!put && task->rc == 0)
		note_landed(io, task);
	/* A daemon that lives answers within its own deadlines, which are shorter. */
	return rc == -EPIPE || rc == -EPROTO || rc == -ETIMEDOUT ? rc : 0;
}

void
ofs_task_runs_cancel(struct ofs_value_io *io, const struct ofs_value_task *task)
{
	for (uint32_t i = 0; i < io->run_max; i++) {
		struct ofs_task_run *run = &io->runs[i];

		if (run->task == NULL || (task != NULL && run->task != task))
			continue;
		(void)ofs_call_cancel(io->driver, run->ticket, is_put(run) ? &ofs_put_ops : &ofs_fetch_ops);
		io->puts_flying -= is_put(run) ? run->count : 0;
		io->flying_count--;
		run->task = NULL;
	}
}
