/* Do values come back from an archive and go with a delete, as in a plain table? The archive is a
 * table of the test, and its threads are calls between two turns. In virtual time. */
#include "support_device.h"
#include "value_io.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAYLOAD = 4096, LAYERS = 4, KEYS = 6, ROUNDS = 500, OBJECTS = 64, NOTES = 8, NONE = 0 };
#define VALUE_MAX (LAYERS * PAYLOAD)
#define WAIT_NS (SECOND_NS / 10)

struct object {
	struct ofs_value_note note;
	uint8_t bytes[VALUE_MAX];
};

struct annex {
	struct world world;
	struct world_host host;
	struct ofs_value_io *io;
	struct ofs_device_config config;
	int medium_fd;
	bool hold;   /* what is wanted is kept waiting, in `wanted` */
	bool stored; /* values go up */
	struct ofs_value_note wanted;
	uint32_t object_count;
	uint64_t returns;
	struct object objects[OBJECTS];
	uint8_t bytes[VALUE_MAX]; /* registered */
};

static struct ofs_key
key_of(uint32_t number)
{
	return (struct ofs_key){0x1234567800000000ull + number * number * 977, number % 2};
}

static uint64_t
length_of(uint32_t seed)
{
	return 1 + seed * 2654435761u % VALUE_MAX;
}

static void
fill(uint32_t seed, uint8_t *bytes)
{
	for (uint64_t i = 0; i < VALUE_MAX; i++)
		bytes[i] = (uint8_t)((i * 31 + (i >> 8) * 7 + seed * 131) ^ seed >> 3);
}

/* ---- the archive ---- */

static uint32_t
pieces(uint64_t length)
{
	return (uint32_t)((length + PAYLOAD - 1) / PAYLOAD);
}

static int
move(struct annex *bed, struct object *object, uint32_t write)
{
	const struct ofs_value_note *note = &object->note;
	struct ofs_archive_block blocks[LAYERS];
	uint64_t deletes;
	int rc;

	assert(ofs_device_archive_look(bed->world.device, 0, 0, NULL, NULL, &deletes) == 0);
	for (uint32_t i = 0; i < pieces(note->length); i++) {
		uint64_t left = note->length - (uint64_t)i * PAYLOAD;
		void *place = ofs_device_archive_place(bed->world.device, i);

		blocks[i] = (struct ofs_archive_block){.store_key = note->store_key,
			.layer = i,
			.length = (uint32_t)(left < PAYLOAD ? left : PAYLOAD),
			.key = note->key,
			.generation = note->generation,
			.value_length = note->length};
		if (!write)
			continue;
		memset(place, 0xa5, bed->world.device->record_size_bytes); /* so that no tag is there */
		memcpy(place, object->bytes + i * PAYLOAD, blocks[i].length);
	}
	rc = ofs_device_archive_move(bed->world.device, write, 0, deletes, 0, pieces(note->length),
		blocks);
	for (uint32_t i = 0; rc == 0 && i < pieces(note->length); i++) {
		rc = blocks[i].rc;
		if (rc == 0 && !write)
			memcpy(object->bytes + i * PAYLOAD, ofs_device_archive_place(bed->world.device, i),
				blocks[i].length);
	}
	return rc;
}

static void
send_up(struct annex *bed, const struct ofs_value_note *note)
{
	struct object *object = &bed->objects[bed->object_count];
	int32_t rc = 1;

	assert(bed->object_count < OBJECTS);
	object->note = *note;
	if (move(bed, object, 0) != 0)
		return; /* it was lost or deleted since */
	bed->object_count++;
	assert(ofs_device_value_archived(bed->world.device, 1, note, &rc) == 0 && rc == 0);
}

/* Every object of the key but one of this generation. */
static void
remove_all(struct annex *bed, const struct ofs_key *key, uint64_t but)
{
	for (uint32_t i = bed->object_count; i-- > 0;)
		if (ofs_key_equal(&bed->objects[i].note.key, key) && bed->objects[i].note.generation != but)
			bed->objects[i] = bed->objects[--bed->object_count];
}

static void
bring_back(struct annex *bed, const struct ofs_value_note *note)
{
	for (uint32_t i = 0; i < bed->object_count; i++) {
		struct object *object = &bed->objects[i];

		if (!ofs_key_equal(&object->note.key, &note->key)
			|| object->note.generation != note->generation)
			continue;
		bed->returns += move(bed, object, 1) == 0;
		assert(ofs_device_value_end(bed->world.device, 1, note, 0) == 0);
		return;
	}
	assert(ofs_device_value_end(bed->world.device, 1, note, 1) == 0);
}

