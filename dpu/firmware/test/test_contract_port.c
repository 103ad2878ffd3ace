/*
 * Do all sides of the fabric seam keep one contract, at the DPU's end and at the host's? Every side
 * of port.h, the skeleton included, with its own host's end and with that end in virtual time.
 * Whether a wake-up is ever lost between two threads is test_ring.c's question, over the same
 * sides.
 */
#include "region/shared.h"
#include "support_dpu.h"

#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ENTRIES 4
#define DEMANDS 8
#define PUT_SLOTS 2
#define PAYLOAD 1024

static struct support_dpu dpu;
static struct ofs_fabric *fabric;
static bool in_virtual_time;
static bool travels;

/* Where a write takes time to travel, poll until it arrives, or for ten seconds. */
#define ARRIVES(condition)                                                                    \
	do {                                                                                      \
		for (int look_count = 0; travels && !(condition) && look_count < 10000; look_count++) \
			support_rest(1000000);                                                            \
		assert(condition);                                                                    \
	} while (0)

static void
nobody(void *context, uint64_t now_ns)
{
	(void)context;
	(void)now_ns;
}

static void
open_host(void)
{
	static const struct ofs_fabric_sim_config plain = {.seed = 1, .step_ns = 100};

	fabric =
		in_virtual_time ? support_fabric_sim(&dpu, &plain, nobody, NULL, 1) : support_fabric(&dpu);
}

static void
set_up(const char *side)
{
	struct support_config config = {.fabric = side,
		.block_count = 4,
		.slot_count = 8,
		.payload_size_bytes = PAYLOAD,
		.entry_count = ENTRIES,
		.demand_max = DEMANDS,
		.score_max = 4,
		.put_slot_count = PUT_SLOTS};

	support_open(&dpu, &config);
	open_host();
}

static void
tear_down(void)
{
	fabric->ops->close(fabric);
	support_close(&dpu);
}

static int
submit(struct ofs_sqe sqe)
{
	return fabric->ops->submit(fabric, &sqe);
}

/* The next completion; there must be one. */
static struct ofs_cqe
take(void)
{
	struct ofs_cqe cqe;

	while (fabric->ops->poll(fabric, &cqe, 1) == 0)
		assert(fabric->ops->wait(fabric, 1000000000) == 0);
	return cqe;
}

/* The DPU takes one command and answers it with `rc`. */
static void
answer(int rc)
{
	const struct ofs_sqe *sqe = &dpu.command.sqe;
	struct ofs_cqe cqe = {.rc = rc};

	assert(support_take(&dpu) == 1);
	cqe.user = sqe->user;
	cqe.payload_index = sqe->payload_index;
	assert(ofs_port_complete(dpu.port, &cqe, NULL) == 0);
}

static void
in_order_and_never_more_than_fit(void)
{
	uint64_t sent = 0;

	for (uint64_t taken = 0; taken < 5 * ENTRIES; taken++) {
		struct ofs_cqe cqe;

		while (submit((struct ofs_sqe){.user = sent}) == 0)
			sent++;
		assert(sent == taken + ENTRIES); /* -EAGAIN: the ring is full, and no sooner */
		answer(-(int)taken);
		cqe = take();
		assert(cqe.user == taken && cqe.rc == -(int)taken);
	}
}

static void
a_step_carries_its_payload_and_results(void)
{
	struct ofs_sqe step = {.op = OFS_OP_STEP,
		.user = 9,
		.payload_index = 3,
		.demand_count = DEMANDS,
		.score_count = 2};
	uint8_t *payload = fabric->ops->payload(fabric, 3);
	struct ofs_result results[DEMANDS];
	struct ofs_cqe cqe = {.user = 9, .payload_index = 3, .count = DEMANDS};

	for (uint32_t i = 0; i < DEMANDS; i++) {
		memcpy(payload + (size_t)i * 4, &(uint32_t){100 + i}, 4);
		payload[ofs_payload_seen_offset(DEMANDS) + i] = (uint8_t)i;
		results[i] = (struct ofs_result){.slot = 7 * i, .rc = -(int)i};
	}
	memcpy(payload + ofs_payload_scores_offset(DEMANDS), (uint16_t[]){11, 12}, 4);
	assert(submit(step) == 0 && support_take(&dpu) == 1);
	for (uint32_t i = 0; i < DEMANDS; i++)
		assert(dpu.command.ordinals[i] == 100 + i && dpu.command.seen[i] == i);
	assert(dpu.command.scores[0] == 11 && dpu.command.scores[1] == 12);
	assert(ofs_port_complete(dpu.port, &(struct ofs_cqe){.payload_index = ENTRIES}, results)
		== -EINVAL);
	assert(
		ofs_port_complete(dpu.port, &(struct ofs_cqe){.count = DEMANDS + 1}, results) == -EINVAL);
	assert(ofs_port_complete(dpu.port, &cqe, results) == 0);
	cqe = take();
	assert(cqe.user == 9 && cqe.count == DEMANDS);
	assert(memcmp(fabric->ops->results(fabric, &cqe), results, sizeof(results)) == 0);
	assert(fabric->ops->payload(fabric, ENTRIES) == NULL);
	assert(fabric->ops->results(fabric, &(struct ofs_cqe){.payload_index = ENTRIES}) == NULL);
}

