/* A device in memory whose every moment a test controls; see store_memory.h. */
#include "store_memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

uint64_t
memory_random(struct memory *memory)
{
	return ofs_draw(&memory->random);
}

static int
chance(struct memory *memory, uint32_t percent)
{
	return memory_random(memory) % 100 < percent;
}

static int
submit(struct ofs_storage *storage, const struct ofs_io *io)
{
	struct memory *memory = (struct memory *)storage;

	if (io->offset % storage->lba_size_bytes != 0 || io->size_bytes == 0
		|| io->size_bytes % storage->lba_size_bytes != 0
		|| io->offset + io->size_bytes > storage->size_bytes
		|| (uintptr_t)io->buffer % storage->lba_size_bytes != 0) {
		return -EINVAL;
	}
	if (memory->flying_count == memory->depth)
		return -EAGAIN;
	memory->writes += io->op == OFS_STORAGE_WRITE;
	memory->reads += io->op == OFS_STORAGE_READ;
	memory->not_durable += io->op == OFS_STORAGE_WRITE && !(io->flags & OFS_STORAGE_DURABLE);
	if (io->op == OFS_STORAGE_DISCARD && !storage->discards)
		return -EINVAL;
	if (io->op == OFS_STORAGE_WRITE)
		memory->lifetimes |= 1u << io->lifetime;
	memory->flying[memory->flying_count++] = *io;
	return 0;
}

static void
write_torn(struct memory *memory, const struct ofs_io *io)
{
	uint32_t lba = memory->storage.lba_size_bytes;

	for (uint32_t at = 0; at < io->size_bytes; at += lba)
		if (memory_random(memory) & 1)
			memcpy(memory->bytes + io->offset + at, (uint8_t *)io->buffer + at, lba);
}

/* Zeros, noise, or the old content, for each block separately. */
static void
discard(struct memory *memory, const struct ofs_io *io)
{
	uint32_t lba = memory->storage.lba_size_bytes;

	for (uint32_t at = 0; at < io->size_bytes; at += lba) {
		uint64_t random = memory_random(memory);

		if (random & 1)
			memset(memory->bytes + io->offset + at, random & 2 ? 0 : (int)(random >> 8 & 255), lba);
	}
}

static int64_t
perform(struct memory *memory, const struct ofs_io *io)
{
	if (io->op == OFS_STORAGE_WRITE) {
		if (memory->write_rc != 0)
			return memory->write_rc;
		if (chance(memory, memory->write_eio_percent)) {
			write_torn(memory, io);
			return -EIO;
		}
		memcpy(memory->bytes + io->offset, io->buffer, io->size_bytes);
		return io->size_bytes;
	}
	if (io->op == OFS_STORAGE_DISCARD) {
		memory->discarded_bytes += io->size_bytes;
		discard(memory, io);
		return io->size_bytes;
	}
	if (chance(memory, memory->read_eio_percent))
		return -EIO;
	memcpy(io->buffer, memory->bytes + io->offset, io->size_bytes);
	if (chance(memory, memory->read_flip_percent))
		((uint8_t *)io->buffer)[memory_random(memory) % io->size_bytes] ^= 1;
	return io->size_bytes;
}

static int
poll(struct ofs_storage *storage, struct ofs_io_done *done, int max)
{
	struct memory *memory = (struct memory *)storage;
	uint32_t turns = memory->flying_count;
	int count = 0;

	while (turns-- > 0 && count < max) {
		uint32_t i = (uint32_t)(memory_random(memory) % memory->flying_count);
		struct ofs_io io = memory->flying[i];

		if (!chance(memory, memory->end_percent)
			|| (io.op == OFS_STORAGE_WRITE && io.offset >= memory->hold_from
				&& io.offset < memory->hold_to)) {
			continue;
		}
		memory->flying[i] = memory->flying[--memory->flying_count];
		done[count].user = io.user;
		done[count++].result = perform(memory, &io);
	}
	return count;
}

static int
register_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes)
{
	(void)storage;
	(void)base;
	(void)size_bytes;
	return 0;
}

static int
wait_fd(struct ofs_storage *storage)
{
	(void)storage;
	return -1;
}

static uint64_t
due_ns(struct ofs_storage *storage)
{
	(void)storage;
	return UINT64_MAX;
}

static const struct ofs_storage_ops memory_ops = {
	.name = "test",
	.register_memory = register_memory,
	.unregister_memory = register_memory,
	.submit = submit,
	.poll = poll,
	.wait_fd = wait_fd,
	.due_ns = due_ns,
};

