/*
 * fuzz_replay.c: can any log crash the replay or make it read outside its bytes?
 *
 * Each input runs twice: first as it is, which tests the checks themselves; then with valid
 * checksums, so that the fuzzer reaches the code behind them, and smaller sizes in its header, so
 * that a run opens a small core.
 */
#include <stdlib.h>

#include "core/internal.h"
#include "replay.h"

static uint32_t
at_most(uint32_t value, uint32_t max)
{
	return value % (max + 1);
}

static void
shrink(struct ofs_log_open *open)
{
	struct ofs_core_config *c = &open->config;

	open->magic = OFS_LOG_MAGIC;
	open->abi_version = OFS_ABI_VERSION;
	c->tenant_max = at_most(c->tenant_max, 4);
	c->session_max = at_most(c->session_max, 8);
	c->chunk_max = at_most(c->chunk_max, 256);
	c->session_chunk_max = at_most(c->session_chunk_max, 128);
	c->layer_count = at_most(c->layer_count, 8);
	c->slot_count = at_most(c->slot_count, 128);
	c->io_max = at_most(c->io_max, 64);
	c->queue_max = at_most(c->queue_max, 64);
	c->demand_max = at_most(c->demand_max, 64);
}

/* Give every record its sequence number and its position in the chain of checksums. */
static void
make_good(unsigned char *log, size_t size)
{
	uint64_t sequence = 0, before = 0;
	size_t offset = 0;

	while (size - offset >= sizeof(struct ofs_log_record)) {
		struct ofs_log_record *record = (struct ofs_log_record *)(log + offset);

		record->size_bytes &= ~7u;
		if (record->size_bytes < sizeof(*record) || record->size_bytes > size - offset)
			record->size_bytes = (uint32_t)(size - offset) & ~7u;
		if (sequence == 0 && record->size_bytes >= sizeof(*record) + sizeof(struct ofs_log_open))
			shrink((struct ofs_log_open *)(record + 1));
		record->sequence = sequence++;
		before = ofs_log_check(record, before);
		record->check = before;
		offset += record->size_bytes;
	}
}

static volatile uint32_t seen;

/* Event by event, reading all that an event shows. */
static void
walk(const unsigned char *log, size_t size)
{
	struct ofs_replay_event event;
	struct ofs_replay *replay;

	if (ofs_replay_open(&replay, log, size))
		return;
	while (ofs_replay_next(replay, &event) > 0) {
		for (uint32_t i = 0; i < event.action_count; i++)
			seen += event.actions[i].type;
		for (uint32_t i = 0; i < event.end_count; i++)
			seen += event.ends[i] + event.step->demands[i];
		for (uint32_t i = 0; i < event.input_bytes; i++)
			seen += ((const uint8_t *)event.input)[i];
	}
	ofs_replay_close(replay);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t diverged_at;
	unsigned char *log = malloc(size + 8);

	if (log == NULL)
		return 0;
	if (size)
		memcpy(log, data, size);
	(void)ofs_core_replay(log, size, &diverged_at, NULL);
	make_good(log, size);
	(void)ofs_core_replay(log, size, &diverged_at, NULL);
	walk(log, size);
	free(log);
	return 0;
}
