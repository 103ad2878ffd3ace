/*
 * The verbs side of a port: a host that is reached by RDMA; see verbs.h.
 *
 * The rings are those of every side, in our registered memory, to which the host writes. A command
 * arrives as an immediate value in the completion queue; memory that is being written is never
 * polled. Answers are sent as soon as the send queue has room; until then they wait in the ring. A
 * host that leaves says farewell; one that stops responding is detected by the first answer sent to
 * it. Its port then takes and sends nothing until the daemon closes it.
 *
 * `state` separates what the control thread does (connect) from what the reactor's does.
 */
#include "port/internal.h"
#include "port/verbs_link.h"
#include "region/shared.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SEND_DEPTH 256
#define RECEIVES_MORE 4      /* than submissions: the farewell */
#define ANSWERS_MAX 16       /* in one chain */
#define CLOSE_NS 20000000ull /* the reactor waits: a host that left must not cost more */
#define CLOSE_LOOK_NS 20000

enum verbs_port_state {
	VERBS_PORT_NEW = 0,
	VERBS_PORT_CONNECTED = 1, /* the reactor owns the link */
	VERBS_PORT_LEFT = 2,      /* the host has said farewell, or does not respond */
};

struct verbs_port {
	struct ofs_port base;
	struct ofs_dma memory;
	struct ibv_mr *registered;
	struct ofs_link link;
	struct ofs_verbs_memory host; /* where answers are written */
	_Atomic uint32_t state;       /* enum verbs_port_state */
	uint32_t generation;
	uint32_t sent_tail; /* completions up to here have been posted */
};

struct verbs_share {
	struct ofs_share base;
	struct ibv_pd *pd; /* the tenant's */
	struct ibv_mr *registered;
};

static void
verbs_unshare(struct ofs_share *share)
{
	struct verbs_share *verbs = (struct verbs_share *)share;

	if (verbs->registered != NULL)
		ibv_dereg_mr(verbs->registered);
	if (verbs->pd != NULL)
		ibv_dealloc_pd(verbs->pd);
	ofs_link_adapter_release();
	free(verbs);
}

static int
verbs_share(struct ofs_share **out, struct ofs_region *region)
{
	const struct ofs_link_adapter *adapter = ofs_link_adapter_use();
	struct verbs_share *share;
	uint64_t size_bytes;
	void *base;
	int rc = 0;

	if (adapter == NULL)
		return -ENODEV;
	share = calloc(1, sizeof(*share));
	if (share == NULL) {
		ofs_link_adapter_release();
		return -ENOMEM;
	}
	base = ofs_link_services()->region_base(region, &size_bytes);
	share->pd = ibv_alloc_pd(adapter->context);
	if (share->pd != NULL)
		share->registered = ibv_reg_mr(share->pd, base, size_bytes, IBV_ACCESS_REMOTE_READ);
	if (share->registered == NULL) {
		rc = -errno;
		verbs_unshare(&share->base);
		return rc;
	}
	*out = &share->base;
	return 0;
}

static void
dispose(struct verbs_port *verbs)
{
	ofs_link_close(&verbs->link);
	if (verbs->registered != NULL)
		ibv_dereg_mr(verbs->registered);
	ofs_link_services()->dma_free(&verbs->memory);
	free(verbs);
}

static int
verbs_open_port(struct ofs_port **out, const struct ofs_port_config *config,
	struct ofs_share *share)
{
	struct ibv_pd *pd = ((struct verbs_share *)share)->pd;
	struct verbs_port *verbs = calloc(1, sizeof(*verbs));
	int rc;

