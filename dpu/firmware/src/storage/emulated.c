/*
 * emulated: completes I/O when a modelled drive would, in real time, over another back end or
 * memory.
 *
 * Model: submit passes the I/O to the back end below, and a pace computes when a real drive would
 * complete it; poll returns the completion once both have happened. The caller supplies the pace
 * where a whole device is modelled; otherwise this back end makes one from the NVMe model. Over
 * memory ("" as inner) the copy is made inside submit and the data is lost at close. There is no
 * thread: the polling thread checks the due times, or sleeps on wait_fd (busy_spin 0), a timerfd
 * set to the earliest due time, or sleeps by other means for no longer than due_ns. When the back
 * end below is slower than the modelled drive, the completion is late; stats count how often and by
 * how much, because an emulated figure is only valid where that is rare.
 */
#include "internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "pace.h"

#define OVERDUE_CHECK_NS 20000u /* how often a sleeper checks for I/Os overdue below */

enum { EMULATED_BATCH_MAX = 64 };

enum emulated_state { SLOT_FREE, SLOT_TIMED, SLOT_OVERDUE, SLOT_READY };

struct emulated_slot {
	uint64_t user;
	uint64_t submitted_ns;
	uint64_t due_ns;
	int64_t result;
	uint16_t op;
	uint8_t state;
	uint8_t inner_done;
};

struct emulated {
	struct ofs_storage base;
	struct ofs_storage *inner; /* NULL: memory */
	uint8_t *memory;
	struct ofs_timing *drive; /* NULL: the caller supplied the pace */
	struct ofs_pace *pace;
	struct emulated_slot *slots;
	uint32_t *free_slots;
	uint32_t free_count;
	uint32_t *ready; /* slots for poll to return, a ring of queue_depth_max */
	uint32_t ready_head;
	uint32_t ready_count;
	uint32_t overdue_count;
	int timer_fd;
	int timer_used;
	uint64_t timer_ns; /* what the timer is set to; UINT64_MAX: off */
};

static void
emulated_ready(struct emulated *emulated, uint32_t slot)
{
	uint32_t depth = emulated->base.queue_depth_max;
	uint32_t at = (emulated->ready_head + emulated->ready_count) % depth;

	assert(emulated->ready_count < depth);
	emulated->slots[slot].state = SLOT_READY;
	emulated->ready[at] = slot;
	emulated->ready_count++;
}

static void
emulated_poll_inner(struct emulated *emulated)
{
	struct ofs_io_done done[EMULATED_BATCH_MAX];
	int count;

	if (emulated->inner == NULL || emulated->inner->stats.in_flight == 0)
		return;
	count = ofs_storage_poll(emulated->inner, done, EMULATED_BATCH_MAX);
	for (int i = 0; i < count; i++) {
		uint32_t index = (uint32_t)done[i].user;
		struct emulated_slot *slot = &emulated->slots[index];

		slot->result = done[i].result;
		slot->inner_done = 1;
		if (slot->state == SLOT_OVERDUE) {
			emulated->overdue_count--;
			emulated_ready(emulated, index);
		}
	}
}

static void
emulated_poll_times(struct emulated *emulated, uint64_t now_ns)
{
	struct ofs_pace_end end;

	while (ofs_pace_take(emulated->pace, OFS_PACE_STORAGE, now_ns, &end)) {
		struct emulated_slot *slot = &emulated->slots[end.tag];

		slot->due_ns = end.due_ns;
		if (slot->inner_done) {
			emulated_ready(emulated, end.tag);
		} else {
			slot->state = SLOT_OVERDUE;
			emulated->overdue_count++;
		}
	}
}

static uint64_t
emulated_due_ns(struct ofs_storage *storage)
{
	struct emulated *emulated = (struct emulated *)storage;
	uint64_t due_ns = ofs_pace_next_ns(emulated->pace);
	uint64_t check_ns;

	if (emulated->ready_count > 0)
		return 0;
	if (emulated->overdue_count == 0)
		return due_ns;
	check_ns =
		ofs_clock_now_ns(storage->clock) + ofs_clock_own_ns(storage->clock, OVERDUE_CHECK_NS);
	return check_ns < due_ns ? check_ns : due_ns;
}

/* Sets the timer to the earliest due time. It fires immediately if that time has passed. */
static void
emulated_set_timer(struct emulated *emulated)
{
	uint64_t due_ns = emulated_due_ns(&emulated->base);
	struct itimerspec timer = {0};

	if (due_ns == emulated->timer_ns)
		return;
	emulated->timer_ns = due_ns;
	if (due_ns != UINT64_MAX) {
		due_ns = ofs_clock_machine_ns(emulated->base.clock, due_ns);
		timer.it_value.tv_sec = (time_t)(due_ns / 1000000000u);
		timer.it_value.tv_nsec = (long)(due_ns % 1000000000u);
		if (due_ns == 0)
			timer.it_value.tv_nsec = 1; /* zero would switch it off */
	}
	timerfd_settime(emulated->timer_fd, TFD_TIMER_ABSTIME, &timer, NULL);
}

