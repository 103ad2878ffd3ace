/*
 * Erasing: deallocates every block of every drive by dataset management.
 *
 * Model: on the polling thread, with nothing in flight, within a bounded time. What a read returns
 * afterwards depends on the drive; a caller that needs zeros writes them.
 */
#include "spdk.h"

#include "spdk_queue.h"

#include <time.h>

enum { ERASE_WAIT_MS = 30000, ERASE_RANGES_MAX = 256 };

struct erasing {
	int out;
	int rc;
};

static void
erase_done(void *argument, const struct spdk_nvme_cpl *cpl)
{
	struct erasing *erasing = argument;

	erasing->out = 0;
	erasing->rc = spdk_nvme_cpl_is_error(cpl) ? -EIO : 0;
}

/* Up to 256 ranges from sector `at` on. */
static int
erase_some(struct ofs_spdk *spdk, struct ofs_spdk_drive *drive, uint64_t *at, uint64_t sectors)
{
	struct spdk_nvme_dsm_range ranges[ERASE_RANGES_MAX] = {0};
	static struct erasing erasing; /* off the stack: a hung drive may answer later */
	struct timespec pause = {.tv_nsec = 1000000};
	uint16_t count = 0;
	int rc;

	while (count < ERASE_RANGES_MAX && *at < sectors) {
		uint64_t left = sectors - *at;

		ranges[count].starting_lba = *at;
		ranges[count].length = left < UINT32_MAX ? (uint32_t)left : UINT32_MAX;
		*at += ranges[count++].length;
	}
	erasing = (struct erasing){.out = 1};
	rc = spdk_nvme_ns_cmd_dataset_management(drive->ns, drive->qpair, SPDK_NVME_DSM_ATTR_DEALLOCATE,
		ranges, count, erase_done, &erasing);
	if (rc != 0)
		return rc;
	for (int waited_ms = 0; erasing.out && waited_ms < ERASE_WAIT_MS; waited_ms++) {
		if (spdk_nvme_qpair_process_completions(drive->qpair, 0) < 0)
			return -EIO;
		ofs_spdk_tick(spdk, ofs_clock_now_ns(spdk->base.clock));
		if (erasing.out)
			nanosleep(&pause, NULL);
	}
	return erasing.out ? -ETIMEDOUT : erasing.rc;
}

int
ofs_spdk_erase(void *storage)
{
	struct ofs_spdk *spdk = storage;
	int rc = 0;

	if (spdk->base.ops != ofs_spdk_ops() || spdk->base.stats.in_flight > 0)
		return -EINVAL;
	for (uint32_t i = 0; i < spdk->link->drive_count && rc == 0; i++) {
		struct ofs_spdk_drive *drive = &spdk->link->drives[i];
		uint64_t sectors = drive->size_bytes / drive->sector_bytes;

		if (!(spdk_nvme_ns_get_flags(drive->ns) & SPDK_NVME_NS_DEALLOCATE_SUPPORTED))
			rc = -EOPNOTSUPP;
		for (uint64_t at = 0; at < sectors && rc == 0;)
			rc = erase_some(spdk, drive, &at, sectors);
	}
	return rc;
}
