/*
 * Does a list have just the keys of a volume that are there all the while, each once, whatever is
 * stored and deleted meanwhile, and after a restart? In virtual time.
 */
#include "support_device.h"
#include "value_io.h"
#include "value_tag.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LAYERS = 4, TENANTS = 2, VOLUMES = 2, KEYS = 24, LIST_BYTES = 400, ROUNDS = 300 };

struct library {
	struct world world;
	struct world_host hosts[TENANTS];
	struct ofs_value_io *ios[TENANTS];
	struct ofs_device_config config;
	int medium_fd;
	uint64_t random;
	bool model[TENANTS][VOLUMES][KEYS];
};

static const uint8_t volumes[VOLUMES][16] = {"one", "two"};
static uint8_t memory[LIST_BYTES];
static bool seen[KEYS];

static uint32_t
below(struct library *library, uint32_t limit)
{
	return (uint32_t)(ofs_draw(&library->random) % limit);
}

/* Keys of 1 to 16 bytes; those of one volume differ in their first. */
static uint32_t
spell(uint32_t number, uint8_t *key)
{
	uint32_t bytes = 1 + number % 16;

	memset(key, 0, 16);
	memset(key, 'a' + (int)number, bytes);
	return bytes;
}

static void
come(struct library *library)
{
	world_open(&library->world, &library->config);
	for (uint32_t i = 0; i < TENANTS; i++)
		world_tenant(&library->world, 16);
	for (uint32_t i = 0; i < TENANTS; i++) {
		world_attach(&library->world, &library->hosts[i], i, NULL);
		assert(ofs_driver_register(library->hosts[i].driver, memory, sizeof(memory)) == 0);
		assert(ofs_value_io_open(&library->ios[i], library->hosts[i].driver, 2, SECOND_NS) == 0);
	}
}

static void
leave(struct library *library)
{
	for (uint32_t i = 0; i < TENANTS; i++) {
		ofs_value_io_close(library->ios[i]);
		world_abandon(&library->hosts[i]);
	}
	world_close(&library->world, 0);
}

static void
cut(struct library *library)
{
	world_pass(&library->world, SECOND_NS); /* deleted blocks are wiped */
	assert(ofs_device_drain(library->world.device, SECOND_NS) == 0);
	leave(library);
	come(library);
}

static void
library_open(struct library *library, uint64_t seed)
{
	*library = (struct library){.random = seed};
	world_config(&library->config);
	library->medium_fd = memfd_create("drive", MFD_CLOEXEC);
	assert(library->medium_fd >= 0
		&& ftruncate(library->medium_fd, (off_t)library->config.storage.size_bytes) == 0);
	snprintf(library->config.storage.path, sizeof(library->config.storage.path), "/proc/self/fd/%d",
		library->medium_fd);
	library->config.core.layer_count = library->config.store.layer_count = LAYERS;
	library->config.value_max = 128;
	come(library);
}

static void
library_close(struct library *library)
{
	world_verify(&library->world);
	leave(library);
	close(library->medium_fd);
}

static int
done(struct library *library, uint32_t tenant, struct ofs_value_task *task)
{
	struct ofs_value_task *ended;

	assert(ofs_value_io_submit(library->ios[tenant], task) == 0);
	while (ofs_value_io_count(library->ios[tenant]) > 0)
		assert(ofs_value_io_run(library->ios[tenant], SECOND_NS, &ended, 1) >= 0);
	return task->rc;
}

static int
change(struct library *library, uint32_t tenant, uint32_t volume, uint32_t number, uint32_t verb,
	bool named)
{
	struct iovec iovec = {memory, 1 + below(library, 100)};
	struct ofs_value_task task = {.verb = verb,
		.iovecs = &iovec,
		.iovec_count = 1,
		.length = iovec.iov_len,
		.filled = iovec.iov_len,
		.committed = 1};
	uint8_t key[16];
	uint32_t bytes = spell(number, key);

	ofs_value_key(volumes[volume], key, bytes, &task.key);
	if (named) {
		task.name_bytes = bytes;
		memcpy(&task.name, key, sizeof(key));
	}
	return done(library, tenant, &task);
}

/* One list of at most `length` bytes from `start` on (KEYS: from the first): its last key. */
static uint32_t
list(struct library *library, uint32_t tenant, uint32_t volume, uint32_t start, uint32_t length)
{
	struct iovec iovec = {memory, length};
	struct ofs_value_task task = {.verb = OFS_VALUE_LIST,
		.flags = start == KEYS ? OFS_TASK_FIRST : 0,
		.length = length,
		.iovecs = &iovec,
		.iovec_count = 1};
	uint32_t count, at = 4, last = KEYS;
	uint8_t key[16];

	memcpy(&task.name, volumes[volume], 16);
	if (start < KEYS)
		ofs_value_key(volumes[volume], key, spell(start, key), &task.key);
	assert(done(library, tenant, &task) == 0);
	memcpy(&count, memory, 4);
	assert(count == task.value_length && task.landed <= length);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t number = memory[at + 2] - 'a';
		uint16_t bytes;

		memcpy(&bytes, memory + at, 2);
		assert(number < KEYS && bytes == spell(number, key)
			&& memcmp(memory + at + 2, key, bytes) == 0);
		assert(!seen[number] || (i == 0 && number == start));
		seen[number] = true;
		last = number;
		at += (2u + bytes + 3) & ~3u;
	}
	assert(at == task.landed);
	return last == start || task.landed + 20 <= length ? KEYS : last;
}

