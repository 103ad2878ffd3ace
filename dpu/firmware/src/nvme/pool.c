/* Requests and chunks of data: what there is of both is made at open. */
#include "nvme/internal.h"

#include <assert.h>

struct ofs_nvme_request *
ofs_nvme_take(struct ofs_nvme_connection *connection)
{
	struct ofs_nvme *nvme = connection->nvme;
	struct ofs_nvme_request *request;

	if (connection->request_count
		== (connection->admitted ? OFS_NVME_DEPTH : OFS_NVME_STRANGER_REQUESTS))
		return NULL;
	request = ofs_nvme_pop(&nvme->free);
	if (request == NULL)
		return NULL;
	memset(request, 0, offsetof(struct ofs_nvme_request, iovecs));
	request->connection = connection;
	request->serial = ++nvme->serial;
	request->state = OFS_NVME_FILLING;
	connection->request_count++;
	return request;
}

bool
ofs_nvme_take_chunks(struct ofs_nvme *nvme, struct ofs_nvme_request *request, uint32_t length)
{
	uint32_t count = (length + OFS_NVME_CHUNK_BYTES - 1) / OFS_NVME_CHUNK_BYTES;

	assert(count <= OFS_NVME_IOVECS && request->chunk_count == 0);
	if (count > nvme->free_chunk_count)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t left = length - i * OFS_NVME_CHUNK_BYTES;
		uint16_t chunk = nvme->free_chunks[--nvme->free_chunk_count];

		request->iovecs[i] =
			(struct iovec){.iov_base = nvme->memory + (uint64_t)chunk * OFS_NVME_CHUNK_BYTES,
				.iov_len = left < OFS_NVME_CHUNK_BYTES ? left : OFS_NVME_CHUNK_BYTES};
	}
	request->chunk_count = count;
	return true;
}

void
ofs_nvme_release(struct ofs_nvme *nvme, struct ofs_nvme_request *request)
{
	assert(request->state != OFS_NVME_FREE);
	for (uint32_t i = 0; i < request->chunk_count; i++) {
		const uint8_t *base = request->iovecs[i].iov_base;

		nvme->free_chunks[nvme->free_chunk_count++] =
			(uint16_t)((uint64_t)(base - nvme->memory) / OFS_NVME_CHUNK_BYTES);
	}
	request->chunk_count = 0;
	if (request->connection != NULL) {
		assert(request->connection->request_count > 0);
		request->connection->request_count--;
	}
	request->connection = NULL;
	request->state = OFS_NVME_FREE;
	ofs_nvme_push(&nvme->free, request);
}

uint64_t
ofs_nvme_ticket(const struct ofs_nvme *nvme, const struct ofs_nvme_request *request)
{
	return request->serial << 16 | ofs_nvme_tag(nvme, request);
}

uint16_t
ofs_nvme_tag(const struct ofs_nvme *nvme, const struct ofs_nvme_request *request)
{
	return (uint16_t)(request - nvme->requests);
}

struct ofs_nvme_request *
ofs_nvme_of_ticket(struct ofs_nvme *nvme, uint64_t ticket)
{
	uint64_t index = ticket & 0xffff;
	struct ofs_nvme_request *request;

	if (index >= OFS_NVME_REQUESTS)
		return NULL;
	request = &nvme->requests[index];
	return request->state != OFS_NVME_FREE && request->serial == ticket >> 16 ? request : NULL;
}
