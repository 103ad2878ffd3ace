/* Put: blocks of one layer into the put window, as many at once as it has slots. */
#include "driver/internal.h"

/* One call of put. */
struct put {
	const uint32_t *ordinals;
	const uint8_t *source;
	uint64_t source_stride_bytes;
	int32_t *rcs;
	struct ofs_sqe sqe; /* what all its commands have in common */
	uint32_t count;
	uint32_t next; /* first block not yet sent */
	uint32_t active_count;
	uint64_t deadline_ns;
};

static int
send(struct ofs_driver *driver, struct put *put, uint32_t payload_index)
{
	struct ofs_pending *pending = &driver->pending[payload_index];
	const uint8_t *source = put->source + pending->tag * put->source_stride_bytes;
	struct ofs_sqe sqe = put->sqe;

	sqe.ordinal = put->ordinals[pending->tag];
	sqe.put_slot = pending->put_slot;
	sqe.checksum = ofs_checksum(source, sqe.length);
	return ofs_command_send(driver, &sqe, payload_index, put->deadline_ns);
}

/* Copies block `put->next` into the window and sends it. */
static int
start_next(struct ofs_driver *driver, struct put *put)
{
	struct ofs_fabric *fabric = driver->fabric;
	struct ofs_pending *pending;
	uint32_t index;
	int rc = ofs_command_begin(driver, put->deadline_ns, &index);

	if (rc != 0)
		return rc;
	pending = &driver->pending[index];
	pending->put_slot = driver->free_put_slots[--driver->free_put_slot_count];
	pending->tag = put->next;
	rc = fabric->ops->write_put(fabric, pending->put_slot,
		put->source + put->next * put->source_stride_bytes, put->sqe.length);
	if (rc != 0) {
		ofs_command_end(driver, index);
		return rc;
	}
	rc = send(driver, put, index);
	if (rc == 0) {
		driver->active[put->active_count++] = index;
		put->next++;
	}
	return rc;
}

/* Takes what has been acknowledged. Returns how many blocks ended, or -errno of a resend. */
static int
harvest(struct ofs_driver *driver, struct put *put, uint32_t *busy_count)
{
	uint32_t kept_count = 0;
	int ended = 0;
	int rc = 0;

	*busy_count = 0;
	ofs_command_collect(driver);
	for (uint32_t i = 0; i < put->active_count; i++) {
		uint32_t index = driver->active[i];
		struct ofs_pending *pending = &driver->pending[index];

		if (!pending->done || rc != 0) {
			driver->active[kept_count++] = index;
			continue;
		}
		if (pending->cqe.rc == -EAGAIN || pending->cqe.rc == -EBUSY) {
			/* Its bytes are still in the window. */
			(*busy_count)++;
			rc = send(driver, put, index);
			if (rc == 0)
				driver->active[kept_count++] = index;
			continue;
		}
		put->rcs[pending->tag] = pending->cqe.rc;
		if (pending->cqe.rc == 0) {
			driver->stats.puts++;
			driver->stats.bytes_put += put->sqe.length;
		}
		ofs_command_end(driver, index);
		ended++;
	}
	put->active_count = kept_count;
	return rc != 0 ? rc : ended;
}

static bool
can_start(const struct ofs_driver *driver, const struct put *put)
{
	return put->next < put->count && driver->free_put_slot_count > 0
		&& put->active_count < driver->fabric->port.entry_count;
}

static int
run(struct ofs_driver *driver, struct put *put)
{
	struct ofs_fabric *fabric = driver->fabric;
	int rc = 0;

	while (rc == 0 && (put->next < put->count || put->active_count > 0)) {
		uint64_t now_ns = ofs_driver_now_ns(driver);
		uint32_t busy_count;

		if (now_ns >= put->deadline_ns)
			return -ETIMEDOUT;
		while (rc == 0 && can_start(driver, put))
			rc = start_next(driver, put);
		if (rc == 0)
			rc = harvest(driver, put, &busy_count);
		if (rc == 0 && busy_count > 0) {
			fabric->ops->pause(fabric, OFS_BACKOFF_NS_MIN);
		} else if (rc == 0 && !can_start(driver, put)
			&& (put->active_count > 0 || put->next < put->count)) {
			/* For ours, or for abandoned ones that hold the window's slots. */
			rc = fabric->ops->wait(fabric, put->deadline_ns - now_ns);
		}
		rc = rc > 0 ? 0 : rc;
	}
	return rc;
}

int
ofs_driver_put(struct ofs_driver *driver, uint32_t session, uint32_t layer, uint32_t count,
	const uint32_t *ordinals, const uint8_t *source, uint64_t source_stride_bytes,
	uint32_t length_bytes, uint64_t timeout_ns, int32_t *rcs)
{
	struct put put = {.ordinals = ordinals,
		.source = source,
		.source_stride_bytes = source_stride_bytes,
		.rcs = rcs,
		.count = count,
		.sqe = {.op = OFS_OP_PUT,
			.layer = (uint16_t)layer,
			.session = session,
			.length = length_bytes}};
	int rc;

	if (layer > UINT16_MAX || length_bytes == 0
		|| length_bytes > driver->fabric->region.payload_size_bytes
		|| (count > 0 && (ordinals == NULL || source == NULL || rcs == NULL))) {
		return -EINVAL;
	}
	for (uint32_t i = 0; i < count; i++)
		rcs[i] = -ECANCELED;
	put.deadline_ns = ofs_driver_now_ns(driver) + timeout_ns;
	rc = run(driver, &put);
	for (uint32_t i = 0; i < put.active_count; i++) {
		put.rcs[driver->pending[driver->active[i]].tag] = rc;
		ofs_command_abandon(driver, driver->active[i]);
	}
	for (uint32_t i = 0; rc != 0 && i < count; i++)
		rcs[i] = rcs[i] == -ECANCELED ? rc : rcs[i];
	return rc;
}
