/*
 * nvme_flash_parts.h: what a flash of nvme_flash.h is made of, its lists of pages and its events.
 *
 * Model: pages and commands are entries of arrays, and lists hold their numbers. An event is the
 * end of something; each command, channel and plane has at most one, so the heap has a bound.
 */
#ifndef OFS_NVME_FLASH_PARTS_H
#define OFS_NVME_FLASH_PARTS_H

#include <assert.h>

#include "heap.h"
#include "nvme_blocks.h"
#include "nvme_flash.h"
#include "nvme_zones.h"

#define SECTOR_SIZE_BYTES 512

enum event_kind { EVENT_ARRIVE, EVENT_CROSSED, EVENT_CHANNEL, EVENT_PLANE, EVENT_END };
enum plane_state {
	PLANE_IDLE,
	PLANE_TAKES_READ, /* the command is on the channel */
	PLANE_READS,
	PLANE_HOLDS,      /* data that wait for the channel, or are on it */
	PLANE_TAKES_DATA, /* of a write */
	PLANE_TAKES_ERASE,
	PLANE_PROGRAMS, /* or erases */
};
/* Of a collection or a zone's reset, what comes next. */
enum plane_step { STEP_NONE, STEP_READ, STEP_WRITE, STEP_ERASE, STEP_ZONE /* erases of a reset */ };

/* One occurrence to come: of a command, a channel or a plane. */
struct flash_event {
	struct ofs_heap_key key; /* when, then in order of cause */
	uint32_t index;
	uint32_t kind;
};

struct flash_command {
	uint64_t tag;
	uint64_t at_bytes, end_bytes; /* what has not begun */
	uint64_t pages_left;
	uint32_t slot; /* of those of a stripe that its bytes lie in, the next */
	uint32_t size_bytes;
	int32_t write;        /* as of ofs_nvme_model_submit */
	uint32_t chunk_bytes; /* of a write, on their way to the buffer */
	uint32_t next;        /* of the free ones, or of those that wait for the buffer */
};

/* A page on its way; `next` in whichever list it is. */
struct flash_page {
	uint32_t next;
	uint32_t command; /* OFS_NONE: in the write buffer, nobody waits for it */
	uint32_t plane;
	uint32_t bytes;
	uint32_t number; /* of those that the plane keeps, where it has blocks */
	uint32_t buffer; /* of a write */
	uint16_t handle;
	uint16_t discarded; /* while it was in the buffer */
};

struct flash_list {
	uint32_t first, last;
};

/* Of all writes, or of one zone's where programs are gathered. */
struct flash_buffer {
	uint64_t left_bytes;
	uint32_t gathered_bytes; /* of the program that is not full yet */
};

struct flash_plane {
	struct flash_list reads, writes;
	uint64_t end_ps;    /* of the program that runs */
	uint64_t left_ps;   /* of the program that is suspended */
	uint32_t page;      /* of the operation that runs */
	uint32_t suspended; /* the page whose program is; OFS_NONE */
	uint32_t state, step;
	uint32_t zone_blocks; /* to be erased */
	uint32_t event;       /* the end of its operation, in the heap */
};

struct flash_channel {
	struct flash_list out; /* pages in registers, first come first served */
	uint64_t ready;        /* a bit for each plane that could take a command */
	uint32_t turn;         /* whose turn is next */
	uint32_t plane;        /* whose transfer runs; OFS_NONE: none */
	uint32_t bytes;        /* of the data that leave */
};

struct ofs_nvme_flash {
	struct ofs_nvme_params params;
	uint64_t seed, counter;
	uint64_t link_free_ps, sequence;
	uint64_t programs;              /* gathered outside of zones */
	struct flash_list buffer_waits; /* pages of writes that found it full */
	struct flash_list takes;        /* commands that are gathered, before they cross */
	uint64_t write_link_free_ps;    /* of those */
	struct flash_buffer *buffers;
	struct flash_channel *channels;
	struct flash_plane *planes;
	struct flash_command *commands;
	struct flash_page *pages;
	struct flash_event *events;
	struct ofs_nvme_blocks *blocks;   /* NULL: its blocks have no end */
	uint64_t kept;                    /* pages of a plane, where it has blocks */
	uint64_t zone_pages, zone_erased; /* written, and blocks */
	uint32_t plane_count, page_count, buffer_count, event_count, event_max;
	uint32_t command_free, command_used, command_count; /* the count: those not ended */
	uint32_t page_free, page_used;
	uint32_t pages_each; /* of one command, begun and not done */
};

