/*
 * Do reads of parts of records return the same as a plain model: the granules that were put, and no
 * others where the record has checksums of granules?
 *
 * Each seed draws a geometry, a depth of the device's queue and fault rates, puts blocks with and
 * without checksums of their granules, then reads random parts into buffers and completes these,
 * while blocks are deleted and put again. After that come the cases that a partial read must
 * refuse. `test_store_part SEED COUNT` runs COUNT seeds from SEED on.
 */
#include "granules.h"
#include "store/internal.h"
#include "store_memory.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 24, BUFFERS = 6, GRANULE_MAX = 4096, COUNT_MAX = 8, STEPS = 400 };
enum { RECORD_MAX = GRANULE_MAX * COUNT_MAX + GRANULE_MAX, UNTOUCHED = 0xa5 };

/* One buffer, and the model of its contents. */
struct part {
	uint32_t number, version, valid, reading;
	int used, flies;
};

static struct memory device;
static struct ofs_store_config config;
static struct ofs_store *store;
static uint32_t version[BLOCKS]; /* of its bytes; 0: it is not stored */
static struct part parts[BUFFERS];
static _Alignas(4096) uint8_t buffers[BUFFERS][RECORD_MAX], record[RECORD_MAX];
static uint64_t seed, served, stale, failed;

#define HOLDS(condition)                                                                       \
	do {                                                                                       \
		if (!(condition)) {                                                                    \
			fprintf(stderr, "seed %llu: %s (line %d)\n", (unsigned long long)seed, #condition, \
				__LINE__);                                                                     \
			abort();                                                                           \
		}                                                                                      \
	} while (0)

static uint32_t
draw(uint32_t bound)
{
	return (uint32_t)(memory_random(&device) % bound);
}

static uint32_t
granule_bytes(void)
{
	return config.payload_size_bytes / config.granule_count;
}

static uint32_t
all(void)
{
	return UINT32_MAX >> (32 - config.granule_count);
}

/* Of every fourth block the length is not cut into granules; one of the others has no table. */
static int
is_short(uint32_t number)
{
	return number % 4 == 3;
}

static uint8_t
byte_of(uint32_t number, uint32_t of_version, uint32_t granule)
{
	return (uint8_t)(number * 31 + of_version * 17 + granule * 5 + 1);
}

static void
make(uint32_t number, uint32_t of_version)
{
	struct ofs_trailer *trailer = (struct ofs_trailer *)(record + config.payload_size_bytes);

	for (uint32_t i = 0; i < config.granule_count; i++)
		memset(record + i * granule_bytes(), byte_of(number, of_version, i), granule_bytes());
	memset(trailer, 0, device.storage.lba_size_bytes);
	trailer->length = config.payload_size_bytes - (is_short(number) ? 100 : 0);
	trailer->checksum = ofs_checksum(record, trailer->length);
	if (number % 4 != 2)
		ofs_granules_fill(trailer, record, config.granule_count, device.storage.lba_size_bytes);
}

static void
put(uint32_t number)
{
	static uint32_t versions;
	struct ofs_key key;
	int rc;

	block_name(number, &key);
	make(number, ++versions);
	do {
		rc = ofs_store_put(store, 0, &key, 0, record, BUFFERS, 0);
		(void)ofs_store_poll(store, NULL, 0);
	} while (rc == -EAGAIN);
	HOLDS(rc == 0 && store_finish(store, BUFFERS) == 0);
	version[number] = versions;
}

/* Whether granule `i` of the block stands at its place; of a short one, as far as it goes. */
static int
stands(const struct part *part, uint32_t i)
{
	const uint8_t *at = buffers[part - parts] + i * granule_bytes();
	uint32_t size_bytes = granule_bytes();

	if (is_short(part->number) && i == config.granule_count - 1)
		size_bytes -= size_bytes > 100 ? 100 : size_bytes;
	for (uint32_t b = 0; b < size_bytes; b++)
		if (at[b] != byte_of(part->number, part->version, i))
			return 0;
	return 1;
}

