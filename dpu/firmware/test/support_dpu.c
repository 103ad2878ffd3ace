/* A DPU for tests; see support_dpu.h. */
#include "support_dpu.h"

#include "region/shared.h"

#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LBA 512
#define TRAVEL_NS_MAX 10000000000ull

#ifdef OFS_HAVE_VERBS
#include "side.h"
#include "verbs.h"

void
support_add_sides(void)
{
	static const struct ofs_verbs_config any = {.gid_index = OFS_VERBS_GID_AUTO};
	char error[256];

	if (ofs_verbs_open(&any, ofs_services_get(), error, sizeof(error)) == 0)
		assert(ofs_fabric_add(ofs_verbs_side()) == 0);
	else
		fprintf(stderr, "without verbs: %s\n", error);
}
#else
void
support_add_sides(void)
{
	fprintf(stderr, "without verbs: not compiled; apt-get install libibverbs-dev\n");
}
#endif

bool
support_travels(const char *side)
{
	return strcmp(side, "verbs") == 0;
}

static uint64_t
machine_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void
support_rest(long rest_ns)
{
	struct timespec rest = {.tv_nsec = rest_ns};

	nanosleep(&rest, NULL);
}

int
support_take(struct support_dpu *dpu)
{
	uint64_t until_ns = machine_ns() + TRAVEL_NS_MAX;
	int rc;

	do
		rc = ofs_port_poll(dpu->port, &dpu->command);
	while (rc == 0 && support_travels(dpu->port->ops->name) && machine_ns() < until_ns);
	return rc;
}

struct ofs_key
support_key(uint32_t ordinal)
{
	static const struct ofs_key secret = {1, 2};
	struct ofs_key key;

	ofs_siphash(&secret, &ordinal, sizeof(ordinal), &key);
	return key;
}

void
support_fill(uint32_t ordinal, void *payload, uint32_t length)
{
	uint8_t *bytes = payload;

	for (uint32_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)(ordinal * 37 + i * 11 + (i >> 8) * 5);
}

bool
support_matches(uint32_t ordinal, const void *payload, uint32_t length)
{
	const uint8_t *bytes = payload;

	for (uint32_t i = 0; i < length; i++)
		if (bytes[i] != (uint8_t)(ordinal * 37 + i * 11 + (i >> 8) * 5))
			return false;
	return true;
}

void
support_open(struct support_dpu *dpu, const struct support_config *config)
{
	struct ofs_region_config region = {.tenant = 3,
		.slot_count = config->slot_count,
		.payload_size_bytes = config->payload_size_bytes,
		.lba_size_bytes = LBA,
		.boot_id = 77};
	struct ofs_port_config port = {.tenant = 3,
		.entry_count = config->entry_count,
		.demand_max = config->demand_max,
		.score_max = config->score_max,
		.put_slot_count = config->put_slot_count,
		.put_stride_bytes = config->payload_size_bytes + LBA,
		.boot_id = 77};
	const struct ofs_port_ops *ops;

	assert(config->block_count <= SUPPORT_BLOCKS_MAX);
	memset(dpu, 0, sizeof(*dpu));
	dpu->config = *config;
	assert(ofs_region_open(&dpu->region, &region) == 0);
	ops = ofs_port_find(config->fabric == NULL ? "shm" : config->fabric);
	assert(ops != NULL && ofs_share_open(&dpu->share, ops, dpu->region) == 0);
	assert(ofs_port_open(&dpu->port, &port, dpu->share) == 0);
	dpu->command.ordinals = calloc(config->demand_max, sizeof(uint32_t));
	dpu->command.granules = calloc(config->demand_max, sizeof(uint32_t));
	dpu->command.seen = calloc(config->demand_max, 1);
	dpu->command.scores = calloc(config->score_max + 1, sizeof(uint16_t));
	dpu->command.guesses = calloc(config->demand_max, sizeof(struct ofs_guess));
	dpu->command.asks = calloc(config->demand_max / 2 + 1, sizeof(struct ofs_value_ask));
	dpu->results = calloc(config->demand_max, sizeof(struct ofs_result));
	dpu->block_in = calloc(config->slot_count, sizeof(uint32_t));
	for (uint32_t i = 0; i < config->slot_count; i++)
		dpu->block_in[i] = OFS_NONE;
	for (uint32_t i = 0; i < SUPPORT_BLOCKS_MAX; i++) {
		dpu->slot_of[i] = OFS_NONE;
		dpu->length_of[i] = i < config->block_count ? config->payload_size_bytes : 0;
	}
}