void
memory_open(struct memory *memory, uint64_t size_bytes, uint32_t lba_size_bytes, uint64_t seed)
{
	memset(memory, 0, sizeof(*memory));
	ofs_clock_init_os(&memory->clock);
	memory->storage.ops = &memory_ops;
	memory->storage.clock = &memory->clock;
	memory->storage.size_bytes = size_bytes;
	memory->storage.lba_size_bytes = lba_size_bytes;
	memory->storage.queue_depth_max = MEMORY_FLYING_MAX;
	memory->depth = MEMORY_FLYING_MAX;
	memory->random = seed;
	memory->end_percent = 100;
	memory->bytes = calloc(1, size_bytes);
	assert(memory->bytes != NULL);
}

void
memory_close(struct memory *memory)
{
	free(memory->bytes);
}

void
memory_cut(struct memory *memory)
{
	for (uint32_t i = 0; i < memory->flying_count; i++)
		if (memory->flying[i].op == OFS_STORAGE_WRITE)
			write_torn(memory, &memory->flying[i]);
		else if (memory->flying[i].op == OFS_STORAGE_DISCARD)
			discard(memory, &memory->flying[i]);
	memory->flying_count = 0;
}

void
block_name(uint32_t number, struct ofs_key *key)
{
	key->lo = (number + 1) * 0x9e3779b97f4a7c15ull;
	key->hi = (number + 1) * 0xd6e8feb86659fd93ull;
}

static uint32_t
block_length(const struct ofs_store_config *config, uint32_t number, uint32_t layer)
{
	return config->payload_size_bytes - (number * 7 + layer * 3) % 100;
}

/* Every third block is one byte over and over: a codec makes next to nothing of it. */
static uint8_t
block_byte(uint32_t number, uint32_t layer, uint32_t at)
{
	if (number % 3 == 0)
		at = 0;
	return (uint8_t)(number * 31 + layer * 17 + at * 5 + (at >> 8));
}

void
block_fill(const struct ofs_store_config *config, uint32_t number, uint32_t layer, uint8_t *record)
{
	struct ofs_trailer *trailer = (struct ofs_trailer *)(record + config->payload_size_bytes);
	uint32_t length = block_length(config, number, layer);

	memset(trailer, 0xa5, sizeof(*trailer));
	for (uint32_t i = 0; i < length; i++)
		record[i] = block_byte(number, layer, i);
	trailer->length = length;
	trailer->checksum = ofs_checksum(record, length);
}

int
block_matches(const struct ofs_store_config *config, uint32_t number, uint32_t layer,
	const uint8_t *record, uint32_t length)
{
	if (length != block_length(config, number, layer))
		return 0;
	for (uint32_t i = 0; i < length; i++)
		if (record[i] != block_byte(number, layer, i))
			return 0;
	return 1;
}

int
store_finish(struct ofs_store *store, uint64_t user)
{
	struct ofs_store_done done;
	int idle = 0;

	while (idle++ < 10000)
		if (ofs_store_poll(store, &done, 1) == 1 && done.user == user)
			return done.rc;
	return -ETIMEDOUT;
}

int
store_put_now(struct ofs_store *store, const struct ofs_store_config *config, uint32_t number,
	uint32_t layer, uint8_t *record, uint64_t now_s)
{
	struct ofs_store_done done;
	struct ofs_key key;
	int tries = 0;
	int rc;

	block_name(number, &key);
	block_fill(config, number, layer, record);
	do {
		rc = ofs_store_put(store, 0, &key, layer, record, 77, now_s);
		if (rc == -EAGAIN)
			(void)ofs_store_poll(store, &done, 0);
	} while (rc == -EAGAIN && tries++ < 10000);
	return rc == 0 ? store_finish(store, 77) : rc;
}

int
store_get_now(struct ofs_store *store, const struct ofs_store_config *config, uint32_t number,
	uint32_t layer, uint8_t *record, uint64_t now_s)
{
	const struct ofs_trailer *trailer = (struct ofs_trailer *)(record + config->payload_size_bytes);
	struct ofs_store_done done;
	struct ofs_key key;
	int tries = 0;
	int rc;

	block_name(number, &key);
	memset(record, 0xee, config->payload_size_bytes + sizeof(*trailer));
	do {
		rc = ofs_store_get(store, &key, layer, record, 78, now_s);
		if (rc == -EAGAIN)
			(void)ofs_store_poll(store, &done, 0);
	} while (rc == -EAGAIN && tries++ < 10000);
	rc = rc == 0 ? store_finish(store, 78) : rc;
	if (rc == 0 && !block_matches(config, number, layer, record, trailer->length))
		return -EILSEQ;
	return rc;
}
