/*
 * nvme_flash_gather.h: writes that the buffer makes whole programs of (nvme_flash.h).
 *
 * Model: a write is taken when its buffer has room for all of it, in the order of submission: one
 * that has to wait holds up those behind it, also to other zones. Only then firmware begins with
 * it, its data cross the link, and it ends. One that is longer than the buffer is taken in chunks.
 * What has crossed is gathered; each time that a program is full it goes to the queue of its plane,
 * and the buffer has its bytes back when it is programmed. Of a zone it is the plane that the
 * zone's addresses say, else the next in turn.
 */
#ifndef OFS_NVME_FLASH_GATHER_H
#define OFS_NVME_FLASH_GATHER_H

#include "nvme_flash_layout.h"

static inline uint32_t
program_bytes(const struct ofs_nvme_flash *flash)
{
	return flash->params.program_pages * flash->params.page_size_bytes;
}

/* Which buffer a write's bytes go to: 0, or of the zone that it is to. */
static inline uint32_t
buffer_of(const struct ofs_nvme_flash *flash, int write, uint64_t at_bytes)
{
	if (write != OFS_NVME_ZONE_WRITE || flash->buffer_count == 1)
		return 0;
	return 1 + (uint32_t)(at_bytes / flash->params.zone_size_bytes);
}

static inline void
writes_push(struct ofs_nvme_flash *flash, uint32_t command)
{
	flash->commands[command].next = OFS_NONE;
	if (flash->takes.first == OFS_NONE)
		flash->takes.first = command;
	else
		flash->commands[flash->takes.last].next = command;
	flash->takes.last = command;
}

/* Takes the first of those that wait, as long as there is room. */
static inline void
writes_admit(struct ofs_nvme_flash *flash, uint64_t now_ps)
{
	const struct ofs_nvme_params *params = &flash->params;
	/* Beside it a program that is not full may lie there. */
	uint64_t most = params->write_buffer_bytes - program_bytes(flash);

	while (flash->takes.first != OFS_NONE) {
		struct flash_command *one = &flash->commands[flash->takes.first];
		struct flash_buffer *buffer = &flash->buffers[buffer_of(flash, one->write, one->at_bytes)];
		uint64_t bytes = one->end_bytes - one->at_bytes, begin_ps = now_ps;

		if (bytes > most)
			bytes = most;
		if (bytes > buffer->left_bytes)
			return;
		buffer->left_bytes -= bytes;
		one->chunk_bytes = (uint32_t)bytes;
		if (one->end_bytes - one->at_bytes == one->size_bytes)
			begin_ps += ofs_nvme_write_firmware_ps(params, one->size_bytes);
		if (flash->write_link_free_ps < begin_ps)
			flash->write_link_free_ps = begin_ps;
		flash->write_link_free_ps += ofs_nvme_transfer_ps(bytes, params->link_bytes_per_s);
		event_push(flash, flash->write_link_free_ps, EVENT_CROSSED, flash->takes.first);
		flash->takes.first = one->next;
	}
}

/* What has crossed is gathered, and programs that are full wait for their planes. 0: the command
 * has more, which is taken next. */
static inline int
write_gather(struct ofs_nvme_flash *flash, uint32_t command, uint64_t now_ps)
{
	struct flash_command *one = &flash->commands[command];
	uint32_t number = buffer_of(flash, one->write, one->at_bytes), size = program_bytes(flash);
	struct flash_buffer *buffer = &flash->buffers[number];
	uint64_t program = number > 0 ? (one->at_bytes - buffer->gathered_bytes) / size : 0;

	buffer->gathered_bytes += one->chunk_bytes;
	one->at_bytes += one->chunk_bytes;
	for (; buffer->gathered_bytes >= size; buffer->gathered_bytes -= size) {
		uint64_t at = number > 0 ? program++ : flash->programs++;
		uint32_t page = page_take(flash);

		flash->pages[page] = (struct flash_page){
			.command = OFS_NONE,
			.plane = (uint32_t)plane_of(flash, at * flash->params.program_pages),
			.bytes = size,
			.buffer = number,
			.handle = (uint16_t)(one->write - 1),
		};
		page_queue(flash, page, 1, now_ps);
	}
	if (one->at_bytes == one->end_bytes)
		return 1;
	one->next = flash->takes.first;
	if (flash->takes.first == OFS_NONE)
		flash->takes.last = command;
	flash->takes.first = command;
	return 0;
}

#endif