void
support_close(struct support_dpu *dpu)
{
	ofs_port_close(dpu->port);
	ofs_share_close(dpu->share);
	ofs_region_close(dpu->region);
	free(dpu->command.ordinals);
	free(dpu->command.granules);
	free(dpu->command.seen);
	free(dpu->command.scores);
	free(dpu->command.asks);
	free(dpu->command.guesses);
	free(dpu->results);
	free(dpu->block_in);
}

void
support_evict(struct support_dpu *dpu, uint32_t ordinal)
{
	struct ofs_key key = support_key(ordinal);

	if (dpu->slot_of[ordinal] != OFS_NONE) {
		ofs_region_retract(dpu->region, &key, dpu->slot_of[ordinal]);
		dpu->block_in[dpu->slot_of[ordinal]] = OFS_NONE;
		dpu->slot_of[ordinal] = OFS_NONE;
	}
}

void
support_stage(struct support_dpu *dpu, uint32_t ordinal)
{
	uint32_t slot = (uint32_t)(ofs_draw(&dpu->random) % dpu->config.slot_count);
	uint32_t length = dpu->length_of[ordinal];
	struct ofs_trailer *trailer = ofs_region_trailer(dpu->region, slot);
	uint8_t *payload = ofs_region_slot(dpu->region, slot);
	struct ofs_key key = support_key(ordinal);
	int rc;

	support_evict(dpu, ordinal);
	if (dpu->block_in[slot] != OFS_NONE)
		support_evict(dpu, dpu->block_in[slot]);
	support_fill(ordinal, payload, length);
	__atomic_store_n(&trailer->checksum, ofs_checksum(payload, length), __ATOMIC_RELAXED);
	__atomic_store_n(&trailer->length, length, __ATOMIC_RELAXED);
	if (dpu->flip)
		payload[ofs_draw(&dpu->random) % length] ^= 0x10;
	rc = ofs_region_publish(dpu->region, &key, slot, ++dpu->generation,
		OFS_CAUSE_WINDOW + ofs_draw(&dpu->random) % 2, 0);
	assert(rc == 0 || rc == -ENOSPC);
	dpu->slot_of[ordinal] = slot;
	dpu->block_in[slot] = ordinal;
}

/* One demand that the host did not read itself. */
static void
serve_demand(struct support_dpu *dpu, uint32_t ordinal, struct ofs_result *result)
{
	struct ofs_trailer *trailer;

	result->end = OFS_END_COLD;
	result->slot = OFS_NONE;
	if (ordinal >= dpu->config.block_count || dpu->length_of[ordinal] == 0) {
		result->rc = -ENOENT;
		return;
	}
	if (dpu->busy_answers > 0) {
		dpu->busy_answers--;
		result->rc = -EAGAIN;
		return;
	}
	if (dpu->slot_of[ordinal] == OFS_NONE)
		support_stage(dpu, ordinal);
	trailer = ofs_region_trailer(dpu->region, dpu->slot_of[ordinal]);
	result->rc = 0;
	result->slot = dpu->slot_of[ordinal];
	result->generation = trailer->generation;
}

