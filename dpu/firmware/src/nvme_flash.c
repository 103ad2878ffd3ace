/* Implements nvme_flash.h. */
#include "nvme_flash.h"

#include <stdlib.h>

#include "nvme_flash_gather.h"
#include "nvme_flash_layout.h"

#define PIECE_SIZE_BYTES 1048576 /* of one command, on its way at once */

static void
plane_start(struct ofs_nvme_flash *flash, uint32_t number, enum plane_state state, uint64_t end_ps)
{
	struct flash_plane *plane = &flash->planes[number];

	plane->state = state;
	plane->end_ps = end_ps;
	event_push(flash, end_ps, EVENT_PLANE, number);
}

static void
channel_take(struct ofs_nvme_flash *flash, uint32_t plane, uint64_t end_ps)
{
	uint32_t channel = channel_of(flash, plane);

	flash->channels[channel].plane = plane;
	event_push(flash, end_ps, EVENT_CHANNEL, channel);
}

static void
command_end(struct ofs_nvme_flash *flash, uint32_t command, uint64_t now_ps)
{
	const struct flash_command *one = &flash->commands[command];

	if (!one->write && one->size_bytes > 0) {
		if (flash->params.piece_bytes == 0)
			link_take(flash, now_ps, one->size_bytes);
		now_ps = flash->link_free_ps; /* its last piece is the last on the link */
	}
	event_push(flash, now_ps, EVENT_END, command);
}

/* The next page of the command waits for its plane, which is returned, or for the write buffer. */
static uint32_t
page_begin(struct ofs_nvme_flash *flash, uint32_t command, uint64_t now_ps)
{
	struct flash_command *one = &flash->commands[command];
	struct flash_part part = part_take(flash, one);
	uint32_t page = page_take(flash);

	flash->pages[page] = (struct flash_page){
		.command = command,
		.plane = (uint32_t)plane_of(flash, part.page),
		.bytes = part.bytes,
		.number = flash->blocks ? (uint32_t)(part.page / flash->plane_count % flash->kept) : 0,
		.handle = (uint16_t)(one->write - 1),
	};
	if (one->write && flash->params.write_buffer_bytes > 0)
		list_push(flash, &flash->buffer_waits, page);
	else
		page_queue(flash, page, one->write, now_ps);
	return flash->pages[page].plane;
}

/* The next command of the plane goes over its idle channel. */
static void
plane_command(struct ofs_nvme_flash *flash, uint32_t number, uint64_t now_ps)
{
	struct flash_plane *plane = &flash->planes[number];
	const struct ofs_nvme_params *params = &flash->params;
	uint64_t end_ps = now_ps + params->read_command_ps;

	if (plane->state == PLANE_PROGRAMS) {
		plane->left_ps = plane->end_ps - now_ps;
		plane->suspended = plane->page;
		event_remove(flash, plane->event);
		end_ps += params->suspend_ps;
	}
	plane->state = PLANE_TAKES_READ;
	if (plane->reads.first != OFS_NONE) {
		plane->page = list_pop(flash, &plane->reads);
	} else if (plane->step != STEP_NONE) {
		plane->page = collector_page(flash, number);
		if (plane->step == STEP_ERASE || plane->step == STEP_ZONE)
			plane->state = PLANE_TAKES_ERASE;
		else if (plane->step == STEP_WRITE)
			plane->state = PLANE_TAKES_DATA;
	} else {
		plane->page = list_pop(flash, &plane->writes);
		plane->state = PLANE_TAKES_DATA;
		if (flash->blocks && page_place(flash, number, &flash->pages[plane->page], now_ps))
			plane->step = collector_step(flash, number);
	}
	if (plane->state == PLANE_TAKES_DATA) {
		end_ps = now_ps + params->program_command_ps
			+ ofs_nvme_transfer_ps(flash->pages[plane->page].bytes, params->channel_bytes_per_s);
	}
	plane_note(flash, number, now_ps);
	channel_take(flash, number, end_ps);
}

/* The first page that waits, or a piece of it, leaves. 0: none waits. */
static int
channel_out(struct ofs_nvme_flash *flash, struct flash_channel *channel, uint64_t now_ps)
{
	const struct flash_page *page;

	if (channel->out.first == OFS_NONE)
		return 0;
	page = &flash->pages[channel->out.first];
	channel->bytes = page->bytes;
	if (flash->params.piece_bytes > 0 && page->command != OFS_NONE
		&& page->bytes > flash->params.piece_bytes)
		channel->bytes = flash->params.piece_bytes;
	else
		list_pop(flash, &channel->out);
	channel_take(flash, page->plane,
		now_ps + ofs_nvme_transfer_ps(channel->bytes, flash->params.channel_bytes_per_s));
	return 1;
}

