/* Fetch: the demands of one layer of one step, from directory to the host's own memory. */
#include "driver/internal.h"
#include "ofs_core.h"

#include <string.h>

/* A part of a fetch that fits one STEP. */
struct part {
	struct ofs_fetch *fetch;
	uint32_t first;
	uint32_t count;
	uint32_t selected_count;
	uint32_t score_count;
	uint32_t wanted_count;
	uint64_t deadline_ns;
};

static void
prepare(struct ofs_driver *driver, const struct part *part)
{
	const struct ofs_fetch *fetch = part->fetch;

	for (uint32_t i = 0; i < part->count; i++) {
		struct ofs_block_read *read = &driver->reads[i];
		uint32_t demand = part->first + i;

		read->key = fetch->keys[demand];
		read->target =
			fetch->target + (uint64_t)fetch->target_index[demand] * fetch->target_stride_bytes;
		read->attempts = 0;
	}
}

static void
accept(const struct part *part, uint32_t i, const struct ofs_block_read *read)
{
	struct ofs_fetch *fetch = part->fetch;
	uint32_t demand = part->first + i;

	fetch->rcs[demand] = 0;
	if (fetch->lengths != NULL)
		fetch->lengths[demand] = read->length;
	if (fetch->checksums != NULL)
		fetch->checksums[demand] = read->checksum;
}

static void
fail(struct ofs_driver *driver, const struct part *part, uint32_t i, int rc)
{
	struct ofs_fetch *fetch = part->fetch;

	fetch->rcs[part->first + i] = rc;
	fetch->ends[part->first + i] = 255;
	fetch->failed_count++;
	driver->stats.failed++;
}

static void
fail_wanted(struct ofs_driver *driver, struct part *part, int rc)
{
	for (uint32_t i = 0; i < part->wanted_count; i++)
		fail(driver, part, driver->wanted[i], rc);
	part->wanted_count = 0;
}

/* One-sided: what the directory names, and whose check holds. The rest is wanted. */
static int
read_hits(struct ofs_driver *driver, struct part *part)
{
	uint64_t start_ns = ofs_driver_now_ns(driver);
	int rc = ofs_reads_lookup(driver, driver->reads, part->count);

	if (rc == 0)
		rc = ofs_reads_run(driver, driver->reads, NULL, part->count, 1);
	part->wanted_count = 0;
	for (uint32_t i = 0; i < part->count; i++) {
		struct ofs_block_read *read = &driver->reads[i];

		if (rc == 0 && read->rc == 0) {
			accept(part, i, read);
			part->fetch->hit_count++;
			driver->stats.hits++;
			continue;
		}
		if (rc == 0 && read->rc != -ENOENT) {
			part->fetch->torn_count++;
			driver->stats.torn++;
		}
		driver->stats.misses++;
		driver->wanted[part->wanted_count++] = i;
	}
	part->fetch->copy_ns += ofs_driver_now_ns(driver) - start_ns;
	return rc;
}

/* The payload of a STEP over `count` demands: all of the part, or those still wanted. */
static void
write_payload(struct ofs_driver *driver, const struct part *part, uint8_t *payload, uint32_t count,
	bool retry)
{
	const struct ofs_fetch *fetch = part->fetch;
	uint8_t *seen = payload + ofs_payload_seen_offset(count);

	for (uint32_t i = 0; i < count; i++) {
		uint32_t item = retry ? driver->wanted[i] : i;
		uint32_t ordinal = fetch->ordinals[part->first + item];

		memcpy(payload + (size_t)i * 4, &ordinal, sizeof(ordinal));
		/* OFS_SEEN_MISS is 0, and so is the cause of nothing. */
		seen[i] = retry || driver->reads[item].rc != 0 ? OFS_CAUSE_NONE
													   : (uint8_t)driver->reads[item].cause;
	}
	if (!retry && part->score_count > 0) {
		memcpy(payload + ofs_payload_scores_offset(count), fetch->scores,
			part->score_count * sizeof(fetch->scores[0]));
	}
}

