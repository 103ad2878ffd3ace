/* Does a port live on whatever its host writes, and is every piece of nonsense answered? */
#include "fabric/host_port.h"
#include "region/shared.h"
#include "support_dpu.h"

#include <assert.h>
#include <string.h>
#include <sys/socket.h>

#define ENTRIES 4

static const struct support_config config = {.block_count = 4,
	.slot_count = 8,
	.payload_size_bytes = 1024,
	.entry_count = ENTRIES,
	.demand_max = 16,
	.score_max = 8,
	.put_slot_count = 2};
static struct support_dpu dpu;
static struct ofs_fabric *fabric;

static struct ofs_port_words *
words(void)
{
	return dpu.port->rings.words;
}

static void
set_up(void)
{
	support_open(&dpu, &config);
	fabric = support_fabric(&dpu);
}

static void
tear_down(void)
{
	fabric->ops->close(fabric);
	support_close(&dpu);
}

/* Submits it, and returns the DPU's answer. */
static int
answer(struct ofs_sqe sqe)
{
	struct ofs_cqe cqe;

	sqe.user = 0x1234;
	assert(fabric->ops->submit(fabric, &sqe) == 0);
	support_turn(&dpu);
	assert(fabric->ops->poll(fabric, &cqe, 1) == 1 && cqe.user == 0x1234);
	return cqe.rc;
}

static void
test_every_number_is_checked(void)
{
	set_up();
	assert(answer((struct ofs_sqe){.op = OFS_OP_NOP}) == 0);
	assert(answer((struct ofs_sqe){.op = OFS_OP_VALUES + 1}) == -EPROTO);
	assert(answer((struct ofs_sqe){.op = UINT16_MAX}) == -EPROTO);
	assert(answer((struct ofs_sqe){.payload_index = ENTRIES}) == -EPROTO);
	assert(answer((struct ofs_sqe){.op = OFS_OP_STEP, .demand_count = 17}) == -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_STEP, .demand_count = UINT32_MAX}) == -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_STEP, .score_count = 9}) == -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_STEP, .demand_count = 16, .score_count = 8}) == 0);
	assert(answer((struct ofs_sqe){.op = OFS_OP_STEP,
			   .flags = OFS_STEP_GRANULES,
			   .demand_count = 16,
			   .score_count = 8})
		== 0);
	assert(answer((struct ofs_sqe){.op = OFS_OP_PUT, .put_slot = 2, .length = 1}) == -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_PUT, .length = 0}) == -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_PUT, .length = UINT32_MAX}) == -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_HINT, .demand_count = 17}) == -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_HINT, .demand_count = UINT32_MAX}) == -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_HINT, .demand_count = 16}) == 0);
	assert(answer((struct ofs_sqe){.op = OFS_OP_HINT, .score_count = 1}) == -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_VALUES, .flags = 0}) == -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_VALUES, .flags = OFS_VALUE_LIST + 1}) == -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_VALUES, .flags = 1, .score_count = 1}) == -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_VALUES, .flags = 1, .demand_count = 9}) == -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_VALUES, .flags = 1, .demand_count = UINT32_MAX})
		== -EINVAL);
	assert(answer((struct ofs_sqe){.op = OFS_OP_HINT, .score_count = UINT32_MAX}) == -EINVAL);
	assert(dpu.bad_count == 18 && ofs_port_nonsense_count(dpu.port) == 18);
	assert(answer((struct ofs_sqe){.op = OFS_OP_NOP}) == 0);
	tear_down();
}

/* A tail beyond the ring's size gets one answer, and the ring restarts there. */
static void
test_tail_runs_ahead(void)
{
	struct ofs_cqe cqe;

	set_up();
	ofs_word_store(&words()->submission_tail, ENTRIES + 1000);
	support_turn(&dpu);
	assert(fabric->ops->poll(fabric, &cqe, 1) == 1 && cqe.rc == -EPROTO && cqe.user == 0);
	support_turn(&dpu);
	assert(fabric->ops->poll(fabric, &cqe, 1) == 0);
	assert(ofs_port_nonsense_count(dpu.port) == 1);
	/* The next host to attach to the port continues from there. */
	fabric->ops->close(fabric);
	fabric = support_fabric(&dpu);
	assert(answer((struct ofs_sqe){.op = OFS_OP_NOP}) == 0);
	tear_down();
}

