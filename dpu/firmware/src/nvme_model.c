/* Implements the timing model of nvme_model.h. */
#include "nvme_model.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "nvme_blocks.h"
#include "nvme_flash.h"
#include "nvme_zones.h"

#define PS_PER_S 1000000000000ull

enum {
	CHANNELS_MAX = 256,
	DIES_PER_CHANNEL_MAX = 256,
	PLANES_MAX = 64,
	PLANES_TOTAL_MAX = 1 << 20,
	PAGE_SIZE_BYTES_MAX = 1 << 20, /* keeps bytes * PS_PER_S within 64 bits */
	GAPS_MAX = 48,
	BLOCK_PAGES_MAX = 1 << 28,
};

struct gap {
	uint64_t begin_ps;
	uint64_t end_ps;
};

/* A server whose reservations arrive out of time order: busy until free_ps, except for the gaps. */
struct server {
	uint64_t bytes_per_s;
	uint64_t free_ps;
	uint32_t gap_count;
	struct gap gaps[GAPS_MAX]; /* by time, none empty, all before free_ps */
};

struct ofs_nvme_model {
	struct ofs_nvme_params params;
	uint64_t plane_count;
	uint64_t controller_free_ps;
	uint64_t program_end_ps; /* when the write buffer is empty */
	uint64_t buffer_ps;      /* time to program a full write buffer */
	uint64_t random_counter;
	uint64_t seed;
	struct server link[2]; /* 0 to the host, 1 to the drive */
	struct server *channels;
	uint64_t *plane_free_ps;
	struct ofs_nvme_flash *flash; /* of a drive with schedulers; else NULL */
	struct ofs_nvme_zones *zones; /* NULL: it has none */
	const char *refusal;          /* of the last command */
};

static uint64_t
max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static void
gap_remove(struct server *server, uint32_t at)
{
	server->gap_count--;
	memmove(&server->gaps[at], &server->gaps[at + 1],
		(server->gap_count - at) * sizeof(server->gaps[0]));
}

static void
gap_insert(struct server *server, uint32_t at, uint64_t begin_ps, uint64_t end_ps)
{
	if (server->gap_count == GAPS_MAX) {
		/* The oldest gap is the least likely to be needed again. */
		gap_remove(server, 0);
		at = at > 0 ? at - 1 : 0;
	}
	memmove(&server->gaps[at + 1], &server->gaps[at],
		(server->gap_count - at) * sizeof(server->gaps[0]));
	server->gaps[at] = (struct gap){begin_ps, end_ps};
	server->gap_count++;
}

/* Fills the first gaps from `begin_ps` to `need_ps`; returns what is still needed, moves
 * *end_ps. */
static uint64_t
server_fill_gaps(struct server *server, uint64_t begin_ps, uint64_t need_ps, uint64_t *end_ps)
{
	uint32_t i = 0;

	while (i < server->gap_count && need_ps > 0) {
		struct gap *gap = &server->gaps[i];
		uint64_t from_ps = max_u64(gap->begin_ps, begin_ps);
		uint64_t take_ps;
		uint64_t gap_end_ps = gap->end_ps;

		if (from_ps >= gap_end_ps) {
			i++;
			continue;
		}
		take_ps = gap_end_ps - from_ps < need_ps ? gap_end_ps - from_ps : need_ps;
		need_ps -= take_ps;
		*end_ps = from_ps + take_ps;
		if (from_ps == gap->begin_ps && *end_ps == gap_end_ps) {
			gap_remove(server, i);
		} else if (from_ps == gap->begin_ps) {
			gap->begin_ps = *end_ps;
		} else {
			gap->end_ps = from_ps;
			i++;
			if (*end_ps < gap_end_ps)
				gap_insert(server, i, *end_ps, gap_end_ps);
		}
	}
	return need_ps;
}

/*
 * Reserves the transfer of `bytes` that can begin at ready_ps; returns its end. A transfer may
 * be split over gaps, as packets of a link are.
 */