/* One STEP, there and back; its results are in driver->results. */
static int
step(struct ofs_driver *driver, const struct part *part, bool retry)
{
	const struct ofs_fetch *fetch = part->fetch;
	struct ofs_fabric *fabric = driver->fabric;
	uint32_t count = retry ? part->wanted_count : part->count;
	struct ofs_sqe sqe = {.op = OFS_OP_STEP,
		.flags = retry ? OFS_STEP_RETRY : 0,
		.layer = (uint16_t)fetch->layer,
		.session = fetch->session,
		.step = fetch->step,
		.selected_count = retry ? count : part->selected_count,
		.demand_count = count,
		.score_count = retry ? 0 : part->score_count};
	const struct ofs_result *results;
	struct ofs_cqe cqe;
	uint32_t index;
	int rc = ofs_command_begin(driver, part->deadline_ns, &index);

	if (rc == 0) {
		write_payload(driver, part, fabric->ops->payload(fabric, index), count, retry);
		rc = ofs_command_send(driver, &sqe, index, part->deadline_ns);
	}
	if (rc == 0)
		rc = ofs_command_wait(driver, index, part->deadline_ns, &cqe);
	if (rc != 0)
		return rc;
	results = fabric->ops->results(fabric, &cqe);
	rc = cqe.rc;
	if (rc == 0 && (cqe.count != count || results == NULL))
		rc = -EPROTO;
	if (rc == 0)
		memcpy(driver->results, results, count * sizeof(*results));
	ofs_command_end(driver, index);
	return rc;
}

/* Sends a STEP until the DPU takes it; a busy answer is not the end of a demand. */
static int
step_patiently(struct ofs_driver *driver, const struct part *part, bool retry)
{
	uint64_t pause_ns = OFS_BACKOFF_NS_MIN;
	int rc;

	while ((rc = step(driver, part, retry)) == -EBUSY || rc == -EAGAIN) {
		if (ofs_driver_now_ns(driver) + pause_ns >= part->deadline_ns)
			return -ETIMEDOUT;
		driver->fabric->ops->pause(driver->fabric, pause_ns);
		pause_ns = pause_ns * 2 < OFS_BACKOFF_NS_MAX ? pause_ns * 2 : OFS_BACKOFF_NS_MAX;
	}
	return rc;
}

/* Reads the slots that the results name; what is torn or was answered -EAGAIN stays wanted. */
static int
read_results(struct ofs_driver *driver, struct part *part, bool retry)
{
	uint64_t start_ns = ofs_driver_now_ns(driver);
	uint32_t slot_count = driver->fabric->region.slot_count;
	uint32_t kept_count = 0;
	int rc = 0;
	uint32_t i;

	for (i = 0; i < part->wanted_count && rc == 0; i++) {
		uint32_t item = driver->wanted[i];
		struct ofs_block_read *read = &driver->reads[item];
		const struct ofs_result *result = &driver->results[retry ? i : item];

		read->rc = result->rc;
		if (result->rc == 0) {
			read->slot = result->slot < slot_count ? result->slot : OFS_NONE;
			read->generation = result->generation;
			rc = ofs_reads_run(driver, driver->reads, &item, 1, 1);
			if (rc != 0)
				break;
			if (read->rc == 0) {
				accept(part, item, read);
				continue;
			}
			part->fetch->torn_count++;
			driver->stats.torn++;
			if (++read->attempts >= OFS_READ_ATTEMPTS_MAX) {
				fail(driver, part, item, read->rc);
				continue;
			}
		} else if (result->rc != -EAGAIN) {
			fail(driver, part, item, result->rc);
			continue;
		}
		driver->wanted[kept_count++] = item;
	}
	/* After an error of the fabric the rest is still wanted. */
	for (; i < part->wanted_count; i++)
		driver->wanted[kept_count++] = driver->wanted[i];
	part->wanted_count = kept_count;
	part->fetch->copy_ns += ofs_driver_now_ns(driver) - start_ns;
	return rc;
}

