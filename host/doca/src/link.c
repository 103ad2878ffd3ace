/*
 * The connection to a daemon: a line to the tenant's socket, an answer, and the driver over what
 * came with it.
 *
 *   -> look NGUID       <- ok VALUE_BYTES_MAX SIZE_BYTES [durable]
 *   -> volume NGUID     <- the same, then the blob of an attachment, and its descriptors
 *
 * NGUID is 32 hexadecimal digits; a refusal is `refused ERRNO: WORDS`. The connection of a volume
 * stays open: the daemon ends the port when it closes.
 */
#include "internal.h"

#include <clock.h>

#include <ctype.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_BYTES (OFS_BLOB_SIZE_BYTES_MAX + 512)

struct answer {
	uint64_t value_bytes_max;
	uint64_t size_bytes;
	struct ofs_attachment attachment;
};

static void
close_all(struct ofs_attachment *attachment)
{
	for (uint32_t i = 0; i < attachment->fd_count; i++)
		close(attachment->fds[i]);
	attachment->fd_count = 0;
}

/* Connected, and what was asked sent. A descriptor or -errno. */
static int
ask(const struct doca_kv_dev *dev, const char *verb, uint64_t timeout_ns)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval limit = {.tv_sec = (time_t)(timeout_ns / 1000000000u)};
	char line[64];
	int used = snprintf(line, sizeof(line), "%s ", verb);
	int fd;

	memcpy(address.sun_path, dev->path, sizeof(address.sun_path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	for (int i = 0; i < DOCA_KV_DEV_NGUID_LEN; i++)
		used += snprintf(line + used, sizeof(line) - (size_t)used, "%02x", dev->nguid[i]);
	line[used++] = '\n';
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0
		&& connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0
		&& send(fd, line, (size_t)used, MSG_NOSIGNAL) == used)
		return fd;
	used = errno == EAGAIN ? -ETIMEDOUT : -errno; /* too many wait to be let in */
	close(fd);
	return used;
}

static int
left_ms(uint64_t until_ns)
{
	uint64_t now_ns = ofs_machine_now_ns();

	return now_ns < until_ns ? (int)((until_ns - now_ns) / 1000000u) : 0;
}

/* One message with its descriptors: its length, or -errno. */
static ssize_t
take(int fd, char *text, size_t size, struct ofs_attachment *attachment, uint64_t until_ns)
{
	struct pollfd answered = {.fd = fd, .events = POLLIN};
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(OFS_ATTACH_FDS_MAX * sizeof(int))];
	struct iovec part = {.iov_base = text, .iov_len = size};
	struct msghdr message = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	struct cmsghdr *header;
	ssize_t got;

	attachment->fd_count = 0;
	while (poll(&answered, 1, left_ms(until_ns)) < 0 && errno == EINTR) {
	}
	got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (got < 0)
		return errno == EAGAIN ? -ETIMEDOUT : -errno;
	header = CMSG_FIRSTHDR(&message);
	if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
		attachment->fd_count = (uint32_t)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(attachment->fds, CMSG_DATA(header), attachment->fd_count * sizeof(int));
	}
	return got;
}

/* A line on why there is no connection: -errno. */
static int
unreached(const struct doca_kv_dev *dev, int rc, struct kv_said *said)
{
	if (rc == -ETIMEDOUT)
		kv_say(said, "%s: the daemon does not answer", dev->path);
	else
		kv_say(said,
			"%s: %s: give the socket of a tenant whose daemon runs on this machine; to reach "
			"one on another machine, use NVMe over TCP",
			dev->path, strerror(-rc));
	return rc == -ECONNREFUSED || rc == -ENOTSOCK || rc == -EPROTOTYPE ? -ENOENT : rc;
}