/* As many guesses as a STEP has demands, whatever else the area holds; and without results. */
static void
a_hint_carries_its_guesses(void)
{
	struct ofs_sqe hint = {.op = OFS_OP_HINT, .payload_index = 2, .demand_count = DEMANDS};
	struct ofs_guess guesses[DEMANDS];

	for (uint32_t i = 0; i < DEMANDS; i++) {
		guesses[i] = (struct ofs_guess){.layer = (uint16_t)i,
			.ordinal = 7 * i,
			.probability = UINT16_MAX,
			.cause = OFS_CAUSE_LOOKAHEAD};
	}
	memcpy(fabric->ops->payload(fabric, 2), guesses, sizeof(guesses));
	assert(submit(hint) == 0);
	answer(0);
	assert(dpu.command.sqe.demand_count == DEMANDS);
	assert(memcmp(dpu.command.guesses, guesses, sizeof(guesses)) == 0);
	assert(take().rc == 0);
}

static void
nonsense_is_answered_and_the_port_lives_on(void)
{
	static const struct ofs_sqe nonsense[] = {{.op = 77}, {.payload_index = ENTRIES},
		{.op = OFS_OP_STEP, .demand_count = DEMANDS + 1},
		{.op = OFS_OP_STEP, .score_count = UINT32_MAX},
		{.op = OFS_OP_HINT, .demand_count = DEMANDS + 1},
		{.op = OFS_OP_HINT, .score_count = UINT32_MAX},
		{.op = OFS_OP_PUT, .put_slot = PUT_SLOTS, .length = 1},
		{.op = OFS_OP_PUT, .length = PAYLOAD * 2}};
	uint32_t count = sizeof(nonsense) / sizeof(nonsense[0]);

	for (uint32_t i = 0; i < count; i++) {
		struct ofs_sqe sqe = nonsense[i];
		struct ofs_cqe cqe;

		sqe.user = 50 + i;
		assert(submit(sqe) == 0 && support_take(&dpu) == -EPROTO);
		cqe = take();
		assert(cqe.user == 50 + i && (cqe.rc == -EPROTO || cqe.rc == -EINVAL));
	}
	assert(ofs_port_nonsense_count(dpu.port) == count);
	assert(submit((struct ofs_sqe){.user = 1}) == 0);
	answer(0);
	assert(take().user == 1);
}

/* A host that takes no completions is held back, keeps no one awake, and gets them all later. */
static void
completions_are_bounded(void)
{
	uint32_t sent = 0;
	uint32_t answered = 0;

	for (uint32_t i = 0; i < (travels ? 100 : 10) * ENTRIES; i++) {
		struct ofs_cqe cqe = {0};

		if (travels)
			support_rest(i < 50 * ENTRIES && answered < 2 * ENTRIES ? 20000000 : 1000000);
		sent += submit((struct ofs_sqe){.user = sent}) == 0;
		if (ofs_port_poll(dpu.port, &dpu.command) == 1) {
			cqe.user = dpu.command.sqe.user;
			assert(ofs_port_complete(dpu.port, &cqe, NULL) == 0);
			answered++;
		}
	}
	assert(answered == 2 * ENTRIES && sent == 3 * ENTRIES);
	assert(ofs_port_sleep(dpu.port) == (ofs_port_wake_fd(dpu.port) < 0));
	ofs_port_wake(dpu.port);
	for (uint32_t i = 0; i < sent; i++) {
		assert(take().user == i);
		if (answered++ < sent)
			answer(0);
	}
}

