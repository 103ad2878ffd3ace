/* drive.h: the NVMe drive of the tests, of the size and speed of a gen5 TLC drive. */
#ifndef OFS_TEST_DRIVE_H
#define OFS_TEST_DRIVE_H

#include "nvme_model.h"

static const struct ofs_nvme_params test_drive = {
	.channel_count = 16,
	.dies_per_channel = 8,
	.planes_per_die = 4,
	.page_size_bytes = 16384,
	.queue_depth_max = 1024,
	.read_ps = 43400000,
	.program_ps = 838900000,
	.firmware_ps = 14600000,
	.write_firmware_ps = 14600000,
	.command_interval_ps = 303030,
	.channel_bytes_per_s = 2400000000,
	.link_bytes_per_s = 14000000000,
	.write_buffer_bytes = 64 << 20,
	.retry_per_million = 1000,
	.retry_factor = 5,
};

#endif
