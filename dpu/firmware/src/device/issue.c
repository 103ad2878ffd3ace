/*
 * issue.c: the queue for the drive, and whose turn it is.
 *
 * Model: every read of the core (demand or prefetch) and every write of a host (put or flush) waits
 * here, in the one arbiter (qos.h): turns between tenants by bytes and weight, caps of bandwidth,
 * and within a tenant the earliest deadline first. The core decides what is read; this file decides
 * when. Each tenant has a bound on its bytes in flight, which grows with its weight, because the
 * drive's queue does not distinguish tenants. A tenant with a floor, such as one whose values are a
 * model's weights, goes before all turns and beyond its bound while it is owed something.
 *
 * A read is an item. Writes wait in their tenant's queue in order of arrival; each also adds an
 * item, a ticket, which lets the first write of that queue be submitted. A write that the store
 * refuses although it has room (the block is being written, its segment is being opened, a move
 * holds writes) is retried a turn later: one ticket retries, other writes wait.
 *
 * Belongs to the reactor's thread. Only open can fail: -ENOMEM.
 */
#include "internal.h"

#include <stdlib.h>

#define AHEAD_NS 2000000ull /* a prefetch or write waits this long behind later demands */
#define BURST_NS 20000000ull
#define WEIGHT_FINE 8   /* the smallest weight counts as this: others are rounded to its 8th */
#define ISSUE_MAX 65536 /* reads and writes of one tenant that wait in the arbiter */
#define RENEW_PS (1ull << 62) /* after 53 days time restarts, when nothing waits */
#define PS_PER_NS 1000

static uint64_t
now_ps(struct ofs_device *device)
{
	struct ofs_issue *issue = &device->issue;
	uint64_t now_ns = ofs_device_now_ns(device);
	uint64_t ps = (now_ns - issue->begin_ns) * PS_PER_NS;

	if (ps < RENEW_PS || ofs_qos_waiting(issue->qos) > 0)
		return ps;
	issue->begin_ns = now_ns;
	ofs_qos_reset(issue->qos);
	for (uint32_t i = 0; i < device->tenant_count; i++)
		ofs_qos_hold(issue->qos, 0, i, device->tenants[i].flying >= device->tenants[i].flying_max);
	return 0;
}

int
ofs_device_open_issue(struct ofs_device *device)
{
	const struct ofs_device_config *config = &device->config;
	struct ofs_issue *issue = &device->issue;
	struct ofs_qos_config qos = {.tenant_count = config->core.tenant_max,
		.session_count = 1,
		.queue_max = device->reads.count + device->writes.count,
		.session_max = device->reads.count + device->writes.count,
		.quantum_bytes = device->record_size_bytes,
		.ahead_ps_max = AHEAD_NS * PS_PER_NS};
	struct ofs_qos_tenant *shares = calloc(qos.tenant_count, sizeof(*shares));
	int rc = shares == NULL ? -ENOMEM : 0;

	if (qos.queue_max > ISSUE_MAX)
		qos.queue_max = qos.session_max = ISSUE_MAX;
	for (uint32_t i = 0; shares != NULL && i < qos.tenant_count; i++)
		shares[i].weight = 1;
	rc = rc == 0 ? ofs_fifo_open(&issue->late, device->reads.count, false) : rc;
	rc = rc == 0 ? ofs_qos_open(&issue->qos, &qos, shares) : rc;
	free(shares);
	issue->begin_ns = ofs_device_now_ns(device);
	return rc;
}

void
ofs_device_close_issue(struct ofs_device *device)
{
	ofs_fifo_close(&device->issue.late);
	if (device->issue.qos != NULL)
		ofs_qos_close(device->issue.qos);
	device->issue.qos = NULL;
}

