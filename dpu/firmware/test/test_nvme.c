/*
 * The target of NVMe/TCP without a daemon: are strangers and the silent shown out, does a command
 * that finds no memory wait, and are digests those of the specification?
 */
#include "nvme/internal.h"

#include <assert.h>
#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SECOND_NS 1000000000ull
#define ASKS 64

static struct ofs_nvme *nvme;
static struct ofs_nvme_ask asks[ASKS];
static struct sockaddr_un address;
static socklen_t address_bytes;
static int listener;

static void
set_up(void)
{
	address = (struct sockaddr_un){.sun_family = AF_UNIX};
	address_bytes = sizeof(address);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
	/* Of the family alone: the kernel gives a name. */
	assert(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof(sa_family_t)) == 0
		&& listen(listener, 128) == 0
		&& getsockname(listener, (struct sockaddr *)&address, &address_bytes) == 0);
	assert(ofs_nvme_open(&nvme, listener) == 0);
	nvme->tenants[0] = (struct ofs_nvme_tenant){.nvme = nvme,
		.lost = true,
		.value_bytes_max = OFS_NVME_VALUE_BYTES_MAX,
		.volume_count = 1};
	nvme->tenant_count = 1;
}

static void
tear_down(void)
{
	nvme->tenant_count = 0; /* its driver was none */
	ofs_nvme_close(nvme);
	close(listener);
}

static int
run(uint64_t now_ns)
{
	int count = ofs_nvme_run(nvme, now_ns, 0, asks, ASKS);

	assert(count >= 0);
	return count;
}

/* A host that is connected and has initialized; the target's end is the newest connection. */
static int
host_open(uint64_t now_ns)
{
	uint8_t init[128] = {OFS_PDU_ICREQ, 0, 128, 0, 128};
	int host = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);

	assert(connect(host, (struct sockaddr *)&address, address_bytes) == 0);
	assert(run(now_ns) == 0);
	assert(send(host, init, sizeof(init), 0) == sizeof(init));
	assert(run(now_ns) == 0);
	assert(recv(host, init, sizeof(init), 0) == sizeof(init) && init[0] == OFS_PDU_ICRESP);
	return host;
}

static void
send_store(int host, uint16_t command, uint32_t length)
{
	uint8_t pdu[72] = {OFS_PDU_COMMAND, 0, 72, 0, 72};

	pdu[8] = 0x01;
	memcpy(pdu + 10, &command, 2);
	pdu[12] = 1;
	memcpy(pdu + 8 + 32, &length, 4);
	pdu[8 + 39] = 0x5a;
	memcpy(pdu + 8 + 40, &length, 4);
	pdu[8 + 44] = 4;
	assert(send(host, pdu, sizeof(pdu), 0) == sizeof(pdu));
}

static bool
is_over(int host)
{
	uint8_t byte;

	return recv(host, &byte, 1, MSG_PEEK) == 0;
}

/* The check value of the polynomial, and iSCSI's of 32 zeros (RFC 3720, B.4), in two parts. */
static void
test_digests_are_those_of_the_specification(void)
{
	static const uint8_t zeros[32];
	uint32_t crc = ofs_crc32c(0, zeros, 13);

	assert(ofs_crc32c(0, (const uint8_t *)"123456789", 9) == 0xe3069283);
	assert(ofs_crc32c(crc, zeros, 19) == 0x8a9136aa);
}

static void
test_a_stranger_has_his_time(void)
{
	int stranger = host_open(0), known;

	run(OFS_NVME_STRANGER_NS - 1);
	assert(!is_over(stranger));
	known = host_open(OFS_NVME_STRANGER_NS - 1);
	assert(ofs_nvme_admit(nvme, nvme->connection_serial, -1) == 0);
	assert(run(OFS_NVME_STRANGER_NS) == 1 && asks[0].ticket == 0 && asks[0].rc == -ETIMEDOUT);
	assert(is_over(stranger));
	run(100 * OFS_NVME_STRANGER_NS);
	assert(!is_over(known)); /* it owes nothing */
	close(stranger);
	close(known);
	run(100 * OFS_NVME_STRANGER_NS);
}