	if (verbs == NULL)
		return -ENOMEM;
	verbs->memory.fd = -1;
	rc = ofs_rings_init(&verbs->base.rings, config);
	if (rc == 0) {
		rc = ofs_link_services()->dma_alloc(&verbs->memory, &config->memory,
			verbs->base.rings.header.size_bytes, NULL);
	}
	if (rc == 0) {
		verbs->registered = ibv_reg_mr(pd, verbs->memory.base, verbs->memory.size_bytes,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		rc = verbs->registered == NULL ? -errno : 0;
	}
	if (rc == 0) {
		rc = ofs_link_open(&verbs->link, pd, SEND_DEPTH, config->entry_count + RECEIVES_MORE,
			IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	}
	if (rc != 0) {
		dispose(verbs);
		return rc;
	}
	ofs_rings_place(&verbs->base.rings, verbs->memory.base, verbs->memory.size_bytes);
	*out = &verbs->base;
	return 0;
}

static int
verbs_export(const struct ofs_port *port, struct ofs_attachment *attachment)
{
	const struct verbs_port *verbs = (const struct verbs_port *)port;
	const struct verbs_share *share = (const struct verbs_share *)port->share;
	struct ofs_blob_verbs content = {.address = ofs_link_address(&verbs->link),
		.region = {(uintptr_t)share->registered->addr, share->registered->rkey, 0},
		.port = {(uintptr_t)verbs->registered->addr, verbs->registered->rkey, 0},
		.generation = verbs->generation,
		.submission_tail = port->rings.submission_head,
		.completion_tail = port->rings.completion_tail,
		.port_header = port->rings.header};

	memcpy(&content.region_header, share->registered->addr, sizeof(content.region_header));
	*attachment = (struct ofs_attachment){0};
	ofs_blob_write(attachment, "verbs", &content, sizeof(content));
	return 0;
}

static int
verbs_connect(struct ofs_port *port, const struct ofs_attachment *answer)
{
	struct verbs_port *verbs = (struct verbs_port *)port;
	struct ofs_blob_verbs_host host;
	int rc = ofs_verbs_answer_check(answer, &host);

	if (rc != 0)
		return rc;
	if (atomic_load(&verbs->state) == VERBS_PORT_CONNECTED)
		return -EBUSY;
	if (host.generation != verbs->generation)
		return -ESTALE;
	rc = ofs_link_connect(&verbs->link, &host.address,
		IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	if (rc != 0)
		return rc;
	verbs->generation++;
	verbs->host = host.port;
	/* What the last host has not taken was meant for it alone. */
	verbs->sent_tail = port->rings.completion_tail;
	ofs_word_store(&port->rings.words->completion_head, verbs->sent_tail);
	ofs_word_store(&port->rings.words->submission_tail, port->rings.submission_head);
	atomic_store(&verbs->state, VERBS_PORT_CONNECTED);
	return 0;
}

static int
is_connected(const struct verbs_port *verbs)
{
	return atomic_load(&verbs->state) == VERBS_PORT_CONNECTED;
}

static int
verbs_disconnect(struct ofs_port *port)
{
	struct verbs_port *verbs = (struct verbs_port *)port;

	if (is_connected(verbs)) {
		ofs_link_fail(&verbs->link, -EPIPE);
		atomic_store(&verbs->state, VERBS_PORT_LEFT);
	}
	return port->rings.outstanding_count > 0 ? -EAGAIN : 0;
}

/* Writes to the place in the host's copy that corresponds to ours in the port. */
static struct ibv_send_wr
write_across(const struct verbs_port *verbs, struct ibv_sge *part)
{
	uint64_t offset = part->addr - (uintptr_t)verbs->memory.base;

	return (struct ibv_send_wr){.sg_list = part,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = part->length <= verbs->link.inline_max ? IBV_SEND_INLINE : 0,
		.wr.rdma = {.remote_addr = verbs->host.address + offset, .rkey = verbs->host.key}};
}

static void
make_announcement(const struct verbs_port *verbs, struct ibv_send_wr *request, uint32_t tail)
{
	request->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	request->send_flags |= IBV_SEND_SOLICITED;
	request->imm_data = htonl(OFS_VERBS_NEWS(tail, verbs->base.rings.submission_head));
}

/* Sends results, if the completion brings some, and the completion: 1 or 2 requests. */
static uint32_t
build_answer(const struct verbs_port *verbs, uint32_t tail, struct ibv_send_wr *requests,
	struct ibv_sge *parts)
{
	const struct ofs_rings *rings = &verbs->base.rings;
	const struct ofs_port_header *header = &rings->header;
	struct ofs_cqe *place = &rings->completions[tail & (2 * header->entry_count - 1)];
	struct ofs_cqe cqe = *place; /* the host can write there: trust nothing in it */
	uint32_t count = 0;

	if (cqe.payload_index < header->entry_count && cqe.count <= header->demand_max
		&& cqe.first < cqe.count) {
		const uint8_t *results = rings->payloads
			+ (uint64_t)cqe.payload_index * header->payload_size_bytes
			+ ofs_payload_results_offset(header->demand_max, header->score_max);

		parts[count] = ofs_link_sge(results + cqe.first * sizeof(struct ofs_result),
			(uint32_t)((cqe.count - cqe.first) * sizeof(struct ofs_result)),
			verbs->registered->lkey);
		requests[count] = write_across(verbs, &parts[count]);
		count++;
	}
	parts[count] = ofs_link_sge(place, sizeof(*place), verbs->registered->lkey);
	requests[count] = write_across(verbs, &parts[count]);
	make_announcement(verbs, &requests[count], tail + 1);
	return count + 1;
}

/* Sends all completions that have not been sent, as many as there is room for. */
static void
send_answers(struct verbs_port *verbs)
{
	const struct ofs_rings *rings = &verbs->base.rings;
	struct ibv_send_wr requests[2 * ANSWERS_MAX];
	struct ibv_sge parts[2 * ANSWERS_MAX];

	while (verbs->sent_tail != rings->completion_tail && verbs->link.rc == 0) {
		uint32_t tail = verbs->sent_tail;
		uint32_t count = 0;

		while (tail != rings->completion_tail && count + 2 <= 2 * ANSWERS_MAX
			&& count + 2 <= ofs_link_room(&verbs->link))
			count += build_answer(verbs, tail++, requests + count, parts + count);
		if (count == 0 || ofs_link_post(&verbs->link, requests, count, 0) != 0)
			return;
		verbs->sent_tail = tail;
	}
}

/* Processes arrivals and finished sends, and sends what waits. */
static void
turn_link(struct verbs_port *verbs)
{
	struct ofs_rings *rings = &verbs->base.rings;
	uint32_t values[OFS_LINK_POLL_MAX];
	uint32_t count = ofs_link_poll(&verbs->link, values);

	for (uint32_t i = 0; i < count; i++) {
		if (values[i] == OFS_VERBS_FAREWELL) {
			atomic_store(&verbs->state, VERBS_PORT_LEFT);
			return;
		}
		/* The rings refuse an invalid tail, as for any host. */
		ofs_word_store(&rings->words->submission_tail,
			ofs_verbs_wider(rings->submission_head, (uint16_t)values[i]));
	}
	if (verbs->link.rc != 0)
		atomic_store(&verbs->state, VERBS_PORT_LEFT);
	else
		send_answers(verbs);
}

static int
verbs_poll(struct ofs_port *port, struct ofs_command *command)
{
	struct verbs_port *verbs = (struct verbs_port *)port;
	int rc;

	if (!is_connected(verbs))
		return 0;
	turn_link(verbs);
	if (!is_connected(verbs))
		return 0;
	rc = ofs_rings_poll(&port->rings, command);
	if (rc == -EPROTO)
		send_answers(verbs);
	return rc;
}

static int
verbs_complete(struct ofs_port *port, const struct ofs_cqe *cqe, const struct ofs_result *results)
{
	struct verbs_port *verbs = (struct verbs_port *)port;
	int rc = ofs_rings_write_results(&port->rings, cqe, results);

	if (rc != 0)
		return rc;
	ofs_rings_push_answer(&port->rings, cqe);
	if (is_connected(verbs))
		send_answers(verbs);
	return 0;
}

static void *
verbs_put_slot(const struct ofs_port *port, uint32_t put_slot)
{
	return ofs_rings_put_slot(&port->rings, put_slot);
}

static int
verbs_sleep(struct ofs_port *port)
{
	struct verbs_port *verbs = (struct verbs_port *)port;

	/* Armed even before a host connects: its first command wakes us. */
	if (atomic_load(&verbs->state) == VERBS_PORT_LEFT)
		return 0;
	if (ofs_link_arm(&verbs->link, 0) != 0)
		return 1;
	if (!is_connected(verbs))
		return 0;
	turn_link(verbs);
	if (verbs->link.rc == 0 && verbs->sent_tail != port->rings.completion_tail)
		return 1; /* room in the send queue is only found by polling */
	return ofs_rings_ready(&port->rings);
}

static void
verbs_wake(struct ofs_port *port)
{
	ofs_link_disarm(&((struct verbs_port *)port)->link);
}

static int
verbs_wake_fd(const struct ofs_port *port)
{
	return ofs_link_wait_fd(&((const struct verbs_port *)port)->link);
}

/* Writes "closed" after all answers; waits until the host's adapter has it, or for CLOSE_NS. */
static void
say_closed(struct verbs_port *verbs)
{
	struct ofs_rings *rings = &verbs->base.rings;
	struct ibv_sge part =
		ofs_link_sge(&rings->words->closed, sizeof(rings->words->closed), verbs->registered->lkey);
	struct ibv_send_wr request = write_across(verbs, &part);
	struct timespec look = {.tv_nsec = CLOSE_LOOK_NS};
	bool said = false;

	ofs_word_store_ordered(&rings->words->closed, 1);
	make_announcement(verbs, &request, rings->completion_tail);
	for (uint64_t waited_ns = 0; waited_ns < CLOSE_NS && is_connected(verbs);
		 waited_ns += CLOSE_LOOK_NS) {
		turn_link(verbs);
		if (!said && verbs->sent_tail == rings->completion_tail)
			said = ofs_link_post(&verbs->link, &request, 1, 1) == 0;
		if (said && verbs->link.ended == verbs->link.posted)
			return;
		nanosleep(&look, NULL);
	}
}

static void
verbs_close(struct ofs_port *port)
{
	struct verbs_port *verbs = (struct verbs_port *)port;

	if (is_connected(verbs))
		say_closed(verbs);
	dispose(verbs);
}

static const struct ofs_port_ops verbs_ops = {
	.name = "verbs",
	.share = verbs_share,
	.unshare = verbs_unshare,
	.open = verbs_open_port,
	.close = verbs_close,
	.export = verbs_export,
	.connect = verbs_connect,
	.disconnect = verbs_disconnect,
	.poll = verbs_poll,
	.complete = verbs_complete,
	.put_slot = verbs_put_slot,
	.sleep = verbs_sleep,
	.wake = verbs_wake,
	.wake_fd = verbs_wake_fd,
};

const void *
ofs_verbs_side(void)
{
	static const struct ofs_fabric_side side = {.version = OFS_SIDE_VERSION,
		.port = &verbs_ops,
		.open = ofs_fabric_verbs_open};

	return &side;
}