/* Setting a timer clears it, so a timer that fired is set again even to the same time. */
static void
emulated_update_timer(struct emulated *emulated, uint64_t now_ns)
{
	if (!emulated->timer_used)
		return;
	if (emulated->timer_ns != UINT64_MAX && emulated->timer_ns <= now_ns)
		emulated->timer_ns = UINT64_MAX - 1;
	emulated_set_timer(emulated);
}

static void
emulated_count_late(struct emulated *emulated, const struct emulated_slot *slot, uint64_t now_ns)
{
	struct ofs_storage_stats *stats = &emulated->base.stats;
	uint64_t late_ns = now_ns - slot->due_ns;

	stats->emulation_late_ns_sum += late_ns;
	if (late_ns > stats->emulation_late_ns_max)
		stats->emulation_late_ns_max = late_ns;
	stats->emulation_late += ofs_pace_late(slot->submitted_ns, slot->due_ns, now_ns);
}

static int
emulated_poll(struct ofs_storage *storage, struct ofs_io_done *done, int max)
{
	struct emulated *emulated = (struct emulated *)storage;
	uint64_t now_ns;
	int count = 0;

	emulated_poll_inner(emulated);
	now_ns = ofs_clock_now_ns(storage->clock);
	emulated_poll_times(emulated, now_ns);
	while (count < max && emulated->ready_count > 0) {
		uint32_t index = emulated->ready[emulated->ready_head];
		struct emulated_slot *slot = &emulated->slots[index];

		emulated->ready_head = (emulated->ready_head + 1) % storage->queue_depth_max;
		emulated->ready_count--;
		done[count++] = (struct ofs_io_done){slot->user, slot->result};
		emulated_count_late(emulated, slot, now_ns);
		ofs_storage_count(storage, slot->op, slot->result);
		slot->state = SLOT_FREE;
		emulated->free_slots[emulated->free_count++] = index;
	}
	emulated_update_timer(emulated, now_ns);
	return count;
}

static int
emulated_start(struct emulated *emulated, const struct ofs_io *io, uint32_t index)
{
	struct emulated_slot *slot = &emulated->slots[index];
	struct ofs_io below = *io;

	slot->result = io->size_bytes;
	slot->inner_done = emulated->inner == NULL;
	if (emulated->inner != NULL) {
		below.user = index;
		return ofs_storage_submit(emulated->inner, &below);
	}
	if (io->op == OFS_STORAGE_READ)
		memcpy(io->buffer, emulated->memory + io->offset, io->size_bytes);
	else if (io->op == OFS_STORAGE_WRITE)
		memcpy(emulated->memory + io->offset, io->buffer, io->size_bytes);
	return 0;
}

static int
emulated_submit(struct ofs_storage *storage, const struct ofs_io *io)
{
	struct emulated *emulated = (struct emulated *)storage;
	int rc = ofs_storage_check(storage, io);
	uint64_t now_ns = ofs_clock_now_ns(storage->clock); /* before the copy, which is not modelled */
	struct ofs_timing_request asked = {.offset_bytes = io->offset,
		.size_bytes = io->size_bytes,
		.count = 1,
		.session = OFS_NONE};
	struct emulated_slot *slot;
	uint32_t index;

	if (rc != 0)
		return rc;
	index = emulated->free_slots[emulated->free_count - 1];
	rc = emulated_start(emulated, io, index);
	if (rc != 0)
		return rc;
	emulated->free_count--;
	slot = &emulated->slots[index];
	slot->user = io->user;
	slot->op = io->op;
	slot->state = SLOT_TIMED;
	slot->submitted_ns = now_ns;
	asked.tag = index;
	ofs_pace_ask(emulated->pace, OFS_PACE_STORAGE,
		io->op == OFS_STORAGE_WRITE ? OFS_PACE_WRITE : OFS_PACE_READ, now_ns, &asked);
	storage->stats.in_flight++;
	return 0;
}

static int
emulated_register_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	struct emulated *emulated = (struct emulated *)storage;

	if (emulated->inner != NULL)
		return emulated->inner->ops->register_memory(emulated->inner, base, size_bytes);
	return base != NULL && size_bytes > 0 ? 0 : -EINVAL;
}

static int
emulated_unregister_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	struct emulated *emulated = (struct emulated *)storage;

	if (emulated->inner != NULL)
		return emulated->inner->ops->unregister_memory(emulated->inner, base, size_bytes);
	return base != NULL && size_bytes > 0 ? 0 : -EINVAL;
}

