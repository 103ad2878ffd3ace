/* The host's half of a port in its own memory; see host_port.h. */
#include "fabric/host_port.h"
#include "region/shared.h"

#include <string.h>
#include <sys/socket.h>

void
ofs_host_port_init(struct ofs_host_port *port, uint8_t *base, const struct ofs_port_header *header,
	int dpu_bell_fd)
{
	port->base = base;
	port->words = (struct ofs_port_words *)(base + OFS_PORT_WORDS_OFFSET);
	port->submissions = (struct ofs_sqe *)(base + header->submissions_offset);
	port->completions = (const struct ofs_cqe *)(base + header->completions_offset);
	port->submission_tail = ofs_word_load(&port->words->submission_tail);
	port->submission_head = ofs_word_load(&port->words->submission_head);
	port->completion_head = ofs_word_load(&port->words->completion_head);
	port->completion_mask = 2 * header->entry_count - 1;
	port->dpu_bell_fd = dpu_bell_fd;
}

int
ofs_host_port_read(const struct ofs_region_header *header, const uint8_t *region, uint64_t offset,
	const struct ofs_span *spans, uint32_t span_count)
{
	for (uint32_t i = 0; i < span_count; i++) {
		int rc = ofs_region_range(header, offset, spans[i].size_bytes);

		if (rc != 0)
			return rc;
		ofs_copy_shared(spans[i].target, region + offset, spans[i].size_bytes);
		OFS_FENCE_LOADS();
		offset += spans[i].size_bytes;
	}
	return 0;
}

int
ofs_host_port_closed(const struct ofs_host_port *port)
{
	return ofs_word_load(&port->words->closed) != 0;
}

int
ofs_host_port_submit(struct ofs_host_port *port, const struct ofs_port_header *header,
	const struct ofs_sqe *sqe)
{
	if (ofs_host_port_closed(port))
		return -EPIPE;
	/* A head only advances: the DPU's cache line is read only when the ring seems full. */
	if (port->submission_tail - port->submission_head >= header->entry_count) {
		port->submission_head = ofs_word_load(&port->words->submission_head);
		if (port->submission_tail - port->submission_head >= header->entry_count)
			return -EAGAIN;
	}
	port->submissions[port->submission_tail & (header->entry_count - 1)] = *sqe;
	port->submission_tail++;
	ofs_word_store_ordered(&port->words->submission_tail, port->submission_tail);
	return 0;
}

void
ofs_host_port_ring(struct ofs_host_port *port)
{
	if (ofs_word_load_ordered(&port->words->dpu_sleeping) == 0)
		return;
	ofs_word_store(&port->words->dpu_sleeping, 0);
	/* A full socket is a pending wake-up; wait detects a broken one. */
	if (port->dpu_bell_fd >= 0)
		(void)send(port->dpu_bell_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int
ofs_host_port_ready(const struct ofs_host_port *port)
{
	/* Fetch the entry while the tail is read, not after it. */
	OFS_PREFETCH(&port->completions[port->completion_head & port->completion_mask]);
	return ofs_word_load_ordered(&port->words->completion_tail) != port->completion_head;
}

int
ofs_host_port_poll(struct ofs_host_port *port, const struct ofs_port_header *header,
	struct ofs_cqe *cqes, int max)
{
	uint32_t capacity = 2 * header->entry_count;
	uint32_t tail = ofs_word_load(&port->words->completion_tail);
	uint32_t ready = tail - port->completion_head;
	int count = 0;

	if (ready > capacity)
		ready = capacity; /* cannot happen; a bound all the same */
	while (count < max && (uint32_t)count < ready) {
		cqes[count++] = port->completions[port->completion_head & (capacity - 1)];
		port->completion_head++;
	}
	if (count > 0)
		ofs_word_store(&port->words->completion_head, port->completion_head);
	return count;
}

void *
ofs_host_port_payload(const struct ofs_host_port *port, const struct ofs_port_header *header,
	uint32_t payload_index)
{
	if (payload_index >= header->entry_count)
		return NULL;
	return port->base + header->payloads_offset
		+ (uint64_t)payload_index * header->payload_size_bytes;
}

const struct ofs_result *
ofs_host_port_results(const struct ofs_host_port *port, const struct ofs_port_header *header,
	const struct ofs_cqe *cqe)
{
	uint8_t *payload = ofs_host_port_payload(port, header, cqe->payload_index);

	if (payload == NULL || cqe->count > header->demand_max)
		return NULL;
	return (const struct ofs_result *)(payload
		+ ofs_payload_results_offset(header->demand_max, header->score_max));
}

uint8_t *
ofs_host_port_put(const struct ofs_host_port *port, const struct ofs_port_header *header,
	uint32_t put_slot, uint32_t size_bytes)
{
	if (put_slot >= header->put_slot_count || size_bytes > header->put_stride_bytes)
		return NULL;
	return port->base + header->puts_offset + (uint64_t)put_slot * header->put_stride_bytes;
}

int
ofs_host_port_write_put(const struct ofs_host_port *port, const struct ofs_port_header *header,
	uint32_t put_slot, const void *source, uint32_t size_bytes, uint64_t *checksum)
{
	uint8_t *place = ofs_host_port_put(port, header, put_slot, size_bytes);

	if (place == NULL)
		return -ERANGE;
	*checksum = ofs_checksum_copy(place, source, size_bytes);
	return 0;
}
