/* Whatever a host writes anywhere into its port, does the DPU keep running and stay in bounds? */
#include "port.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define DEMANDS 32
#define SCORES 32

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct ofs_port *
open_port(const struct ofs_port_config *config)
{
	struct ofs_region_config region_config = {.slot_count = 1,
		.payload_size_bytes = 512,
		.lba_size_bytes = 512,
		.boot_id = 1};
	struct ofs_region *region;
	struct ofs_share *share;
	struct ofs_port *port;

	assert(ofs_region_open(&region, &region_config) == 0);
	assert(ofs_share_open(&share, ofs_port_find("shm"), region) == 0);
	assert(ofs_port_open(&port, config, share) == 0);
	return port;
}

static uint64_t inputs, taken[OFS_OP_VALUES + 1], verbs[OFS_VALUE_LIST + 1];

/*
 * A ring that takes nothing finds nothing: a long run must have seen each command. The seeds alone
 * do, so it is never up to chance.
 */
static void
check_reached(void)
{
	for (int op = 0; op <= OFS_OP_VALUES && inputs > 10000; op++)
		assert(taken[op] > 0);
	for (int verb = OFS_VALUE_EXIST; verb <= OFS_VALUE_LIST && inputs > 10000; verb++)
		assert(verbs[verb] > 0);
}

/* Empty rings: a host that had them full, by a head that is nonsense, would be the last one. */
static void
begin(struct ofs_rings *rings)
{
	rings->submission_head = rings->completion_head = rings->completion_tail = 0;
	rings->words->submission_tail = rings->words->submission_head = 0;
	rings->words->completion_tail = rings->words->completion_head = 0;
}

/* A command that was taken is within the port's bounds. */
static void
answer(struct ofs_port *port, const struct ofs_command *command, struct ofs_result *results)
{
	const struct ofs_sqe *sqe = &command->sqe;
	struct ofs_cqe cqe = {.user = sqe->user, .payload_index = sqe->payload_index};

	assert(sqe->op <= OFS_OP_VALUES && cqe.payload_index < 4);
	taken[sqe->op]++;
	if (sqe->op == OFS_OP_STEP) {
		assert(sqe->demand_count <= DEMANDS && sqe->score_count <= SCORES);
		cqe.count = sqe->demand_count;
	}
	if (sqe->op == OFS_OP_HINT)
		assert(sqe->demand_count <= DEMANDS && sqe->score_count == 0);
	if (sqe->op == OFS_OP_VALUES) {
		assert(sqe->demand_count <= DEMANDS / 2 && sqe->flags >= OFS_VALUE_EXIST
			&& sqe->flags <= OFS_VALUE_LIST);
		verbs[sqe->flags]++;
		cqe.count = 2 * sqe->demand_count;
	}
	if (sqe->op == OFS_OP_PUT)
		assert(ofs_port_put_slot(port, sqe->put_slot) != NULL && sqe->length <= 1024);
	assert(ofs_port_complete(port, &cqe, results) == 0);
}

/*
 * Input: pieces of [offset u16][length u8][bytes], each followed by a few turns of the DPU. Before
 * each piece the host consumes all answers, whatever the last piece wrote.
 */
int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ofs_port_config config = {.tenant = 1,
		.entry_count = 4,
		.demand_max = DEMANDS,
		.score_max = SCORES,
		.put_slot_count = 2,
		.put_stride_bytes = 1024,
		.boot_id = 1};
	static uint32_t ordinals[DEMANDS];
	static uint32_t granules[DEMANDS];
	static uint8_t seen[DEMANDS];
	static uint16_t scores[SCORES];
	static struct ofs_guess guesses[DEMANDS];
	static struct ofs_value_ask asks[DEMANDS / 2];
	static struct ofs_result results[DEMANDS];
	struct ofs_command command = {.ordinals = ordinals,
		.granules = granules,
		.seen = seen,
		.scores = scores,
		.guesses = guesses,
		.asks = asks};
	static struct ofs_port *port;
	uint64_t size_bytes;
	uint8_t *base;

	/* One port for all inputs, as in production: leftovers of an earlier host must not
	 * matter. */
	if (inputs++ == 0) {
		port = open_port(&config);
		assert(atexit(check_reached) == 0);
	}
	begin(&port->rings);
	base = port->rings.base;
	size_bytes = port->rings.header.size_bytes;
	while (size >= 3) {
		uint64_t offset = (uint64_t)data[0] | (uint64_t)data[1] << 8;
		size_t length = data[2];
		int turn;

		data += 3;
		size -= 3;
		length = length < size ? length : size;
		port->rings.words->completion_head = port->rings.completion_tail;
		if (offset + length <= size_bytes)
			memcpy(base + offset, data, length);
		data += length;
		size -= length;
		for (turn = 0; turn < 4; turn++) {
			int rc = ofs_port_poll(port, &command);

			assert(rc == 0 || rc == 1 || rc == -EPROTO);
			if (rc == 1)
				answer(port, &command, results);
		}
		(void)ofs_port_sleep(port);
		ofs_port_wake(port);
	}
	return 0;
}