static uint64_t
server_reserve(struct server *server, uint64_t now_ps, uint64_t ready_ps, uint64_t bytes)
{
	uint64_t need_ps = ofs_nvme_transfer_ps(bytes, server->bytes_per_s);
	uint64_t end_ps = ready_ps;
	uint64_t begin_ps;

	while (server->gap_count > 0 && server->gaps[0].end_ps <= now_ps)
		gap_remove(server, 0);
	if (ready_ps < server->free_ps)
		need_ps = server_fill_gaps(server, ready_ps, need_ps, &end_ps);
	if (need_ps == 0)
		return end_ps;
	begin_ps = max_u64(server->free_ps, ready_ps);
	if (begin_ps > server->free_ps)
		gap_insert(server, server->gap_count, server->free_ps, begin_ps);
	server->free_ps = begin_ps + need_ps;
	return server->free_ps;
}

/* Programming time of `bytes` with every plane at work. bytes <= PAGE_SIZE_BYTES_MAX. */
static uint64_t
program_share_ps(const struct ofs_nvme_model *model, uint64_t bytes)
{
	/* At most 2^20 bytes times 10^12 ps: open enforces both. */
	uint64_t page_ps = model->params.program_ps / model->plane_count;

	return bytes * page_ps / model->params.page_size_bytes;
}

static uint64_t
model_read_page(struct ofs_nvme_model *model, uint64_t now_ps, uint64_t ready_ps, uint64_t page,
	uint64_t bytes)
{
	uint64_t plane = ofs_nvme_plane(&model->params, model->plane_count, page);
	uint64_t read_ps =
		model->params.read_ps * ofs_nvme_reads(&model->params, model->seed, &model->random_counter);
	uint64_t end_ps;

	end_ps = max_u64(ready_ps, model->plane_free_ps[plane]) + read_ps;
	model->plane_free_ps[plane] = end_ps;
	if (model->program_end_ps > now_ps)
		model->program_end_ps += read_ps / model->plane_count;
	end_ps = server_reserve(&model->channels[plane % model->params.channel_count], now_ps, end_ps,
		bytes);
	return server_reserve(&model->link[0], now_ps, end_ps, bytes);
}

static uint64_t
model_write_page(struct ofs_nvme_model *model, uint64_t now_ps, uint64_t ready_ps, uint64_t page,
	uint64_t bytes)
{
	uint64_t share_ps = program_share_ps(model, bytes);
	uint64_t end_ps = server_reserve(&model->link[1], now_ps, ready_ps, bytes);
	uint64_t plane = ofs_nvme_plane(&model->params, model->plane_count, page);

	/* No room: wait until programming has freed some. */
	if (model->program_end_ps + share_ps > end_ps + model->buffer_ps)
		end_ps = model->program_end_ps + share_ps - model->buffer_ps;
	model->program_end_ps = max_u64(model->program_end_ps, end_ps) + share_ps;
	/* The transfer to the die uses its channel, like the reads; no request waits for it. */
	server_reserve(&model->channels[plane % model->params.channel_count], now_ps, end_ps, bytes);
	return end_ps;
}

/* What firmware takes of a command, beside its interval. */
static uint64_t
firmware_ps(const struct ofs_nvme_params *params, int write, uint32_t size_bytes)
{
	if (write || size_bytes == 0)
		return ofs_nvme_write_firmware_ps(params, write > 0 ? size_bytes : 0);
	return size_bytes <= OFS_NVME_SMALL_BYTES && params->small_firmware_ps > 0
		? params->small_firmware_ps
		: params->firmware_ps;
}

/* Why the drive does not take what is asked of it; NULL: it does. */
static const char *
refusal_of(struct ofs_nvme_model *model, int *write, uint64_t offset_bytes, uint32_t size_bytes)
{
	const char *refusal;
	int erase;

	if (*write != 0 && size_bytes > 0 && model->flash != NULL
		&& ofs_nvme_flash_read_only(model->flash))
		return "the drive is at the end of its life and takes no writes (NVMe status 182h, "
			   "Attempted Write to Read Only Range); read what it has, and replace it";
	if (model->zones == NULL)
		return NULL;
	if (*write == OFS_NVME_ZONE_WRITE && size_bytes > 0)
		return ofs_nvme_zones_write(model->zones, offset_bytes, size_bytes);
	if (*write != OFS_NVME_ZONE_RESET)
		return NULL;
	refusal = ofs_nvme_zones_reset(model->zones, offset_bytes, &erase);
	if (refusal == NULL && !erase)
		*write = 1; /* a command without data */
	return refusal;
}

