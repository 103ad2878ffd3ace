/*
 * Does the timing model stay inside its arrays and its integers for any parameters that open takes,
 * does a full link carry exactly its rate, and does a drive with schedulers end every I/O once, in
 * order of time, and none before its parts? Does one with zones, too, whatever is in flight when a
 * zone is reset, and one that is worn out, but for the writes that it refuses?
 */
#include "nvme_model.h"

#include <assert.h>
#include <stdio.h>

#include "drive.h"

static uint64_t random_state = 1;
static uint64_t collected, retired, refused;

static uint64_t
random_next(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static uint64_t
between(uint64_t low, uint64_t high)
{
	return low + random_next() % (high - low + 1);
}

static struct ofs_nvme_params
random_parameters(void)
{
	return (struct ofs_nvme_params){
		.channel_count = (uint32_t)between(1, 256),
		.dies_per_channel = (uint32_t)between(1, 8),
		.planes_per_die = (uint32_t)between(1, 4),
		.page_size_bytes = (uint32_t)between(1, 2048) * 512,
		.queue_depth_max = 1,
		.read_ps = between(1, 1000000000000ull),
		.program_ps = between(1, 1000000000000ull),
		.firmware_ps = between(0, 1000000000000ull),
		.command_interval_ps = between(1, 1000000000000ull),
		.channel_bytes_per_s = between(1000000, 1000000000000ull),
		.link_bytes_per_s = between(1000000, 1000000000000ull),
		.write_buffer_bytes = between(1 << 20, 1ull << 40),
		.retry_per_million = (uint32_t)between(0, 1000000),
		.retry_factor = (uint32_t)between(1, 1000),
	};
}

static void
try_random_parameters(void)
{
	struct ofs_nvme_params params = random_parameters();
	struct ofs_nvme_model *model;
	uint64_t now_ps = 0;
	int i;

	assert(ofs_nvme_model_open(&model, &params, random_next()) == 0);
	for (i = 0; i < 300; i++) {
		uint64_t end_ps;

		now_ps += between(0, 1000000000);
		end_ps = ofs_nvme_model_submit(model, now_ps, (int)between(0, 1), 0, between(0, 1ull << 50),
			(uint32_t)between(0, 1 << 22));
		assert(end_ps >= now_ps + params.firmware_ps);
	}
	ofs_nvme_model_close(model);
}

#define IOS 300u
#define DEPTH 24u

struct io {
	uint64_t begin_ps, end_ps;
	int write;
	int empty;
};

/* The smaller one, or the first where the second is not given. */
static uint64_t
least_of(uint64_t a, uint64_t b)
{
	return b > 0 && b < a ? b : a;
}

/* Takes what has ended by now; returns how many. `ios` [IOS] by tag. */
static uint32_t
take_ends(struct ofs_nvme_model *model, const struct ofs_nvme_params *params, uint64_t now_ps,
	struct io *ios)
{
	uint64_t last_ps = 0;
	uint32_t taken = 0;
	struct ofs_nvme_end end;

	for (; ofs_nvme_model_poll(model, now_ps, &end, 1) == 1; taken++) {
		struct io *io = &ios[end.tag];
		uint64_t least_ps = params->write_firmware_ps;

		if (!io->write && !io->empty)
			least_ps = least_of(params->firmware_ps, params->small_firmware_ps)
				+ least_of(params->read_ps, params->small_read_ps);
		if (io->write && !io->empty && params->write_buffer_bytes == 0)
			least_ps += params->program_ps;
		assert(io->end_ps == 0 && end.end_ps >= last_ps && end.end_ps <= now_ps);
		assert(end.end_ps >= io->begin_ps + least_ps);
		io->end_ps = last_ps = end.end_ps;
	}
	assert(ofs_nvme_model_next_ps(model) > now_ps);
	return taken;
}

/* Of a drive without blocks, the half whose buffer gathers programs. */
static void
draw_programs(struct ofs_nvme_params *params)
{
	params->program_pages = (uint32_t)(between(0, 1) * between(1, 4));
	if (params->program_pages > 0)
		params->write_buffer_bytes =
			(params->program_pages + between(1, 64)) * params->page_size_bytes;
	if (params->program_pages == 1 && params->page_size_bytes % OFS_NVME_SMALL_BYTES == 0)
		params->stripe_pages = (uint32_t)between(0, 5);
	params->small_read_ps = between(0, 1) * between(1, 100000000);
	params->small_firmware_ps = between(0, 1) * between(1, 1000000);
	params->write_each_ps = between(0, 1) * between(1, 1000000);
	params->piece_bytes = (uint32_t)(between(0, 1) * between(1, 64) * 512);
	params->commands_first = (uint32_t)between(0, 1);
}

static void
try_random_schedulers(void)
{
	struct ofs_nvme_params params = random_parameters();
	struct io ios[IOS] = {0};
	struct ofs_nvme_model *model;
	struct ofs_nvme_wear wear;
	uint64_t now_ps = 0;
	uint32_t inside = 0;

	params.scheduled = 1;
	params.layout_fixed = (uint32_t)between(0, 1);
	params.queue_depth_max = DEPTH;
	params.program_ps = between(1, 1000000000);
	params.read_ps = between(1, 100000000);
	params.write_firmware_ps = between(1, 1000000);
	params.read_command_ps = between(1, 1000000);
	params.program_command_ps = between(1, 1000000);
	params.suspend_ps = between(0, 1) * between(1, 50000000);
	params.write_buffer_bytes = between(0, 1) * between(params.page_size_bytes, 1 << 21);
	if (between(0, 1)) { /* small, so that they collect */
		params.channel_count = (uint32_t)between(1, 4);
		params.dies_per_channel = params.planes_per_die = 1;
		params.handle_count = (uint32_t)between(0, 3);
		params.blocks_per_plane = (uint32_t)between(11, 16);
		params.pages_per_block = (uint32_t)between(2, 4);
		params.spare_permille = (uint32_t)between(800, 850);
		params.collect_blocks = 2;
		params.erase_ps = between(1, 1000000000);
		params.retry_age_ps = between(0, 1) * between(1, 10000000000);
		params.refresh_ps = between(0, 1) * between(1, 10000000000);
		params.erase_limit = (uint32_t)(between(0, 1) * between(1, 20));
		params.level_erases = (uint32_t)(between(0, 1) * between(1, 4));
	} else {
		draw_programs(&params);
	}
	assert(ofs_nvme_model_open(&model, &params, random_next()) == 0);
	for (uint32_t i = 0; i < IOS; i++) {
		uint32_t size = between(0, 9) ? (uint32_t)between(1, 64) * 4096 : 0;

		if (between(0, 99) == 0)
			size = (uint32_t)between(1, 2) << 24;
		now_ps += between(0, 100000000);
		inside -= take_ends(model, &params, now_ps, ios);
		while (inside == DEPTH) {
			now_ps = ofs_nvme_model_next_ps(model);
			inside -= take_ends(model, &params, now_ps, ios);
		}
		ios[i] = (struct io){now_ps, 0, (int)between(0, 1), size == 0};
		if (ios[i].write && between(0, 3) == 0)
			ios[i] = (struct io){now_ps, 0, OFS_NVME_DISCARD, 1};
		else if (ios[i].write && params.handle_count > 1)
			ios[i].write += (int)between(0, params.handle_count - 1);
		if (ofs_nvme_model_submit(model, now_ps, ios[i].write, i, between(0, 1 << 20) * 512, size)
			== OFS_NVME_LATER) {
			inside++;
			continue;
		}
		ofs_nvme_model_wear(model, &wear);
		assert(wear.read_only && ios[i].write && size > 0);
		refused++;
	}
	inside -= take_ends(model, &params, OFS_NVME_LATER - 1, ios);
	assert(inside == 0 && ofs_nvme_model_next_ps(model) == OFS_NVME_LATER);
	ofs_nvme_model_wear(model, &wear);
	assert(wear.erased_blocks * params.pages_per_block <= wear.written_pages + wear.moved_pages);
	assert(params.erase_limit || !(wear.retired_blocks || wear.read_only));
	collected += wear.erased_blocks;
	retired += wear.retired_blocks;
	ofs_nvme_model_close(model);
}

/* Zones that are filled and reset with writes to them and to the conventional namespace in flight:
 * what was taken ends once, and flash has as many pages of zones as their pointers say. */
static void
try_random_zones(void)
{
	struct ofs_nvme_params params = random_parameters();
	struct ofs_nvme_model *model;
	struct ofs_nvme_wear wear;
	struct ofs_nvme_zone zone;
	struct ofs_nvme_end end;
	uint64_t now_ps = 0, page, valid = 0;
	uint32_t inside = 0, programs;

	params.scheduled = 1;
	params.queue_depth_max = IOS;
	params.channel_count = (uint32_t)between(1, 4);
	params.dies_per_channel = params.planes_per_die = 1;
	params.program_ps = between(1, 1000000000);
	params.read_command_ps = params.program_command_ps = params.erase_ps = 1000000;
	params.write_buffer_bytes = between(0, 1) * between(params.page_size_bytes, 1 << 21);
	params.blocks_per_plane = 16;
	params.pages_per_block = (uint32_t)between(1, 4);
	params.collect_blocks = 2;
	page = params.page_size_bytes;
	programs = (uint32_t)between(0, 3);
	if (programs > 0) {
		params.program_pages = programs;
		params.pages_per_block *= programs;
		params.write_buffer_bytes = page * (programs + between(1, 8));
	}
	params.zone_size_bytes = page * params.channel_count * params.pages_per_block;
	programs = programs > 0 ? programs : 1;
	params.zone_capacity_bytes =
		between(1, params.zone_size_bytes / page / programs) * page * programs;
	params.zone_count = 8;
	params.zone_open_max = (uint32_t)between(1, 3);
	params.zone_active_max = params.zone_open_max + (uint32_t)between(0, 3);
	assert(ofs_nvme_model_open(&model, &params, random_next()) == 0);
	for (uint32_t i = 0; i < IOS; i++) {
		uint32_t number = (uint32_t)between(0, 7);
		int write = between(0, 3) ? OFS_NVME_ZONE_WRITE : OFS_NVME_ZONE_RESET;
		uint64_t at = number * params.zone_size_bytes;

		assert(ofs_nvme_model_zone(model, number, &zone) == 0);
		if (write == OFS_NVME_ZONE_WRITE)
			at += zone.written_bytes;
		if (between(0, 9) == 0)
			write = 1;
		now_ps += between(0, 100000000);
		inside += ofs_nvme_model_submit(model, now_ps, write, i, at,
					  write == OFS_NVME_ZONE_RESET ? 0 : (uint32_t)page)
			== OFS_NVME_LATER;
		while (ofs_nvme_model_poll(model, now_ps, &end, 1) == 1)
			inside--;
	}
	while (ofs_nvme_model_poll(model, OFS_NVME_LATER - 1, &end, 1) == 1)
		inside--;
	assert(inside == 0);
	ofs_nvme_model_wear(model, &wear);
	for (uint32_t i = 0; ofs_nvme_model_zone(model, i, &zone) == 0; i++)
		valid += zone.written_bytes / page;
	assert(wear.valid_pages >= valid); /* of a program that is not full none is written */
	assert(wear.written_pages + params.zone_count * (programs - 1) >= wear.valid_pages);
	ofs_nvme_model_close(model);
}

/* Transfers that come out of order fill the gaps: nothing of a saturated link is lost. */
static void
try_full_link(void)
{
	struct ofs_nvme_model *model;
	uint64_t end_ps = 0;
	uint64_t count = 200000;

	assert(ofs_nvme_model_open(&model, &test_drive, 1) == 0);
	for (uint64_t i = 0; i < count; i++) {
		/* 7 % more than the link carries, spread at random over the dies */
		uint64_t ps =
			ofs_nvme_model_submit(model, i * 1100000, 0, 0, between(0, 1 << 24) * 16384, 16384);

		end_ps = ps > end_ps ? ps : end_ps;
	}
	assert((double)count * 16384 / ((double)end_ps / 1e12) > 0.995 * 14e9);
	assert((double)count * 16384 / ((double)end_ps / 1e12) <= 14e9);
	ofs_nvme_model_close(model);
}

int
main(void)
{
	for (int i = 0; i < 200; i++)
		try_random_parameters();
	for (int i = 0; i < 300; i++)
		try_random_schedulers();
	assert(collected > 0 && retired > 0 && refused > 0);
	for (int i = 0; i < 200; i++)
		try_random_zones();
	try_full_link();
	puts("nvme model ok");
	return 0;
}
