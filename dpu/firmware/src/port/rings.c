/* The rings of one port, DPU side: take commands, check them, push completions; see region.h. */
#include "port/internal.h"
#include "region/shared.h"
#include "scores.h"

#include <assert.h>
#include <string.h>

static uint64_t
align_up(uint64_t value, uint64_t to)
{
	return (value + to - 1) & ~(to - 1);
}

static int
check_config(const struct ofs_port_config *config)
{
	uint32_t entries = config->entry_count;

	if (entries == 0 || (entries & (entries - 1)) != 0 || entries > OFS_PORT_ENTRIES_MAX
		|| config->demand_max == 0 || config->demand_max > OFS_PORT_DEMANDS_MAX
		|| config->score_max > OFS_PORT_SCORES_MAX || config->put_slot_count == 0
		|| config->put_slot_count > OFS_PORT_PUT_SLOTS_MAX || config->put_stride_bytes == 0
		|| config->put_stride_bytes > 2 * OFS_PAYLOAD_SIZE_BYTES_MAX) {
		return -EINVAL;
	}
	return 0;
}

int
ofs_rings_init(struct ofs_rings *rings, const struct ofs_port_config *config)
{
	struct ofs_port_header header = {.magic = OFS_PORT_MAGIC,
		.version = OFS_MEMORY_MAP_VERSION,
		.tenant = config->tenant,
		.boot_id = config->boot_id,
		.entry_count = config->entry_count,
		.put_slot_count = config->put_slot_count,
		.put_stride_bytes = config->put_stride_bytes,
		.demand_max = config->demand_max,
		.score_max = config->score_max,
		.submissions_offset = 4096};
	int rc = check_config(config);

	if (rc != 0)
		return rc;
	header.payload_size_bytes = ofs_payload_area_size_bytes(config->demand_max, config->score_max);
	header.completions_offset =
		header.submissions_offset + (uint64_t)header.entry_count * sizeof(struct ofs_sqe);
	header.payloads_offset = align_up(
		header.completions_offset + 2ull * header.entry_count * sizeof(struct ofs_cqe), 64);
	/* The put window is written to NVMe directly, so it begins on a page for O_DIRECT. */
	header.puts_offset = align_up(
		header.payloads_offset + (uint64_t)header.entry_count * header.payload_size_bytes, 65536);
	header.size_bytes = align_up(
		header.puts_offset + (uint64_t)header.put_slot_count * header.put_stride_bytes, 4096);
	*rings = (struct ofs_rings){.header = header};
	return 0;
}

void
ofs_rings_place(struct ofs_rings *rings, void *base, uint64_t size_bytes)
{
	struct ofs_port_header *header = &rings->header;

	header->size_bytes = size_bytes;
	header->checksum = ofs_checksum(header, offsetof(struct ofs_port_header, checksum));
	rings->base = base;
	rings->words = (struct ofs_port_words *)(rings->base + OFS_PORT_WORDS_OFFSET);
	rings->submissions = (struct ofs_sqe *)(rings->base + header->submissions_offset);
	rings->completions = (struct ofs_cqe *)(rings->base + header->completions_offset);
	rings->payloads = rings->base + header->payloads_offset;
	rings->puts = rings->base + header->puts_offset;
	memcpy(base, header, sizeof(*header));
}

static int
fits_one_more(const struct ofs_rings *rings)
{
	uint32_t capacity = 2 * rings->header.entry_count;
	uint32_t unread = rings->completion_tail - rings->completion_head;

	/* An invalid head looks like a full ring: that host blocks only itself. */
	return unread <= capacity && unread + rings->outstanding_count < capacity;
}

int
ofs_rings_has_room(struct ofs_rings *rings)
{
	/* A head only advances: room that was there once is still there, and needs no new read. */
	if (fits_one_more(rings))
		return 1;
	rings->completion_head = ofs_word_load(&rings->words->completion_head);
	return fits_one_more(rings);
}

static void
push(struct ofs_rings *rings, const struct ofs_cqe *cqe)
{
	uint32_t mask = 2 * rings->header.entry_count - 1;

	rings->completions[rings->completion_tail & mask] = *cqe;
	rings->completion_tail++;
	ofs_word_store_ordered(&rings->words->completion_tail, rings->completion_tail);
}

int
ofs_rings_refuse(struct ofs_rings *rings, const struct ofs_sqe *sqe, int rc)
{
	struct ofs_cqe cqe = {.user = sqe->user,
		.rc = rc,
		.op = sqe->op,
		.payload_index = sqe->payload_index};

	rings->nonsense_count++;
	push(rings, &cqe);
	return -EPROTO;
}

static int
check_command(const struct ofs_rings *rings, const struct ofs_sqe *sqe)
{
	const struct ofs_port_header *header = &rings->header;

	if (sqe->payload_index >= header->entry_count)
		return -EPROTO;
	switch (sqe->op) {
	case OFS_OP_NOP:
	case OFS_OP_RELEASE:
		return 0;
	case OFS_OP_HINT:
		/* It has no scores: the count would be charged to its tenant, and the scores never used. */
		return sqe->demand_count > header->demand_max || sqe->score_count != 0 ? -EINVAL : 0;
	case OFS_OP_VALUES:
		if (sqe->demand_count > ofs_values_max(header->demand_max, header->score_max)
			|| sqe->score_count != 0 || sqe->flags < OFS_VALUE_EXIST
			|| sqe->flags > OFS_VALUE_LIST) {
			return -EINVAL;
		}
		return 0;
	case OFS_OP_STEP:
		if (sqe->demand_count > header->demand_max || sqe->score_count > header->score_max)
			return -EINVAL;
		return ofs_scores_check(sqe);
	case OFS_OP_PUT:
		if (sqe->put_slot >= header->put_slot_count || sqe->length == 0
			|| sqe->length > header->put_stride_bytes) {
			return -EINVAL;
		}
		return 0;
	default:
		return -EPROTO;
	}
}