uint64_t
ofs_nvme_model_submit(struct ofs_nvme_model *model, uint64_t now_ps, int write, uint64_t tag,
	uint64_t offset_bytes, uint32_t size_bytes)
{
	uint64_t page_size_bytes = model->params.page_size_bytes;
	uint64_t end_bytes = offset_bytes + size_bytes;
	uint64_t start_ps = max_u64(now_ps, model->controller_free_ps);
	uint64_t ready_ps;
	uint64_t end_ps;

	model->refusal = refusal_of(model, &write, offset_bytes, size_bytes);
	if (model->refusal != NULL)
		return OFS_NVME_REFUSED;
	model->controller_free_ps = start_ps + model->params.command_interval_ps;
	ready_ps = start_ps + firmware_ps(&model->params, write, size_bytes);
	if (model->flash != NULL) {
		if (size_bytes > 0 && ofs_nvme_gathers(&model->params, write))
			ready_ps = start_ps;
		else if (write > 0 && size_bytes > 0)
			ready_ps = server_reserve(&model->link[1], now_ps, ready_ps, size_bytes);
		ofs_nvme_flash_submit(model->flash, ready_ps, write, tag, offset_bytes, size_bytes);
		return OFS_NVME_LATER;
	}
	end_ps = ready_ps;
	while (write != OFS_NVME_DISCARD && offset_bytes < end_bytes) {
		uint64_t page = offset_bytes / page_size_bytes;
		uint64_t next_bytes = (page + 1) * page_size_bytes;
		uint64_t bytes = (next_bytes < end_bytes ? next_bytes : end_bytes) - offset_bytes;
		uint64_t page_ps = write ? model_write_page(model, now_ps, ready_ps, page, bytes)
								 : model_read_page(model, now_ps, ready_ps, page, bytes);

		end_ps = max_u64(end_ps, page_ps);
		offset_bytes += bytes;
	}
	return end_ps;
}

uint64_t
ofs_nvme_model_next_ps(const struct ofs_nvme_model *model)
{
	return model->flash ? ofs_nvme_flash_next_ps(model->flash) : OFS_NVME_LATER;
}

int
ofs_nvme_model_poll(struct ofs_nvme_model *model, uint64_t now_ps, struct ofs_nvme_end *ends,
	int max)
{
	return model->flash ? ofs_nvme_flash_poll(model->flash, now_ps, ends, max) : 0;
}

void
ofs_nvme_model_wear(const struct ofs_nvme_model *model, struct ofs_nvme_wear *wear)
{
	*wear = (struct ofs_nvme_wear){0};
	if (model->flash)
		ofs_nvme_flash_wear(model->flash, wear);
	for (uint32_t i = 0; ofs_nvme_zones_get(model->zones, i) != NULL; i++)
		wear->valid_pages +=
			ofs_nvme_zones_get(model->zones, i)->written_bytes / model->params.page_size_bytes;
}

const char *
ofs_nvme_model_refusal(const struct ofs_nvme_model *model)
{
	return model->refusal;
}

int
ofs_nvme_model_zone(const struct ofs_nvme_model *model, uint32_t number, struct ofs_nvme_zone *zone)
{
	const struct ofs_nvme_zone *found = ofs_nvme_zones_get(model->zones, number);

	if (found == NULL)
		return -EINVAL;
	*zone = *found;
	return 0;
}

static int
in_range(uint64_t value, uint64_t low, uint64_t high)
{
	return value >= low && value <= high;
}