/* A line on what came instead of an answer: -errno. */
static int
unanswered(const struct doca_kv_dev *dev, char *text, ssize_t got, struct kv_said *said)
{
	const char *name = strrchr(dev->path, '/');
	int code;

	if (got == -ETIMEDOUT)
		return unreached(dev, (int)got, said);
	if (got <= 0) {
		kv_say(said, "%s: the daemon has closed the connection", dev->path);
		return got < 0 ? (int)got : -ECONNRESET;
	}
	if (strncmp(text, "refused", strlen("refused")) != 0) {
		kv_say(said, "%s: not the daemon's socket for values: give a tenant's, as %.*shost-0.sock",
			dev->path, name == NULL ? 0 : (int)(name + 1 - dev->path), dev->path);
		return -ENOENT;
	}
	text[strcspn(text, "\n")] = '\0';
	for (char *one = text; *one != '\0'; one++)
		if (!isprint((unsigned char)*one))
			*one = '?';
	kv_say(said, "%s: %s", dev->path, text);
	/* A refusal by the door has no number. */
	return sscanf(text, "refused %d:", &code) == 1 && code > 0 ? -code : -EACCES;
}

/* The descriptor of the connection or -errno, and a line that says why. */
static int
knock(struct doca_kv_dev *dev, const char *verb, struct answer *answer, uint64_t timeout_ns,
	struct kv_said *said)
{
	char text[ANSWER_BYTES + 1];
	const char *blob;
	uint64_t until_ns = ofs_machine_now_ns() + timeout_ns;
	int fd = ask(dev, verb, timeout_ns);
	ssize_t got;

	if (fd < 0)
		return unreached(dev, fd, said);
	got = take(fd, text, ANSWER_BYTES, &answer->attachment, until_ns);
	text[got < 0 ? 0 : got] = '\0';
	blob = got < 0 ? NULL : memchr(text, '\n', (size_t)got);
	if (blob != NULL
		&& sscanf(text, "ok %" SCNu64 " %" SCNu64, &answer->value_bytes_max, &answer->size_bytes)
			== 2) {
		dev->durable = memmem(text, (size_t)(blob - text), " durable", 8) != NULL;
		answer->attachment.blob_size_bytes = (uint32_t)(text + got - ++blob);
		memcpy(answer->attachment.blob, blob, answer->attachment.blob_size_bytes);
		dev->value_bytes_max = answer->value_bytes_max;
		dev->size_bytes = answer->size_bytes;
		return fd;
	}
	close_all(&answer->attachment);
	close(fd);
	return unanswered(dev, text, got, said);
}

int
kv_look(struct doca_kv_dev *dev)
{
	struct answer answer = {0};
	int fd = knock(dev, "look", &answer, KV_BIND_NS, NULL);

	if (fd < 0)
		return fd;
	close_all(&answer.attachment);
	close(fd);
	return 0;
}

int
kv_link_open(struct kv_link **out, struct doca_kv_dev *dev, uint64_t timeout_ns,
	struct kv_said *said)
{
	struct kv_link *link = calloc(1, sizeof(*link));
	struct answer answer = {0};
	char error[256] = "";
	int rc;

	if (link == NULL)
		return -ENOMEM;
	link->connection = knock(dev, "volume", &answer, timeout_ns, said);
	rc = link->connection < 0 ? link->connection : 0;
	if (rc == 0) {
		rc = ofs_driver_attach(&link->driver, &answer.attachment, error, sizeof(error));
		close_all(&answer.attachment);
		if (rc != 0)
			kv_say(said, "%s: %s", dev->path, error);
	}
	if (rc == 0)
		rc = ofs_value_io_open(&link->values, link->driver, KV_SESSIONS_MAX, KV_TIMEOUT_NS);
	if (rc != 0) {
		kv_link_close(link);
		return rc;
	}
	*out = link;
	return 0;
}

bool
kv_link_closed(const struct kv_link *link)
{
	char byte;
	ssize_t got = recv(link->connection, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT);

	return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

void
kv_link_close(struct kv_link *link)
{
	if (link->values != NULL)
		ofs_value_io_close(link->values);
	if (link->driver != NULL)
		ofs_driver_close(link->driver);
	if (link->connection >= 0)
		close(link->connection);
	free(link);
}
