/* The target's sockets: bytes go where receive.c and send.c say. */
#include "nvme/sockets.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define TURN_BYTES (1u << 20) /* of one connection, before the others have theirs */

void
ofs_nvme_accept(struct ofs_nvme *nvme)
{
	struct epoll_event event = {.events = EPOLLIN};
	struct ofs_nvme_connection *connection = ofs_nvme_connection_yields(nvme);
	int fd, on = 1;

	if (connection != NULL) { /* its place is free once the caller has heard of it */
		ofs_nvme_drop(connection, -ECONNABORTED, true);
		return;
	}
	fd = accept4(nvme->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0)
		return;
	connection = ofs_nvme_connection_open(nvme, fd);
	if (connection == NULL) {
		close(fd);
		return;
	}
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* only slower without */
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	event.data.ptr = connection;
	connection->events = EPOLLIN;
	if (epoll_ctl(nvme->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
		ofs_nvme_drop(connection, -errno, false);
}

void
ofs_nvme_drop(struct ofs_nvme_connection *connection, int rc, bool said)
{
	close(connection->fd);
	ofs_nvme_connection_close(connection, rc, said);
}

/* Whether bytes moved; `blocked`: more are left. */
static bool
send_some(struct ofs_nvme_connection *connection, bool *blocked, int *rc)
{
	struct iovec parts[OFS_NVME_IOVECS + 2];
	bool moved = false;

	for (;;) {
		struct msghdr message = {.msg_iov = parts,
			.msg_iovlen = ofs_nvme_outgoing(connection, parts, OFS_NVME_IOVECS + 2)};
		ssize_t went;

		*blocked = message.msg_iovlen > 0;
		if (!*blocked)
			return moved;
		went = sendmsg(connection->fd, &message, MSG_NOSIGNAL);
		if (went < 0) {
			*rc = errno == EAGAIN || errno == EINTR ? 0 : -errno;
			return moved;
		}
		ofs_nvme_went(connection, (uint64_t)went);
		connection->heard_ns = connection->nvme->now_ns;
		moved = true;
	}
}

static bool
receive_some(struct ofs_nvme_connection *connection, int *rc)
{
	uint64_t taken = 0;
	uint32_t wanted;
	uint8_t *at;

	while (taken < TURN_BYTES && (wanted = ofs_nvme_want(connection, &at)) > 0) {
		ssize_t got = recv(connection->fd, at, wanted, 0);

		if (got == 0)
			*rc = -ECONNRESET;
		if (got < 0 && errno != EAGAIN && errno != EINTR)
			*rc = -errno;
		if (got <= 0)
			break;
		taken += (uint64_t)got;
		ofs_nvme_got(connection, (uint32_t)got);
	}
	return taken > 0;
}

static void
watch(struct ofs_nvme_connection *connection, bool blocked)
{
	uint8_t *at;
	uint32_t events =
		(blocked ? EPOLLOUT : 0u) | (ofs_nvme_want(connection, &at) > 0 ? (uint32_t)EPOLLIN : 0u);
	struct epoll_event event = {.events = events, .data.ptr = connection};

	if (events == connection->events)
		return;
	connection->events = events;
	(void)epoll_ctl(connection->nvme->epoll, EPOLL_CTL_MOD, connection->fd, &event);
}

bool
ofs_nvme_advance(struct ofs_nvme_connection *connection)
{
	bool blocked = false, moved;
	int rc = 0;

	moved = receive_some(connection, &rc);
	if (rc == 0)
		moved |= send_some(connection, &blocked, &rc);
	if (rc != 0 || (connection->ending && !blocked)) {
		ofs_nvme_drop(connection, rc, true);
		return true;
	}
	watch(connection, blocked);
	return moved;
}