/* Collection needs a closed block with a void page: more room in closed blocks than is kept. */
static const char *
blocks_wrong(const struct ofs_nvme_params *p)
{
	uint64_t planes = (uint64_t)p->channel_count * p->dies_per_channel * p->planes_per_die;

	if (p->handle_count > OFS_NVME_HANDLES_MAX)
		return "a drive has at most 64 placement handles; lower handle_count";
	if (!p->scheduled || p->blocks_per_plane == 0)
		return p->retry_age_ps > 0 || p->refresh_ps > 0 || p->erase_limit > 0 || p->level_erases > 0
			? "age and erases are of a block, and this drive has none; give scheduled and "
			  "blocks_per_plane, or leave retry_age_ps, refresh_ps, erase_limit and level_erases "
			  "out"
			: NULL;
	if (!in_range(p->pages_per_block, 1, 1 << 16) || !in_range(p->blocks_per_plane, 1, 1 << 16)
		|| planes * p->blocks_per_plane * p->pages_per_block > BLOCK_PAGES_MAX
		|| !in_range(p->erase_ps, 1, PS_PER_S) || !in_range(p->collect_blocks, 2, 1 << 15)
		|| p->blocks_per_plane < p->collect_blocks + 3)
		return "a drive's blocks are out of range; give pages_per_block, erase_ps and "
			   "collect_blocks (2 or more, and 3 blocks beside), and at most 2^28 pages in all";
	if (p->spare_permille == 0 || p->spare_permille > 1000
		|| p->blocks_per_plane < ofs_nvme_blocks_needed(p)
		|| p->blocks_per_plane < p->collect_blocks + 2 * ofs_nvme_handles(p) + 1)
		return "a drive without over-provisioning cannot collect; raise spare_permille until it "
			   "is collect_blocks and 2 for each handle of a plane's blocks or more";
	if (ofs_nvme_blocks_kept(p) == 0)
		return "a drive that is all over-provisioning keeps nothing; lower spare_permille";
	return NULL;
}

/* The buffer holds a program that is not full yet and a page that does not fit into it. */
static const char *
programs_wrong(const struct ofs_nvme_params *p)
{
	uint64_t program_bytes = (uint64_t)p->program_pages * p->page_size_bytes;

	if (!p->scheduled
		&& (p->small_read_ps || p->small_firmware_ps || p->write_each_ps || p->program_pages
			|| p->stripe_pages > 1 || p->piece_bytes || p->commands_first))
		return "small reads, programs of several pages, stripes and pieces are of drives with "
			   "schedulers; give scheduled, or leave them out";
	if (p->stripe_pages > 1
		&& (p->program_pages != 1 || p->zone_size_bytes > 0
			|| p->page_size_bytes % OFS_NVME_SMALL_BYTES != 0))
		return "pages that are filled in turn are whole 4 KiB, each a program of its own, and in "
			   "no "
			   "zone; give program_pages = 1, or leave stripe_pages out";
	if (p->program_pages == 0)
		return NULL;
	if (p->blocks_per_plane > 0 && p->zone_size_bytes == 0)
		return "a drive that gathers programs collects nothing in this model; leave "
			   "blocks_per_plane out, or program_pages";
	if (p->write_buffer_bytes < program_bytes + p->page_size_bytes)
		return "the write buffer does not hold a program and a page; raise write_buffer_bytes or "
			   "lower program_pages";
	if (p->zone_size_bytes > 0
		&& (p->pages_per_block % p->program_pages || p->zone_capacity_bytes % program_bytes))
		return "a block, or what can be written of a zone, is not whole programs; make "
			   "pages_per_block and zone_capacity_bytes multiples of program_pages";
	return NULL;
}

/* What a drive with schedulers has besides. Its planes are bits of a word. */
static int
scheduled_valid(const struct ofs_nvme_params *p)
{
	return (uint64_t)p->dies_per_channel * p->planes_per_die <= 64
		&& in_range(p->write_buffer_bytes, 0, 1 << 30)
		&& (p->write_buffer_bytes == 0 || p->write_buffer_bytes >= p->page_size_bytes)
		&& in_range(p->read_command_ps, 1, PS_PER_S) && in_range(p->program_command_ps, 1, PS_PER_S)
		&& in_range(p->suspend_ps, 0, PS_PER_S) && in_range(p->small_read_ps, 0, PS_PER_S)
		&& in_range(p->small_firmware_ps, 0, PS_PER_S) && in_range(p->write_each_ps, 0, PS_PER_S)
		&& in_range(p->program_pages, 0, 64) && in_range(p->stripe_pages, 0, 64);
}

