/*
 * Is every acknowledged block there after the power is cut at any moment, are no other bytes served
 * than were written, and does nothing come back whose delete was acknowledged, whatever the device
 * does meanwhile?
 *
 * Each seed draws its own geometry and fault rates, then mixes puts, gets, deletes, ticks and
 * cuts of the power on one device. `test_store_cut SEED COUNT` runs COUNT seeds from SEED on; a
 * seed reproduces a failure.
 */
#include "codec.h"
#include "store/internal.h"
#include "store_memory.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 160, LAYERS = 3, IO = 12, RECORD_MAX = 8192, STEPS = 1500 };

struct store_world {
	struct memory device;
	struct ofs_store_config config;
	struct ofs_store *store;
	uint64_t seed;
	uint64_t now_s;
	uint8_t stored[BLOCKS][LAYERS]; /* acknowledged and not given up since */
	uint8_t busy[BLOCKS][LAYERS];   /* puts in flight */
	uint8_t gone[BLOCKS][LAYERS];   /* 1: deleted, 2: and that is acknowledged */
	uint64_t ticket[2];             /* of the tenants that wait for their deletes */
	uint64_t deleted;               /* deletes that were acknowledged */
	uint32_t number[IO];            /* of the operation in this buffer */
	uint32_t layer[IO];
	uint8_t used[IO];      /* 0 free, 1 put, 2 get */
	uint8_t overtaken[IO]; /* its block was deleted since it began */
	uint64_t acknowledged;
	uint64_t served;
	uint64_t lost_checks;
	uint64_t full;
	uint64_t moved;
	uint64_t coded;
	uint64_t discarded;
	int lying; /* reads may fail or flip: then only wrong bytes are judged */
};

static _Alignas(4096) uint8_t buffers[IO][RECORD_MAX];
static struct store_world world;