/* What an idle channel does next. */
static void
channel_next(struct ofs_nvme_flash *flash, uint32_t number, uint64_t now_ps)
{
	struct flash_channel *channel = &flash->channels[number];

	if (channel->plane != OFS_NONE)
		return;
	if (!flash->params.commands_first && channel_out(flash, channel, now_ps))
		return;
	while (channel->ready) {
		uint64_t after = channel->ready >> channel->turn << channel->turn;
		uint32_t at = (uint32_t)__builtin_ctzll(after ? after : channel->ready);
		uint32_t plane = at * flash->params.channel_count + number;

		plane_note(flash, plane, now_ps);
		if (!(channel->ready >> at & 1))
			continue;
		channel->turn = (at + 1) % 64;
		plane_command(flash, plane, now_ps);
		return;
	}
	channel_out(flash, channel, now_ps);
}

/* One page of the command has done what it waits for; of a long one, another begins. */
static void
command_page(struct ofs_nvme_flash *flash, uint32_t command, uint64_t now_ps)
{
	struct flash_command *one;

	if (command == OFS_NONE)
		return;
	one = &flash->commands[command];
	if (one->at_bytes < one->end_bytes)
		channel_next(flash, channel_of(flash, page_begin(flash, command, now_ps)), now_ps);
	if (--one->pages_left == 0)
		command_end(flash, command, now_ps);
}

/* Pages of writes enter the buffer in order, while there is room; then nobody waits for them. */
static void
buffer_fill(struct ofs_nvme_flash *flash, uint64_t now_ps)
{
	while (flash->buffer_waits.first != OFS_NONE) {
		struct flash_page *page = &flash->pages[flash->buffer_waits.first];
		uint32_t command = page->command, plane = page->plane;

		if (buffered_bytes(page) > flash->buffers[0].left_bytes)
			return;
		flash->buffers[0].left_bytes -= buffered_bytes(page);
		page->command = OFS_NONE;
		page_queue(flash, list_pop(flash, &flash->buffer_waits), 1, now_ps);
		channel_next(flash, channel_of(flash, plane), now_ps);
		command_page(flash, command, now_ps);
	}
}

/* The plane's register is free again. */
static void
plane_done(struct ofs_nvme_flash *flash, uint32_t number, uint64_t now_ps)
{
	struct flash_plane *plane = &flash->planes[number];
	uint32_t command = flash->pages[plane->page].command;

	if (plane->page == collector_page(flash, number))
		collector_done(flash, number, now_ps);
	else
		page_free(flash, plane->page);
	plane->state = PLANE_IDLE;
	if (plane->suspended != OFS_NONE && plane->reads.first == OFS_NONE) {
		plane->page = plane->suspended;
		plane->suspended = OFS_NONE;
		plane_start(flash, number, PLANE_PROGRAMS, now_ps + plane->left_ps);
	}
	plane_note(flash, number, now_ps);
	command_page(flash, command, now_ps);
}

static void
on_channel(struct ofs_nvme_flash *flash, uint32_t number, uint64_t now_ps)
{
	struct flash_channel *channel = &flash->channels[number];
	uint32_t plane = channel->plane;

	channel->plane = OFS_NONE;
	if (flash->planes[plane].state == PLANE_TAKES_READ)
		plane_start(flash, plane, PLANE_READS, now_ps + page_read_ps(flash, plane, now_ps));
	else if (flash->planes[plane].state == PLANE_TAKES_DATA)
		plane_start(flash, plane, PLANE_PROGRAMS, now_ps + flash->params.program_ps);
	else if (flash->planes[plane].state == PLANE_TAKES_ERASE)
		plane_start(flash, plane, PLANE_PROGRAMS, now_ps + flash->params.erase_ps);
	else if (channel_left(flash, channel, plane, now_ps))
		plane_done(flash, plane, now_ps);
	channel_next(flash, number, now_ps);
}

static void
on_plane(struct ofs_nvme_flash *flash, uint32_t number, uint64_t now_ps)
{
	struct flash_plane *plane = &flash->planes[number];
	uint32_t channel = channel_of(flash, number);
	uint32_t buffer = flash->pages[plane->page].buffer;

	if (plane->state == PLANE_READS) {
		plane->state = PLANE_HOLDS;
		list_push(flash, &flash->channels[channel].out, plane->page);
	} else {
		if (flash->params.write_buffer_bytes > 0 && plane->page != collector_page(flash, number))
			flash->buffers[buffer].left_bytes += buffered_bytes(&flash->pages[plane->page]);
		plane_done(flash, number, now_ps);
		buffer_fill(flash, now_ps);
		writes_admit(flash, now_ps);
	}
	channel_next(flash, channel, now_ps);
}

