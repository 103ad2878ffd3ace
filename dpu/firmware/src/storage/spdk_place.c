/*
 * A drive's commands other than reads and writes: flexible data placement, and deallocation
 * (dataset management).
 *
 * Model: a drive with placement reports its handles (I/O management receive); the link's thread,
 * which still owns the drive, reads them while connecting. ofs_storage_handle chooses one for a
 * write. A drive without placement is written without handles. A drive with placement that reports
 * no handles is not an error: none are used.
 */
#include "spdk_queue.h"

#include <spdk/env.h>
#include <time.h>

enum { PLACE_WAIT_MS = 2000 };

static void
told(void *argument, const struct spdk_nvme_cpl *cpl)
{
	struct ofs_spdk_drive *drive = argument;

	drive->handles_told = spdk_nvme_cpl_is_error(cpl) ? -1 : 1;
}

void
ofs_spdk_place_ask(struct ofs_spdk_drive *drive)
{
	const struct spdk_nvme_ctrlr_data *data = spdk_nvme_ctrlr_get_data(drive->ctrlr);
	struct spdk_nvme_fdp_ruhs *status = (struct spdk_nvme_fdp_ruhs *)drive->ruhs;
	struct timespec pause = {.tv_nsec = 1000000};

	drive->discards = (spdk_nvme_ns_get_flags(drive->ns) & SPDK_NVME_NS_DEALLOCATE_SUPPORTED) != 0;
	drive->handle_count = 0;
	drive->handles_told = 0;
	if (!data->ctratt.bits.fdps
		|| spdk_nvme_ns_cmd_io_mgmt_recv(drive->ns, drive->qpair, drive->ruhs, sizeof(drive->ruhs),
			   SPDK_NVME_FDP_IO_MGMT_RECV_RUHS, 0, told, drive)
			!= 0)
		return;
	for (int ms = 0; ms < PLACE_WAIT_MS && drive->handles_told == 0; ms++) {
		if (spdk_nvme_qpair_process_completions(drive->qpair, 0) < 0)
			return;
		if (drive->handles_told == 0)
			nanosleep(&pause, NULL);
	}
	if (drive->handles_told != 1)
		return;
	while (drive->handle_count < SPDK_HANDLES_MAX && drive->handle_count < status->nruhsd) {
		drive->handles[drive->handle_count] = status->ruhs_desc[drive->handle_count].pid;
		drive->handle_count++;
	}
}

/* We build the command ourselves: SPDK's for a contiguous buffer drops the placement (26.05). A
 * piece is never larger than the drive's largest transfer, so there is nothing to split. */
int
ofs_spdk_place_write(struct ofs_spdk_drive *drive, void *buffer, uint64_t lba, uint32_t count,
	uint32_t flags, uint32_t lifetime, spdk_nvme_cmd_cb done, void *argument)
{
	struct spdk_nvme_cmd cmd = {.opc = SPDK_NVME_OPC_WRITE};
	uint32_t handle;

	if (drive->handle_count < 2)
		return spdk_nvme_ns_cmd_write(drive->ns, drive->qpair, buffer, lba, count, done, argument,
			flags);
	handle = drive->handles[ofs_storage_handle(lifetime, drive->handle_count)];
	cmd.nsid = drive->nsid;
	cmd.cdw10 = (uint32_t)lba;
	cmd.cdw11 = (uint32_t)(lba >> 32);
	cmd.cdw12 = (count - 1) | flags | SPDK_NVME_IO_FLAGS_DATA_PLACEMENT_DIRECTIVE;
	cmd.cdw13 = handle << 16;
	return spdk_nvme_ctrlr_cmd_io_raw(drive->ctrlr, drive->qpair, &cmd, buffer,
		count * drive->sector_bytes, done, argument);
}

int
ofs_spdk_place_discard(struct ofs_spdk_drive *drive, uint64_t lba, uint32_t count,
	spdk_nvme_cmd_cb done, void *argument)
{
	struct spdk_nvme_dsm_range range = {.starting_lba = lba, .length = count};

	return spdk_nvme_ns_cmd_dataset_management(drive->ns, drive->qpair,
		SPDK_NVME_DSM_ATTR_DEALLOCATE, &range, 1, done, argument);
}