static inline uint32_t
list_pop(struct ofs_nvme_flash *flash, struct flash_list *list)
{
	uint32_t page = list->first;

	list->first = flash->pages[page].next;
	return page;
}

static inline void
list_push(struct ofs_nvme_flash *flash, struct flash_list *list, uint32_t page)
{
	flash->pages[page].next = OFS_NONE;
	if (list->first == OFS_NONE)
		list->first = page;
	else
		flash->pages[list->last].next = page;
	list->last = page;
}

/* Of the pages in the list, this one is void as soon as it is written. */
static inline void
list_discard(struct ofs_nvme_flash *flash, const struct flash_list *list, uint32_t number)
{
	for (uint32_t page = list->first; page != OFS_NONE; page = flash->pages[page].next)
		flash->pages[page].discarded |= flash->pages[page].number == number;
}

/* 1: now the plane collects. */
static inline int
page_place(struct ofs_nvme_flash *flash, uint32_t plane, const struct flash_page *page,
	uint64_t now_ps)
{
	int collects;

	if (flash->params.zone_size_bytes > 0 && page->handle > 0) {
		flash->zone_pages +=
			(page->bytes + flash->params.page_size_bytes - 1) / flash->params.page_size_bytes;
		return 0;
	}
	collects = ofs_nvme_blocks_write(flash->blocks, plane, page->number, page->handle, now_ps);
	if (page->discarded)
		ofs_nvme_blocks_discard(flash->blocks, plane, page->number);
	return collects;
}

/* The page that a collection moves is an entry of its own, after those of commands. */
static inline uint32_t
collector_page(const struct ofs_nvme_flash *flash, uint32_t plane)
{
	return flash->page_count + plane;
}

/* The next step of a collection: of another page, or with none left of the whole block. */
static inline uint32_t
collector_step(struct ofs_nvme_flash *flash, uint32_t plane)
{
	return ofs_nvme_blocks_left(flash->blocks, plane) ? STEP_READ : STEP_ERASE;
}

/* A step of a collection, or an erase of a zone's block, is done. */
static inline void
collector_done(struct ofs_nvme_flash *flash, uint32_t number, uint64_t now_ps)
{
	struct flash_plane *plane = &flash->planes[number];

	if (plane->step == STEP_READ) {
		plane->step = STEP_WRITE;
	} else if (plane->step == STEP_WRITE) {
		ofs_nvme_blocks_move(flash->blocks, number, now_ps);
		plane->step = collector_step(flash, number);
	} else if (plane->step == STEP_ERASE && ofs_nvme_blocks_erase(flash->blocks, number)) {
		plane->step = collector_step(flash, number);
	} else {
		if (plane->step == STEP_ZONE) {
			plane->zone_blocks--;
			flash->zone_erased++;
		}
		plane->step = plane->zone_blocks > 0 ? STEP_ZONE : STEP_NONE;
	}
}

/* tR of the page that the plane reads: a retry of the draw, or those of its block's age. */
static inline uint64_t
page_read_ps(struct ofs_nvme_flash *flash, uint32_t plane, uint64_t now_ps)
{
	const struct ofs_nvme_params *params = &flash->params;
	uint64_t drawn = ofs_nvme_reads(params, flash->seed, &flash->counter);
	uint64_t reads, at = flash->planes[plane].page;
	uint64_t read_ps = ofs_nvme_read_ps(params, flash->pages[at].bytes);

	if (params->retry_age_ps == 0)
		return drawn * read_ps;
	reads = 1
		+ ofs_nvme_blocks_age_ps(flash->blocks, plane,
			  at < flash->page_count ? flash->pages[at].number : OFS_NONE, now_ps)
			/ params->retry_age_ps;
	if (reads > params->retry_factor)
		reads = params->retry_factor;
	return (drawn > reads ? drawn : reads) * read_ps;
}

