/*
 * Do two threads on two processors see each other's stores in the order that the memory map relies
 * on? docs/reference/memory-order.md argues for each word; these are its litmus tests: a message
 * published by a word, two words that must not both be missed, slots that are read while they are
 * rewritten, checked by order alone, and a ring whose indices pass 2^32.
 *
 * What a run can show depends on its machine and compiler; the page says what x86, ThreadSanitizer
 * and an emulator cannot show.
 */
#include "driver/internal.h"
#include "fabric/host_port.h"
#include "port/internal.h"
#include "region/shared.h"
#include "support_dpu.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS 512 /* words of one round, a line each */
#define ROUNDS 400
#define COMMANDS 20000
#define RING_ENTRIES 2
#define BEFORE_WRAP 0xffffff00u /* COMMANDS pass 2^32 from here */
#define BLOCKS 24
#define AGREED_MIN 2000 /* reads that found their block */
#define READ_ROUNDS_MAX 100000

/* ---- both threads begin a round together ---- */

struct meeting {
	uint32_t arrived;
};

static void
meet(struct meeting *meeting, uint32_t round)
{
	__atomic_fetch_add(&meeting->arrived, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&meeting->arrived, __ATOMIC_SEQ_CST) < 2 * (round + 1))
		sched_yield();
}

/* ---- a message behind a word, and two words that must not both be missed ---- */

struct litmus_pair {
	_Alignas(64) uint64_t message; /* plain: only the word behind it says that it is there */
	_Alignas(64) uint32_t word;
	_Alignas(64) uint32_t tail;
	_Alignas(64) uint32_t sleeping;
	uint32_t saw_sleeping; /* of the thread that wrote the tail */
	_Alignas(64) uint32_t saw_tail;
};

struct litmus {
	struct litmus_pair pairs[PAIRS];
	struct meeting meeting;
	uint32_t messages; /* that were there when their word was looked at */
	uint32_t missed;   /* pairs of which neither thread saw the other's word */
};

static void
clear(struct litmus *litmus)
{
	memset(litmus->pairs, 0, sizeof(litmus->pairs));
}

/* Writes the messages, and is the host that submits: tail, then is it asleep? */
static void *
run_writer(void *argument)
{
	struct litmus *litmus = argument;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		meet(&litmus->meeting, 2 * round);
		for (uint32_t i = 0; i < PAIRS; i++) {
			struct litmus_pair *pair = &litmus->pairs[i];

			pair->message = i + 1;
			ofs_word_store(&pair->word, 1);
			ofs_word_store_ordered(&pair->tail, 1);
			pair->saw_sleeping = ofs_word_load_ordered(&pair->sleeping);
		}
		meet(&litmus->meeting, 2 * round + 1);
	}
	return NULL;
}

/* Reads the messages, and is the DPU that wants to sleep: sleeping, then is there a tail? */
static void
read_round(struct litmus *litmus, uint32_t round)
{
	meet(&litmus->meeting, 2 * round);
	for (uint32_t i = 0; i < PAIRS; i++) {
		struct litmus_pair *pair = &litmus->pairs[i];

		ofs_word_store_ordered(&pair->sleeping, 1);
		pair->saw_tail = ofs_word_load_ordered(&pair->tail);
		if (ofs_word_load(&pair->word) != 0) {
			assert(pair->message == i + 1);
			litmus->messages++;
		}
	}
	meet(&litmus->meeting, 2 * round + 1);
	/* A host that did not see the sleeper, and a sleeper that did not see the command: for ever. */
	for (uint32_t i = 0; i < PAIRS; i++)
		if (litmus->pairs[i].saw_sleeping == 0 && litmus->pairs[i].saw_tail == 0)
			litmus->missed++;
}

static void
test_words(void)
{
	struct litmus *litmus = aligned_alloc(64, sizeof(*litmus));
	pthread_t thread;

	assert(litmus != NULL);
	memset(litmus, 0, sizeof(*litmus));
	assert(pthread_create(&thread, NULL, run_writer, litmus) == 0);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		read_round(litmus, round);
		clear(litmus); /* the writer waits for the next round */
	}
	pthread_join(thread, NULL);
	printf("orders: %u messages came, %u of %u pairs missed each other\n", litmus->messages,
		litmus->missed, PAIRS * ROUNDS);
#ifndef OFS_TEST_EMULATED /* QEMU runs aarch64's store and load on x86 without the order between */
	assert(litmus->missed == 0);
#endif
	free(litmus);
}

/* ---- a ring whose indices pass 2^32 ---- */

struct wrapping_ring {
	struct ofs_rings rings;
	struct ofs_host_port host;
	struct ofs_command command;
	struct ofs_result results[4];
};

static void
open_ring(struct wrapping_ring *ring)
{
	struct ofs_port_config config = {.entry_count = RING_ENTRIES,
		.demand_max = 4,
		.score_max = 4,
		.put_slot_count = 1,
		.put_stride_bytes = 4096};
	struct ofs_rings *rings = &ring->rings;
	void *base;

	assert(ofs_rings_init(rings, &config) == 0);
	base = aligned_alloc(4096, rings->header.size_bytes);
	assert(base != NULL);
	memset(base, 0, rings->header.size_bytes);
	ofs_rings_place(rings, base, rings->header.size_bytes);
	rings->submission_head = rings->completion_tail = rings->completion_head = BEFORE_WRAP;
	rings->words->submission_tail = rings->words->submission_head = BEFORE_WRAP;
	rings->words->completion_tail = rings->words->completion_head = BEFORE_WRAP;
	ofs_host_port_init(&ring->host, base, &rings->header, -1);
	ring->command.ordinals = calloc(4, sizeof(uint32_t));
	ring->command.seen = calloc(4, 1);
	ring->command.scores = calloc(4, sizeof(uint16_t));
	assert(ring->command.ordinals != NULL && ring->command.seen != NULL);
	assert(ring->command.scores != NULL);
}