static void
serve(struct annex *bed)
{
	struct ofs_value_note notes[NOTES];
	int count;

	while (ofs_device_value_await(bed->world.device, bed->stored, 0) == 1
		&& (count = ofs_device_value_notes(bed->world.device, bed->stored, notes, NOTES)) > 0) {
		for (int i = 0; i < count; i++) {
			if (notes[i].kind == OFS_NOTE_STORED) {
				send_up(bed, &notes[i]);
			} else if (notes[i].kind == OFS_NOTE_REPLACED) {
				remove_all(bed, &notes[i].key, notes[i].generation);
			} else if (notes[i].kind == OFS_NOTE_GONE) {
				remove_all(bed, &notes[i].key, 0);
				assert(ofs_device_value_end(bed->world.device, 1, &notes[i], 1) == 0);
			} else if (bed->hold) {
				bed->wanted = notes[i];
			} else {
				bring_back(bed, &notes[i]);
			}
		}
	}
}

/* Tells the device of every object, as after a listing. */
static void
list(struct annex *bed)
{
	for (uint32_t i = bed->object_count; i-- > 0;) {
		int32_t rc = 1;

		assert(ofs_device_value_archived(bed->world.device, 1, &bed->objects[i].note, &rc) == 0);
		assert(rc == 0 || rc == -ESTALE);
		if (rc == -ESTALE)
			bed->objects[i] = bed->objects[--bed->object_count];
	}
	assert(ofs_device_value_listed(bed->world.device, 1) == 0);
}

/* ---- the host ---- */

static void
come(struct annex *bed)
{
	world_open(&bed->world, &bed->config);
	world_tenant(&bed->world, 16);
	world_attach(&bed->world, &bed->host, 0, NULL);
	assert(ofs_driver_register(bed->host.driver, bed->bytes, sizeof(bed->bytes)) == 0);
	assert(ofs_value_io_open(&bed->io, bed->host.driver, 4, 10 * SECOND_NS) == 0);
}

static void
bed_open(struct annex *bed)
{
	memset(bed, 0, sizeof(*bed));
	bed->stored = true;
	world_config(&bed->config);
	bed->medium_fd = memfd_create("drive", MFD_CLOEXEC);
	assert(bed->medium_fd >= 0
		&& ftruncate(bed->medium_fd, (off_t)bed->config.storage.size_bytes) == 0);
	snprintf(bed->config.storage.path, sizeof(bed->config.storage.path), "/proc/self/fd/%d",
		bed->medium_fd);
	bed->config.core.layer_count = bed->config.store.layer_count = LAYERS;
	bed->config.policy.prefetchers |= OFS_PREFETCH_SHARED;
	bed->config.value_max = 16;
	bed->config.archive_places = LAYERS;
	bed->config.archive_wait_ns = WAIT_NS;
	come(bed);
	list(bed);
}

static void
leave(struct annex *bed)
{
	ofs_value_io_close(bed->io);
	world_abandon(&bed->host);
	world_close(&bed->world, 0);
}

/* A kill; `lose`: and another drive. */
static void
cut(struct annex *bed, bool lose)
{
	leave(bed);
	if (lose)
		assert(ftruncate(bed->medium_fd, 0) == 0
			&& ftruncate(bed->medium_fd, (off_t)bed->config.storage.size_bytes) == 0);
	come(bed);
}

static void
bed_close(struct annex *bed)
{
	world_verify(&bed->world);
	leave(bed);
	close(bed->medium_fd);
}

/* The store drops what no session names, as where it is full. */
static void
crowd(struct annex *bed)
{
	struct ofs_value_task *ended;
	struct ofs_purged purged;

	assert(ofs_value_io_run(bed->io, 0, &ended, 1) == 0); /* ends the sessions that are over */
	world_pass(&bed->world, SECOND_NS / 10);
	assert(ofs_device_tenant_purge(bed->world.device, 0, 1, 0, &purged) == 0);
}

/* A task from its submission to its end, with an archive that works beside it. */
static struct ofs_value_task
run(struct annex *bed, uint32_t verb, uint32_t number, uint32_t flags, uint64_t length)
{
	struct iovec iovec = {bed->bytes, length};
	struct ofs_value_task *ended,
		task = {.key = key_of(number),
			.verb = verb,
			.flags = flags,
			.length = length,
			.iovecs = &iovec,
			.iovec_count = length > 0,
			.filled = length,
			.committed = 1};

	assert(ofs_value_io_submit(bed->io, &task) == 0);
	while (ofs_value_io_run(bed->io, SECOND_NS / 100, &ended, 1) == 0)
		serve(bed);
	serve(bed);
	return task;
}

