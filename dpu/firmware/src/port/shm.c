/*
 * The shm side of a port: a host on the same machine, which maps the memory.
 *
 * It owns the mapping and a socket pair, through which the two ends wake each other. An eventfd's
 * O_NONBLOCK flag would be shared with the host, which could clear it and block the reactor in a
 * read; and a closed socket shows a host that the daemon has died.
 */
#include "clock.h"
#include "port/internal.h"
#include "region/shared.h"
#include "sealed.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DRAIN_READS_MAX 8

struct shm_port {
	struct ofs_port base;
	struct ofs_dma memory;
	int dpu_end; /* of the socket pair; -1: the host shut it down and cannot be woken */
	int host_end;
	uint32_t dilation; /* of the device's clock */
};

struct shm_share {
	struct ofs_share base;
	int region_fd; /* read-only */
};

static int
shm_share(struct ofs_share **out, struct ofs_region *region)
{
	struct shm_share *share = calloc(1, sizeof(*share));
	int fd = share == NULL ? -ENOMEM : ofs_region_share_fd(region);

	if (fd < 0) {
		free(share);
		return fd;
	}
	share->region_fd = fd;
	*out = &share->base;
	return 0;
}

static void
shm_unshare(struct ofs_share *share)
{
	close(((struct shm_share *)share)->region_fd);
	free(share);
}

static int
shm_open_port(struct ofs_port **out, const struct ofs_port_config *config, struct ofs_share *share)
{
	struct shm_port *shm = calloc(1, sizeof(*shm));
	int ends[2];
	int rc;

	(void)share;
	if (shm == NULL)
		return -ENOMEM;
	rc = ofs_rings_init(&shm->base.rings, config);
	if (rc == 0)
		rc = ofs_sealed_alloc(&shm->memory, &config->memory, shm->base.rings.header.size_bytes,
			"offstage-port", 0);
	if (rc == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
		rc = -errno;
		ofs_dma_free(&shm->memory);
	}
	if (rc != 0) {
		free(shm);
		return rc;
	}
	shm->dpu_end = ends[0];
	shm->host_end = ends[1];
	shm->dilation = config->clock == NULL ? 1 : config->clock->dilation;
	ofs_rings_place(&shm->base.rings, shm->memory.base, shm->memory.size_bytes);
	*out = &shm->base;
	return 0;
}

static void
ring_host(const struct shm_port *shm)
{
	/* A full socket is a pending wake-up; a host that shut it down does not want one. */
	if (shm->dpu_end >= 0)
		(void)send(shm->dpu_end, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void
shm_close(struct ofs_port *port)
{
	struct shm_port *shm = (struct shm_port *)port;

	ofs_word_store_ordered(&port->rings.words->closed, 1);
	ring_host(shm);
	if (shm->dpu_end >= 0)
		close(shm->dpu_end);
	close(shm->host_end);
	ofs_dma_free(&shm->memory);
	free(shm);
}

static int
shm_export(const struct ofs_port *port, struct ofs_attachment *attachment)
{
	const struct shm_port *shm = (const struct shm_port *)port;
	const struct shm_share *share = (const struct shm_share *)port->share;
	int fds[] = {share->region_fd, shm->memory.fd, shm->host_end};
	struct ofs_blob_shm content = {.port_size_bytes = shm->memory.size_bytes,
		.dilation = shm->dilation};

	(void)ofs_region_base(port->share->region, &content.region_size_bytes);
	*attachment = (struct ofs_attachment){0};
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);

		if (fd < 0) {
			int rc = -errno;

			while (i-- > 0)
				close(attachment->fds[i]);
			attachment->fd_count = 0;
			return rc;
		}
		attachment->fds[attachment->fd_count++] = fd;
	}
	ofs_blob_write(attachment, "shm", &content, sizeof(content));
	return 0;
}

static void
wake_host(struct shm_port *shm)
{
	if (ofs_rings_host_slept(&shm->base.rings))
		ring_host(shm);
}

static int
shm_poll(struct ofs_port *port, struct ofs_command *command)
{
	int rc = ofs_rings_poll(&port->rings, command);

	if (rc == -EPROTO)
		wake_host((struct shm_port *)port);
	return rc;
}

static int
shm_complete(struct ofs_port *port, const struct ofs_cqe *cqe, const struct ofs_result *results)
{
	int rc = ofs_rings_write_results(&port->rings, cqe, results);

	if (rc == 0) {
		ofs_rings_push_answer(&port->rings, cqe);
		wake_host((struct shm_port *)port);
	}
	return rc;
}

static void *
shm_put_slot(const struct ofs_port *port, uint32_t put_slot)
{
	return ofs_rings_put_slot(&port->rings, put_slot);
}

static int
shm_sleep(struct ofs_port *port)
{
	return ofs_rings_announce_sleep(&port->rings);
}

static void
shm_wake(struct ofs_port *port)
{
	struct shm_port *shm = (struct shm_port *)port;
	char bytes[512];
	ssize_t count;

	ofs_word_store(&port->rings.words->dpu_sleeping, 0);
	for (int i = 0; i < DRAIN_READS_MAX && shm->dpu_end >= 0; i++) {
		count = recv(shm->dpu_end, bytes, sizeof(bytes), MSG_DONTWAIT);
		if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) {
			/* The host shut it down: it would stay readable and keep us awake. */
			close(shm->dpu_end);
			shm->dpu_end = -1;
		}
		if (count < (ssize_t)sizeof(bytes))
			return;
	}
}

static int
shm_wake_fd(const struct ofs_port *port)
{
	return ((const struct shm_port *)port)->dpu_end;
}

const struct ofs_port_ops ofs_port_ops_shm = {
	.name = "shm",
	.share = shm_share,
	.unshare = shm_unshare,
	.open = shm_open_port,
	.close = shm_close,
	.export = shm_export,
	.poll = shm_poll,
	.complete = shm_complete,
	.put_slot = shm_put_slot,
	.sleep = shm_sleep,
	.wake = shm_wake,
	.wake_fd = shm_wake_fd,
};
