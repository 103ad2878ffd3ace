/*
 * Presets of the NVMe model. A preset is a set of parameters and the published figures that it must
 * reproduce; tests/unit/storage/test_nvme_model.py computes them from the model. "Fitted" means:
 * not published, chosen to reproduce the cited figure. Presets do not include garbage collection.
 */
#include "nvme_model.h"

#include <string.h>

#define NS 1000ull    /* picoseconds */
#define US 1000000ull /* picoseconds */
#define MB 1000000ull
#define GB 1000000000ull

/* The guesses that all of them share. */
#define GUESSED                                                                      \
	.channel_count = 16, .queue_depth_max = 1024, .write_buffer_bytes = 64ull << 20, \
	.retry_per_million = 1000, .retry_factor = 5

struct preset {
	const char *name;
	const char *source;
	struct ofs_nvme_params params;
	struct ofs_nvme_cited cited;
};

static const struct preset presets[] = {
	{
		.name = "gen5-tlc",
		.source =
			"Micron 9550 MAX, PCIe 5.0 x4, TLC: 14.0/10.0 GB/s, 3.3 M read IOPS, "
			"typical latency 60/15 us read/write (product brief as quoted by "
			"korean.storagesserver.com/cases/micron-9550-max). Fitted: firmware 14.6 us "
			"(write latency), tR 43.4 us (read latency; TLC of NVMeVirt's ssd_config.h: 25 to "
			"58 us), program 838.9 us per 16 KiB plane page (write bandwidth). "
			"Guesses: 16 channels of 2.4 GB/s (ONFI 5), 8 dies each, 4 planes, "
			"64 MiB power-safe buffer, 0.1 % of page reads retried at 5 tR",
		.params =
			{
				GUESSED,
				.dies_per_channel = 8,
				.planes_per_die = 4,
				.page_size_bytes = 16384,
				.read_ps = 43400 * NS,
				.program_ps = 838900 * NS,
				.firmware_ps = 14600 * NS,
				.write_firmware_ps = 14600 * NS,
				.command_interval_ps = 303030,
				.channel_bytes_per_s = 2400 * MB,
				.link_bytes_per_s = 14 * GB,
			},
		.cited =
			{
				.read_bytes_per_s = 14 * GB,
				.write_bytes_per_s = 10 * GB,
				.read_iops = 3300000,
				.read_latency_ps = 60 * US,
				.write_latency_ps = 15 * US,
			},
	},
	{
		.name = "xl-flash",
		.source =
			"Kioxia XL-FLASH second-generation drive, PCIe 5.0: 13.5/9.7 GB/s, 3 M read "
			"IOPS, read latency 27 us (techpowerup.com/306397); write latency 8 us is the "
			"first generation's (Kioxia FL6, computerbase.de 2023-03); die: tR below 5 us, "
			"16 planes, 4 KiB page (superssavers.shop 2025-09-15, inkl.com). "
			"Fitted: firmware 20.0 us read, 7.7 us write, program 216.2 us per 4 KiB plane page "
			"(write bandwidth; stands for every limit on the write path). "
			"Guesses: 16 channels of 2.4 GB/s, 32 dies in all, tR 5 us, 64 MiB power-safe buffer, "
			"0.1 % of page reads retried at 5 tR",
		.params =
			{
				GUESSED,
				.dies_per_channel = 2,
				.planes_per_die = 16,
				.page_size_bytes = 4096,
				.read_ps = 5000 * NS,
				.program_ps = 216200 * NS,
				.firmware_ps = 20000 * NS,
				.write_firmware_ps = 7700 * NS,
				.command_interval_ps = 333333,
				.channel_bytes_per_s = 2400 * MB,
				.link_bytes_per_s = 13500 * MB,
			},
		.cited =
			{
				.read_bytes_per_s = 13500 * MB,
				.write_bytes_per_s = 9700 * MB,
				.read_iops = 3000000,
				.read_latency_ps = 27 * US,
				.write_latency_ps = 8 * US,
			},
	},
	{
		.name = "xl-flash-10m",
		.source =
			"Kioxia GP, announced: more than 10 M read IOPS of 512 B, XL-FLASH read in 3 to 5 us "
			"(tomshardware.com 2025-06); no bandwidth, interface or drive latency was published. "
			"These are of a drive of the same flash, N3X: 14/12 GB/s, 13/4 us read/write "
			"(tomshardware 2025). Fitted: firmware 6.0 us read, 3.7 us write, program 174.8 us per "
			"4 KiB plane page, a command each 0.1 us (the IOPS). Guesses: the link, PCIe 5.0 x4, "
			"so "
			"that 4 KiB reads are 3.4 M a second; 16 channels of 2.4 GB/s, 32 dies in all, tR 5 "
			"us, "
			"64 MiB power-safe buffer, 0.1 % of page reads retried at 5 tR",
		.params =
			{
				GUESSED,
				.dies_per_channel = 2,
				.planes_per_die = 16,
				.page_size_bytes = 4096,
				.read_ps = 5000 * NS,
				.program_ps = 174760 * NS,
				.firmware_ps = 6000 * NS,
				.write_firmware_ps = 3700 * NS,
				.command_interval_ps = 100000,
				.channel_bytes_per_s = 2400 * MB,
				.link_bytes_per_s = 14 * GB,
			},
		.cited =
			{
				.read_bytes_per_s = 14 * GB,
				.write_bytes_per_s = 12 * GB,
				.read_latency_ps = 13 * US,
				.write_latency_ps = 4 * US,
			},
	},
	{
		.name = "qlc",
		.source = "Solidigm D5-P5336 122.88 TB, PCIe 4.0 x4, QLC: 7.4/3.2 GB/s, 930 k read IOPS "
				  "(architecting.it/blog/100tb-ssd-vendors); read latency 110 to 120 us is from "
				  "memory, not from a page at hand. Fitted: tR 96.9 us (read latency), program "
				  "2621 us per "
				  "16 KiB plane page (write bandwidth). "
				  "Guesses: firmware 15 us, 16 channels of 1.6 GB/s, 8 dies each, 4 planes, "
				  "64 MiB power-safe buffer, 0.1 % of page reads retried at 5 tR. "
				  "Its random writes (25 k IOPS, indirection unit above 4 KiB) are not modelled",
		.params =
			{
				GUESSED,
				.dies_per_channel = 8,
				.planes_per_die = 4,
				.page_size_bytes = 16384,
				.read_ps = 96900 * NS,
				.program_ps = 2621400 * NS,
				.firmware_ps = 15000 * NS,
				.write_firmware_ps = 15000 * NS,
				.command_interval_ps = 1075269,
				.channel_bytes_per_s = 1600 * MB,
				.link_bytes_per_s = 7400 * MB,
			},
		.cited =
			{
				.read_bytes_per_s = 7400 * MB,
				.write_bytes_per_s = 3200 * MB,
				.read_iops = 930000,
				.read_latency_ps = 115 * US,
			},
	},
};

enum { PRESET_COUNT = sizeof(presets) / sizeof(presets[0]) };

static const struct preset *
preset_find(const char *name)
{
	for (uint32_t i = 0; i < PRESET_COUNT; i++)
		if (strcmp(presets[i].name, name) == 0)
			return &presets[i];
	return NULL;
}

int
ofs_nvme_preset(const char *name, struct ofs_nvme_params *params)
{
	const struct preset *preset = preset_find(name);

	if (preset == NULL)
		return -ENOENT;
	*params = preset->params;
	return 0;
}

int
ofs_nvme_preset_cited(const char *name, struct ofs_nvme_cited *cited)
{
	const struct preset *preset = preset_find(name);

	if (preset == NULL)
		return -ENOENT;
	*cited = preset->cited;
	return 0;
}

const char *
ofs_nvme_preset_name(uint32_t index)
{
	return index < PRESET_COUNT ? presets[index].name : NULL;
}

const char *
ofs_nvme_preset_source(uint32_t index)
{
	return index < PRESET_COUNT ? presets[index].source : NULL;
}
