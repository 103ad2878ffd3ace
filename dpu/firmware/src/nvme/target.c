/* The target: its turn, and what its caller says of connections and commands. */
#include "nvme/sockets.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define SESSIONS_MAX 64 /* of the daemon, of one tenant's values here */
#define TIMEOUT_NS 10000000000ull
#define EVENTS 64
#define TURNS_MAX 1000   /* before the caller looks at its clock again */
#define WAIT_NS 50000ull /* for a task, before sockets are looked at again */
#define MEMORY_BYTES ((size_t)OFS_NVME_CHUNKS * OFS_NVME_CHUNK_BYTES)

int
ofs_nvme_open(struct ofs_nvme **out, int listener)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
	struct ofs_nvme *nvme = calloc(1, sizeof(*nvme));
	int rc = -ENOMEM;

	if (nvme == NULL)
		return -ENOMEM;
	ofs_crc32c_prepare();
	nvme->listener = listener;
	nvme->epoll = epoll_create1(EPOLL_CLOEXEC);
	nvme->connections = calloc(OFS_NVME_CONNECTIONS, sizeof(*nvme->connections));
	nvme->requests = calloc(OFS_NVME_REQUESTS, sizeof(*nvme->requests));
	nvme->memory = malloc(MEMORY_BYTES);
	if (nvme->connections != NULL && nvme->requests != NULL && nvme->memory != NULL)
		rc = nvme->epoll < 0 || epoll_ctl(nvme->epoll, EPOLL_CTL_ADD, listener, &event) != 0
			? -errno
			: 0;
	if (rc != 0) {
		ofs_nvme_close(nvme);
		return rc;
	}
	for (uint32_t i = 0; i < OFS_NVME_REQUESTS; i++)
		ofs_nvme_push(&nvme->free, &nvme->requests[i]);
	for (uint16_t i = 0; i < OFS_NVME_CHUNKS; i++)
		nvme->free_chunks[nvme->free_chunk_count++] = OFS_NVME_CHUNKS - 1 - i;
	*out = nvme;
	return 0;
}

void
ofs_nvme_close(struct ofs_nvme *nvme)
{
	for (uint32_t i = 0; nvme->connections != NULL && i < OFS_NVME_CONNECTIONS; i++)
		if (nvme->connections[i].id != 0 && !nvme->connections[i].closed)
			close(nvme->connections[i].fd);
	for (uint32_t i = 0; i < nvme->tenant_count; i++)
		ofs_value_io_close(nvme->tenants[i].values);
	if (nvme->epoll >= 0)
		close(nvme->epoll);
	free(nvme->connections);
	free(nvme->requests);
	free(nvme->memory);
	free(nvme);
}

int
ofs_nvme_tenant_add(struct ofs_nvme *nvme, struct ofs_driver *driver, uint64_t value_bytes_max,
	const struct ofs_nvme_volume *volumes, uint32_t volume_count)
{
	struct ofs_nvme_tenant *tenant = &nvme->tenants[nvme->tenant_count];
	int rc;

	if (nvme->tenant_count == OFS_NVME_TENANTS || volume_count > OFS_NVME_VOLUMES)
		return -ENOSPC;
	rc = ofs_value_io_open(&tenant->values, driver, SESSIONS_MAX, TIMEOUT_NS);
	if (rc != 0)
		return rc;
	tenant->nvme = nvme;
	tenant->value_bytes_max =
		value_bytes_max < OFS_NVME_VALUE_BYTES_MAX ? value_bytes_max : OFS_NVME_VALUE_BYTES_MAX;
	tenant->volume_count = volume_count;
	memcpy(tenant->volumes, volumes, volume_count * sizeof(*volumes));
	return (int)nvme->tenant_count++;
}

static bool
is_open(const struct ofs_nvme_connection *connection)
{
	return connection->id != 0 && !connection->closed;
}

static struct ofs_nvme_connection *
find(struct ofs_nvme *nvme, uint64_t id)
{
	for (uint32_t i = 0; i < OFS_NVME_CONNECTIONS; i++)
		if (nvme->connections[i].id == id && is_open(&nvme->connections[i]))
			return &nvme->connections[i];
	return NULL;
}

int
ofs_nvme_answer(struct ofs_nvme *nvme, uint64_t ticket, uint16_t status, uint64_t result,
	const uint8_t *data, uint32_t length)
{
	struct ofs_nvme_request *request = ofs_nvme_of_ticket(nvme, ticket);

	if (request == NULL || request->state != OFS_NVME_ASKED)
		return -ESTALE;
	if (length > 0 && (!request->to_host || length > request->length))
		return -EMSGSIZE;
	if (length > 0) /* one chunk: no ask has more */
		memcpy(request->iovecs[0].iov_base, data, length);
	request->result = result;
	request->send_bytes = length;
	ofs_nvme_reply(request, status);
	return 0;
}