static int
store(struct annex *bed, uint32_t number, uint32_t seed, uint32_t flags)
{
	fill(seed, bed->bytes);
	return run(bed, OFS_VALUE_STORE, number, flags, length_of(seed)).rc;
}

static int delete(struct annex *bed, uint32_t number)
{
	return run(bed, OFS_VALUE_DELETE, number, 0, 0).rc;
}

/* The key has the value of this seed, or none. */
static void
expect(struct annex *bed, uint32_t number, uint32_t seed)
{
	static uint8_t bytes[VALUE_MAX];
	struct ofs_value_task task = run(bed, OFS_VALUE_EXIST, number, 0, 0);

	assert(task.rc == (seed == NONE ? -ENOENT : 0));
	assert(seed == NONE || task.value_length == length_of(seed));
	memset(bed->bytes, 0, VALUE_MAX);
	task = run(bed, OFS_VALUE_RETRIEVE, number, 0, VALUE_MAX);
	assert(task.rc == (seed == NONE ? -ENOENT : 0));
	fill(seed, bytes);
	assert(seed == NONE || memcmp(bytes, bed->bytes, length_of(seed)) == 0);
}

static uint64_t
blocks(struct annex *bed)
{
	world_pass(&bed->world, SECOND_NS);
	return world_status(&bed->world).store.blocks;
}

/* ---- questions ---- */

/* What the store has lost is there from the archive, also after a restart that follows the return;
 * what was deleted, before the listing too, is nowhere, and what was replaced is not there. */
static void
test_values_come_back_and_go(struct annex *bed)
{
	bed_open(bed);
	assert(store(bed, 1, 5, 0) == 0 && store(bed, 2, 6, 0) == 0 && store(bed, 2, 7, 0) == 0);
	assert(bed->object_count == 2 && bed->returns == 0);
	crowd(bed);
	expect(bed, 1, 5);
	assert(bed->returns == 1);
	cut(bed, false);
	list(bed);
	expect(bed, 1, 5);
	assert(bed->returns == 1);
	cut(bed, true);
	expect(bed, 1, NONE); /* before the archive was listed */
	list(bed);
	expect(bed, 1, 5);
	expect(bed, 2, 7);
	assert(bed->returns == 3);
	assert(delete (bed, 1) == 0 && delete (bed, 1) == -ENOENT && bed->object_count == 1);
	cut(bed, true);
	assert(delete (bed, 2) == 0 && bed->object_count == 0); /* of a key that the device lacks */
	list(bed);
	expect(bed, 1, NONE);
	expect(bed, 2, NONE);
	bed_close(bed);
}

/* A later store, or a delete, while a value is being brought back: it stays what it became, and
 * no block of the other is left. */
static void
test_a_store_during_a_return_wins(struct annex *bed, bool deleted)
{
	uint32_t left = deleted ? 0 : pieces(length_of(6));
	struct ofs_archive_block block;
	uint64_t deletes;

	bed_open(bed);
	assert(store(bed, 1, 5, 0) == 0);
	crowd(bed);
	bed->hold = true;
	assert(run(bed, OFS_VALUE_EXIST, 1, 0, 0).rc == -ENOENT); /* after the wait */
	assert(bed->wanted.kind == OFS_NOTE_WANTED);
	bed->stored = false;
	bed->objects[1] = bed->objects[0];
	assert(deleted ? delete (bed, 1) == 0 : store(bed, 1, 6, 0) == 0);
	assert(move(bed, &bed->objects[1], 1) == -ECANCELED); /* which was read before that */
	expect(bed, 1, deleted ? NONE : 6);
	block = (struct ofs_archive_block){.store_key = bed->wanted.store_key,
		.length = 1,
		.key = bed->wanted.key};
	assert(ofs_device_archive_look(bed->world.device, 0, 0, NULL, NULL, &deletes) == 0);
	assert(ofs_device_archive_move(bed->world.device, 1, 0, deletes, 0, 1, &block) == 0);
	assert(block.rc == 0 && blocks(bed) == left + 1);
	block.generation = bed->wanted.generation; /* as if the drive had had it by then */
	ofs_value_arrived(bed->world.device, 0, &block);
	assert(blocks(bed) == left);
	cut(bed, false);
	bed->object_count = 0;
	list(bed);
	expect(bed, 1, deleted ? NONE : 6);
	bed_close(bed);
}

