/*
 * Hosts open, grow and close sessions, demand and guess, with arbitrary numbers: does the core
 * refuse or obey, with its tables intact?
 *
 * Input: pieces of one operation's byte and its bytes. The daemon ensures that a host names only
 * its own tenant and session; this test does not rely on that.
 */
#include "core_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHUNKS_MAX 300 /* more than a session may have */
#define GUESSES_MAX 70 /* more than a queue holds */

struct input {
	const uint8_t *data;
	size_t size;
};

/* The next bytes as a number, little-endian; zeros past the end. */
static uint64_t
take(struct input *input, size_t count)
{
	uint64_t value = 0;

	for (size_t i = 0; i < count && input->size > 0; i++) {
		value |= (uint64_t)input->data[0] << 8 * i;
		input->data++;
		input->size--;
	}
	return value;
}

/* Small numbers that name something, and now and then any number. */
static uint32_t
take_name(struct input *input)
{
	uint32_t name = (uint32_t)take(input, 1);

	return name < 0xf0 ? name % 6 : (uint32_t)take(input, 4);
}

static void
open_one(struct fixture *f, struct input *input)
{
	struct ofs_session_config config = {.tenant = take_name(input),
		.sink_blocks = take_name(input),
		.window_blocks = take_name(input),
		.select_blocks = take_name(input),
		.step_ns = take(input, 8)};
	uint32_t session = UINT32_MAX;
	int rc = ofs_core_session_open(f->core, 0, &config, &session);

	assert(rc == 0 || rc == -EINVAL || rc == -ENOENT || rc == -ENOSPC);
	assert((rc == 0) == (session != UINT32_MAX));
}

static void
append(struct fixture *f, struct input *input)
{
	static struct ofs_key contents[CHUNKS_MAX];
	static struct ofs_chunk_info infos[CHUNKS_MAX];
	uint32_t session = take_name(input);
	uint32_t count = (uint32_t)take(input, 2) % (CHUNKS_MAX + 1);
	static uint32_t found[CHUNKS_MAX];
	uint64_t text = take(input, 1) % 4; /* few texts, so that prefixes are shared */
	uint32_t known = ofs_core_chunk_count(f->core, 0);
	int rc, made;

	for (uint32_t i = 0; i < count; i++)
		contents[i] = (struct ofs_key){text, i};
	made = ofs_core_session_look(f->core, session, count, contents, found);
	rc = ofs_core_session_append(f->core, 0, session, count, contents, infos);
	assert(rc <= 0 && (made >= 0 || rc == -EINVAL || rc == -ENOENT));
	assert(rc != 0 || ofs_core_chunk_count(f->core, 0) == known + (uint32_t)made);
	for (uint32_t i = 0; rc == 0 && i < count; i++)
		assert(infos[i].stored_layers <= 1);
}

static void
demand(struct fixture *f, struct input *input)
{
	uint32_t ordinals[4];
	uint8_t ends[4];
	struct ofs_step step = {.session = take_name(input), .demands = ordinals};

	step.demand_count = (uint32_t)take(input, 1) % 5;
	step.selected_count = take_name(input);
	for (uint32_t i = 0; i < step.demand_count; i++)
		ordinals[i] = take_name(input);
	(void)ofs_core_step(f->core, 0, &step, ends);
}

static void
hint(struct fixture *f, struct input *input)
{
	struct ofs_guess guesses[GUESSES_MAX];
	uint32_t session = take_name(input);
	uint32_t count = (uint32_t)take(input, 1) % (GUESSES_MAX + 1);
	int rc;

	for (uint32_t i = 0; i < count; i++)
		guesses[i] = (struct ofs_guess){.layer = (uint16_t)take_name(input),
			.ordinal = take_name(input),
			.steps = (uint16_t)take(input, 2),
			.probability = (uint16_t)take(input, 2),
			.cause = (uint8_t)take(input, 1)};
	rc = ofs_core_hint(f->core, 0, session, guesses, count);
	assert(rc == 0 || rc == -EINVAL || rc == -ENOENT);
}

static void
act(struct fixture *f, struct input *input)
{
	switch (take(input, 1) % 8) {
	case 0:
		open_one(f, input);
		break;
	case 1:
		append(f, input);
		break;
	case 2:
		(void)ofs_core_session_close(f->core, 0, take_name(input));
		break;
	case 3:
		(void)ofs_core_session_set_generating(f->core, 0, take_name(input), (int)take(input, 1));
		break;
	case 4:
		(void)ofs_core_block_stored(f->core, 0, take_name(input), take_name(input));
		break;
	case 5:
		(void)ofs_core_session_release(f->core, 0, take_name(input));
		break;
	case 6:
		hint(f, input);
		break;
	default:
		demand(f, input);
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ofs_core_config config = fixture_config(16);
	struct ofs_policy policy = fixture_policy(OFS_EVICT_LRU);
	struct input input = {data, size};
	static struct fixture f;

	memset(&f, 0, sizeof(f));
	fixture_open(&f, &config, &policy, 8);
	while (input.size > 0) {
		act(&f, &input);
		fixture_take(&f);
		if (f.action_count > 0 && f.actions[0].type == OFS_ACTION_READ)
			fixture_answer(&f, 0, 0);
		assert(ofs_core_verify(f.core) == 0);
	}
	ofs_core_close(f.core);
	return 0;
}