static void
serve_step(struct support_dpu *dpu, struct ofs_cqe *cqe)
{
	const struct ofs_sqe *sqe = &dpu->command.sqe;

	dpu->step_count++;
	dpu->retry_count += (sqe->flags & 1) != 0;
	dpu->selected_count += (sqe->flags & 1) == 0 ? sqe->selected_count : 0;
	for (uint32_t i = 0; i < sqe->score_count; i++)
		dpu->score_sum += dpu->command.scores[i];
	for (uint32_t i = 0; i < sqe->demand_count; i++) {
		struct ofs_result *result =
			&dpu->results[dpu->land_first > 0 ? sqe->demand_count - 1 - i : i];

		dpu->seen_count[dpu->command.seen[i]]++;
		*result =
			(struct ofs_result){.slot = OFS_NONE, .demand = (uint16_t)i, .end = OFS_END_WINDOW};
		if (dpu->command.seen[i] == OFS_CAUSE_NONE)
			serve_demand(dpu, dpu->command.ordinals[i], result);
	}
	cqe->count = sqe->demand_count;
	if (dpu->land_first > 0 && dpu->land_first < cqe->count) {
		dpu->rest = *cqe;
		dpu->rest.first = cqe->count = dpu->land_first;
		cqe->rc = -EINPROGRESS;
	}
}

static int
serve_put(struct support_dpu *dpu)
{
	const struct ofs_sqe *sqe = &dpu->command.sqe;
	const uint8_t *payload = ofs_port_put_slot(dpu->port, sqe->put_slot);

	if (dpu->busy_puts > 0) {
		dpu->busy_puts--;
		return -EBUSY;
	}
	if (ofs_checksum(payload, sqe->length) != sqe->checksum
		|| !support_matches(sqe->ordinal, payload, sqe->length)) {
		return -EBADMSG;
	}
	if (dpu->put_rc == 0)
		dpu->length_of[sqe->ordinal] = sqe->length;
	return dpu->put_rc;
}

void
support_turn(struct support_dpu *dpu)
{
	struct ofs_cqe cqe = {0};
	int rc;

	if (dpu->rest.count > 0) {
		assert(ofs_port_complete(dpu->port, &dpu->rest, dpu->results) == 0);
		dpu->rest.count = 0;
	}
	rc = ofs_port_poll(dpu->port, &dpu->command);
	if (dpu->churn)
		support_stage(dpu, (uint32_t)(ofs_draw(&dpu->random) % dpu->config.block_count));
	dpu->bad_count += rc == -EPROTO;
	if (rc != 1 || dpu->mute)
		return;
	cqe.user = dpu->command.sqe.user;
	cqe.op = dpu->command.sqe.op;
	cqe.payload_index = dpu->command.sqe.payload_index;
	if (cqe.op == OFS_OP_STEP)
		serve_step(dpu, &cqe);
	else if (cqe.op == OFS_OP_PUT)
		cqe.rc = serve_put(dpu);
	else if (cqe.op == OFS_OP_HINT)
		dpu->guess_count += dpu->command.sqe.demand_count;
	assert(ofs_port_complete(dpu->port, &cqe, dpu->results) == 0);
}

static void *
run(void *argument)
{
	struct support_dpu *dpu = argument;
	struct pollfd polled = {.fd = ofs_port_wake_fd(dpu->port), .events = POLLIN};
	uint32_t idle_count = 0;

	while (ofs_word_load(&dpu->stop) == 0) {
		uint32_t before = dpu->step_count;

		support_turn(dpu);
		__atomic_add_fetch(&dpu->turns, 1, __ATOMIC_RELAXED);
		idle_count = dpu->step_count != before || dpu->churn ? 0 : idle_count + 1;
		if (idle_count > 200) {
			if (!ofs_port_sleep(dpu->port))
				(void)poll(&polled, 1, 50);
			ofs_port_wake(dpu->port);
			idle_count = 0;
		}
	}
	return NULL;
}

void
support_start(struct support_dpu *dpu)
{
	ofs_word_store(&dpu->stop, 0);
	assert(pthread_create(&dpu->thread, NULL, run, dpu) == 0);
}

void
support_stop(struct support_dpu *dpu)
{
	ofs_word_store(&dpu->stop, 1);
	assert(pthread_join(dpu->thread, NULL) == 0);
}

void
support_set_checksum(struct ofs_attachment *attachment)
{
	struct ofs_blob_header *header = (struct ofs_blob_header *)attachment->blob;

	header->checksum = 0;
	header->checksum = ofs_checksum(attachment->blob, attachment->blob_size_bytes);
}

