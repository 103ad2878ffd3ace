/*
 * The verbs side of the fabric seam, the host's end: one-sided reads and writes by RDMA; verbs.h.
 *
 * Owns a queue pair and a copy of the port with the DPU's layout: commands, payloads and puts are
 * built there and written to the DPU, and the DPU writes completions and results into it. A put out
 * of registered memory is written from there, and only hashed here. Reads are gathered in a chain
 * that `flush` posts, signalled only at its end, so a batch costs one round trip. Waiting spins for
 * about as long as a wake-up costs, then sleeps on the completion channel; while nothing arrives,
 * an occasional empty write checks that the DPU is still there, since a peer that has died is
 * silent.
 *
 * A failure is permanent: every later call returns it, and the host attaches again.
 */
#include "fabric/verbs.h"
#include "region/shared.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define SUBMIT_REQUESTS_MAX 3 /* head, payload, command */
#define ASK_NS 500000000ull   /* of silence before the peer is checked */
#define LEAVE_NS 200000000ull

static int
post_reads(struct verbs_fabric *verbs, int signal)
{
	uint32_t count = verbs->read_count;
	int rc;

	if (count == 0)
		return verbs->link.rc;
	verbs->read_count = 0;
	rc = ofs_verbs_make_room(verbs, count);
	return rc != 0 ? rc : ofs_link_post(&verbs->link, verbs->reads, count, signal);
}

/* Says farewell, so that the port's other end does not wait for us. */
static void
leave(struct verbs_fabric *verbs)
{
	struct ibv_send_wr request = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.send_flags = IBV_SEND_SOLICITED,
		.imm_data = htonl(OFS_VERBS_FAREWELL),
		.wr.rdma = {.remote_addr = verbs->port_there.address, .rkey = verbs->port_there.key}};
	uint64_t until_ns = ofs_verbs_now_ns(&verbs->base) + LEAVE_NS;

	if (ofs_host_port_closed(&verbs->port) || ofs_link_post(&verbs->link, &request, 1, 1) != 0)
		return;
	while (ofs_verbs_turn(verbs) == 0 && verbs->link.ended != verbs->link.posted
		&& ofs_verbs_now_ns(&verbs->base) < until_ns)
		sched_yield();
}

static void
verbs_close(struct ofs_fabric *fabric)
{
	struct verbs_fabric *verbs = (struct verbs_fabric *)fabric;

	if (verbs->port.base != NULL)
		leave(verbs);
	ofs_link_close(&verbs->link);
	for (uint32_t i = 0; i < fabric->registered_count; i++)
		ibv_dereg_mr(verbs->targets[i]);
	if (verbs->copy != NULL)
		ibv_dereg_mr(verbs->copy);
	if (verbs->pd != NULL)
		ibv_dealloc_pd(verbs->pd);
	ofs_link_services()->dma_free(&verbs->memory);
	free(verbs);
}

static void
verbs_export(const struct ofs_fabric *fabric, struct ofs_attachment *answer)
{
	const struct verbs_fabric *verbs = (const struct verbs_fabric *)fabric;
	struct ofs_blob_verbs_host content = {.address = ofs_link_address(&verbs->link),
		.port = {(uintptr_t)verbs->port.base, verbs->copy->rkey, 0},
		.generation = verbs->generation};

	*answer = (struct ofs_attachment){0};
	ofs_blob_write(answer, "verbs", &content, sizeof(content));
}

static int
verbs_register_memory(struct ofs_fabric *fabric, void *base, uint64_t size_bytes)
{
	struct verbs_fabric *verbs = (struct verbs_fabric *)fabric;
	int rc = ofs_fabric_register_memory(fabric, base, size_bytes);
	struct ibv_mr *target;

	if (rc != 0)
		return rc;
	target = ibv_reg_mr(verbs->pd, base, size_bytes, IBV_ACCESS_LOCAL_WRITE);
	if (target == NULL) {
		rc = -errno;
		fabric->registered_count--;
		return rc;
	}
	verbs->targets[fabric->registered_count - 1] = target;
	return 0;
}

