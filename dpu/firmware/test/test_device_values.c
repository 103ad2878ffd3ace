/* Are values under keys what a plain table is, after a power cut too? In virtual time. */
#include "support_device.h"
#include "value_tag.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAYLOAD 4096u
#define LAYERS 4u
#define VALUE_MAX (10 * PAYLOAD) /* three chunks */
#define KEYS 6u
#define NONE 0u /* no value: seeds begin at 1 */
struct shelf {
	struct world world;
	struct world_host hosts[2];
	struct ofs_device_config config;
	int medium_fd;
};

static struct ofs_key
key_of(uint32_t number)
{
	return (struct ofs_key){0x1234567800000000ull + number, number % 2};
}

static uint64_t
length_of(uint32_t seed)
{
	return 1 + (seed * 2654435761u) % VALUE_MAX;
}

static uint32_t
pieces(uint32_t seed)
{
	return (uint32_t)((length_of(seed) + PAYLOAD - 1) / PAYLOAD);
}

static void
fill(uint32_t seed, uint8_t *bytes)
{
	for (uint64_t i = 0; i < VALUE_MAX; i++)
		bytes[i] = (uint8_t)((i * 31 + (i >> 8) * 7 + seed * 131) ^ seed >> 3);
}

static void
come(struct shelf *shelf)
{
	world_open(&shelf->world, &shelf->config);
	for (uint32_t i = 0; i < 2; i++)
		world_tenant(&shelf->world, 16);
	for (uint32_t i = 0; i < 2; i++)
		world_attach(&shelf->world, &shelf->hosts[i], i, NULL);
}

static void
shelf_open(struct shelf *shelf, uint32_t write_mode, uint32_t shared)
{
	*shelf = (struct shelf){0};
	world_config(&shelf->config);
	shelf->medium_fd = memfd_create("drive", MFD_CLOEXEC);
	assert(shelf->medium_fd >= 0
		&& ftruncate(shelf->medium_fd, (off_t)shelf->config.storage.size_bytes) == 0);
	snprintf(shelf->config.storage.path, sizeof(shelf->config.storage.path), "/proc/self/fd/%d",
		shelf->medium_fd);
	shelf->config.core.layer_count = shelf->config.store.layer_count = LAYERS;
	shelf->config.policy.prefetchers |= shared;
	shelf->config.write_mode = write_mode;
	shelf->config.value_max = 16;
	come(shelf);
}

static void
leave(struct shelf *shelf)
{
	for (uint32_t i = 0; i < 2; i++)
		world_abandon(&shelf->hosts[i]);
	world_close(&shelf->world, 0);
}

static void
cut(struct shelf *shelf)
{
	leave(shelf);
	come(shelf);
}

static void
shelf_close(struct shelf *shelf)
{
	world_verify(&shelf->world);
	leave(shelf);
	close(shelf->medium_fd);
}

static struct ofs_value_told
ask_key(struct world_host *host, uint32_t verb, uint32_t number)
{
	return world_ask(host, verb, &(struct ofs_value_ask){.key = key_of(number)});
}

static int
ask_session(struct world_host *host, uint32_t verb, uint32_t session)
{
	return world_ask(host, verb, &(struct ofs_value_ask){.session = session}).rc;
}

static int
put_piece(struct world_host *host, uint32_t session, uint32_t piece, const uint8_t *bytes,
	uint32_t length)
{
	uint32_t ordinal = piece / LAYERS;
	int32_t rc = 1;
	struct ofs_put put = {.session = session,
		.layer = piece % LAYERS,
		.count = 1,
		.length_bytes = length,
		.ordinals = &ordinal,
		.source = bytes,
		.source_stride_bytes = length,
		.timeout_ns = SECOND_NS,
		.rcs = &rc};

	return ofs_driver_put(host->driver, &put) != 0 ? -EIO : rc;
}