static int
params_valid(const struct ofs_nvme_params *p)
{
	return in_range(p->channel_count, 1, CHANNELS_MAX)
		&& in_range(p->dies_per_channel, 1, DIES_PER_CHANNEL_MAX)
		&& in_range(p->planes_per_die, 1, PLANES_MAX)
		&& in_range((uint64_t)p->channel_count * p->dies_per_channel * p->planes_per_die, 1,
			PLANES_TOTAL_MAX)
		&& in_range(p->page_size_bytes, 512, PAGE_SIZE_BYTES_MAX) && p->page_size_bytes % 512 == 0
		&& in_range(p->queue_depth_max, 1, 1 << 20) && in_range(p->read_ps, 1, PS_PER_S)
		&& in_range(p->program_ps, 1, PS_PER_S) && in_range(p->firmware_ps, 0, PS_PER_S)
		&& in_range(p->write_firmware_ps, 0, PS_PER_S)
		&& in_range(p->command_interval_ps, 1, PS_PER_S)
		&& in_range(p->channel_bytes_per_s, 1000000, PS_PER_S)
		&& in_range(p->link_bytes_per_s, 1000000, 4 * PS_PER_S)
		&& (p->scheduled ? scheduled_valid(p)
						 : in_range(p->write_buffer_bytes, p->page_size_bytes, 1ull << 40))
		&& in_range(p->retry_per_million, 0, 1000000) && in_range(p->retry_factor, 1, 1000);
}

const char *
ofs_nvme_params_wrong(const struct ofs_nvme_params *params)
{
	struct ofs_nvme_params collected;
	const char *wrong;

	if (!params_valid(params))
		return "a parameter of the drive is out of range; give every one, within what "
			   "nvme_model.h says";
	wrong = programs_wrong(params);
	if (wrong == NULL)
		wrong = ofs_nvme_zones_wrong(params);
	if (wrong != NULL)
		return wrong;
	collected = ofs_nvme_conventional(params);
	return blocks_wrong(&collected);
}

int
ofs_nvme_model_open(struct ofs_nvme_model **out, const struct ofs_nvme_params *params,
	uint64_t seed)
{
	struct ofs_nvme_model *model;

	*out = NULL;
	if (ofs_nvme_params_wrong(params) != NULL)
		return -EINVAL;
	model = calloc(1, sizeof(*model));
	if (model == NULL)
		return -ENOMEM;
	model->params = *params;
	if (model->params.write_firmware_ps == 0)
		model->params.write_firmware_ps = params->firmware_ps;
	model->seed = ofs_nvme_mix(seed);
	model->plane_count =
		(uint64_t)params->channel_count * params->dies_per_channel * params->planes_per_die;
	model->buffer_ps = params->write_buffer_bytes / params->page_size_bytes
		* program_share_ps(model, params->page_size_bytes);
	model->channels = calloc(params->channel_count, sizeof(model->channels[0]));
	model->plane_free_ps = calloc(model->plane_count, sizeof(model->plane_free_ps[0]));
	if (model->channels == NULL || model->plane_free_ps == NULL
		|| (params->scheduled && ofs_nvme_flash_open(&model->flash, &model->params, model->seed))
		|| (params->zone_size_bytes > 0 && ofs_nvme_zones_open(&model->zones, &model->params))) {
		ofs_nvme_model_close(model);
		return -ENOMEM;
	}
	ofs_nvme_model_reset(model);
	*out = model;
	return 0;
}

static void
server_reset(struct server *server, uint64_t bytes_per_s)
{
	server->bytes_per_s = bytes_per_s;
	server->free_ps = 0;
	server->gap_count = 0;
}

void
ofs_nvme_model_reset(struct ofs_nvme_model *model)
{
	model->controller_free_ps = model->program_end_ps = model->random_counter = 0;
	for (uint32_t i = 0; i < model->params.channel_count; i++)
		server_reset(&model->channels[i], model->params.channel_bytes_per_s);
	server_reset(&model->link[0], model->params.link_bytes_per_s);
	server_reset(&model->link[1], model->params.link_bytes_per_s);
	memset(model->plane_free_ps, 0, model->plane_count * sizeof(model->plane_free_ps[0]));
	if (model->flash != NULL)
		ofs_nvme_flash_reset(model->flash);
	if (model->zones != NULL)
		ofs_nvme_zones_reset_all(model->zones);
	model->refusal = NULL;
}

void
ofs_nvme_model_close(struct ofs_nvme_model *model)
{
	if (model == NULL)
		return;
	ofs_nvme_flash_close(model->flash);
	ofs_nvme_zones_close(model->zones);
	free(model->channels);
	free(model->plane_free_ps);
	free(model);
}
