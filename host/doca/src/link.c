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

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define ANSWER_BYTES (OFS_BLOB_SIZE_BYTES_MAX + 512)
#define ANSWER_S 5

struct answer {
	uint64_t value_bytes_max;
	uint64_t size_bytes;
	bool durable;
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
ask(const struct doca_kv_dev *dev, const char *verb)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval limit = {.tv_sec = ANSWER_S};
	char line[64];
	int used = snprintf(line, sizeof(line), "%s ", verb);
	int fd;

	if (strlen(dev->path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, dev->path, strlen(dev->path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	for (int i = 0; i < DOCA_KV_DEV_NGUID_LEN; i++)
		used += snprintf(line + used, sizeof(line) - (size_t)used, "%02x", dev->nguid[i]);
	line[used++] = '\n';
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0
		&& connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0
		&& send(fd, line, (size_t)used, MSG_NOSIGNAL) == used)
		return fd;
	used = -errno;
	close(fd);
	return used;
}

/* One message with its descriptors: its length, or -errno. */
static ssize_t
take(int fd, char *text, size_t size, struct ofs_attachment *attachment)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(OFS_ATTACH_FDS_MAX * sizeof(int))];
	struct iovec part = {.iov_base = text, .iov_len = size};
	struct msghdr message = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	struct cmsghdr *header = got < 0 ? NULL : CMSG_FIRSTHDR(&message);

	if (got < 0)
		return -errno;
	attachment->fd_count = 0;
	if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
		attachment->fd_count = (uint32_t)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(attachment->fds, CMSG_DATA(header), attachment->fd_count * sizeof(int));
	}
	return got;
}

/* The descriptor of the connection or -errno, and a line that says why. */
static int
knock(const struct doca_kv_dev *dev, const char *verb, struct answer *answer)
{
	char text[ANSWER_BYTES + 1];
	const char *blob;
	ssize_t got;
	int code;
	int fd = ask(dev, verb);

	if (fd < 0) {
		kv_say("%s: %s: give the socket of a tenant whose daemon runs on this machine; to reach "
			   "one on another machine, use NVMe over TCP",
			dev->path, strerror(-fd));
		return fd == -ECONNREFUSED || fd == -ENOTSOCK || fd == -ENAMETOOLONG ? -ENOENT : fd;
	}
	got = take(fd, text, ANSWER_BYTES, &answer->attachment);
	text[got < 0 ? 0 : got] = '\0';
	blob = got < 0 ? NULL : memchr(text, '\n', (size_t)got);
	if (blob != NULL
		&& sscanf(text, "ok %" SCNu64 " %" SCNu64, &answer->value_bytes_max, &answer->size_bytes)
			== 2) {
		answer->durable = memmem(text, (size_t)(blob - text), " durable", 8) != NULL;
		answer->attachment.blob_size_bytes = (uint32_t)(text + got - ++blob);
		memcpy(answer->attachment.blob, blob, answer->attachment.blob_size_bytes);
		return fd;
	}
	close_all(&answer->attachment);
	close(fd);
	text[strcspn(text, "\n")] = '\0';
	kv_say("%s: %s", dev->path, got < 0 ? strerror((int)-got) : text);
	if (got < 0)
		return got == -EAGAIN ? -ETIMEDOUT : (int)got;
	/* A refusal by the door has no number. */
	return sscanf(text, "refused %d:", &code) == 1 && code > 0 ? -code : -EACCES;
}

int
kv_look(struct doca_kv_dev *dev)
{
	struct answer answer = {0};
	int fd = knock(dev, "look", &answer);

	if (fd < 0)
		return fd;
	close_all(&answer.attachment);
	close(fd);
	dev->value_bytes_max = answer.value_bytes_max;
	dev->size_bytes = answer.size_bytes;
	dev->durable = answer.durable;
	return 0;
}

int
kv_link_open(struct kv_link **out, const struct doca_kv_dev *dev)
{
	struct kv_link *link = calloc(1, sizeof(*link));
	struct answer answer = {0};
	char error[256] = "";
	int rc;

	if (link == NULL)
		return -ENOMEM;
	link->connection = knock(dev, "volume", &answer);
	rc = link->connection < 0 ? link->connection : 0;
	if (rc == 0) {
		rc = ofs_driver_attach(&link->driver, &answer.attachment, error, sizeof(error));
		close_all(&answer.attachment);
		if (rc != 0)
			kv_say("%s: %s", dev->path, error);
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