/* Begins a store and writes all of its pieces but the last `missing`. */
static struct ofs_value_told
begin(struct world_host *host, uint32_t number, uint32_t seed, uint32_t flags, uint32_t missing)
{
	static uint8_t bytes[VALUE_MAX];
	struct ofs_value_ask asked = {.key = key_of(number), .length = length_of(seed), .flags = flags};
	struct ofs_value_told told = world_ask(host, OFS_VALUE_STORE, &asked);

	fill(seed, bytes);
	for (uint32_t piece = 0; told.rc == 0 && piece + missing < pieces(seed); piece++) {
		uint64_t left = asked.length - (uint64_t)piece * PAYLOAD;
		uint32_t size = left < PAYLOAD ? (uint32_t)left : PAYLOAD;

		assert(put_piece(host, told.session, piece, bytes + piece * PAYLOAD, size) == 0);
	}
	return told;
}

static int
store(struct world_host *host, uint32_t number, uint32_t seed, uint32_t flags)
{
	struct ofs_value_told told = begin(host, number, seed, flags, 0);
	int rc;

	if (told.rc != 0)
		return told.rc;
	while ((rc = ask_session(host, OFS_VALUE_COMMIT, told.session)) == -EAGAIN)
		world_pass(host->world, SECOND_NS / 1000);
	assert(rc == 0 || ask_session(host, OFS_VALUE_END, told.session) == 0);
	return rc;
}

/* Reads an open value and compares it with that of the seed. */
static void
read_open(struct world_host *host, const struct ofs_value_told *told, uint32_t seed)
{
	static uint8_t bytes[VALUE_MAX], got[VALUE_MAX];

	assert(told->rc == 0 && told->length == length_of(seed)
		&& ofs_driver_register(host->driver, got, sizeof(got)) == 0);
	fill(seed, bytes);
	for (uint32_t piece = 0; piece * PAYLOAD < told->length; piece++) {
		uint32_t ordinal = piece / LAYERS, layer = piece % LAYERS, length = 0;
		uint64_t left = told->length - (uint64_t)piece * PAYLOAD;
		struct ofs_key key;
		int32_t rc = 1;
		uint8_t end;
		struct ofs_fetch fetch = {.session = told->session,
			.step = 1,
			.layer = layer,
			.selected_count = 1,
			.demand_count = 1,
			.ordinals = &ordinal,
			.keys = &key,
			.target = got,
			.target_index = &piece,
			.target_stride_bytes = PAYLOAD,
			.timeout_ns = SECOND_NS,
			.ends = &end,
			.rcs = &rc,
			.lengths = &length};

		ofs_fold_key(&told->chunk, ordinal, &key);
		ofs_block_key(&key, layer, &key);
		assert(ofs_driver_fetch(host->driver, &fetch) == 0 && rc == 0);
		assert(length == (left < PAYLOAD ? left : PAYLOAD));
	}
	assert(ofs_driver_unregister(host->driver, got, sizeof(got)) == 0);
	assert(memcmp(bytes, got, told->length) == 0);
}

/* The key has the value of this seed, or none. */
static void
expect(struct world_host *host, uint32_t number, uint32_t seed)
{
	struct ofs_value_told told = ask_key(host, OFS_VALUE_EXIST, number);

	assert(told.rc == (seed == NONE ? -ENOENT : 0));
	assert(seed == NONE || told.length == length_of(seed));
	told = ask_key(host, OFS_VALUE_RETRIEVE, number);
	assert(told.rc == (seed == NONE ? -ENOENT : 0));
	if (seed == NONE)
		return;
	read_open(host, &told, seed);
	assert(ask_session(host, OFS_VALUE_END, told.session) == 0);
}

static uint64_t
blocks(struct shelf *shelf)
{
	world_pass(&shelf->world, SECOND_NS);
	return world_status(&shelf->world).store.blocks;
}

/* What was stored is read; another tenant's key, and one that was deleted, have no value. */
static void
test_one_value(void)
{
	struct shelf shelf;

	shelf_open(&shelf, OFS_WRITE_THROUGH, OFS_PREFETCH_SHARED);
	expect(&shelf.hosts[0], 1, NONE);
	assert(store(&shelf.hosts[0], 1, 11, 0) == 0);
	expect(&shelf.hosts[0], 1, 11);
	expect(&shelf.hosts[1], 1, NONE);
	assert(blocks(&shelf) == pieces(11));
	assert(ask_key(&shelf.hosts[1], OFS_VALUE_DELETE, 1).rc == -ENOENT);
	assert(ask_key(&shelf.hosts[0], OFS_VALUE_DELETE, 1).rc == 0);
	expect(&shelf.hosts[0], 1, NONE);
	assert(blocks(&shelf) == 0);
	shelf_close(&shelf);
}