int
ofs_nvme_admit(struct ofs_nvme *nvme, uint64_t id, int tenant)
{
	struct ofs_nvme_connection *connection = find(nvme, id);

	if (connection == NULL)
		return -ESTALE;
	assert(tenant < (int)nvme->tenant_count);
	connection->admitted = true;
	if (tenant >= 0)
		connection->tenant = &nvme->tenants[tenant];
	return 0;
}

void
ofs_nvme_hang_up(struct ofs_nvme *nvme, uint64_t id)
{
	struct ofs_nvme_connection *connection = find(nvme, id);

	if (connection != NULL)
		ofs_nvme_drop(connection, 0, false);
}

/* Strangers, and hosts that owe what they do not send, may not hold what others need. */
static void
expire(struct ofs_nvme *nvme)
{
	for (uint32_t i = 0; i < OFS_NVME_CONNECTIONS; i++) {
		struct ofs_nvme_connection *connection = &nvme->connections[i];
		uint64_t silent_ns = nvme->now_ns - connection->heard_ns;
		bool owes = connection->filling_count > 0
			|| (connection->head_got > 0 && !connection->stalled) || connection->ending
			|| connection->part_count > 0;

		if (!is_open(connection))
			continue;
		if ((!connection->admitted && nvme->now_ns - connection->opened_ns >= OFS_NVME_STRANGER_NS)
			|| (owes && silent_ns >= OFS_NVME_SILENT_NS))
			ofs_nvme_drop(connection, -ETIMEDOUT, true);
	}
}

/* Asks for the caller: connections that have closed, then commands. */
static uint32_t
tell(struct ofs_nvme *nvme, struct ofs_nvme_ask *asks, uint32_t max)
{
	struct ofs_nvme_request *request;
	uint32_t count = 0;

	for (uint32_t i = 0; i < OFS_NVME_CONNECTIONS && count < max; i++) {
		struct ofs_nvme_connection *connection = &nvme->connections[i];

		if (connection->id == 0 || !connection->closed)
			continue;
		asks[count++] = (struct ofs_nvme_ask){.connection = connection->id, .rc = connection->rc};
		connection->id = 0;
	}
	while (count < max && (request = ofs_nvme_pop(&nvme->asked)) != NULL) {
		struct ofs_nvme_ask *ask = &asks[count++];

		*ask = (struct ofs_nvme_ask){.connection = request->connection->id,
			.ticket = ofs_nvme_ticket(nvme, request),
			.data = request->chunk_count > 0 ? request->iovecs[0].iov_base : NULL,
			.length = request->to_host ? 0 : request->length,
			.room = request->to_host ? request->length : 0};
		memcpy(ask->sqe, request->sqe, OFS_NVME_SQE_BYTES);
	}
	return count;
}

/* Every connection and tenant has its turn. Whether something moved. */
static bool
turn(struct ofs_nvme *nvme, uint64_t wait_ns)
{
	bool moved = false;

	for (uint32_t i = 0; i < nvme->tenant_count; i++)
		moved |= ofs_nvme_kv_pump(&nvme->tenants[i], wait_ns);
	for (uint32_t i = 0; i < OFS_NVME_CONNECTIONS; i++) {
		struct ofs_nvme_connection *connection = &nvme->connections[i];

		if (!is_open(connection))
			continue;
		moved |= ofs_nvme_resume(connection);
		moved |= ofs_nvme_advance(connection);
	}
	return moved;
}

static bool
is_busy(const struct ofs_nvme *nvme)
{
	for (uint32_t i = 0; i < nvme->tenant_count; i++)
		if (ofs_nvme_kv_busy(&nvme->tenants[i]))
			return true;
	return false;
}

int
ofs_nvme_run(struct ofs_nvme *nvme, uint64_t now_ns, uint64_t timeout_ns, struct ofs_nvme_ask *asks,
	uint32_t max)
{
	struct epoll_event events[EVENTS];
	uint32_t told = 0;
	int count;

	nvme->now_ns = now_ns;
	expire(nvme);
	turn(nvme, 0);
	for (int i = 0; i < TURNS_MAX && (told = tell(nvme, asks, max)) == 0; i++) {
		bool busy = is_busy(nvme);

		count = epoll_wait(nvme->epoll, events, EVENTS, busy ? 0 : (int)(timeout_ns / 1000000));
		if (count < 0 && errno != EINTR)
			return -errno;
		for (int j = 0; j < count; j++)
			if (events[j].data.ptr == NULL)
				ofs_nvme_accept(nvme);
		if (!turn(nvme, count > 0 ? 0 : WAIT_NS) && count <= 0 && !busy)
			break;
		timeout_ns = 0;
	}
	return (int)told;
}