void
support_close_fds(const struct ofs_attachment *attachment)
{
	for (uint32_t i = 0; i < attachment->fd_count; i++)
		close(attachment->fds[i]);
}

struct ofs_fabric *
support_fabric(struct support_dpu *dpu)
{
	struct ofs_attachment attachment;
	struct ofs_fabric *fabric;
	char error[256];
	int rc;

	assert(ofs_port_export(dpu->port, &attachment) == 0);
	rc = ofs_fabric_open(&fabric, &attachment, error, sizeof(error));
	if (rc != 0)
		fprintf(stderr, "%s\n", error);
	assert(rc == 0);
	support_close_fds(&attachment);
	if (fabric->ops->export != NULL) {
		uint64_t until_ns = machine_ns() + TRAVEL_NS_MAX;

		fabric->ops->export(fabric, &attachment);
		/* Busy: the farewell of the last host is still on its way. */
		while ((rc = ofs_port_connect(dpu->port, &attachment)) == -EBUSY && machine_ns() < until_ns)
			assert(ofs_port_poll(dpu->port, &dpu->command) == 0);
		assert(rc == 0);
	}
	return fabric;
}

struct ofs_fabric *
support_fabric_sim(const struct support_dpu *dpu, const struct ofs_fabric_sim_config *config,
	void (*pump)(void *context, uint64_t now_ns), void *context, uint64_t now_ns)
{
	struct ofs_attachment attachment;
	struct ofs_fabric *fabric;
	char error[256];

	assert(ofs_port_export(dpu->port, &attachment) == 0);
	assert(ofs_fabric_sim_open(&fabric, &attachment, config, pump, context, now_ns, error,
			   sizeof(error))
		== 0);
	support_close_fds(&attachment);
	return fabric;
}

void
support_open_driver(struct support_dpu *dpu, struct ofs_driver **driver)
{
	assert(ofs_driver_open(driver, support_fabric(dpu)) == 0);
}

struct support_fetch *
support_fetch_new(const struct support_dpu *dpu, uint32_t count, const uint32_t *ordinals)
{
	struct support_fetch *fetch = calloc(1, sizeof(*fetch));

	assert(fetch != NULL && count <= SUPPORT_BLOCKS_MAX);
	fetch->target = malloc((size_t)(count + 1) * dpu->config.payload_size_bytes);
	for (uint32_t i = 0; i < count; i++) {
		fetch->ordinals[i] = ordinals[i];
		fetch->keys[i] = support_key(ordinals[i]);
		fetch->target_index[i] = count - 1 - i;
	}
	fetch->fetch = (struct ofs_fetch){.session = 1,
		.step = 2,
		.layer = 3,
		.selected_count = count + 5,
		.demand_count = count,
		.ordinals = fetch->ordinals,
		.keys = fetch->keys,
		.target = fetch->target,
		.target_index = fetch->target_index,
		.target_stride_bytes = dpu->config.payload_size_bytes,
		.timeout_ns = 5000000000ull,
		.ends = fetch->ends,
		.rcs = fetch->rcs,
		.lengths = fetch->lengths,
		.checksums = fetch->checksums};
	return fetch;
}

void
support_fetch_free(struct support_fetch *fetch)
{
	free(fetch->target);
	free(fetch);
}

uint32_t
support_fetch_check(const struct support_fetch *fetch)
{
	uint32_t came = 0;

	for (uint32_t i = 0; i < fetch->fetch.demand_count; i++) {
		const uint8_t *block =
			fetch->target + fetch->target_index[i] * fetch->fetch.target_stride_bytes;

		if (fetch->rcs[i] == 0) {
			came++;
			assert(support_matches(fetch->ordinals[i], block, fetch->lengths[i]));
			assert(fetch->checksums[i] == ofs_checksum(block, fetch->lengths[i]));
		}
	}
	assert(came + fetch->fetch.failed_count == fetch->fetch.demand_count);
	return came;
}