/* Each plane erases its blocks of a zone, before its next write; what was gathered is void. */
static void
zone_erase(struct ofs_nvme_flash *flash, uint64_t at_bytes, uint64_t now_ps)
{
	struct flash_buffer *buffer = &flash->buffers[buffer_of(flash, OFS_NVME_ZONE_WRITE, at_bytes)];

	buffer->left_bytes += buffer->gathered_bytes;
	buffer->gathered_bytes = 0;
	for (uint32_t i = 0; i < flash->plane_count; i++) {
		struct flash_plane *plane = &flash->planes[i];

		plane->zone_blocks += ofs_nvme_zone_blocks(&flash->params);
		if (plane->step == STEP_NONE)
			plane->step = STEP_ZONE;
		plane_note(flash, i, now_ps);
	}
	writes_admit(flash, now_ps);
	for (uint32_t i = 0; i < flash->params.channel_count; i++)
		channel_next(flash, i, now_ps);
}

static void
on_arrive(struct ofs_nvme_flash *flash, uint32_t command, uint64_t now_ps)
{
	struct flash_command *one = &flash->commands[command];

	if (one->write == OFS_NVME_DISCARD && flash->blocks)
		pages_discard(flash, one);
	if (one->write == OFS_NVME_ZONE_RESET)
		zone_erase(flash, one->at_bytes, now_ps);
	if (one->write < 0 || one->size_bytes == 0) {
		command_end(flash, command, now_ps);
		return;
	}
	if (ofs_nvme_gathers(&flash->params, one->write)) {
		writes_push(flash, command);
		writes_admit(flash, now_ps);
		return;
	}
	one->pages_left = parts_count(flash, one);
	for (uint32_t i = 0; i < flash->pages_each && one->at_bytes < one->end_bytes; i++)
		page_begin(flash, command, now_ps);
	buffer_fill(flash, now_ps);
	for (uint32_t i = 0; i < flash->params.channel_count; i++)
		channel_next(flash, i, now_ps);
}

static void
on_crossed(struct ofs_nvme_flash *flash, uint32_t command, uint64_t now_ps)
{
	if (write_gather(flash, command, now_ps))
		command_end(flash, command, now_ps);
	else
		writes_admit(flash, now_ps);
	for (uint32_t i = 0; i < flash->params.channel_count; i++)
		channel_next(flash, i, now_ps);
}

void
ofs_nvme_flash_submit(struct ofs_nvme_flash *flash, uint64_t at_ps, int write, uint64_t tag,
	uint64_t offset_bytes, uint32_t size_bytes)
{
	uint32_t command = flash->command_free;

	if (command != OFS_NONE)
		flash->command_free = flash->commands[command].next;
	else
		command = flash->command_used++;
	assert(command < flash->params.queue_depth_max);
	flash->commands[command] = (struct flash_command){
		.tag = tag,
		.at_bytes = offset_bytes,
		.end_bytes = offset_bytes + size_bytes,
		.size_bytes = size_bytes,
		.write = write,
	};
	flash->command_count++;
	event_push(flash, at_ps, EVENT_ARRIVE, command);
}

uint64_t
ofs_nvme_flash_next_ps(const struct ofs_nvme_flash *flash)
{
	/* Buffered writes are programmed when nobody waits any more. */
	return flash->command_count ? flash->events[0].key.first : OFS_NVME_LATER;
}

int
ofs_nvme_flash_poll(struct ofs_nvme_flash *flash, uint64_t now_ps, struct ofs_nvme_end *ends,
	int max)
{
	int count = 0;

	while (count < max && flash->event_count && flash->events[0].key.first <= now_ps) {
		struct flash_event event = event_pop(flash);
		uint64_t at_ps = event.key.first;

		if (event.kind == EVENT_ARRIVE) {
			on_arrive(flash, event.index, at_ps);
		} else if (event.kind == EVENT_CROSSED) {
			on_crossed(flash, event.index, at_ps);
		} else if (event.kind == EVENT_CHANNEL) {
			on_channel(flash, event.index, at_ps);
		} else if (event.kind == EVENT_PLANE) {
			on_plane(flash, event.index, at_ps);
		} else {
			ends[count++] = (struct ofs_nvme_end){flash->commands[event.index].tag, at_ps};
			flash->commands[event.index].next = flash->command_free;
			flash->command_free = event.index;
			flash->command_count--;
		}
	}
	return count;
}