#define HOLDS(w, condition)                                                             \
	do {                                                                                \
		if (!(condition)) {                                                             \
			fprintf(stderr, "seed %llu: %s (line %d)\n", (unsigned long long)(w)->seed, \
				#condition, __LINE__);                                                  \
			abort();                                                                    \
		}                                                                               \
	} while (0)

static uint32_t
draw(struct store_world *w, uint32_t bound)
{
	return (uint32_t)(memory_random(&w->device) % bound);
}

static void
open_store(struct store_world *w)
{
	char text[256];
	int rc = ofs_store_open(&w->store, &w->device.storage, NULL, &w->config, w->now_s, text,
		sizeof(text));

	if (rc != 0) {
		fprintf(stderr, "seed %llu: %s\n", (unsigned long long)w->seed, text);
		abort();
	}
	HOLDS(w, ofs_store_verify(w->store) == 0);
	memset(w->used, 0, sizeof(w->used));
	memset(w->busy, 0, sizeof(w->busy));
	memset(w->ticket, 0, sizeof(w->ticket));
	for (uint32_t i = 0; i < BLOCKS * LAYERS; i++)
		w->gone[i / LAYERS][i % LAYERS] &= 2; /* waits for the other deletes got no answer */
}

static void
ended(struct store_world *w, const struct ofs_store_done *done)
{
	uint32_t i = (uint32_t)done->user;
	uint32_t number = w->number[i];
	uint32_t layer = w->layer[i];

	if (w->used[i] == 1) {
		w->busy[number][layer]--;
		HOLDS(w, done->rc == 0 || done->rc == -EIO);
		if (done->rc == 0) {
			w->stored[number][layer] = 1;
			w->acknowledged++;
		}
	} else {
		HOLDS(w, w->used[i] == 2);
		HOLDS(w,
			done->rc == 0 || done->rc == -EBADMSG || (w->lying && done->rc == -EIO)
				|| (done->rc == -ENOENT && w->overtaken[i]));
		if (done->rc == 0) {
			HOLDS(w, block_matches(&w->config, number, layer, buffers[i], done->length));
			w->served++;
		} else if (done->rc != -ENOENT) {
			w->lost_checks++;
			HOLDS(w, w->lying || !w->stored[number][layer]);
			w->stored[number][layer] = 0;
		}
	}
	w->used[i] = 0;
}

/* The deletes of a tenant that are durable by now; a waiting tenant takes a ticket now and then. */
static void
acknowledge(struct store_world *w)
{
	for (uint32_t tenant = 0; tenant < 2; tenant++) {
		if (w->ticket[tenant] == 0) {
			for (uint32_t i = tenant; i < BLOCKS; i += 2)
				for (uint32_t layer = 0; layer < LAYERS; layer++)
					w->gone[i][layer] |= w->gone[i][layer] == 1 ? 4 : 0;
		}
		if (ofs_store_wiped(w->store, tenant, &w->ticket[tenant]) != 0)
			continue;
		w->ticket[tenant] = 0;
		for (uint32_t i = tenant; i < BLOCKS; i += 2) {
			for (uint32_t layer = 0; layer < LAYERS; layer++) {
				w->deleted += w->gone[i][layer] == 5;
				w->gone[i][layer] = w->gone[i][layer] == 5 ? 2 : w->gone[i][layer];
			}
		}
	}
}

static void
poll_store(struct store_world *w)
{
	struct ofs_store_done done[IO];
	int count = ofs_store_poll(w->store, done, IO);

	for (int i = 0; i < count; i++)
		ended(w, &done[i]);
	acknowledge(w);
}

static void
start(struct store_world *w, uint32_t kind)
{
	uint32_t i = draw(w, IO);
	uint32_t number = draw(w, BLOCKS);
	uint32_t layer = draw(w, LAYERS);
	struct ofs_key key;
	int rc;

	if (w->used[i] != 0)
		return;
	block_name(number, &key);
	w->number[i] = number;
	w->layer[i] = layer;
	w->overtaken[i] = 0;
	if (kind == 1) {
		block_fill(&w->config, number, layer, buffers[i]);
		rc = ofs_store_put(w->store, number % 2, &key, layer, buffers[i], i, w->now_s);
		w->busy[number][layer] += rc == 0;
		w->gone[number][layer] = rc == 0 ? 0 : w->gone[number][layer];
		w->full += rc == -ENOSPC;
		HOLDS(w,
			rc == 0 || rc == -EAGAIN || rc == -ENOSPC
				|| (rc == -EIO && ofs_store_refuses(w->store)));
	} else {
		rc = ofs_store_get(w->store, &key, layer, buffers[i], i, w->now_s);
		HOLDS(w, rc == 0 || rc == -EAGAIN || rc == -ENOENT);
		HOLDS(w, rc != -ENOENT || !w->stored[number][layer] || w->lying);
	}
	if (rc == 0)
		w->used[i] = (uint8_t)kind;
}

static void delete(struct store_world *w)
{
	uint32_t number = draw(w, BLOCKS);
	uint32_t layer = draw(w, LAYERS);
	struct ofs_key key;
	int rc;

	block_name(number, &key);
	if (w->busy[number][layer] > 0)
		return; /* whether the put or the delete came last would be the test's guess */
	rc = ofs_store_delete(w->store, &key, layer);
	HOLDS(w, rc == 0 || !w->stored[number][layer] || w->lying);
	w->stored[number][layer] = 0;
	for (uint32_t i = 0; i < IO; i++)
		w->overtaken[i] |= w->number[i] == number && w->layer[i] == layer;
	w->gone[number][layer] = 1; /* also where it was unknown: a write of it may have failed */
}

/* Everything that was acknowledged is there, with its bytes. */
static void
check_all(struct store_world *w)
{
	for (uint32_t number = 0; number < BLOCKS; number++) {
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			int rc = store_get_now(w->store, &w->config, number, layer, buffers[0], w->now_s);

			HOLDS(w, rc != -EILSEQ);
			HOLDS(w, rc == 0 || !w->stored[number][layer] || w->lying);
			HOLDS(w, rc == 0 || rc == -ENOENT || rc == -EBADMSG || w->lying);
			HOLDS(w, rc != 0 || w->gone[number][layer] != 2 || w->lying);
		}
	}
}

/* A killed store gets no close; only its memory is given back. */
static void
abandon(struct ofs_store *store)
{
	store->flying = 0;
	ofs_store_close(store);
}

