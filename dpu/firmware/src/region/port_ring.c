/* The rings of one port, DPU side: take commands, check them, push completions; see region.h. */
#include "region/port.h"
#include "region/shared.h"

#include <assert.h>
#include <string.h>

/* Whether there is room for the completion of one more command. */
static int
has_room(const struct ofs_port *port)
{
	uint32_t capacity = 2 * port->header.entry_count;
	uint32_t unread = port->completion_tail - ofs_word_load(&port->words->completion_head);

	/* A head that is nonsense looks like a full ring: that host waits for itself, for ever. */
	return unread <= capacity && unread + port->outstanding_count < capacity;
}

static int
push(struct ofs_port *port, const struct ofs_cqe *cqe)
{
	uint32_t mask = 2 * port->header.entry_count - 1;

	port->completions[port->completion_tail & mask] = *cqe;
	port->completion_tail++;
	ofs_word_store_ordered(&port->words->completion_tail, port->completion_tail);
	ofs_port_ring_host(port);
	return 0;
}

/* Answers nonsense, so that an honest host with a bug learns of it. */
static int
refuse(struct ofs_port *port, const struct ofs_sqe *sqe, int rc)
{
	struct ofs_cqe cqe = {.user = sqe->user,
		.rc = rc,
		.op = sqe->op,
		.payload_index = sqe->payload_index};

	port->nonsense_count++;
	(void)push(port, &cqe);
	return -EPROTO;
}

static int
check_command(const struct ofs_port *port, const struct ofs_sqe *sqe)
{
	const struct ofs_port_header *header = &port->header;

	if (sqe->payload_index >= header->entry_count)
		return -EPROTO;
	switch (sqe->op) {
	case OFS_OP_NOP:
	case OFS_OP_RELEASE:
		return 0;
	case OFS_OP_STEP:
		if (sqe->demand_count > header->demand_max || sqe->score_count > header->score_max)
			return -EINVAL;
		return 0;
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

static void
copy_payload(const struct ofs_port *port, struct ofs_command *command)
{
	const struct ofs_sqe *sqe = &command->sqe;
	const uint8_t *payload =
		port->payloads + (uint64_t)sqe->payload_index * port->header.payload_size_bytes;

	memcpy(command->ordinals, payload, sqe->demand_count * sizeof(uint32_t));
	memcpy(command->seen, payload + ofs_payload_seen_offset(sqe->demand_count), sqe->demand_count);
	memcpy(command->scores, payload + ofs_payload_scores_offset(sqe->demand_count),
		sqe->score_count * sizeof(uint16_t));
}

int
ofs_port_poll(struct ofs_port *port, struct ofs_command *command)
{
	uint32_t tail = ofs_word_load(&port->words->submission_tail);
	uint32_t mask = port->header.entry_count - 1;
	int rc;

	if (tail == port->submission_head || !has_room(port))
		return 0;
	if (tail - port->submission_head > port->header.entry_count) {
		static const struct ofs_sqe no_sqe;

		/* More than the ring can hold: what lies in it is anybody's guess. Begin anew there. */
		port->submission_head = tail;
		ofs_word_store(&port->words->submission_head, tail);
		return refuse(port, &no_sqe, -EPROTO);
	}
	/* One copy; what the host writes from here on has no effect. */
	ofs_copy_shared(&command->sqe, &port->submissions[port->submission_head & mask],
		sizeof(command->sqe));
	OFS_FENCE_LOADS(); /* the compiler may not read it again either */
	port->submission_head++;
	ofs_word_store(&port->words->submission_head, port->submission_head);
	rc = check_command(port, &command->sqe);
	if (rc != 0)
		return refuse(port, &command->sqe, rc);
	if (command->sqe.op == OFS_OP_STEP)
		copy_payload(port, command);
	port->outstanding_count++;
	return 1;
}

int
ofs_port_complete(struct ofs_port *port, const struct ofs_cqe *cqe,
	const struct ofs_result *results)
{
	uint8_t *payload;

	if (cqe->payload_index >= port->header.entry_count || cqe->count > port->header.demand_max)
		return -EINVAL;
	assert(port->outstanding_count > 0);
	port->outstanding_count--;
	if (cqe->count > 0) {
		payload = port->payloads + (uint64_t)cqe->payload_index * port->header.payload_size_bytes;
		memcpy(payload
				+ ofs_payload_results_offset(port->header.demand_max, port->header.score_max),
			results, cqe->count * sizeof(*results));
	}
	return push(port, cqe);
}

int
ofs_port_sleep(struct ofs_port *port)
{
	ofs_word_store_ordered(&port->words->dpu_sleeping, 1);
	/* Only work that poll would take: a host that jams its own ring keeps nobody awake. */
	return ofs_word_load_ordered(&port->words->submission_tail) != port->submission_head
		&& has_room(port);
}