/* Waits for request `number`. A timeout ends the link: its reads may still land. */
static int
wait_for(struct verbs_fabric *verbs, uint64_t number, uint64_t timeout_ns)
{
	uint64_t start_ns = ofs_verbs_now_ns(&verbs->base);
	uint64_t waited_ns = 0;
	int rc;

	while ((rc = ofs_verbs_turn(verbs)) == 0 && verbs->link.ended < number) {
		waited_ns = ofs_verbs_now_ns(&verbs->base) - start_ns;
		if (waited_ns >= timeout_ns) {
			ofs_link_fail(&verbs->link, -EHOSTUNREACH);
		} else if (waited_ns < verbs->spin_ns) {
			ofs_cpu_relax();
		} else if (ofs_link_arm(&verbs->link, 1) == 0 && ofs_verbs_turn(verbs) == 0
			&& verbs->link.ended < number) {
			ofs_verbs_sleep(verbs, timeout_ns - waited_ns);
		}
	}
	return rc;
}

/* Until no put is read out of the caller's memory; a link that has failed reads none. */
static void
settle_puts(struct verbs_fabric *verbs)
{
	if (ofs_verbs_turn(verbs) == 0 && verbs->link.ended < verbs->put_last
		&& ofs_verbs_post_empty(verbs) == 0)
		(void)wait_for(verbs, verbs->put_last, LEAVE_NS);
}

static int
verbs_unregister_memory(struct ofs_fabric *fabric, void *base, uint64_t size_bytes)
{
	struct verbs_fabric *verbs = (struct verbs_fabric *)fabric;

	settle_puts(verbs);
	for (uint32_t i = 0; i < fabric->registered_count; i++) {
		const struct ofs_fabric_memory *memory = &fabric->registered[i];

		if (memory->first == (uintptr_t)base && memory->end - memory->first == size_bytes) {
			ibv_dereg_mr(verbs->targets[i]);
			/* As ofs_fabric_unregister_memory fills the gap. */
			verbs->targets[i] = verbs->targets[fabric->registered_count - 1];
			return ofs_fabric_unregister_memory(fabric, base, size_bytes);
		}
	}
	return -ENOENT;
}

/* The key of the memory that contains these bytes; 1 if found. */
static int
find_key(const struct verbs_fabric *verbs, const void *bytes, uint32_t size_bytes, uint32_t *lkey)
{
	uintptr_t first = (uintptr_t)bytes;

	for (uint32_t i = 0; i < verbs->base.registered_count; i++) {
		const struct ofs_fabric_memory *memory = &verbs->base.registered[i];

		if (first >= memory->first && first <= memory->end && size_bytes <= memory->end - first) {
			*lkey = verbs->targets[i]->lkey;
			return 1;
		}
	}
	return 0;
}

static int
verbs_read(struct ofs_fabric *fabric, uint64_t region_offset, const struct ofs_span *spans,
	uint32_t span_count)
{
	struct verbs_fabric *verbs = (struct verbs_fabric *)fabric;
	struct ibv_sge *parts = verbs->parts[verbs->read_count];
	uint64_t offset = region_offset;
	uint32_t lkey;
	int rc;

	for (uint32_t i = 0; i < span_count; i++) {
		rc = ofs_region_range(&fabric->region, offset, spans[i].size_bytes);
		if (rc != 0)
			return rc;
		if (!find_key(verbs, spans[i].target, spans[i].size_bytes, &lkey))
			return -EFAULT;
		parts[i] = ofs_link_sge(spans[i].target, spans[i].size_bytes, lkey);
		offset += spans[i].size_bytes;
	}
	verbs->reads[verbs->read_count++] = (struct ibv_send_wr){.sg_list = parts,
		.num_sge = (int)span_count,
		.opcode = IBV_WR_RDMA_READ,
		.wr.rdma = {.remote_addr = verbs->region_there.address + region_offset,
			.rkey = verbs->region_there.key}};
	return verbs->read_count == OFS_VERBS_READ_BATCH_MAX ? post_reads(verbs, 0) : 0;
}