static void
cut(struct store_world *w)
{
	uint32_t eio = w->device.write_eio_percent;
	struct ofs_store_stats stats;

	ofs_store_stats_get(w->store, &stats);
	w->moved += stats.blocks_moved;
	w->coded += stats.puts_coded;
	w->discarded += stats.segments_discarded;
	memory_cut(&w->device);
	abandon(w->store);
	w->device.write_eio_percent = 0;
	if (w->seed % 2 == 0) /* a store that no longer codes reads coded records */
		w->config.codec = draw(w, 2) == 0 ? OFS_CODEC_OFF : OFS_CODEC_FP8_E5M2;
	w->config.erase = w->seed % 5 == 0 && draw(w, 2) == 0;
	open_store(w);
	w->device.write_eio_percent = eio;
	if (draw(w, 3) == 0)
		check_all(w);
}

static void
run(uint64_t seed)
{
	struct store_world *w = &world;
	uint32_t lba = seed % 3 == 0 ? 4096 : 512;
	uint32_t places = 1 + (uint32_t)(seed % 7);
	uint32_t deletes;

	memset(w, 0, sizeof(*w));
	w->seed = seed;
	w->config = (struct ofs_store_config){
		.payload_size_bytes = lba == 4096 ? 4096 : 1024,
		.layer_count = LAYERS,
		.tenant_max = 2,
		.io_max = IO,
		.durable = 1,
		.reserve_segments = 1 + seed % 2,
		.format = 1,
		.codec = seed % 4 == 3 ? OFS_CODEC_FP8_E5M2 : OFS_CODEC_OFF,
	};
	w->config.segment_size_bytes = lba + places * (w->config.payload_size_bytes + lba);
	memory_open(&w->device,
		131072 + (uint64_t)w->config.segment_size_bytes * (8 + seed % 5 * 30 / places), lba, seed);
	w->device.storage.discards = seed / 2 % 2;
	w->device.end_percent = 20 + draw(w, 80);
	w->device.depth = 2 + draw(w, 60);
	w->lying = seed % 4 == 2;
	open_store(w);
	w->device.write_eio_percent = seed % 4 == 1 ? draw(w, 30) : 0;
	if (w->lying) {
		w->device.read_eio_percent = draw(w, 5);
		w->device.read_flip_percent = draw(w, 10);
	}
	deletes = draw(w, 20);
	for (uint32_t step = 0; step < STEPS; step++) {
		uint32_t what = draw(w, 100);

		if (what < 40) {
			start(w, 1);
		} else if (what < 60) {
			start(w, 2);
		} else if (what < 60 + deletes) {
			delete (w);
		} else if (what < 98 || w->lying) {
			poll_store(w);
		} else if (what == 98) {
			HOLDS(w, ofs_store_tick(w->store, ++w->now_s, NULL, 0) == 0);
			HOLDS(w, ofs_store_verify(w->store) == 0);
		} else {
			cut(w);
		}
	}
	cut(w);
	check_all(w);
	HOLDS(w, w->device.not_durable == 0);
	ofs_store_close(w->store);
	memory_close(&w->device);
}

int
main(int argc, char **argv)
{
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 200;
	uint64_t acknowledged = 0;
	uint64_t deleted = 0;
	uint64_t served = 0;
	uint64_t checks = 0;
	uint64_t full = 0;
	uint64_t moved = 0;
	uint64_t coded = 0;
	uint64_t discarded = 0;

	for (uint64_t seed = first; seed < first + count; seed++) {
		run(seed);
		acknowledged += world.acknowledged;
		deleted += world.deleted;
		served += world.served;
		checks += world.lost_checks;
		full += world.full;
		moved += world.moved;
		coded += world.coded;
		discarded += world.discarded;
	}
	printf("store cut ok: %llu seeds, %llu puts and %llu deletes acknowledged, %llu gets served, "
		   "%llu failed their check, %llu refused as full, %llu moved, %llu coded, %llu segments "
		   "discarded\n",
		(unsigned long long)count, (unsigned long long)acknowledged, (unsigned long long)deleted,
		(unsigned long long)served, (unsigned long long)checks, (unsigned long long)full,
		(unsigned long long)moved, (unsigned long long)coded, (unsigned long long)discarded);
	/* A run in which these never happened would prove nothing. */
	assert(count < 100
		|| (deleted > 0 && served > 0 && checks > 0 && full > 0 && moved > 0 && coded > 0
			&& discarded > 0));
	return 0;
}