/* A plane knows where its event is. */
static inline void
event_moved(void *owner, const void *item, uint32_t position)
{
	const struct flash_event *event = item;

	if (event->kind == EVENT_PLANE)
		((struct ofs_nvme_flash *)owner)->planes[event->index].event = position;
}

static inline void
event_push(struct ofs_nvme_flash *flash, uint64_t at_ps, enum event_kind kind, uint32_t index)
{
	struct flash_event event = {{at_ps, flash->sequence++}, index, kind};

	assert(flash->event_count < flash->event_max);
	ofs_heap_up(flash->events, sizeof(event), flash->event_count++, &event, event_moved, flash);
}

static inline void
event_remove(struct ofs_nvme_flash *flash, uint32_t position)
{
	struct flash_event last = flash->events[--flash->event_count];

	if (position == flash->event_count)
		return;
	if (ofs_heap_up(flash->events, sizeof(last), position, &last, event_moved, flash) == position)
		ofs_heap_down(flash->events, sizeof(last), flash->event_count, position, &last, event_moved,
			flash);
}

static inline struct flash_event
event_pop(struct ofs_nvme_flash *flash)
{
	struct flash_event event = flash->events[0];

	event_remove(flash, 0);
	return event;
}

/* Data of a read cross the link after all that came before. */
static inline void
link_take(struct ofs_nvme_flash *flash, uint64_t now_ps, uint32_t bytes)
{
	if (flash->link_free_ps < now_ps)
		flash->link_free_ps = now_ps;
	flash->link_free_ps += ofs_nvme_transfer_ps(bytes, flash->params.link_bytes_per_s);
}

/* Data of the plane's page have left. 0: there is more of it, which is the next that leaves. */
static inline int
channel_left(struct ofs_nvme_flash *flash, const struct flash_channel *channel, uint32_t plane,
	uint64_t now_ps)
{
	struct flash_page *page = &flash->pages[flash->planes[plane].page];

	if (flash->params.piece_bytes == 0 || page->command == OFS_NONE)
		return 1;
	link_take(flash, now_ps, channel->bytes);
	page->bytes -= channel->bytes;
	return page->bytes == 0;
}

/* What a page takes of the write buffer: a sector at least, so that it holds a bounded number. */
static inline uint64_t
buffered_bytes(const struct flash_page *page)
{
	return page->bytes < SECTOR_SIZE_BYTES ? SECTOR_SIZE_BYTES : page->bytes;
}

static inline uint32_t
channel_of(const struct ofs_nvme_flash *flash, uint32_t plane)
{
	return plane % flash->params.channel_count;
}

/* Notes whether the plane could take a command. */
static inline void
plane_note(struct ofs_nvme_flash *flash, uint32_t number, uint64_t now_ps)
{
	struct flash_plane *plane = &flash->planes[number];
	uint64_t *ready = &flash->channels[channel_of(flash, number)].ready;
	uint64_t bit = 1ull << number / flash->params.channel_count;
	int reads = plane->reads.first != OFS_NONE;
	int could = plane->state == PLANE_IDLE
		&& (reads || plane->step != STEP_NONE || plane->writes.first != OFS_NONE);

	/* A program that ends before it could be suspended is left alone. */
	if (plane->state == PLANE_PROGRAMS && reads && flash->params.suspend_ps > 0)
		could = plane->end_ps > now_ps + flash->params.suspend_ps;
	*ready = could ? *ready | bit : *ready & ~bit;
}

static inline void
page_queue(struct ofs_nvme_flash *flash, uint32_t page, int write, uint64_t now_ps)
{
	uint32_t number = flash->pages[page].plane;
	struct flash_plane *plane = &flash->planes[number];

	list_push(flash, write ? &plane->writes : &plane->reads, page);
	plane_note(flash, number, now_ps);
}

static inline uint32_t
page_take(struct ofs_nvme_flash *flash)
{
	uint32_t page = flash->page_free;

	if (page != OFS_NONE)
		flash->page_free = flash->pages[page].next;
	else
		page = flash->page_used++;
	assert(page < flash->page_count);
	return page;
}

static inline void
page_free(struct ofs_nvme_flash *flash, uint32_t page)
{
	flash->pages[page].next = flash->page_free;
	flash->page_free = page;
}

#endif