static void
emulated_close(struct ofs_storage *storage)
{
	struct emulated *emulated = (struct emulated *)storage;

	ofs_storage_close(emulated->inner);
	ofs_storage_memory_close(emulated->memory, storage->size_bytes);
	if (emulated->drive != NULL) {
		ofs_pace_close(emulated->pace);
		emulated->drive->ops->close(emulated->drive);
	}
	if (emulated->timer_fd >= 0)
		close(emulated->timer_fd);
	free(emulated->slots);
	free(emulated->free_slots);
	free(emulated->ready);
	free(emulated);
}

static int
emulated_open_below(struct emulated *emulated, const struct ofs_storage_config *config,
	struct ofs_clock *clock)
{
	struct ofs_storage_config below = *config;
	struct ofs_storage *storage = &emulated->base;
	char error[1];
	int rc;

	if (config->inner[0] == 0)
		return storage->size_bytes == 0
			? -EINVAL
			: ofs_storage_memory_open(&emulated->memory, storage->size_bytes);
	if (strcmp(config->inner, "emulated") == 0 || strcmp(config->inner, "sim") == 0)
		return -EINVAL; /* a model over a model is meaningless */
	memcpy(below.backend, config->inner, sizeof(below.backend));
	below.inner[0] = 0;
	below.queue_depth_max = storage->queue_depth_max;
	rc = ofs_storage_open(&emulated->inner, &below, clock, error, sizeof(error));
	if (rc != 0)
		return rc;
	storage->size_bytes = emulated->inner->size_bytes;
	storage->lba_size_bytes = emulated->inner->lba_size_bytes;
	storage->direct = emulated->inner->direct;
	memcpy(storage->warning, emulated->inner->warning, sizeof(storage->warning));
	return 0;
}

/* The given pace, or one that models the drive alone. */
static int
emulated_open_pace(struct emulated *emulated, const struct ofs_storage_config *config,
	struct ofs_clock *clock)
{
	struct ofs_timing_config drive = {.side = "nvme",
		.writes = 1,
		.seed = config->seed,
		.nvme = config->nvme};
	uint32_t in_flight_max[OFS_PACE_USERS] = {[OFS_PACE_STORAGE] = emulated->base.queue_depth_max};
	int rc;

	emulated->pace = config->pace;
	if (emulated->pace != NULL)
		return 0;
	rc = ofs_timing_open(&emulated->drive, &drive);
	return rc == 0 ? ofs_pace_open(&emulated->pace, emulated->drive, clock, in_flight_max) : rc;
}

static int
emulated_open_parts(struct emulated *emulated, const struct ofs_storage_config *config,
	struct ofs_clock *clock)
{
	uint32_t depth = emulated->base.queue_depth_max;
	int rc = emulated_open_pace(emulated, config, clock);

	if (rc != 0)
		return rc;
	rc = emulated_open_below(emulated, config, clock);
	if (rc != 0)
		return rc;
	emulated->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (emulated->timer_fd < 0)
		return -errno;
	emulated->slots = calloc(depth, sizeof(emulated->slots[0]));
	emulated->free_slots = calloc(depth, sizeof(emulated->free_slots[0]));
	emulated->ready = calloc(depth, sizeof(emulated->ready[0]));
	if (emulated->slots == NULL || emulated->free_slots == NULL || emulated->ready == NULL)
		return -ENOMEM;
	for (uint32_t i = 0; i < depth; i++)
		emulated->free_slots[emulated->free_count++] = depth - 1 - i;
	return 0;
}

static int
emulated_open(struct ofs_storage **out, const struct ofs_storage_config *config,
	struct ofs_clock *clock)
{
	struct emulated *emulated = calloc(1, sizeof(*emulated));
	int rc;

	if (emulated == NULL)
		return -ENOMEM;
	ofs_storage_init(&emulated->base, &ofs_storage_ops_emulated, config, clock);
	/* The modelled drive's queue may be shorter than the caller's; a modelled device has its
	 * own. */
	if (config->pace == NULL && config->nvme.queue_depth_max > 0
		&& config->nvme.queue_depth_max < config->queue_depth_max)
		emulated->base.queue_depth_max = config->nvme.queue_depth_max;
	emulated->timer_fd = -1;
	emulated->timer_ns = UINT64_MAX;
	emulated->timer_used = !config->busy_spin;
	rc = emulated_open_parts(emulated, config, clock);
	if (rc != 0) {
		emulated_close(&emulated->base);
		return rc;
	}
	*out = &emulated->base;
	return 0;
}

static int
emulated_wait_fd(struct ofs_storage *storage)
{
	return ((struct emulated *)storage)->timer_fd;
}

const struct ofs_storage_ops ofs_storage_ops_emulated = {
	.name = "emulated",
	.open = emulated_open,
	.close = emulated_close,
	.register_memory = emulated_register_memory,
	.unregister_memory = emulated_unregister_memory,
	.submit = emulated_submit,
	.poll = emulated_poll,
	.wait_fd = emulated_wait_fd,
	.due_ns = emulated_due_ns,
	.hang = NULL,
};
