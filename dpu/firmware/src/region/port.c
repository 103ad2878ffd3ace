/* The port of one host, DPU side: its mapping, its wake descriptors, sleep; see region.h. */
#include "region/port.h"
#include "region/shared.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DRAIN_READS_MAX 8

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

static struct ofs_port_header
make_header(const struct ofs_port_config *config)
{
	struct ofs_port_header header = {.magic = OFS_PORT_MAGIC,
		.version = OFS_ABI_VERSION,
		.tenant = config->tenant,
		.epoch = config->epoch,
		.entry_count = config->entry_count,
		.put_slot_count = config->put_slot_count,
		.put_stride_bytes = config->put_stride_bytes,
		.demand_max = config->demand_max,
		.score_max = config->score_max,
		.submissions_offset = 4096};

	header.payload_size_bytes = ofs_payload_area_size_bytes(config->demand_max, config->score_max);
	header.completions_offset =
		header.submissions_offset + (uint64_t)header.entry_count * sizeof(struct ofs_sqe);
	header.payloads_offset = align_up(
		header.completions_offset + 2ull * header.entry_count * sizeof(struct ofs_cqe), 64);
	/* The put window is written to NVMe as it stands: it begins on a page for O_DIRECT. */
	header.puts_offset = align_up(
		header.payloads_offset + (uint64_t)header.entry_count * header.payload_size_bytes, 65536);
	header.size_bytes = align_up(
		header.puts_offset + (uint64_t)header.put_slot_count * header.put_stride_bytes, 4096);
	return header;
}

static void
place(struct ofs_port *port)
{
	uint8_t *base = port->map.base;

	port->words = (struct ofs_port_words *)(base + OFS_PORT_WORDS_OFFSET);
	port->submissions = (struct ofs_sqe *)(base + port->header.submissions_offset);
	port->completions = (struct ofs_cqe *)(base + port->header.completions_offset);
	port->payloads = base + port->header.payloads_offset;
	port->puts = base + port->header.puts_offset;
	memcpy(base, &port->header, sizeof(port->header));
}

int
ofs_port_open(struct ofs_port **out, const struct ofs_port_config *config)
{
	struct ofs_port *port;
	int ends[2];
	int rc = check_config(config);

	if (rc != 0)
		return rc;
	port = calloc(1, sizeof(*port));
	if (port == NULL)
		return -ENOMEM;
	port->header = make_header(config);
	rc = ofs_map_open(&port->map, "offstage-port", port->header.size_bytes, 0);
	if (rc != 0) {
		free(port);
		return rc;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
		rc = -errno;
		ofs_map_close(&port->map);
		free(port);
		return rc;
	}
	port->dpu_end = ends[0];
	port->host_end = ends[1];
	port->header.size_bytes = port->map.size_bytes;
	port->header.checksum = ofs_checksum(&port->header, offsetof(struct ofs_port_header, checksum));
	place(port);
	*out = port;
	return 0;
}

static void
ring_host(const struct ofs_port *port)
{
	/* A full socket has rung already; a host that shut it down does not want to be woken. */
	if (port->dpu_end >= 0)
		(void)send(port->dpu_end, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void
ofs_port_close(struct ofs_port *port)
{
	if (port == NULL)
		return;
	ofs_word_store_ordered(&port->words->closed, 1);
	ring_host(port);
	if (port->dpu_end >= 0)
		close(port->dpu_end);
	close(port->host_end);
	ofs_map_close(&port->map);
	free(port);
}

int
ofs_port_fd(const struct ofs_port *port)
{
	return port->map.fd;
}

int
ofs_port_dpu_wake_fd(const struct ofs_port *port)
{
	return port->dpu_end;
}

int
ofs_port_dpu_bell_fd(const struct ofs_port *port)
{
	return port->host_end;
}

int
ofs_port_host_wake_fd(const struct ofs_port *port)
{
	return port->host_end;
}

void *
ofs_port_base(const struct ofs_port *port, uint64_t *size_bytes)
{
	*size_bytes = port->map.size_bytes;
	return port->map.base;
}

void *
ofs_port_put_slot(const struct ofs_port *port, uint32_t put_slot)
{
	if (put_slot >= port->header.put_slot_count)
		return NULL;
	return port->puts + (uint64_t)put_slot * port->header.put_stride_bytes;
}

void *
ofs_port_puts_base(const struct ofs_port *port, uint64_t *size_bytes)
{
	*size_bytes = (uint64_t)port->header.put_slot_count * port->header.put_stride_bytes;
	return port->puts;
}

uint64_t
ofs_port_nonsense_count(const struct ofs_port *port)
{
	return port->nonsense_count;
}

void
ofs_port_wake(struct ofs_port *port)
{
	char bytes[512];
	ssize_t count;

	ofs_word_store(&port->words->dpu_sleeping, 0);
	for (int i = 0; i < DRAIN_READS_MAX && port->dpu_end >= 0; i++) {
		count = recv(port->dpu_end, bytes, sizeof(bytes), MSG_DONTWAIT);
		if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) {
			/* Shut down by the host: it would be readable for ever and keep us awake. */
			close(port->dpu_end);
			port->dpu_end = -1;
		}
		if (count < (ssize_t)sizeof(bytes))
			return;
	}
}

void
ofs_port_ring_host(struct ofs_port *port)
{
	/* Taking the flag back means one ring for one sleep. */
	if (ofs_word_load_ordered(&port->words->host_sleeping) != 0) {
		ofs_word_store(&port->words->host_sleeping, 0);
		ring_host(port);
	}
}