/* The whole volume, page by page; between two pages others are stored and deleted. */
static void
walk(struct library *library, uint32_t tenant, uint32_t volume)
{
	bool *there = library->model[tenant][volume], before[KEYS], changed[KEYS] = {false};
	uint32_t start = KEYS;

	memset(seen, 0, sizeof(seen));
	memcpy(before, there, sizeof(before));
	do {
		start = list(library, tenant, volume, start, 44 + below(library, LIST_BYTES - 44));
		for (uint32_t i = below(library, 4); i > 0 && start < KEYS; i--) {
			uint32_t number = below(library, KEYS);

			if (number == start)
				continue;
			if (there[number])
				assert(change(library, tenant, volume, number, OFS_VALUE_DELETE, true) == 0);
			else
				assert(change(library, tenant, volume, number, OFS_VALUE_STORE, true) == 0);
			there[number] = !there[number];
			changed[number] = true;
		}
	} while (start < KEYS);
	for (uint32_t i = 0; i < KEYS; i++)
		assert(changed[i] || seen[i] == before[i]);
}

static void
test_a_list_is_what_a_table_says(void)
{
	struct library library;

	library_open(&library, 1);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint32_t tenant = below(&library, TENANTS), volume = below(&library, VOLUMES);
		uint32_t number = below(&library, KEYS), what = below(&library, 32);
		bool *there = &library.model[tenant][volume][number];

		if (what == 0) {
			cut(&library);
		} else if (what < 8) {
			walk(&library, tenant, volume);
		} else if (what < 14) {
			assert(change(&library, tenant, volume, number, OFS_VALUE_DELETE, true)
				== (*there ? 0 : -ENOENT));
			*there = false;
		} else {
			assert(change(&library, tenant, volume, number, OFS_VALUE_STORE, true) == 0);
			*there = true;
		}
	}
	library_close(&library);
}

/* As an earlier release stored it: it serves, is in no list, and the next open counts it. */
static void
test_a_value_without_a_name_serves_and_is_left_out(void)
{
	struct library library;
	uint32_t unnamed = 9;
	uint64_t left_out = 9;

	library_open(&library, 2);
	assert(change(&library, 0, 0, 1, OFS_VALUE_STORE, false) == 0);
	assert(change(&library, 0, 0, 2, OFS_VALUE_STORE, true) == 0);
	assert(
		ofs_device_value_unnamed(library.world.device, &unnamed, &left_out) == 0 && unnamed == 0);
	for (uint32_t i = 0; i < 2; i++) {
		memset(seen, 0, sizeof(seen));
		list(&library, 0, 0, KEYS, LIST_BYTES);
		assert(!seen[1] && seen[2]);
		assert(change(&library, 0, 0, 1, OFS_VALUE_EXIST, true) == 0);
		cut(&library);
	}
	assert(
		ofs_device_value_unnamed(library.world.device, &unnamed, &left_out) == 0 && unnamed == 1);
	assert(change(&library, 0, 0, 1, OFS_VALUE_STORE, true) == 0);
	cut(&library);
	memset(seen, 0, sizeof(seen));
	list(&library, 0, 0, KEYS, LIST_BYTES);
	assert(seen[1] && seen[2]);
	assert(
		ofs_device_value_unnamed(library.world.device, &unnamed, &left_out) == 0 && unnamed == 0);
	library_close(&library);
}

/* A start that is no key begins where it would stand: others are reached from it, or before it. */
static void
test_a_list_begins_anywhere(void)
{
	uint32_t reached = 0;
	struct library library;

	library_open(&library, 3);
	for (uint32_t i = 0; i < KEYS; i += 2)
		assert(change(&library, 0, 0, i, OFS_VALUE_STORE, true) == 0);
	for (uint32_t start = 1; start < KEYS; start += 2) {
		memset(seen, 0, sizeof(seen));
		list(&library, 0, 0, start, LIST_BYTES);
		for (uint32_t i = 0; i < KEYS; i++)
			reached += seen[i];
	}
	assert(reached > 0 && reached < KEYS / 2 * KEYS / 2);
	memset(seen, 0, sizeof(seen));
	assert(list(&library, 0, 1, KEYS, LIST_BYTES) == KEYS && !seen[0]); /* another volume */
	assert(list(&library, 1, 0, KEYS, LIST_BYTES) == KEYS && !seen[0]); /* another tenant */
	library_close(&library);
}

static void
test_nonsense_is_refused(void)
{
	struct ofs_value_ask asks[3] = {{.length = UINT64_MAX}};
	struct ofs_value_told told[3] = {{0}};
	struct ofs_asking asking = {OFS_VALUE_LIST, 3, asks, told, SECOND_NS};
	struct ofs_value_task task = {.verb = OFS_VALUE_LIST, .length = 3};
	struct library library;

	assert(ofs_values_max(8, 1) >= 2); /* derive.py admits no fewer demands */
	library_open(&library, 4);
	assert(ofs_driver_values(library.hosts[0].driver, &asking) == 0 && told[0].rc == -ENOENT);
	asking.count = 1;
	assert(ofs_driver_values(library.hosts[0].driver, &asking) == 0 && told[0].rc == -EINVAL);
	asking.verb = OFS_VALUE_STORE;
	asks[0] = (struct ofs_value_ask){.length = 1, .name_bytes = 17};
	assert(ofs_driver_values(library.hosts[0].driver, &asking) == 0 && told[0].rc == -EINVAL);
	assert(ofs_value_io_submit(library.ios[0], &task) == -EINVAL);
	library_close(&library);
}

int
main(void)
{
	test_a_list_is_what_a_table_says();
	test_a_value_without_a_name_serves_and_is_left_out();
	test_a_list_begins_anywhere();
	test_nonsense_is_refused();
	return 0;
}