/* Asks again for what is still wanted, until it has come, has failed, or the time is over. */
static int
ask_again(struct ofs_driver *driver, struct part *part)
{
	struct ofs_fetch *fetch = part->fetch;
	uint64_t pause_ns = OFS_BACKOFF_NS_MIN;

	while (part->wanted_count > 0) {
		uint64_t start_ns = ofs_driver_now_ns(driver);
		int rc;

		if (start_ns + pause_ns >= part->deadline_ns)
			return -ETIMEDOUT;
		driver->fabric->ops->pause(driver->fabric, pause_ns);
		pause_ns = pause_ns * 2 < OFS_BACKOFF_NS_MAX ? pause_ns * 2 : OFS_BACKOFF_NS_MAX;
		fetch->retry_count += part->wanted_count;
		driver->stats.retries += part->wanted_count;
		rc = step_patiently(driver, part, true);
		fetch->stall_ns += ofs_driver_now_ns(driver) - start_ns;
		if (rc == 0)
			rc = read_results(driver, part, true);
		if (rc != 0)
			return rc;
	}
	return 0;
}

static int
fetch_part(struct ofs_driver *driver, struct part *part)
{
	struct ofs_fetch *fetch = part->fetch;
	uint64_t start_ns;
	int rc;

	prepare(driver, part);
	rc = read_hits(driver, part);
	if (rc == 0) {
		start_ns = ofs_driver_now_ns(driver);
		rc = step_patiently(driver, part, false);
		if (part->wanted_count > 0)
			fetch->stall_ns += ofs_driver_now_ns(driver) - start_ns;
	}
	if (rc == 0) {
		for (uint32_t i = 0; i < part->count; i++) {
			fetch->ends[part->first + i] =
				driver->results[i].end < OFS_END_COUNT ? (uint8_t)driver->results[i].end : 255;
		}
		rc = read_results(driver, part, false);
	}
	if (rc == 0)
		rc = ask_again(driver, part);
	if (rc != 0)
		fail_wanted(driver, part, rc);
	return rc;
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
				|| fetch->target_stride_bytes < fabric->region.payload_size_bytes))) {
		return -EINVAL;
	}
	return 0;
}

int
ofs_driver_fetch(struct ofs_driver *driver, struct ofs_fetch *fetch)
{
	uint32_t demand_max = driver->fabric->port.demand_max;
	struct part part = {.fetch = fetch, .score_count = fetch->score_count};
	uint32_t left = fetch->demand_count;
	int first_rc = check_fetch(driver, fetch);

	if (first_rc != 0)
		return first_rc;
	fetch->hit_count = fetch->failed_count = fetch->retry_count = fetch->torn_count = 0;
	fetch->stall_ns = fetch->copy_ns = 0;
	for (uint32_t i = 0; i < left; i++) {
		fetch->ends[i] = 255;
		fetch->rcs[i] = -ECANCELED;
	}
	part.deadline_ns = ofs_driver_now_ns(driver) + fetch->timeout_ns;
	driver->stats.fetches++;
	/* The first part carries the scores, and what was selected and is not demanded. */
	part.selected_count = fetch->selected_count - left;
	do {
		int rc;

		part.count = left < demand_max ? left : demand_max;
		part.selected_count += part.count;
		rc = fetch_part(driver, &part);
		first_rc = first_rc == 0 ? rc : first_rc;
		left -= part.count;
		part.first += part.count;
		part.selected_count = part.score_count = 0;
	} while (left > 0 && (first_rc == 0 || first_rc == -ETIMEDOUT));
	for (uint32_t i = part.first; i < fetch->demand_count; i++) {
		fetch->rcs[i] = first_rc;
		fetch->failed_count++;
		driver->stats.failed++;
	}
	return first_rc;
}