static void
ask(struct part *part)
{
	struct ofs_store_part of = {0};
	struct ofs_key key;
	int rc;

	if (!part->used) {
		*part = (struct part){.number = draw(BLOCKS), .used = 1};
		memset(buffers[part - parts], UNTOUCHED, RECORD_MAX);
	}
	part->reading = (draw(4) == 0 ? all() : 1 + draw(all())) & ~part->valid;
	if (part->reading == 0)
		return;
	of = (struct ofs_store_part){part->reading, part->valid != 0};
	block_name(part->number, &key);
	rc =
		ofs_store_get_part(store, &key, 0, buffers[part - parts], &of, (uint64_t)(part - parts), 0);
	if (rc == 0) {
		part->flies = 1;
		if (!of.fill)
			part->version = version[part->number];
		return;
	}
	if (rc == -ESTALE) {
		HOLDS(of.fill && version[part->number] != part->version);
		stale++;
	} else {
		HOLDS(rc == -EAGAIN || (rc == -ENOENT && version[part->number] == 0));
	}
	part->used = part->valid != 0 && rc == -EAGAIN;
}

static void
ended(struct part *part, const struct ofs_store_done *done, int lying)
{
	struct ofs_trailer *trailer =
		(struct ofs_trailer *)(buffers[part - parts] + config.payload_size_bytes);

	HOLDS(part->flies);
	part->flies = 0;
	if (done->rc != 0) {
		HOLDS(lying || version[part->number] != part->version);
		failed++;
		if (done->rc == -EBADMSG && version[part->number] == part->version)
			version[part->number] = 0;
		for (uint32_t i = 0; i < config.granule_count; i++) /* present granules stay */
			HOLDS((part->valid >> i & 1) == 0 || stands(part, i));
		part->used = part->valid != 0;
		return;
	}
	part->valid |= part->reading;
	served++;
	HOLDS(done->length == trailer->length);
	for (uint32_t i = 0; i < config.granule_count; i++)
		if (part->valid >> i & 1)
			HOLDS(stands(part, i));
		else if (part->number % 4 < 2 && !lying) /* else it may have come whole */
			HOLDS(buffers[part - parts][i * granule_bytes()] == UNTOUCHED);
	if (!is_short(part->number))
		HOLDS(ofs_granules_agree(ofs_granules_behind(trailer), trailer, config.granule_count));
}

static void
poll(int lying)
{
	struct ofs_store_done done[BUFFERS];
	int count = ofs_store_poll(store, done, BUFFERS);

	for (int i = 0; i < count; i++)
		ended(&parts[done[i].user], &done[i], lying);
}

static int
is_idle(void)
{
	int flies = 0;

	for (uint32_t i = 0; i < BUFFERS; i++)
		flies |= parts[i].flies;
	return !flies;
}

static void
begin(uint32_t lba, uint32_t count, uint32_t granule_lbas)
{
	char text[256];
	int rc;

	memset(parts, 0, sizeof(parts));
	memset(version, 0, sizeof(version));
	config = (struct ofs_store_config){.payload_size_bytes = count * granule_lbas * lba,
		.layer_count = 1,
		.tenant_max = 1,
		.io_max = BUFFERS + 1,
		.reserve_segments = 1,
		.format = 1,
		.granule_count = count};
	config.segment_size_bytes = lba + 4 * (config.payload_size_bytes + lba);
	memory_open(&device, 131072 + 40ull * config.segment_size_bytes, lba, seed);
	rc = ofs_store_open(&store, &device.storage, NULL, &config, 0, text, sizeof(text));
	if (rc != 0)
		fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, text);
	HOLDS(rc == 0);
}

static void
finish(void)
{
	HOLDS(ofs_store_verify(store) == 0);
	ofs_store_close(store);
	memory_close(&device);
}