static int
copy_payload(const struct ofs_rings *rings, struct ofs_command *command)
{
	const struct ofs_sqe *sqe = &command->sqe;
	const uint8_t *payload =
		rings->payloads + (uint64_t)sqe->payload_index * rings->header.payload_size_bytes;

	if (sqe->op == OFS_OP_HINT) {
		memcpy(command->guesses, payload, ofs_payload_used_bytes(sqe));
		return 0;
	}
	if (sqe->op == OFS_OP_VALUES) {
		memcpy(command->asks, payload, ofs_payload_used_bytes(sqe));
		return 0;
	}
	memcpy(command->ordinals, payload, sqe->demand_count * sizeof(uint32_t));
	memcpy(command->seen, payload + ofs_payload_seen_offset(sqe->demand_count), sqe->demand_count);
	if (sqe->flags & OFS_STEP_GRANULES) {
		memcpy(command->granules, payload + ofs_payload_scores_offset(sqe->demand_count),
			sqe->demand_count * sizeof(uint32_t));
	}
	return ofs_scores_unpack(sqe, payload + ofs_step_scores_offset(sqe), command->scores);
}

int
ofs_rings_poll(struct ofs_rings *rings, struct ofs_command *command)
{
	uint32_t mask = rings->header.entry_count - 1;
	uint32_t tail;
	int rc;

	/* Fetch the entry while the tail is read, not after it. */
	OFS_PREFETCH(&rings->submissions[rings->submission_head & mask]);
	tail = ofs_word_load(&rings->words->submission_tail);
	if (tail == rings->submission_head || !ofs_rings_has_room(rings))
		return 0;
	if (tail - rings->submission_head > rings->header.entry_count) {
		static const struct ofs_sqe no_sqe;

		/* More than the ring can hold: its contents are undefined. Restart at the tail. */
		rings->submission_head = tail;
		ofs_word_store(&rings->words->submission_head, tail);
		return ofs_rings_refuse(rings, &no_sqe, -EPROTO);
	}
	/* One copy; later writes by the host have no effect. */
	ofs_copy_shared(&command->sqe, &rings->submissions[rings->submission_head & mask],
		sizeof(command->sqe));
	OFS_FENCE_LOADS(); /* the compiler must not read it again either */
	rings->submission_head++;
	ofs_word_store(&rings->words->submission_head, rings->submission_head);
	rc = check_command(rings, &command->sqe);
	if (rc == 0 && ofs_payload_used_bytes(&command->sqe) > 0)
		rc = copy_payload(rings, command);
	if (rc != 0)
		return ofs_rings_refuse(rings, &command->sqe, rc);
	rings->outstanding_count++;
	return 1;
}

int
ofs_rings_write_results(struct ofs_rings *rings, const struct ofs_cqe *cqe,
	const struct ofs_result *results)
{
	const struct ofs_port_header *header = &rings->header;
	uint8_t *payload;

	if (cqe->payload_index >= header->entry_count || cqe->count > header->demand_max
		|| cqe->first > cqe->count) {
		return -EINVAL;
	}
	if (cqe->rc == -EINPROGRESS) {
		if (!ofs_rings_has_room(rings))
			return -EAGAIN;
		rings->outstanding_count++; /* its command stays outstanding */
	}
	if (cqe->count > cqe->first) {
		payload = rings->payloads + (uint64_t)cqe->payload_index * header->payload_size_bytes;
		memcpy(payload + ofs_payload_results_offset(header->demand_max, header->score_max)
				+ cqe->first * sizeof(*results),
			results + cqe->first, (cqe->count - cqe->first) * sizeof(*results));
	}
	return 0;
}

void
ofs_rings_push_answer(struct ofs_rings *rings, const struct ofs_cqe *cqe)
{
	assert(rings->outstanding_count > 0);
	rings->outstanding_count--;
	push(rings, cqe);
}

int
ofs_rings_ready(struct ofs_rings *rings)
{
	/* Counts only work that poll would take: a host that jams its own ring wakes no thread. */
	return ofs_word_load_ordered(&rings->words->submission_tail) != rings->submission_head
		&& ofs_rings_has_room(rings);
}

int
ofs_rings_announce_sleep(struct ofs_rings *rings)
{
	ofs_word_store_ordered(&rings->words->dpu_sleeping, 1);
	return ofs_rings_ready(rings);
}

int
ofs_rings_host_slept(struct ofs_rings *rings)
{
	if (ofs_word_load_ordered(&rings->words->host_sleeping) == 0)
		return 0;
	ofs_word_store(&rings->words->host_sleeping, 0);
	return 1;
}

void *
ofs_rings_put_slot(const struct ofs_rings *rings, uint32_t put_slot)
{
	if (put_slot >= rings->header.put_slot_count)
		return NULL;
	return rings->puts + (uint64_t)put_slot * rings->header.put_stride_bytes;
}