static void
test_one_that_owes_data_may_not_be_silent(void)
{
	int host = host_open(0);
	uint8_t r2t[24];

	assert(ofs_nvme_admit(nvme, nvme->connection_serial, 0) == 0);
	send_store(host, 1, 100000);
	run(SECOND_NS);
	assert(recv(host, r2t, sizeof(r2t), 0) == sizeof(r2t) && r2t[0] == OFS_PDU_R2T);
	assert(run(SECOND_NS + OFS_NVME_SILENT_NS - 1) == 0 && !is_over(host));
	assert(run(SECOND_NS + OFS_NVME_SILENT_NS) == 1 && is_over(host));
	assert(nvme->free_chunk_count == OFS_NVME_CHUNKS);
	close(host);
}

/* Four of the greatest values take all memory; the fifth waits until one has gone. */
static void
test_a_command_waits_for_memory(void)
{
	int first = host_open(0), second;
	uint8_t r2t[24];

	assert(ofs_nvme_admit(nvme, nvme->connection_serial, 0) == 0);
	second = host_open(0);
	assert(ofs_nvme_admit(nvme, nvme->connection_serial, 0) == 0);
	for (uint16_t i = 0; i < 4; i++)
		send_store(first, i, OFS_NVME_VALUE_BYTES_MAX);
	run(0);
	assert(nvme->free_chunk_count == 0);
	send_store(second, 9, 1);
	run(0);
	assert(recv(second, r2t, sizeof(r2t), 0) < 0 && errno == EAGAIN);
	close(first);
	assert(run(0) == 1 && run(0) == 0);
	assert(recv(second, r2t, sizeof(r2t), 0) == sizeof(r2t) && r2t[0] == OFS_PDU_R2T);
	close(second);
	run(0);
	assert(nvme->free_chunk_count == OFS_NVME_CHUNKS);
}

static void
test_the_oldest_stranger_yields(void)
{
	int hosts[OFS_NVME_CONNECTIONS], more;

	for (int i = 0; i < OFS_NVME_CONNECTIONS; i++)
		hosts[i] = host_open(0);
	assert(ofs_nvme_admit(nvme, nvme->connection_serial - OFS_NVME_CONNECTIONS + 1, -1) == 0);
	more = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
	assert(connect(more, (struct sockaddr *)&address, address_bytes) == 0);
	assert(run(0) == 1 && asks[0].rc == -ECONNABORTED);
	run(0);
	assert(!is_over(hosts[0]) && is_over(hosts[1]) && !is_over(hosts[2]) && !is_over(more));
	for (int i = 0; i < OFS_NVME_CONNECTIONS; i++)
		close(hosts[i]);
	close(more);
	while (run(0) > 0)
		;
}

/* A ticket is of one command alone, also after its request was given to another. */
static void
test_a_ticket_outlives_no_connection(void)
{
	int host = host_open(0);
	uint8_t pdu[72] = {OFS_PDU_COMMAND, 0, 72, 0, 72}, answer[24];
	uint64_t ticket;

	pdu[8] = 0x18;
	assert(send(host, pdu, sizeof(pdu), 0) == sizeof(pdu));
	assert(run(0) == 1);
	ticket = asks[0].ticket;
	close(host);
	assert(run(0) == 1 && asks[0].ticket == 0);
	host = host_open(0);
	do { /* until the same request has another command */
		assert(send(host, pdu, sizeof(pdu), 0) == sizeof(pdu));
		assert(run(0) == 1 && asks[0].ticket != ticket);
		assert(ofs_nvme_answer(nvme, ticket, 0, 0, NULL, 0) == -ESTALE);
		if ((asks[0].ticket & 0xffff) == (ticket & 0xffff))
			break;
		assert(ofs_nvme_answer(nvme, asks[0].ticket, 0, 0, NULL, 0) == 0);
	} while (run(0) == 0 && recv(host, answer, sizeof(answer), 0) == sizeof(answer));
	assert(ofs_nvme_answer(nvme, asks[0].ticket, 0, 0, pdu, 1) == -EMSGSIZE);
	assert(ofs_nvme_answer(nvme, asks[0].ticket, 0, 0, NULL, 0) == 0);
	close(host);
	run(0);
}

int
main(void)
{
	set_up();
	test_digests_are_those_of_the_specification();
	test_a_stranger_has_his_time();
	test_one_that_owes_data_may_not_be_silent();
	test_a_command_waits_for_memory();
	test_the_oldest_stranger_yields();
	test_a_ticket_outlives_no_connection();
	tear_down();
	return 0;
}