static void
run(void)
{
	uint32_t lba = seed % 2 ? 4096 : 512;
	int lying = seed % 3 == 0;

	begin(lba, 2 + (uint32_t)(seed / 2 % (COUNT_MAX - 1)), lba == 512 ? 1 + seed / 3 % 4 : 1);
	for (uint32_t i = 0; i < BLOCKS; i++)
		put(i);
	device.storage.queue_depth_max = device.depth = 1 + draw(6);
	device.end_percent = 30 + draw(70);
	device.read_eio_percent = lying ? draw(10) : 0;
	device.read_flip_percent = lying ? draw(10) : 0;
	for (uint32_t step = 0; step < STEPS; step++) {
		struct part *part = &parts[draw(BUFFERS)];
		uint32_t number = draw(BLOCKS);
		struct ofs_key key;

		if (part->flies)
			poll(lying);
		else if (part->used && draw(4) == 0)
			part->used = 0;
		else
			ask(part);
		if (draw(20) != 0)
			continue;
		while (!is_idle())
			poll(lying);
		block_name(number, &key);
		HOLDS(ofs_store_delete(store, &key, 0) == (version[number] ? 0 : -ENOENT));
		version[number] = 0;
		if (draw(2))
			put(number);
	}
	while (!is_idle())
		poll(lying);
	finish();
}

static int
get(uint32_t number, uint32_t granules, int fill)
{
	struct ofs_store_part of = {granules, fill};
	struct ofs_key key;
	int rc;

	block_name(number, &key);
	rc = ofs_store_get_part(store, &key, 0, buffers[0], &of, 0, 0);
	return rc != 0 ? rc : store_finish(store, 0);
}

/* All of a block is one I/O whatever it is, and counts as no part; so its payload is checked. */
static void
test_whole(void)
{
	struct ofs_store_stats stats;
	uint32_t lengths[2];

	begin(512, 4, 2);
	for (uint32_t number = 0; number < 4; number++) {
		put(number);
		device.reads = 0;
		HOLDS(get(number, all(), 0) == 0 && device.reads == 1);
	}
	ofs_store_stats_get(store, &stats);
	HOLDS(stats.gets == 4 && stats.gets_in_part == 0);
	for (uint32_t number = 0; number < 2; number++) {
		device.reads = 0;
		HOLDS(get(number, 1, 0) == 0);
		lengths[number] = (uint32_t)device.reads;
	}
	HOLDS(lengths[0] == 2 && lengths[1] == 2); /* the granule, and the last logical block */
	finish();
}

/* A fill of a block that was deleted and put with other bytes: neither absent nor mixed. */
static void
test_other_bytes(void)
{
	struct ofs_key key;

	begin(512, 4, 2);
	for (uint32_t number = 0; number < 4; number++) {
		put(number);
		HOLDS(get(number, 1, 0) == 0);
		block_name(number, &key);
		HOLDS(ofs_store_delete(store, &key, 0) == 0 && get(number, 2, 1) == -ENOENT);
		put(number);
		HOLDS(get(number, 2, 1) == -ESTALE);
		HOLDS(get(number, 1, 0) == 0 && get(number, 2, 1) == 0);
	}
	finish();
}

/* Masks past the last granule, and any of a store without granules. */
static void
test_refused(void)
{
	begin(512, 4, 2);
	put(0);
	HOLDS(get(0, 16, 0) == -EINVAL && get(0, 31, 1) == -EINVAL);
	finish();
}

int
main(int argc, char **argv)
{
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 0) : 60;

	for (seed = first; seed < first + count; seed++)
		run();
	HOLDS(served > count * 50 && stale > 0 && failed > 0);
	seed = 0;
	test_whole();
	test_other_bytes();
	test_refused();
	printf("test_store_part: ok: %llu parts, %llu of other bytes, %llu failed\n",
		(unsigned long long)served, (unsigned long long)stale, (unsigned long long)failed);
	return 0;
}
