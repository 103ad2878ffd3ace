/*
 * Can any image make recovery crash, loop, or serve bytes that were never written?
 *
 * The input edits a good image, of a store that codes or of one that does not: runs of bytes are
 * overwritten, copied or zeroed anywhere. Where it asks for it, checksums are set right again
 * afterwards, so that hostile numbers reach the code behind them; then only crashes and the
 * store's own counts are judged, since such an image may hold anything.
 */
#include "codec.h"
#include "store/internal.h"
#include "store_memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { LBA = 512, SEGMENTS = 8, PLACES = 3, BLOCKS = 14, LAYERS = 2 };

static struct ofs_store_config config = {
	.payload_size_bytes = 1024,
	.layer_count = LAYERS,
	.tenant_max = 2,
	.segment_size_bytes = LBA + PLACES * (1024 + LBA),
	.io_max = 4,
	.durable = 1,
	.ttl_s = 1000,
	.reserve_segments = 1,
	.room_percent = 10,
	.format = 1,
};

static _Alignas(4096) uint8_t record[2048];
static uint8_t *good[2]; /* without a codec, and with one */
static uint64_t size_bytes;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Two opens of the device: full segments, an open one, deleted blocks and older copies. */
static uint8_t *
make_good(void)
{
	uint8_t *image;
	struct memory device;
	struct ofs_store *store;
	struct ofs_key key;

	size_bytes = 131072 + (uint64_t)SEGMENTS * config.segment_size_bytes;
	memory_open(&device, size_bytes, LBA, 7);
	for (uint32_t life = 0; life < 2; life++) {
		assert(ofs_store_open(&store, &device.storage, NULL, &config, 100, NULL, 0) == 0);
		for (uint32_t i = 0; i < BLOCKS; i++)
			(void)store_put_now(store, &config, i, i % LAYERS, record, 100);
		block_name(3, &key);
		(void)ofs_store_delete(store, &key, 1);
		ofs_store_close(store);
	}
	image = malloc(size_bytes);
	assert(image != NULL);
	memcpy(image, device.bytes, size_bytes);
	memory_close(&device);
	return image;
}

static uint64_t
word(const uint8_t *data, size_t size, size_t *at)
{
	uint64_t value = 0;

	for (int i = 0; i < 4 && *at < size; i++)
		value = value << 8 | data[(*at)++];
	return value;
}

/* Most of the first 128 KiB is never looked at: an edit lands where something stands. */
static uint64_t
place_of(uint64_t value)
{
	uint64_t segments = size_bytes - 131072;

	switch (value % 8) {
	case 0:
		return value / 8 % 128;
	case 1:
		return 65536 + value / 8 % 128;
	default:
		return 131072 + value / 8 % segments;
	}
}

static void
edit(uint8_t *image, const uint8_t *data, size_t size, size_t *at)
{
	uint64_t kind = word(data, size, at);
	uint64_t to = place_of(word(data, size, at));
	uint64_t from = place_of(word(data, size, at));
	uint64_t length = 1 + kind / 4 % 2048;

	length = length < size_bytes - to ? length : size_bytes - to;
	length = length < size_bytes - from ? length : size_bytes - from;
	if (kind % 4 == 0)
		image[to] ^= (uint8_t)(1 + from % 255);
	else if (kind % 4 == 1)
		memmove(image + to, image + from, length);
	else if (kind % 4 == 2)
		memset(image + to, 0, length);
	else
		for (uint64_t i = 0; i < length && i < 16 && *at < size; i++)
			image[to + i] = data[(*at)++];
}

static void
reseal(struct ofs_store *plan, uint8_t *image)
{
	ofs_superblock_seal((struct ofs_superblock *)image);
	ofs_superblock_seal((struct ofs_superblock *)(image + 65536));
	for (uint32_t segment = 0; segment < SEGMENTS; segment++) {
		struct ofs_segment_header *header =
			(void *)(image + ofs_store_segment_offset(plan, segment));

		header->checksum = ofs_checksum(header, offsetof(struct ofs_segment_header, checksum));
	}
	for (uint32_t i = 0; i < SEGMENTS * PLACES; i++) {
		uint8_t *bytes = image + ofs_store_record_offset(plan, i);
		struct ofs_trailer *trailer = (void *)(bytes + config.payload_size_bytes);

		trailer->crc = (uint32_t)ofs_checksum(&trailer->length,
			offsetof(struct ofs_trailer, key) - offsetof(struct ofs_trailer, length));
	}
}

static void
use(struct ofs_store *store, int judge)
{
	struct ofs_store_entry entries[64];
	uint64_t cursor = 0;

	assert(ofs_store_verify(store) == 0);
	while (ofs_store_scan(store, &cursor, entries, 64) > 0) {
	}
	for (uint32_t i = 0; i < BLOCKS * LAYERS; i++) {
		int rc = store_get_now(store, &config, i / LAYERS, i % LAYERS, record, 100);

		assert(rc == 0 || rc == -ENOENT || rc == -EBADMSG || (rc == -EILSEQ && !judge));
	}
	for (uint32_t i = 0; i < 6; i++) {
		int rc = store_put_now(store, &config, 50 + i, i % LAYERS, record, 100);

		assert(rc == 0 || rc == -ENOSPC);
		assert(rc != 0 || store_get_now(store, &config, 50 + i, i % LAYERS, record, 100) == 0);
	}
	assert(ofs_store_verify(store) == 0);
	(void)ofs_store_tick(store, 5000, entries, 64);
	assert(ofs_store_verify(store) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ofs_store plan;
	struct ofs_store *store;
	struct memory device;
	char text[256];
	size_t at = 1;
	int rc;

	if (size == 0)
		return 0;
	config.codec = data[0] & 2 ? OFS_CODEC_FP8_E5M2 : OFS_CODEC_OFF;
	if (good[config.codec != 0] == NULL)
		good[config.codec != 0] = make_good();
	memory_open(&device, size_bytes, LBA, 7);
	memcpy(device.bytes, good[config.codec != 0], size_bytes);
	while (at < size)
		edit(device.bytes, data, size, &at);
	if (data[0] & 1) {
		memset(&plan, 0, sizeof(plan));
		plan.storage = &device.storage;
		plan.config = config;
		assert(ofs_store_plan(&plan, NULL, 0) == 0);
		reseal(&plan, device.bytes);
	}
	rc = ofs_store_open(&store, &device.storage, NULL, &config, 100, text, sizeof(text));
	assert(rc == 0 || (rc == -EINVAL && text[0] != '\0'));
	if (rc == 0) {
		use(store, !(data[0] & 1));
		ofs_store_close(store);
		/* A store that was opened, used and closed can be opened again. */
		assert(ofs_store_open(&store, &device.storage, NULL, &config, 100, NULL, 0) == 0);
		assert(ofs_store_verify(store) == 0);
		ofs_store_close(store);
	}
	memory_close(&device);
	return 0;
}