int
ofs_nvme_flash_read_only(const struct ofs_nvme_flash *flash)
{
	return flash->blocks != NULL && ofs_nvme_blocks_read_only(flash->blocks);
}

void
ofs_nvme_flash_wear(const struct ofs_nvme_flash *flash, struct ofs_nvme_wear *wear)
{
	*wear = (struct ofs_nvme_wear){0};
	if (flash->blocks)
		ofs_nvme_blocks_wear(flash->blocks, wear);
	wear->written_pages += flash->zone_pages;
	wear->erased_blocks += flash->zone_erased;
}

void
ofs_nvme_flash_reset(struct ofs_nvme_flash *flash)
{
	const struct flash_list empty = {OFS_NONE, OFS_NONE};

	flash->counter = flash->link_free_ps = flash->sequence = 0;
	flash->event_count = flash->page_used = flash->command_used = 0;
	flash->command_count = 0;
	flash->zone_pages = flash->zone_erased = flash->programs = 0;
	flash->command_free = flash->page_free = OFS_NONE;
	for (uint32_t i = 0; i < flash->buffer_count; i++)
		flash->buffers[i] = (struct flash_buffer){flash->params.write_buffer_bytes, 0};
	flash->buffer_waits = flash->takes = empty;
	flash->write_link_free_ps = 0;
	for (uint32_t i = 0; i < flash->params.channel_count; i++)
		flash->channels[i] = (struct flash_channel){.out = empty, .plane = OFS_NONE};
	for (uint32_t i = 0; i < flash->plane_count; i++) {
		flash->planes[i] = (struct flash_plane){
			.reads = empty,
			.writes = empty,
			.suspended = OFS_NONE,
		};
		flash->pages[collector_page(flash, i)] = (struct flash_page){
			.command = OFS_NONE,
			.plane = i,
			.bytes = flash->params.page_size_bytes,
		};
	}
	if (flash->blocks)
		ofs_nvme_blocks_reset(flash->blocks);
}

int
ofs_nvme_flash_open(struct ofs_nvme_flash **out, const struct ofs_nvme_params *params,
	uint64_t seed)
{
	struct ofs_nvme_flash *flash = calloc(1, sizeof(*flash));

	*out = flash;
	if (flash == NULL)
		return -ENOMEM;
	flash->params = *params;
	flash->seed = seed;
	flash->plane_count = params->channel_count * params->dies_per_channel * params->planes_per_die;
	flash->pages_each = PIECE_SIZE_BYTES / params->page_size_bytes + 1;
	/* A buffered write ends before its pages are programmed. */
	flash->page_count = params->queue_depth_max * flash->pages_each
		+ (uint32_t)(params->write_buffer_bytes / SECTOR_SIZE_BYTES);
	flash->buffer_count = 1;
	if (params->program_pages > 0 && params->zone_size_bytes > 0) {
		flash->buffer_count += params->zone_count;
		flash->page_count +=
			params->zone_count * (uint32_t)(params->write_buffer_bytes / program_bytes(flash));
	}
	flash->event_max = params->queue_depth_max + params->channel_count + flash->plane_count;
	flash->channels = calloc(params->channel_count, sizeof(*flash->channels));
	flash->planes = calloc(flash->plane_count, sizeof(*flash->planes));
	flash->commands = calloc(params->queue_depth_max, sizeof(*flash->commands));
	flash->pages = calloc(flash->page_count + flash->plane_count, sizeof(*flash->pages));
	flash->events = calloc(flash->event_max, sizeof(*flash->events));
	flash->buffers = calloc(flash->buffer_count, sizeof(*flash->buffers));
	if (!flash->channels || !flash->planes || !flash->commands || !flash->pages || !flash->events
		|| !flash->buffers)
		return -ENOMEM;
	if (params->blocks_per_plane > 0) {
		const struct ofs_nvme_params collected = ofs_nvme_conventional(params);

		flash->kept = ofs_nvme_blocks_kept(&collected);
		if (ofs_nvme_blocks_open(&flash->blocks, &collected, flash->plane_count))
			return -ENOMEM;
	}
	ofs_nvme_flash_reset(flash);
	return 0;
}

void
ofs_nvme_flash_close(struct ofs_nvme_flash *flash)
{
	if (flash == NULL)
		return;
	ofs_nvme_blocks_close(flash->blocks);
	free(flash->channels);
	free(flash->planes);
	free(flash->commands);
	free(flash->pages);
	free(flash->events);
	free(flash->buffers);
	free(flash);
}
