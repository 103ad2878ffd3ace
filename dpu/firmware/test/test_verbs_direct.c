/*
 * Do blocks go between a host's registered memory and the DPU's without a copy at the host? The
 * host's end of `verbs` over an adapter that this test plays: it carries out work requests when it
 * is polled, and only between registered memories.
 */
#include <stdio.h>

#ifdef OFS_HAVE_VERBS
#include "fabric/verbs.h"

#include <assert.h>
#include <string.h>

#undef ibv_reg_mr

#define BLOCK 1024u
#define SLOTS 2u
#define REQUESTS 16
#define WAIT_NS 1000000000ull

static struct ibv_mr memories[4]; /* of `verbs.targets`; the port's copy is the last */
static struct ibv_send_wr waiting[REQUESTS];
static struct ibv_sge parts[REQUESTS];
static uint32_t waiting_count;
static const void *last_source; /* of the last write that was carried out */
static _Alignas(64) uint8_t region[4 * BLOCK];
static _Alignas(64) uint8_t port_there[4096 + SLOTS * BLOCK]; /* as mapped memory is */
static _Alignas(64) uint8_t port_here[sizeof(port_there)];
static struct verbs_fabric verbs;
static struct ofs_fabric *const fabric = &verbs.base;
static const struct ofs_fabric_ops *const ops = &ofs_fabric_verbs_ops;

struct ibv_mr *
ibv_reg_mr(struct ibv_pd *pd, void *base, size_t size, int access)
{
	(void)pd;
	assert(access == IBV_ACCESS_LOCAL_WRITE);
	for (uint32_t i = 0; i < 3; i++) {
		if (memories[i].length != 0)
			continue;
		memories[i] = (struct ibv_mr){.addr = base, .length = size, .lkey = i};
		return &memories[i];
	}
	return NULL;
}

int
ibv_dereg_mr(struct ibv_mr *memory)
{
	for (uint32_t i = 0; i < waiting_count; i++)
		assert(waiting[i].num_sge == 0 || parts[i].lkey != memory->lkey);
	*memory = (struct ibv_mr){.length = 0};
	return 0;
}

static int
post_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad)
{
	(void)qp;
	(void)bad;
	for (; request != NULL; request = request->next) {
		assert(waiting_count < REQUESTS && request->num_sge <= 1);
		waiting[waiting_count] = *request;
		if (request->num_sge == 1)
			parts[waiting_count] = request->sg_list[0];
		waiting_count++;
	}
	return 0;
}

static void
carry_out(const struct ibv_send_wr *request, const struct ibv_sge *part)
{
	const struct ibv_mr *memory = &memories[part->lkey];
	uint8_t *here = (uint8_t *)memory->addr + (part->addr - (uintptr_t)memory->addr);

	assert(part->addr >= (uintptr_t)memory->addr
		&& part->addr + part->length <= (uintptr_t)memory->addr + memory->length);
	if (request->opcode == IBV_WR_RDMA_READ) {
		memcpy(here, region + (request->wr.rdma.remote_addr - (uintptr_t)region), part->length);
		return;
	}
	last_source = here;
	memcpy(port_there + (request->wr.rdma.remote_addr - (uintptr_t)port_there), here, part->length);
}

static int
poll_cq(struct ibv_cq *cq, int max, struct ibv_wc *ended)
{
	int count = 0;

	(void)cq;
	for (uint32_t i = 0; i < waiting_count; i++) {
		if (waiting[i].num_sge == 1)
			carry_out(&waiting[i], &parts[i]);
		if (waiting[i].send_flags & IBV_SEND_SIGNALED) {
			assert(count < max);
			ended[count++] =
				(struct ibv_wc){.wr_id = waiting[i].wr_id, .opcode = IBV_WC_RDMA_WRITE};
		}
	}
	waiting_count = 0;
	return count;
}

static void
set_up(void)
{
	static struct ibv_context adapter;
	static struct ibv_qp qp = {.context = &adapter};
	static struct ibv_cq cq = {.context = &adapter};

	adapter.ops.post_send = post_send;
	adapter.ops.poll_cq = poll_cq;
	memset(memories, 0, sizeof(memories));
	memset(port_here, 0, sizeof(port_here));
	memories[3] = (struct ibv_mr){.addr = port_here, .length = sizeof(port_here), .lkey = 3};
	verbs = (struct verbs_fabric){.copy = &memories[3],
		.spin_ns = WAIT_NS,
		.link = {.qp = &qp, .cq = &cq, .send_depth = 64},
		.region_there = {.address = (uintptr_t)region},
		.port_there = {.address = (uintptr_t)port_there},
		.port = {.base = port_here, .words = (struct ofs_port_words *)port_here}};
	verbs.base.region.size_bytes = sizeof(region);
	verbs.base.port = (struct ofs_port_header){.puts_offset = 4096,
		.put_stride_bytes = BLOCK,
		.put_slot_count = SLOTS};
}

/* A read is into the caller's memory, and nowhere else. */
static void
a_read_goes_where_it_is_wanted(void)
{
	static uint8_t target[2 * BLOCK];
	struct ofs_span span = {target + BLOCK, BLOCK};

	set_up();
	memset(region, 0x11, sizeof(region));
	assert(ops->read(fabric, BLOCK, &span, 1) == -EFAULT);
	assert(ops->register_memory(fabric, target, sizeof(target)) == 0);
	assert(ops->read(fabric, BLOCK, &span, 1) == 0 && ops->flush(fabric, WAIT_NS) == 0);
	assert(target[BLOCK - 1] == 0 && memcmp(target + BLOCK, region, BLOCK) == 0);
	assert(ops->unregister_memory(fabric, target, sizeof(target)) == 0);
	assert(ops->read(fabric, BLOCK, &span, 1) == -EFAULT);
}

/* A put out of registered memory leaves the port's copy as it was, and has the same checksum as
 * one that is copied. */
static void
a_put_goes_from_where_it_is(void)
{
	static uint8_t source[BLOCK];
	uint64_t direct, copied;

	set_up();
	memset(source, 0x22, sizeof(source));
	assert(ops->write_put(fabric, SLOTS, source, BLOCK, &copied) == -ERANGE);
	assert(ops->write_put(fabric, 0, source, BLOCK, &copied) == 0);
	assert(ofs_verbs_turn(&verbs) == 0 && last_source == port_here + 4096);
	assert(ops->register_memory(fabric, source, sizeof(source)) == 0);
	assert(ops->write_put(fabric, 1, source, BLOCK, &direct) == 0 && direct == copied);
	assert(ofs_verbs_turn(&verbs) == 0 && last_source == source);
	assert(port_here[4096 + BLOCK] == 0 && memcmp(port_there + 4096 + BLOCK, source, BLOCK) == 0);
}

/* Memory is let go of when nothing is read out of it any more; `ibv_dereg_mr` above looks. */
static void
memory_is_kept_until_its_puts_have_left(void)
{
	static uint8_t source[BLOCK];
	uint64_t checksum;

	set_up();
	assert(ops->register_memory(fabric, source, sizeof(source)) == 0);
	assert(ops->write_put(fabric, 0, source, BLOCK, &checksum) == 0 && waiting_count == 1);
	assert(ops->unregister_memory(fabric, source, sizeof(source)) == 0 && waiting_count == 0);
}

int
main(void)
{
	a_read_goes_where_it_is_wanted();
	a_put_goes_from_where_it_is();
	memory_is_kept_until_its_puts_have_left();
	return 0;
}
#else
int
main(void)
{
	printf("without libibverbs\n");
	return 0;
}
#endif
