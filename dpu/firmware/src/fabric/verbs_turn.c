/* Arrivals and finished sends at the host's end of `verbs`; see verbs.h. */
#include "fabric/verbs.h"

#include "clock.h"
#include "region/shared.h"

#include <poll.h>
#include <time.h>

#define ROOM_NS 2000000000ull /* for a full send queue to make any progress */

uint64_t
ofs_verbs_now_ns(struct ofs_fabric *fabric)
{
	(void)fabric;
	return ofs_machine_now_ns();
}

struct ibv_send_wr
ofs_verbs_write(const struct verbs_fabric *verbs, struct ibv_sge *part)
{
	uint64_t offset = part->addr - (uintptr_t)verbs->port.base;

	return (struct ibv_send_wr){.sg_list = part,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = part->length <= verbs->link.inline_max ? IBV_SEND_INLINE : 0,
		.wr.rdma = {.remote_addr = verbs->port_there.address + offset,
			.rkey = verbs->port_there.key}};
}

/* The DPU's completion tail and submission head; values that go back or too far are not trusted. */
static void
take_news(struct verbs_fabric *verbs, uint32_t value)
{
	struct ofs_host_port *port = &verbs->port;
	uint32_t entry_count = verbs->base.port.entry_count;
	uint32_t tail = ofs_verbs_wider(ofs_word_load(&port->words->completion_tail), (uint16_t)value);
	uint32_t head =
		ofs_verbs_wider(ofs_word_load(&port->words->submission_head), (uint16_t)(value >> 16));

	if (tail - port->completion_head > 2 * entry_count
		|| port->submission_tail - head > entry_count) {
		ofs_link_fail(&verbs->link, -EPROTO);
		return;
	}
	ofs_word_store(&port->words->submission_head, head);
	ofs_word_store(&port->words->completion_tail, tail);
}

int
ofs_verbs_turn(struct verbs_fabric *verbs)
{
	uint32_t values[OFS_LINK_POLL_MAX];
	uint32_t count = ofs_link_poll(&verbs->link, values);

	for (uint32_t i = 0; i < count; i++)
		take_news(verbs, values[i]);
	return verbs->link.rc;
}

int
ofs_verbs_ending(const struct verbs_fabric *verbs)
{
	return ofs_host_port_closed(&verbs->port) ? -EPIPE : verbs->link.rc;
}

int
ofs_verbs_make_room(struct verbs_fabric *verbs, uint32_t count)
{
	uint64_t until_ns;
	int rc = verbs->link.rc;

	if (rc != 0 || ofs_link_room(&verbs->link) >= count)
		return rc;
	until_ns = ofs_verbs_now_ns(&verbs->base) + ROOM_NS;
	while ((rc = ofs_verbs_turn(verbs)) == 0 && ofs_link_room(&verbs->link) < count)
		if (ofs_verbs_now_ns(&verbs->base) >= until_ns)
			ofs_link_fail(&verbs->link, -EHOSTUNREACH);
	return rc;
}

int
ofs_verbs_post_empty(struct verbs_fabric *verbs)
{
	struct ibv_send_wr request = {.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = {.remote_addr = verbs->port_there.address, .rkey = verbs->port_there.key}};
	int rc = ofs_verbs_make_room(verbs, 1);

	return rc != 0 ? rc : ofs_link_post(&verbs->link, &request, 1, 1);
}

void
ofs_verbs_sleep(struct verbs_fabric *verbs, uint64_t left_ns)
{
	struct pollfd polled = {.fd = ofs_link_wait_fd(&verbs->link), .events = POLLIN};
	struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000ull),
		.tv_nsec = (long)(left_ns % 1000000000ull)};

	(void)ppoll(&polled, 1, &left, NULL);
	ofs_link_disarm(&verbs->link);
}