static uint32_t
divisor(uint32_t a, uint32_t b)
{
	while (b != 0) {
		uint32_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/* Weights as small numbers, so that a turn is short: multiples of an 8th of the smallest. */
static uint32_t
small_weight(const struct ofs_device *device, uint32_t tenant, uint32_t least)
{
	uint64_t weight = (uint64_t)device->tenants[tenant].share.weight * WEIGHT_FINE + least / 2;

	weight /= least;
	return weight < UINT16_MAX ? (uint32_t)weight : UINT16_MAX;
}

/* A tenant's terms depend on the weights of all. */
static void
weigh(struct ofs_device *device)
{
	uint32_t least = UINT32_MAX, common = 0;

	for (uint32_t i = 0; i < device->tenant_count; i++)
		least = device->tenants[i].share.weight < least ? device->tenants[i].share.weight : least;
	for (uint32_t i = 0; i < device->tenant_count; i++)
		common = divisor(small_weight(device, i, least), common);
	assert(common > 0);
	for (uint32_t i = 0; i < device->tenant_count; i++) {
		struct ofs_device_tenant *tenant = &device->tenants[i];
		uint64_t fine = small_weight(device, i, least);
		uint64_t bytes = tenant->share.in_flight_bytes_max;
		struct ofs_qos_tenant terms = {.weight = (uint32_t)(fine / common),
			.rate_bytes_per_s = tenant->share.bandwidth_bytes_per_s,
			.floor_bytes_per_s = tenant->share.floor_bytes_per_s};
		uint64_t turn_bytes = terms.weight * (uint64_t)device->record_size_bytes;
		int rc;

		terms.burst_bytes = terms.rate_bytes_per_s / (1000000000 / BURST_NS);
		terms.burst_bytes = terms.burst_bytes < turn_bytes ? turn_bytes : terms.burst_bytes;
		if (terms.burst_bytes > OFS_QOS_BYTES_MAX)
			terms.burst_bytes = OFS_QOS_BYTES_MAX;
		rc = ofs_qos_set(device->issue.qos, now_ps(device), i, &terms);
		assert(rc == 0); /* the share was checked before */
		if (bytes == 0)
			bytes = device->config.in_flight_bytes_max * fine / WEIGHT_FINE;
		tenant->flying_max = UINT32_MAX;
		if (bytes > 0 && bytes / device->record_size_bytes < UINT32_MAX)
			tenant->flying_max = (uint32_t)(bytes / device->record_size_bytes);
		tenant->flying_max += tenant->flying_max == 0;
		ofs_qos_hold(device->issue.qos, now_ps(device), i, tenant->flying >= tenant->flying_max);
	}
}

int
ofs_device_share(struct ofs_device *device, uint32_t tenant, const struct ofs_tenant_share *share)
{
	if (tenant >= device->tenant_count || share->weight == 0 || share->weight > UINT16_MAX
		|| (share->bandwidth_bytes_per_s != 0 && share->bandwidth_bytes_per_s < 256)
		|| share->bandwidth_bytes_per_s > OFS_QOS_RATE_MAX
		|| (share->floor_bytes_per_s != 0 && share->floor_bytes_per_s < OFS_QOS_FLOOR_MIN)
		|| share->floor_bytes_per_s > OFS_QOS_RATE_MAX
		|| (share->bandwidth_bytes_per_s != 0
			&& share->floor_bytes_per_s > share->bandwidth_bytes_per_s))
		return -EINVAL;
	device->tenants[tenant].share = *share;
	weigh(device);
	return 0;
}

static int
put(struct ofs_device *device, uint32_t tenant, uint64_t tag, uint64_t deadline_ps,
	uint32_t cost_bytes)
{
	struct ofs_qos_item item = {.tag = tag,
		.tenant = tenant,
		.session = OFS_QOS_NO_SESSION,
		.deadline_ps = deadline_ps,
		.cost_bytes = cost_bytes};

	return ofs_qos_put(device->issue.qos, now_ps(device), &item);
}

/* A part of a record is its granules, plus the last logical block unless the slot has it. */
static uint32_t
read_bytes(const struct ofs_device *device, const struct ofs_action *action)
{
	uint32_t bytes =
		(uint32_t)__builtin_popcount(action->granules) * device->config.core.granule_size_bytes;

	if (action->granules == 0)
		return device->record_size_bytes;
	return action->held != 0 ? bytes : bytes + device->storage->lba_size_bytes;
}

/* -EAGAIN: more of the tenant waits than the arbiter has room for. */
static int
put_read(struct ofs_device *device, uint32_t index)
{
	const struct ofs_action *action = &device->reads.entries[index].action;
	uint64_t begin_ns = device->issue.begin_ns, ahead_ns = 0;

	if (action->deadline_ns > begin_ns)
		ahead_ns = action->deadline_ns - begin_ns;
	return put(device, action->tenant, index,
		ahead_ns < RENEW_PS / PS_PER_NS ? ahead_ns * PS_PER_NS : RENEW_PS,
		read_bytes(device, action));
}

static void
wait_read(struct ofs_device *device, uint32_t index)
{
	if (device->issue.late.count > 0 || put_read(device, index) != 0)
		ofs_fifo_give(&device->issue.late, index);
}

void
ofs_device_queue_read(struct ofs_device *device, const struct ofs_action *action)
{
	uint32_t index = ofs_fifo_take(&device->reads.free);
	struct ofs_read *read = &device->reads.entries[index];
	uint64_t now_ns = ofs_device_now_ns(device);

	assert(index != OFS_NONE); /* the table has room for the core's io_max and as many zombies */
	assert(read->state == OFS_READ_FREE);
	assert(action->slot < device->tenants[action->tenant].slot_count);
	read->state = OFS_READ_PENDING;
	read->action = *action;
	read->decided_ns = now_ns;
	read->deadline_ns = now_ns + device->config.io_timeout_ns;
	read->stage_ns = ofs_device_stage_begin(device, OFS_STAGE_READ_QUEUE, now_ns);
	read->issued_ns = 0;
	read->purged = false;
	read->newer = OFS_NONE;
	read->older = device->reads.newest;
	if (read->older == OFS_NONE)
		device->reads.oldest = index;
	else
		device->reads.entries[read->older].newer = index;
	device->reads.newest = index;
	device->tenants[action->tenant].reads_live++;
	wait_read(device, index);
}

void
ofs_device_issue_anew(struct ofs_device *device)
{
	ofs_qos_clear(device->issue.qos, now_ps(device));
	while (ofs_fifo_take(&device->issue.late) != OFS_NONE) {
	}
	for (uint32_t i = 0; i < device->tenant_count; i++)
		device->tenants[i].tickets = 0;
	for (uint32_t i = device->reads.oldest; i != OFS_NONE; i = device->reads.entries[i].newer)
		if (device->reads.entries[i].state == OFS_READ_PENDING)
			wait_read(device, i);
}

bool
ofs_device_issue_again(struct ofs_device *device)
{
	uint64_t later_ps;

	if (ofs_qos_waiting(device->issue.qos) == 0 && device->issue.late.count == 0
		&& device->writes.waiting == 0)
		return false; /* as in most turns, which thus read no clock */
	for (uint32_t count = device->issue.late.count; count > 0; count--) {
		if (put_read(device, ofs_fifo_first(&device->issue.late)) != 0)
			break;
		(void)ofs_fifo_take(&device->issue.late);
	}
	if (device->writes.waiting == 0)
		return true;
	later_ps = now_ps(device) + AHEAD_NS * PS_PER_NS;
	for (uint32_t i = 0; i < device->tenant_count; i++) {
		struct ofs_device_tenant *tenant = &device->tenants[i];
		uint32_t wanted = tenant->writes_refused ? 1 : tenant->writes.count;

		while (tenant->tickets < wanted
			&& put(device, i, OFS_TICKET, later_ps, device->record_size_bytes) == 0)
			tenant->tickets++;
	}
	return true;
}

bool
ofs_device_issue_next(struct ofs_device *device, struct ofs_qos_item *item)
{
	return device->reads.flying < device->config.reads_max && ofs_store_has_room(device->store)
		&& ofs_qos_take(device->issue.qos, now_ps(device), item) == 1;
}

void
ofs_device_issue_began(struct ofs_device *device, uint32_t number)
{
	struct ofs_device_tenant *tenant = &device->tenants[number];

	if (++tenant->flying >= tenant->flying_max)
		ofs_qos_hold(device->issue.qos, now_ps(device), number, 1);
}

void
ofs_device_issue_ended(struct ofs_device *device, uint32_t number)
{
	struct ofs_device_tenant *tenant = &device->tenants[number];

	assert(tenant->flying > 0);
	if (--tenant->flying < tenant->flying_max)
		ofs_qos_hold(device->issue.qos, now_ps(device), number, 0);
}

uint64_t
ofs_device_issue_due_ns(const struct ofs_device *device)
{
	uint64_t due_ps = ofs_qos_next_ps(device->issue.qos);

	return due_ps == OFS_QOS_NEVER ? UINT64_MAX
								   : device->issue.begin_ns + (due_ps + PS_PER_NS - 1) / PS_PER_NS;
}

void
ofs_device_issue_figures(const struct ofs_device *device, uint32_t number,
	struct ofs_tenant_status *status)
{
	const struct ofs_device_tenant *tenant = &device->tenants[number];
	struct ofs_qos_stats stats;

	ofs_qos_stats(device->issue.qos, number, &stats);
	status->weight = tenant->share.weight;
	status->bandwidth_bytes_per_s = tenant->share.bandwidth_bytes_per_s;
	status->in_flight = tenant->flying;
	status->in_flight_max = tenant->flying_max;
	status->waiting = stats.waiting + tenant->writes.count - tenant->tickets;
	status->issued = stats.taken;
	status->issued_bytes = stats.taken_bytes;
	status->wait_ns_sum = stats.wait_ps_sum / PS_PER_NS;
	status->wait_ns_max = stats.wait_ps_max / PS_PER_NS;
	status->throttled_ns = stats.throttled_ps / PS_PER_NS;
	status->floor_bytes_per_s = tenant->share.floor_bytes_per_s;
	status->floor_bytes = stats.floor_bytes;
	status->held_back = tenant->held_back;
}