/* A reader goes on with the value that it opened; whoever opens after the commit has the new one,
 * and nothing is left of the old one when its last reader has ended. */
static void
test_a_value_is_replaced_in_one_step(void)
{
	struct ofs_value_told old, new;
	struct world_host *host;
	struct shelf shelf;

	shelf_open(&shelf, OFS_WRITE_THROUGH, OFS_PREFETCH_SHARED);
	host = &shelf.hosts[0];
	assert(store(host, 1, 5, 0) == 0);
	old = ask_key(host, OFS_VALUE_RETRIEVE, 1);
	new = begin(host, 1, 6, 0, 0);
	expect(host, 1, 5);
	assert(ask_session(host, OFS_VALUE_COMMIT, new.session) == 0);
	expect(host, 1, 6);
	read_open(host, &old, 5);
	assert(blocks(&shelf) == pieces(5) + pieces(6));
	assert(ask_session(host, OFS_VALUE_END, old.session) == 0);
	assert(blocks(&shelf) == pieces(6));
	assert(ask_session(host, OFS_VALUE_END, old.session) == -EPERM);
	shelf_close(&shelf);
}

/* A store that was given up, or whose host has left, or that lacks a piece, is no value. */
static void
test_what_is_not_committed_is_no_value(void)
{
	struct ofs_value_told told;
	struct world_host *host;
	struct shelf shelf;

	shelf_open(&shelf, OFS_WRITE_THROUGH, OFS_PREFETCH_SHARED);
	host = &shelf.hosts[0];
	assert(store(host, 1, 5, 0) == 0);
	told = begin(host, 1, 6, 0, 0);
	assert(ask_session(host, OFS_VALUE_END, told.session) == 0 && pieces(12) > LAYERS + 1);
	told = begin(host, 1, 12, 0, 1);
	assert(ask_session(host, OFS_VALUE_COMMIT, told.session) == -EAGAIN);
	assert(begin(host, 2, 7, 0, 0).rc == 0);
	world_detach(host);
	world_attach(&shelf.world, host, 0, NULL);
	expect(host, 1, 5);
	expect(host, 2, NONE);
	assert(blocks(&shelf) == pieces(5));
	shelf_close(&shelf);
}

static void
test_what_cannot_be_is_refused(void)
{
	struct ofs_value_ask asked = {.key = key_of(1)};
	struct ofs_value_told told, other;
	struct ofs_asking asking = {OFS_VALUE_LIST + 1, 1, &asked, &told, SECOND_NS};
	uint8_t bytes[PAYLOAD] = {0};
	struct world_host *host;
	struct shelf shelf;

	shelf_open(&shelf, OFS_WRITE_THROUGH, OFS_PREFETCH_SHARED);
	host = &shelf.hosts[0];
	assert(world_ask(host, OFS_VALUE_STORE, &asked).rc == -EINVAL);
	asked.length = (uint64_t)shelf.config.core.session_chunk_max * LAYERS * PAYLOAD + 1;
	assert(world_ask(host, OFS_VALUE_STORE, &asked).rc == -EMSGSIZE);
	asked.length = UINT64_MAX;
	assert(world_ask(host, OFS_VALUE_STORE, &asked).rc == -EMSGSIZE);
	asked = (struct ofs_value_ask){.key = key_of(1), .length = 1, .flags = 8};
	assert(world_ask(host, OFS_VALUE_STORE, &asked).rc == -EINVAL);
	assert(store(host, 1, 5, OFS_VALUE_OVER) == -ENOENT);
	assert(store(host, 1, 5, OFS_VALUE_KEEP) == 0 && store(host, 1, 6, OFS_VALUE_KEEP) == -EEXIST);
	assert(store(host, 1, 6, OFS_VALUE_OVER) == 0);
	told = begin(host, 2, 7, OFS_VALUE_KEEP, 0);
	other = begin(host, 2, 8, OFS_VALUE_KEEP, 0);
	assert(ask_session(host, OFS_VALUE_COMMIT, other.session) == 0
		&& ask_session(host, OFS_VALUE_COMMIT, told.session) == -EEXIST);
	expect(host, 2, 8);
	assert(length_of(7) % PAYLOAD != 0
		&& put_piece(host, told.session, pieces(7) - 1, bytes, PAYLOAD) == -EINVAL
		&& put_piece(host, told.session, pieces(7), bytes, 1) == -EINVAL);
	assert(put_piece(host, told.session, 0, bytes, PAYLOAD - 1) == -EINVAL);
	assert(ask_session(host, OFS_VALUE_END, told.session) == 0);
	told = ask_key(host, OFS_VALUE_RETRIEVE, 1);
	assert(put_piece(host, told.session, 0, bytes, PAYLOAD) == -EINVAL);
	assert(ask_session(host, OFS_VALUE_COMMIT, told.session) == -EPERM
		&& ask_session(&shelf.hosts[1], OFS_VALUE_END, told.session) == -EPERM);
	assert(ask_session(host, OFS_VALUE_END, told.session) == 0);
	assert(ofs_driver_values(host->driver, &asking) == -EINVAL);
	shelf_close(&shelf);
}