/* Values that wait to go up do so later, whatever leaves the table meanwhile, and after a kill. */
static void
test_values_wait_to_go_up(struct annex *bed)
{
	uint32_t waiting = 1;

	bed_open(bed);
	bed->stored = false;
	for (uint32_t i = 1; i <= 15; i++)
		assert(store(bed, i, i, 0) == 0);
	for (uint32_t i = 3; i <= 15; i += 3)
		assert(delete (bed, i) == 0);
	assert(ofs_device_value_waiting(bed->world.device, &waiting) == 0 && waiting == 10);
	bed->stored = true;
	serve(bed);
	assert(ofs_device_value_waiting(bed->world.device, &waiting) == 0 && waiting == 0);
	assert(bed->object_count == 10);
	bed->stored = false;
	assert(store(bed, 3, 3, 0) == 0);
	world_pass(&bed->world, SECOND_NS / 10);
	cut(bed, false);
	list(bed);
	assert(ofs_device_value_waiting(bed->world.device, &waiting) == 0 && waiting == 1);
	bed->stored = true;
	serve(bed);
	cut(bed, true);
	list(bed);
	for (uint32_t i = 1; i <= 15; i++)
		expect(bed, i, i % 3 != 0 || i == 3 ? i : NONE);
	bed_close(bed);
}

/* One that does not come back is absent for a while and may be stored, and is then tried again; a
 * name that no store of this device can have is refused, and a full table makes room. */
static void
test_what_does_not_come_back(struct annex *bed)
{
	struct ofs_value_note note;
	int32_t rc = 1;

	bed_open(bed);
	assert(store(bed, 1, 5, 0) == 0);
	crowd(bed);
	bed->hold = true;
	expect(bed, 1, NONE);
	assert(store(bed, 1, 6, OFS_VALUE_OVER) == -ENOENT);
	bed->hold = false;
	world_pass(&bed->world, 2 * SECOND_NS);
	assert(store(bed, 1, 6, OFS_VALUE_KEEP) == -EEXIST);
	expect(bed, 1, 5);
	note = bed->objects[0].note;
	note.generation++;
	assert(ofs_device_value_archived(bed->world.device, 1, &note, &rc) == 0 && rc == -EINVAL);
	crowd(bed);
	for (uint32_t i = 2; i < 2 + bed->config.value_max; i++)
		assert(store(bed, i, i, 0) == 0);
	assert(store(bed, 100, 5, 0) == -ENOSPC);
	expect(bed, 1, NONE);
	assert(delete (bed, 2) == 0 && delete (bed, 1) == 0); /* in the archive it is, and it goes */
	cut(bed, true);
	list(bed);
	expect(bed, 1, NONE);
	expect(bed, 3, 3);
	bed_close(bed);
}

/* After any commands, kills, losses of the drive and crowded stores the values are those of a plain
 * table, where all has gone up by then. */
static void
random_commands(struct annex *bed, uint64_t seed)
{
	uint32_t model[KEYS] = {NONE};
	uint64_t state = seed;

	bed_open(bed);
	for (uint32_t i = 1; i <= ROUNDS; i++) {
		uint32_t number = (uint32_t)(ofs_draw(&state) % KEYS);
		uint32_t *value = &model[number];
		int rc;

		switch (ofs_draw(&state) % 8) {
		case 0:
		case 1:
			assert(store(bed, number, i, 0) == 0);
			*value = i;
			break;
		case 2:
			rc = store(bed, number, i, OFS_VALUE_KEEP);
			assert(rc == (*value == NONE ? 0 : -EEXIST));
			*value = *value == NONE ? i : *value;
			break;
		case 3:
			assert(delete (bed, number) == (*value == NONE ? -ENOENT : 0));
			*value = NONE;
			break;
		case 4:
			crowd(bed);
			break;
		case 5:
			if (ofs_draw(&state) % 4 != 0)
				break;
			world_pass(&bed->world, SECOND_NS / 10);
			cut(bed, ofs_draw(&state) % 2 == 0);
			list(bed);
			break;
		default:
			expect(bed, number, *value);
		}
	}
	for (uint32_t i = 0; i < KEYS; i++)
		expect(bed, i, model[i]);
	assert(bed->returns > 20);
	bed_close(bed);
}

int
main(void)
{
	static struct annex bed;

	test_values_come_back_and_go(&bed);
	test_a_store_during_a_return_wins(&bed, false);
	test_a_store_during_a_return_wins(&bed, true);
	test_values_wait_to_go_up(&bed);
	test_what_does_not_come_back(&bed);
	for (uint64_t seed = 1; seed <= 6; seed++)
		random_commands(&bed, seed);
	return printf("value_archive ok\n") < 0;
}