static void
close_ring(struct wrapping_ring *ring)
{
	free(ring->command.ordinals);
	free(ring->command.seen);
	free(ring->command.scores);
	free(ring->rings.base);
}

/* The DPU: each command's number and ordinals are the next, and are answered with themselves. */
static void *
run_dpu(void *argument)
{
	struct wrapping_ring *ring = argument;

	for (uint32_t number = 0; number < COMMANDS;) {
		struct ofs_cqe cqe = {.count = 4};

		if (ofs_rings_poll(&ring->rings, &ring->command) != 1) {
			sched_yield();
			continue;
		}
		assert(ring->command.sqe.user == number);
		for (uint32_t i = 0; i < 4; i++) {
			assert(ring->command.ordinals[i] == number + i);
			ring->results[i].slot = number + i;
		}
		cqe.user = number++;
		cqe.payload_index = ring->command.sqe.payload_index;
		assert(ofs_rings_write_results(&ring->rings, &cqe, ring->results) == 0);
		ofs_rings_push_answer(&ring->rings, &cqe);
	}
	return NULL;
}

static void
submit(struct wrapping_ring *ring, uint32_t number)
{
	const struct ofs_port_header *header = &ring->rings.header;
	struct ofs_sqe sqe = {.user = number,
		.op = OFS_OP_STEP,
		.payload_index = (uint16_t)(number % RING_ENTRIES),
		.demand_count = 4};
	uint8_t *payload = ofs_host_port_payload(&ring->host, header, sqe.payload_index);

	for (uint32_t i = 0; i < 4; i++)
		memcpy(payload + (size_t)i * 4, &(uint32_t){number + i}, 4);
	while (ofs_host_port_submit(&ring->host, header, &sqe) == -EAGAIN)
		sched_yield();
}

static void
test_ring_wraps(void)
{
	static struct wrapping_ring ring;
	const struct ofs_port_header *header = &ring.rings.header;
	uint32_t sent = 0;
	pthread_t thread;

	open_ring(&ring);
	assert(pthread_create(&thread, NULL, run_dpu, &ring) == 0);
	for (uint32_t received = 0; received < COMMANDS; received++) {
		struct ofs_cqe cqe;

		while (sent < COMMANDS && sent - received < RING_ENTRIES)
			submit(&ring, sent++);
		while (ofs_host_port_poll(&ring.host, header, &cqe, 1) == 0)
			sched_yield();
		assert(cqe.user == received && cqe.rc == 0);
		for (uint32_t i = 0; i < 4; i++)
			assert(ofs_host_port_results(&ring.host, header, &cqe)[i].slot == received + i);
	}
	pthread_join(thread, NULL);
	assert(ring.rings.completion_tail == BEFORE_WRAP + COMMANDS);
	assert(ring.rings.completion_tail < BEFORE_WRAP);
	close_ring(&ring);
}

/* ---- slots that are read while they are rewritten ---- */

/* The driver's own reads without the checksum: accepted reads must be right by order alone. */
static void
test_slots(const char *side)
{
	struct support_config config = {.fabric = side,
		.block_count = BLOCKS,
		.slot_count = 8,
		.payload_size_bytes = 4096,
		.entry_count = 8,
		.demand_max = BLOCKS,
		.score_max = 4,
		.put_slot_count = 2};
	static struct support_dpu dpu;
	static struct ofs_block_read reads[BLOCKS];
	static uint8_t targets[BLOCKS][4096];
	struct ofs_driver *driver;
	uint32_t agreed = 0;

	support_open(&dpu, &config);
	support_open_driver(&dpu, &driver);
	assert(driver->fabric->ops->register_memory(driver->fabric, targets, sizeof(targets)) == 0);
	dpu.churn = true;
	support_start(&dpu);
	for (uint32_t round = 0; round < READ_ROUNDS_MAX && agreed < AGREED_MIN; round++) {
		for (uint32_t i = 0; i < BLOCKS; i++) {
			reads[i].key = support_key(i);
			reads[i].target = targets[i];
		}
		assert(ofs_reads_lookup(driver, reads, BLOCKS) == 0);
		assert(ofs_reads_run(driver, reads, BLOCKS, false) == 0);
		for (uint32_t i = 0; i < BLOCKS; i++) {
			if (reads[i].rc == 0) {
				agreed++;
				assert(support_matches(i, targets[i], reads[i].length));
			}
		}
		sched_yield();
	}
	support_stop(&dpu);
	assert(agreed >= AGREED_MIN);
	assert(driver->fabric->ops->unregister_memory(driver->fabric, targets, sizeof(targets)) == 0);
	ofs_driver_close(driver);
	support_close(&dpu);
}

int
main(void)
{
	test_words();
	test_ring_wraps();
	test_slots("shm");
	test_slots("memory");
	return 0;
}