static int
verbs_flush(struct ofs_fabric *fabric, uint64_t timeout_ns)
{
	struct verbs_fabric *verbs = (struct verbs_fabric *)fabric;
	int rc = ofs_verbs_ending(verbs);

	if (rc == 0 && verbs->read_count > 0)
		rc = post_reads(verbs, 1);
	else if (rc == 0 && verbs->link.ended != verbs->link.posted)
		rc = ofs_verbs_post_empty(verbs); /* the reads were posted when the chain was full */
	verbs->read_count = 0;
	if (rc == 0)
		rc = wait_for(verbs, verbs->link.posted, timeout_ns);
	return rc == 0 || ofs_verbs_ending(verbs) == 0 ? rc : ofs_verbs_ending(verbs);
}

static int
verbs_write_put(struct ofs_fabric *fabric, uint32_t put_slot, const void *source,
	uint32_t size_bytes, uint64_t *checksum)
{
	struct verbs_fabric *verbs = (struct verbs_fabric *)fabric;
	uint8_t *place = ofs_host_port_put(&verbs->port, &fabric->port, put_slot, size_bytes);
	int rc = place == NULL ? -ERANGE : ofs_verbs_make_room(verbs, 1);
	struct ibv_send_wr request;
	struct ibv_sge part;
	uint32_t lkey;

	if (rc != 0)
		return rc;
	part = ofs_link_sge(place, size_bytes, verbs->copy->lkey);
	request = ofs_verbs_write(verbs, &part);
	if (!find_key(verbs, source, size_bytes, &lkey)) {
		*checksum = ofs_checksum_copy(place, source, size_bytes);
		return ofs_link_post(&verbs->link, &request, 1, 0);
	}
	/* The caller's memory is its own again once the DPU has answered, which it does from its window.
	 * What changes before that is not what the checksum says, and is refused there. */
	*checksum = ofs_checksum(source, size_bytes);
	part.addr = (uintptr_t)source;
	part.lkey = lkey;
	rc = ofs_link_post(&verbs->link, &request, 1, 0);
	verbs->put_last = verbs->link.posted;
	return rc;
}

static void *
verbs_payload(struct ofs_fabric *fabric, uint32_t payload_index)
{
	return ofs_host_port_payload(&((struct verbs_fabric *)fabric)->port, &fabric->port,
		payload_index);
}

/* How many completions have been taken: a word of the port. */
static struct ibv_send_wr
tell_head(struct verbs_fabric *verbs, struct ibv_sge *part)
{
	*part = ofs_link_sge(&verbs->port.words->completion_head, sizeof(uint32_t), verbs->copy->lkey);
	verbs->told_head = verbs->port.completion_head;
	return ofs_verbs_write(verbs, part);
}

static int
verbs_submit(struct ofs_fabric *fabric, const struct ofs_sqe *sqe)
{
	struct verbs_fabric *verbs = (struct verbs_fabric *)fabric;
	struct ibv_send_wr requests[SUBMIT_REQUESTS_MAX];
	struct ibv_sge parts[SUBMIT_REQUESTS_MAX];
	uint32_t at = verbs->port.submission_tail & (fabric->port.entry_count - 1);
	uint8_t *payload = verbs_payload(fabric, sqe->payload_index);
	uint64_t size_bytes = ofs_payload_used_bytes(sqe);
	uint32_t count = 0;
	int rc;

	(void)ofs_verbs_turn(verbs);
	rc = ofs_verbs_ending(verbs);
	if (rc == 0)
		rc = ofs_verbs_make_room(verbs, SUBMIT_REQUESTS_MAX);
	if (rc == 0)
		rc = ofs_host_port_submit(&verbs->port, &fabric->port, sqe);
	if (rc != 0)
		return rc;
	if (verbs->told_head != verbs->port.completion_head) {
		requests[count] = tell_head(verbs, &parts[count]);
		count++;
	}
	/* A payload larger than an area is invalid; the DPU refuses it without reading it. */
	if (payload != NULL && size_bytes > 0 && size_bytes <= fabric->port.payload_size_bytes) {
		parts[count] = ofs_link_sge(payload, (uint32_t)size_bytes, verbs->copy->lkey);
		requests[count] = ofs_verbs_write(verbs, &parts[count]);
		count++;
	}
	parts[count] = ofs_link_sge(&verbs->port.submissions[at], sizeof(*sqe), verbs->copy->lkey);
	requests[count] = ofs_verbs_write(verbs, &parts[count]);
	requests[count].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	requests[count].send_flags |= IBV_SEND_SOLICITED;
	requests[count].imm_data = htonl((uint16_t)verbs->port.submission_tail);
	verbs->flying++;
	return ofs_link_post(&verbs->link, requests, count + 1, 0);
}