static void
the_put_window_is_the_hosts_to_write(void)
{
	uint8_t bytes[PAYLOAD];
	uint64_t checksum = 0;

	support_fill(3, bytes, sizeof(bytes));
	for (uint32_t i = 0; i < PUT_SLOTS; i++) {
		assert(fabric->ops->write_put(fabric, i, bytes, sizeof(bytes), &checksum) == 0);
		assert(checksum == ofs_checksum(bytes, sizeof(bytes)));
		ARRIVES(memcmp(ofs_port_put_slot(dpu.port, i), bytes, sizeof(bytes)) == 0);
	}
	assert(fabric->ops->write_put(fabric, PUT_SLOTS, bytes, 1, &checksum) == -ERANGE);
	assert(fabric->ops->write_put(fabric, 0, bytes, 1u << 20, &checksum) == -ERANGE);
	assert(ofs_port_put_slot(dpu.port, PUT_SLOTS) == NULL);
}

static int
read_into(uint64_t region_offset, void *target, uint32_t size_bytes)
{
	struct ofs_span span = {target, size_bytes};

	return fabric->ops->read(fabric, region_offset, &span, 1);
}

static void
reads_go_into_registered_memory(void)
{
	uint64_t slot_offset = fabric->region.slots_offset;
	uint8_t memory[2 * PAYLOAD];
	int refused = in_virtual_time || travels ? -EFAULT : 0; /* a side that needs it says so */

	support_fill(2, ofs_region_slot(dpu.region, 0), PAYLOAD);
	assert(read_into(slot_offset, memory, 64) == refused);
	assert(fabric->ops->register_memory(fabric, memory, PAYLOAD) == 0);
	assert(read_into(slot_offset, memory, PAYLOAD) == 0);
	assert(fabric->ops->flush(fabric, 1000000000) == 0 && support_matches(2, memory, PAYLOAD));
	assert(read_into(slot_offset, memory + 1, PAYLOAD) == refused);
	assert(read_into(fabric->region.size_bytes - 8, memory, 64) == -ERANGE);
	assert(read_into(UINT64_MAX - 8, memory, 64) == -ERANGE);
	assert(fabric->ops->unregister_memory(fabric, memory, PAYLOAD - 1) == -ENOENT);
	assert(fabric->ops->unregister_memory(fabric, memory, PAYLOAD) == 0);
	assert(fabric->ops->unregister_memory(fabric, memory, PAYLOAD) == -ENOENT);
	assert(read_into(slot_offset, memory, 64) == refused);
	assert(fabric->ops->register_memory(fabric, NULL, 64) == -EINVAL);
	assert(fabric->ops->register_memory(fabric, memory, 0) == -EINVAL);
	assert(fabric->ops->register_memory(fabric, memory, UINT64_MAX) == -EINVAL);
	for (uint32_t i = 0; i < OFS_FABRIC_MEMORIES_MAX; i++)
		assert(fabric->ops->register_memory(fabric, memory + i, 1) == 0);
	assert(fabric->ops->register_memory(fabric, memory, 1) == -ENOSPC);
}

/* Sleep, and be awake again. */
static int
try_to_sleep(void)
{
	int rc = ofs_port_sleep(dpu.port);

	ofs_port_wake(dpu.port);
	return rc;
}

/* A write in between is seen before the DPU sleeps, and a later one wakes it. */
static void
sleep_misses_nothing(void)
{
	struct pollfd polled = {.fd = ofs_port_wake_fd(dpu.port), .events = POLLIN};

	assert(submit((struct ofs_sqe){.user = 1}) == 0);
	ARRIVES(try_to_sleep() == 1);
	answer(0);
	assert(take().user == 1);
	assert(ofs_port_sleep(dpu.port) == (polled.fd < 0)); /* an end that cannot be woken is polled */
	assert(submit((struct ofs_sqe){.user = 2}) == 0);
	if (polled.fd >= 0)
		assert(poll(&polled, 1, 10000) == 1);
	ofs_port_wake(dpu.port);
	if (polled.fd >= 0)
		assert(poll(&polled, 1, 0) == 0); /* it would keep us awake for ever */
	answer(0);
	assert(take().user == 2);
}

/* The next host of a port, or the same one again, goes on where the last stopped. */
static void
a_port_is_exported_again(void)
{
	assert(submit((struct ofs_sqe){.user = 1}) == 0);
	answer(0);
	assert(take().user == 1);
	fabric->ops->close(fabric);
	open_host();
	assert(submit((struct ofs_sqe){.user = 2}) == 0);
	answer(0);
	assert(take().user == 2);
}