/* A host that takes no completions is held back, wakes no one, and gets all of them later. */
static void
test_jammed_completions(void)
{
	struct ofs_cqe cqe;
	uint32_t sent = 0;

	set_up();
	for (uint32_t i = 0; i < 10 * ENTRIES; i++) {
		struct ofs_sqe sqe = {.op = OFS_OP_NOP, .user = sent};

		sent += fabric->ops->submit(fabric, &sqe) == 0;
		support_turn(&dpu);
	}
	assert(sent == 3 * ENTRIES); /* the completion ring and the submission ring are full */
	assert(ofs_port_sleep(dpu.port) == 0);
	ofs_port_wake(dpu.port);
	for (uint32_t i = 0; i < sent; i++) {
		support_turn(&dpu);
		assert(fabric->ops->poll(fabric, &cqe, 1) == 1 && cqe.user == i && cqe.rc == 0);
	}
	assert(fabric->ops->poll(fabric, &cqe, 1) == 0);
	/* A completion head that is nonsense jams only its own port. */
	ofs_word_store(&words()->completion_head, 0x80000000u);
	assert(fabric->ops->submit(fabric, &(struct ofs_sqe){.op = OFS_OP_NOP}) == 0);
	assert(ofs_port_poll(dpu.port, &dpu.command) == 0 && ofs_port_sleep(dpu.port) == 0);
	tear_down();
}

static void
test_bell_shut_down(void)
{
	struct ofs_attachment attachment;

	set_up();
	assert(ofs_port_export(dpu.port, &attachment) == 0);
	assert(shutdown(attachment.fds[2], SHUT_RDWR) == 0);
	support_close_fds(&attachment);
	ofs_port_wake(dpu.port);
	assert(ofs_port_wake_fd(dpu.port) == -1);
	ofs_word_store(&words()->host_sleeping, 1); /* and no one to wake: no SIGPIPE, no block */
	assert(answer((struct ofs_sqe){.op = OFS_OP_NOP}) == 0);
	tear_down();
}

/* A bell that is never read fills up: neither side may block on it. */
static void
test_bell_is_full(void)
{
	set_up();
	for (uint32_t i = 0; i < 5000; i++) {
		ofs_word_store(&words()->host_sleeping, 1);
		ofs_word_store(&words()->dpu_sleeping, 1);
		assert(answer((struct ofs_sqe){.op = OFS_OP_NOP}) == 0);
	}
	tear_down();
}

/* Several submissions that hold the bell wake a DPU that sleeps once, after the last. */
static void
test_bell_is_held(void)
{
	set_up();
	ofs_word_store(&words()->dpu_sleeping, 1);
	fabric->bell_held = true;
	assert(answer((struct ofs_sqe){.op = OFS_OP_NOP}) == 0);
	assert(ofs_word_load(&words()->dpu_sleeping) == 1);
	ofs_fabric_bell_release(fabric, false);
	assert(!fabric->bell_held && ofs_word_load(&words()->dpu_sleeping) == 1);
	ofs_fabric_bell_release(fabric, true);
	assert(ofs_word_load(&words()->dpu_sleeping) == 0);
	ofs_word_store(&words()->dpu_sleeping, 1);
	assert(answer((struct ofs_sqe){.op = OFS_OP_NOP}) == 0);
	assert(ofs_word_load(&words()->dpu_sleeping) == 0);
	tear_down();
}

static void
test_closed(void)
{
	struct ofs_port_config port = {.tenant = 3,
		.entry_count = ENTRIES,
		.demand_max = 1,
		.put_slot_count = 1,
		.put_stride_bytes = 2048,
		.boot_id = 77};
	struct ofs_sqe sqe = {.op = OFS_OP_NOP};

	set_up();
	fabric->ops->close(fabric);
	ofs_port_close(dpu.port);
	assert(ofs_port_open(&dpu.port, &port, dpu.share) == 0);
	fabric = support_fabric(&dpu);
	assert(fabric->ops->wait(fabric, 1000000) == -ETIMEDOUT);
	ofs_port_close(dpu.port);
	dpu.port = NULL;
	assert(fabric->ops->wait(fabric, 10000000000ull) == -EPIPE);
	assert(fabric->ops->submit(fabric, &sqe) == -EPIPE);
	tear_down();
}

int
main(void)
{
	test_every_number_is_checked();
	test_tail_runs_ahead();
	test_jammed_completions();
	test_bell_shut_down();
	test_bell_is_full();
	test_bell_is_held();
	test_closed();
	return 0;
}
