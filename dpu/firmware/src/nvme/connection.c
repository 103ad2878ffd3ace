/* Connections come and go; what is in flight for one that has gone ends by itself. */
#include "nvme/internal.h"

#include <assert.h>

struct ofs_nvme_connection *
ofs_nvme_connection_open(struct ofs_nvme *nvme, int fd)
{
	for (uint32_t i = 0; i < OFS_NVME_CONNECTIONS; i++) {
		struct ofs_nvme_connection *connection = &nvme->connections[i];

		if (connection->id != 0)
			continue;
		*connection = (struct ofs_nvme_connection){.nvme = nvme,
			.id = ++nvme->connection_serial,
			.fd = fd,
			.opened_ns = nvme->now_ns,
			.heard_ns = nvme->now_ns};
		return connection;
	}
	return NULL;
}

struct ofs_nvme_connection *
ofs_nvme_connection_yields(struct ofs_nvme *nvme)
{
	struct ofs_nvme_connection *oldest = NULL;

	for (uint32_t i = 0; i < OFS_NVME_CONNECTIONS; i++) {
		struct ofs_nvme_connection *one = &nvme->connections[i];

		if (one->id == 0)
			return NULL;
		if (!one->closed && !one->admitted && (oldest == NULL || one->id < oldest->id))
			oldest = one;
	}
	return oldest;
}

/* Takes the connection's requests out of the row of asks. */
static void
take_back(struct ofs_nvme_connection *connection)
{
	struct ofs_nvme_row all = connection->nvme->asked;
	struct ofs_nvme_request *request;

	connection->nvme->asked.head = NULL;
	while ((request = ofs_nvme_pop(&all)) != NULL)
		if (request->connection != connection)
			ofs_nvme_push(&connection->nvme->asked, request);
}

void
ofs_nvme_connection_close(struct ofs_nvme_connection *connection, int rc, bool said)
{
	struct ofs_nvme *nvme = connection->nvme;

	assert(!connection->closed);
	take_back(connection);
	connection->row.head = NULL;
	for (uint32_t i = 0; i < OFS_NVME_REQUESTS; i++) {
		struct ofs_nvme_request *request = &nvme->requests[i];

		if (request->state == OFS_NVME_FREE || request->connection != connection)
			continue;
		if (request->state == OFS_NVME_MOVING)
			request->connection = NULL; /* its task has its memory */
		else
			ofs_nvme_release(nvme, request);
	}
	connection->rc = rc;
	connection->closed = true;
	connection->said = said;
	if (!said)
		connection->id = 0;
}