static void
test_a_batch_is_told_one_by_one(void)
{
	struct ofs_value_ask asks[40] = {0};
	struct ofs_value_told told[40];
	struct ofs_asking asking = {OFS_VALUE_EXIST, 40, asks, told, SECOND_NS};
	struct shelf shelf;

	shelf_open(&shelf, OFS_WRITE_THROUGH, OFS_PREFETCH_SHARED);
	for (uint32_t i = 0; i < 40; i++) {
		asks[i].key = key_of(i);
		assert(i % 5 != 0 || store(&shelf.hosts[0], i, i + 1, 0) == 0);
	}
	assert(ofs_driver_values(shelf.hosts[0].driver, &asking) == 0);
	for (uint32_t i = 0; i < 40; i++)
		assert(told[i].rc == (i % 5 == 0 ? 0 : -ENOENT));
	shelf_close(&shelf);
}

/* The table takes value_max values; what was deleted or lost its blocks gives room. */
static void
test_a_full_table_refuses(void)
{
	struct ofs_purged purged;
	struct shelf shelf;

	shelf_open(&shelf, OFS_WRITE_THROUGH, OFS_PREFETCH_SHARED);
	for (uint32_t i = 0; i < 16; i++)
		assert(store(&shelf.hosts[0], i, 1, 0) == 0);
	assert(store(&shelf.hosts[0], 16, 1, 0) == -ENOSPC);
	assert(store(&shelf.hosts[0], 3, 2, 0) == 0); /* one in the place of another */
	assert(ask_key(&shelf.hosts[0], OFS_VALUE_DELETE, 7).rc == 0);
	assert(store(&shelf.hosts[0], 16, 1, 0) == 0);
	assert(ofs_device_tenant_purge(shelf.world.device, 0, 0, 0, &purged) == 0);
	for (uint32_t i = 0; i < 17; i++)
		expect(&shelf.hosts[0], i, NONE);
	assert(store(&shelf.hosts[0], 20, 3, 0) == 0);
	expect(&shelf.hosts[0], 20, 3);
	shelf_close(&shelf);
}

/*
 * After a power cut each key has what was committed last. A store of which all pieces were written
 * may have become the value, since only its commit is missing; one that lacks a piece never does,
 * and leaves nothing behind.
 */
