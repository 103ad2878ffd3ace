/* Fetch: the caller's side. fetch_piece.c handles its pieces. */
#include "driver/internal.h"

static uint32_t
stride_min(const struct ofs_fabric *fabric, const struct ofs_fetch *fetch)
{
	const struct ofs_region_header *region = &fabric->region;

	if (fetch->granules == NULL || region->granule_count < 2)
		return region->payload_size_bytes;
	return region->payload_size_bytes / region->granule_count;
}

static int
check_fetch(const struct ofs_driver *driver, const struct ofs_fetch *fetch)
{
	const struct ofs_fabric *fabric = driver->fabric;

	if (fetch->layer > UINT16_MAX || fetch->score_count > fabric->port.score_max
		|| fetch->selected_count < fetch->demand_count
		|| (fetch->score_count > 0 && fetch->scores == NULL)
		|| (fetch->demand_count > 0
			&& (fetch->ordinals == NULL || fetch->keys == NULL || fetch->target == NULL
				|| fetch->target_index == NULL || fetch->ends == NULL || fetch->rcs == NULL
				|| fetch->target_stride_bytes < stride_min(fabric, fetch)))) {
		return -EINVAL;
	}
	if (fetch->granules == NULL)
		return 0;
	if (fetch->spare != NULL || fabric->region.granule_count < 2 || fetch->granule_first == NULL
		|| fetch->checksums == NULL)
		return -EINVAL;
	for (uint32_t i = 0; i < fetch->demand_count; i++)
		if (fetch->granules[i] == 0
			|| (uint64_t)fetch->granules[i] >> fabric->region.granule_count != 0)
			return -EINVAL;
	return 0;
}

int
ofs_fetch_begin(struct ofs_driver *driver, enum ofs_call_side side, struct ofs_fetch *fetch,
	uint64_t *ticket)
{
	int rc = check_fetch(driver, fetch);
	struct ofs_call *call;

	if (rc != 0)
		return rc;
	call =
		ofs_call_open(driver, side, &ofs_fetch_ops, fetch->demand_count, fetch->timeout_ns, ticket);
	if (call == NULL)
		return -EAGAIN;
	call->fetch = fetch;
	call->owes_step = true;
	fetch->hit_count = fetch->failed_count = fetch->retry_count = fetch->torn_count = 0;
	fetch->stall_ns = fetch->copy_ns = 0;
	for (uint32_t i = 0; i < fetch->demand_count; i++) {
		fetch->ends[i] = 255;
		fetch->rcs[i] = OFS_WANTED;
	}
	driver->stats.fetches++;
	(void)ofs_calls_turn(driver);
	return 0;
}

int
ofs_driver_fetch_begin(struct ofs_driver *driver, struct ofs_fetch *fetch, uint64_t *ticket)
{
	return ofs_fetch_begin(driver, OFS_CALLS_HOST, fetch, ticket);
}

int
ofs_driver_fetch_end(struct ofs_driver *driver, uint64_t ticket)
{
	return ofs_call_end(driver, ticket, &ofs_fetch_ops);
}

int
ofs_driver_fetch_cancel(struct ofs_driver *driver, uint64_t ticket)
{
	return ofs_call_cancel(driver, ticket, &ofs_fetch_ops);
}

int
ofs_driver_fetch(struct ofs_driver *driver, struct ofs_fetch *fetch)
{
	uint64_t ticket;
	int rc = ofs_driver_fetch_begin(driver, fetch, &ticket);

	return rc != 0 ? rc : ofs_driver_fetch_end(driver, ticket);
}