/* An answer written before the port closed still arrives; after it, the port is gone. */
static void
a_closed_port_is_seen(void)
{
	assert(submit((struct ofs_sqe){.user = 1}) == 0);
	answer(0);
	ofs_port_close(dpu.port);
	dpu.port = NULL;
	assert(take().user == 1);
	assert(fabric->ops->wait(fabric, 10000000000ull) == -EPIPE);
	assert(submit((struct ofs_sqe){.user = 2}) == -EPIPE);
}

/* Memory that a host may still read must not go: our own mistake, and it ends the process. */
static void
a_share_outlives_its_ports(void)
{
	for (int what = 0; what < 2; what++) {
		pid_t child = fork();
		int status;

		assert(child >= 0);
		if (child == 0) {
			if (freopen("/dev/null", "w", stderr) == NULL)
				_exit(1);
			if (what == 0)
				ofs_share_close(dpu.share);
			else
				ofs_region_close(dpu.region);
			_exit(0);
		}
		assert(waitpid(child, &status, 0) == child);
		assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	}
}

static int
refusal(const struct ofs_attachment *attachment, const char *word)
{
	struct ofs_fabric *opened;
	char error[256] = "";
	int rc = ofs_fabric_open(&opened, attachment, error, sizeof(error));

	assert(rc != 0 && strstr(error, word) != NULL);
	assert(strchr(error, '\n') == NULL && strchr(error, ';') != NULL);
	return rc;
}

static void
a_blob_of_another_is_refused(void)
{
	struct ofs_attachment whole;
	struct ofs_attachment other;
	struct ofs_blob_header *header = (struct ofs_blob_header *)other.blob;
	size_t dilation = sizeof(*header) + offsetof(struct ofs_blob_shm, dilation);

	assert(ofs_port_export(dpu.port, &whole) == 0);
	for (uint32_t size = 0; size < whole.blob_size_bytes; size++) {
		other = whole;
		other.blob_size_bytes = size;
		assert(refusal(&other, "cut short") == -EINVAL);
		other = whole;
		other.blob[size] ^= 0x20;
		(void)refusal(&other, "blob");
	}
	other = whole;
	header->version++;
	support_set_checksum(&other);
	assert(refusal(&other, "version 4, this host knows 3; install the same release") == -EPROTO);
	other = whole;
	memset(header->fabric, 'x', sizeof(header->fabric));
	support_set_checksum(&other);
	assert(refusal(&other, "damaged") == -EINVAL); /* its name has no end */
	header->fabric[3] = '\0';
	support_set_checksum(&other);
	assert(refusal(&other, "for a fabric that this host does not have") == -EPROTO);
	/* The contents of another machine's adapter are checked there: it refuses when it is
	 * used. */
	for (uint32_t i = sizeof(*header); i < whole.blob_size_bytes && !travels; i++) {
		/* A clock that goes slower is a clock: shm says only that it does not go too slowly. */
		if (strcmp(dpu.port->ops->name, "shm") == 0 && (i == dilation + 1 || i == dilation + 2))
			continue;
		other = whole;
		other.blob[i] ^= 1;
		support_set_checksum(&other);
		assert(refusal(&other, "blob") == -EINVAL); /* of another port, region or process */
	}
	other = whole;
	other.fd_count++;
	assert(refusal(&other, "descriptors") == -EINVAL);
	other = whole;
	header->size_bytes = other.blob_size_bytes = sizeof(other.blob);
	support_set_checksum(&other);
	assert(refusal(&other, "wrong size") == -EINVAL);
	support_close_fds(&whole);
}

int
main(void)
{
	static void (*const cases[])(void) = {
		in_order_and_never_more_than_fit,
		a_step_carries_its_payload_and_results,
		a_hint_carries_its_guesses,
		nonsense_is_answered_and_the_port_lives_on,
		completions_are_bounded,
		the_put_window_is_the_hosts_to_write,
		reads_go_into_registered_memory,
		sleep_misses_nothing,
		a_port_is_exported_again,
		a_closed_port_is_seen,
		a_share_outlives_its_ports,
		a_blob_of_another_is_refused,
	};

	support_add_sides();
	for (uint32_t side = 0; ofs_port_side(side) != NULL; side++) {
		travels = support_travels(ofs_port_side(side)->name);
		/* The time of another machine is not ours to move. */
		for (int host = 0; host < (travels ? 1 : 2); host++) {
			in_virtual_time = host == 1;
			for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
				set_up(ofs_port_side(side)->name);
				cases[i]();
				tear_down();
			}
		}
	}
	return 0;
}