static int
verbs_poll(struct ofs_fabric *fabric, struct ofs_cqe *cqes, int max)
{
	struct verbs_fabric *verbs = (struct verbs_fabric *)fabric;
	struct ibv_send_wr request;
	struct ibv_sge part;
	int count;

	(void)ofs_verbs_turn(verbs); /* a failure is for `wait`; arrivals count */
	count = ofs_host_port_poll(&verbs->port, &fabric->port, cqes, max);
	for (int i = 0; i < count; i++)
		verbs->flying -= cqes[i].rc != -EINPROGRESS && verbs->flying > 0;
	/* The next command tells the head; if the DPU may run out of room first, tell it now. */
	if (verbs->port.completion_head - verbs->told_head + verbs->flying >= fabric->port.entry_count
		&& verbs->port.completion_head != verbs->told_head && ofs_link_room(&verbs->link) > 0
		&& verbs->link.rc == 0) {
		request = tell_head(verbs, &part);
		(void)ofs_link_post(&verbs->link, &request, 1, 0);
	}
	return count;
}

static const struct ofs_result *
verbs_results(struct ofs_fabric *fabric, const struct ofs_cqe *cqe)
{
	return ofs_host_port_results(&((struct verbs_fabric *)fabric)->port, &fabric->port, cqe);
}

/* 0 something arrived; -ETIMEDOUT nothing; or the error that ended the connection. */
static int
look(struct verbs_fabric *verbs)
{
	int rc = ofs_verbs_turn(verbs);

	if (ofs_host_port_ready(&verbs->port))
		return 0; /* answers count, even if the DPU has left since */
	if (ofs_verbs_ending(verbs) != 0)
		return ofs_verbs_ending(verbs);
	return rc == 0 ? -ETIMEDOUT : rc;
}

static int
verbs_wait(struct ofs_fabric *fabric, uint64_t timeout_ns)
{
	struct verbs_fabric *verbs = (struct verbs_fabric *)fabric;
	uint64_t start_ns = ofs_verbs_now_ns(fabric);
	uint64_t asked_ns = start_ns;
	uint64_t now_ns;
	int rc;

	while ((rc = look(verbs)) == -ETIMEDOUT
		&& (now_ns = ofs_verbs_now_ns(fabric)) - start_ns < timeout_ns) {
		uint64_t left_ns = timeout_ns - (now_ns - start_ns);

		if (now_ns - start_ns < verbs->spin_ns) {
			ofs_cpu_relax();
			continue;
		}
		if (now_ns - asked_ns >= ASK_NS && verbs->link.ended >= verbs->question) {
			asked_ns = now_ns;
			if (ofs_verbs_post_empty(verbs) == 0)
				verbs->question = verbs->link.posted;
		}
		if (ofs_link_arm(&verbs->link, 0) == 0 && look(verbs) == -ETIMEDOUT)
			ofs_verbs_sleep(verbs, left_ns < ASK_NS ? left_ns : ASK_NS);
	}
	return rc;
}

static void
verbs_pause(struct ofs_fabric *fabric, uint64_t pause_ns)
{
	struct timespec left = {.tv_sec = (time_t)(pause_ns / 1000000000ull),
		.tv_nsec = (long)(pause_ns % 1000000000ull)};

	(void)fabric;
	nanosleep(&left, NULL);
}

const struct ofs_fabric_ops ofs_fabric_verbs_ops = {
	.name = "verbs",
	.close = verbs_close,
	.export = verbs_export,
	.register_memory = verbs_register_memory,
	.unregister_memory = verbs_unregister_memory,
	.read = verbs_read,
	.flush = verbs_flush,
	.copy = NULL,
	.write_put = verbs_write_put,
	.payload = verbs_payload,
	.submit = verbs_submit,
	.poll = verbs_poll,
	.results = verbs_results,
	.wait = verbs_wait,
	.now_ns = ofs_verbs_now_ns,
	.pause = verbs_pause,
};