static void
test_values_are_there_after_a_power_cut(void)
{
	struct world_host *host;
	struct shelf shelf;

	shelf_open(&shelf, OFS_WRITE_THROUGH, OFS_PREFETCH_SHARED);
	host = &shelf.hosts[0];
	assert(store(host, 1, 5, 0) == 0 && store(host, 2, 6, 0) == 0 && store(host, 2, 7, 0) == 0);
	assert(store(&shelf.hosts[1], 1, 8, 0) == 0 && store(host, 3, 9, 0) == 0);
	assert(ask_key(host, OFS_VALUE_DELETE, 3).rc == 0);
	world_pass(&shelf.world, SECOND_NS);
	assert(pieces(12) > LAYERS + 1 && begin(host, 1, 12, 0, 1).rc == 0);
	for (int i = 0; i < 2; i++) {
		cut(&shelf);
		expect(host, 1, 5);
		expect(host, 2, 7);
		expect(host, 3, NONE);
		expect(&shelf.hosts[1], 1, 8);
		assert(blocks(&shelf) == pieces(5) + pieces(7) + pieces(8));
	}
	/* Another store has another number, or its pieces would meet those of the one cut off. */
	assert(store(host, 1, 12, 0) == 0);
	cut(&shelf);
	expect(host, 1, 12);
	shelf_close(&shelf);
}

/* A drive of values that is opened without them: nothing is lost, and they are there again. */
static void
test_a_daemon_without_values_leaves_them(void)
{
	struct shelf shelf;

	shelf_open(&shelf, OFS_WRITE_THROUGH, OFS_PREFETCH_SHARED);
	assert(store(&shelf.hosts[0], 1, 5, 0) == 0);
	shelf.config.value_max = 0;
	cut(&shelf);
	assert(ask_key(&shelf.hosts[0], OFS_VALUE_EXIST, 1).rc == -ENOTSUP);
	shelf.config.value_max = 16;
	cut(&shelf);
	expect(&shelf.hosts[0], 1, 5);
	shelf_close(&shelf);
}

/* Random commands against a table of seeds. */
static void
random_commands(uint32_t write_mode, uint32_t seed)
{
	uint32_t model[2][KEYS] = {{NONE}};
	uint64_t state = seed;
	struct shelf shelf;

	shelf_open(&shelf, write_mode, seed & 2 ? OFS_PREFETCH_SHARED : 0);
	for (uint32_t i = 1; i <= 400; i++) {
		uint32_t tenant = (uint32_t)(ofs_draw(&state) % 2),
				 number = (uint32_t)(ofs_draw(&state) % KEYS);
		uint32_t *value = &model[tenant][number];
		struct world_host *host = &shelf.hosts[tenant];
		struct ofs_value_told told;
		int rc = 0;

		switch (ofs_draw(&state) % 8) {
		case 0:
		case 1:
			assert(store(host, number, i, 0) == 0);
			*value = i;
			break;
		case 2:
			rc = store(host, number, i, OFS_VALUE_KEEP);
			assert(rc == (*value == NONE ? 0 : -EEXIST));
			*value = rc == 0 ? i : *value;
			break;
		case 3:
			told = begin(host, number, i, 0, (uint32_t)(ofs_draw(&state) % 2));
			assert(told.rc == 0 && ask_session(host, OFS_VALUE_END, told.session) == 0);
			break;
		case 4:
			assert(ask_key(host, OFS_VALUE_DELETE, number).rc == (*value == NONE ? -ENOENT : 0));
			*value = NONE;
			break;
		case 5:
			if (ofs_draw(&state) % 4 == 0) {
				world_pass(&shelf.world, SECOND_NS); /* deleted blocks are wiped */
				assert(ofs_device_drain(shelf.world.device, SECOND_NS) == 0);
				cut(&shelf);
			} else {
				assert(ofs_device_reset(shelf.world.device) == 0);
			}
			break;
		default:
			expect(host, number, *value);
		}
	}
	for (uint32_t i = 0; i < 2 * KEYS; i++)
		expect(&shelf.hosts[i % 2], i / 2, model[i % 2][i / 2]);
	shelf_close(&shelf);
}

int
main(void)
{
	test_one_value();
	test_a_value_is_replaced_in_one_step();
	test_what_is_not_committed_is_no_value();
	test_what_cannot_be_is_refused();
	test_a_batch_is_told_one_by_one();
	test_a_full_table_refuses();
	test_values_are_there_after_a_power_cut();
	test_a_daemon_without_values_leaves_them();
	for (uint32_t seed = 1; seed <= 8; seed++)
		random_commands(seed % 2 ? OFS_WRITE_THROUGH : OFS_WRITE_BACK, seed);
	return printf("device_values ok\n") < 0;
}
