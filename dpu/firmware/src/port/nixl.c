/*
 * The nixl side of a port: a host that reaches the DPU by NIXL.
 *
 * A share is the agent of one tenant: it registers the tenant's region and the put window of each
 * of its ports. Commands arrive as notifications. The reactor when it polls, or the watcher thread
 * while the reactor sleeps, writes them into the rings of their port, where they are handled as on
 * any other side; answers from the rings are sent as notifications. The share's lock covers its
 * agent, its list of ports, and the host's half of their rings.
 *
 * NIXL has no descriptor to sleep on. The watcher polls at growing intervals, up to PAUSE_NS_MAX: a
 * command that arrives after a long idle time may be delayed by that much.
 */
#include "nixl/agent.h"
#include "nixl/message.h"
#include "port/internal.h"
#include "region/shared.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS_MIN 50000ull
#define PAUSE_NS_MAX 1000000ull

struct nixl_share {
	struct ofs_share base;
	struct ofs_nixl_agent agent;
	void *registration; /* of the region */
	pthread_mutex_t lock;
	struct nixl_port *ports; /* under lock */
	bool stopping;           /* under lock */
	pthread_t watcher;
	int wake_fd; /* eventfd of all its ports */
};

struct nixl_port {
	struct ofs_port base;
	struct nixl_port *next; /* of the share; under its lock */
	struct ofs_dma memory;
	void *registration; /* of the put window */
	uint8_t token[OFS_NIXL_TOKEN_SIZE_BYTES];
	char host[OFS_NIXL_NAME_SIZE_BYTES]; /* "": it has not said hello, or has left; under lock */
	uint32_t submission_tail;            /* the host's half of the rings; under lock */
	uint32_t completion_head;
	struct ofs_nixl_answer *answer; /* sized for the largest */
};

/* The agent of the next share, made in advance. */
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ofs_nixl_agent spare; /* under spare_lock */

int
ofs_nixl_prepare(void)
{
	int rc = 0;

	pthread_mutex_lock(&spare_lock);
	if (spare.handle == NULL)
		rc = ofs_nixl_agent_open(&spare, "dpu", true);
	pthread_mutex_unlock(&spare_lock);
	return rc;
}

static int
take_spare(struct ofs_nixl_agent *agent)
{
	pthread_mutex_lock(&spare_lock);
	*agent = spare;
	spare = (struct ofs_nixl_agent){0};
	pthread_mutex_unlock(&spare_lock);
	return agent->handle != NULL ? 0 : ofs_nixl_agent_open(agent, "dpu", true);
}

/* A host says how to answer it. A host that says so again replaces its earlier entry. */
static void
meet(struct nixl_share *share, struct nixl_port *port, const uint8_t *metadata, size_t size_bytes)
{
	if (port->host[0] != '\0')
		ofs_nixl_forget(&share->agent, port->host);
	if (ofs_nixl_meet(&share->agent, metadata, size_bytes, port->host) != 0)
		port->host[0] = '\0';
}

/* Writes what a host with shared memory would write: payload, entry, tail. The rings check them. */
static void
enqueue(struct nixl_port *port, const struct ofs_sqe *sqe, const uint8_t *payload,
	size_t size_bytes)
{
	struct ofs_rings *rings = &port->base.rings;
	const struct ofs_port_header *header = &rings->header;
	uint32_t head = ofs_word_load(&rings->words->submission_head);

	if (port->submission_tail - head >= header->entry_count
		|| size_bytes > header->payload_size_bytes) {
		return; /* not a correct host: it has more in flight than the ring, or a longer command */
	}
	if (size_bytes > 0 && sqe->payload_index < header->entry_count) {
		memcpy(rings->payloads + (uint64_t)sqe->payload_index * header->payload_size_bytes, payload,
			size_bytes);
	}
	rings->submissions[port->submission_tail & (header->entry_count - 1)] = *sqe;
	port->submission_tail++;
	ofs_word_store_ordered(&rings->words->submission_tail, port->submission_tail);
}

static void
deliver(void *context, const char *from, const uint8_t *data, size_t size_bytes)
{
	struct nixl_share *share = context;
	struct nixl_port *port = share->ports;
	struct ofs_nixl_command command;

	if (size_bytes < sizeof(command.header))
		return;
	memcpy(&command.header, data, sizeof(command.header));
	if (command.header.magic != OFS_NIXL_MAGIC)
		return;
	while (port != NULL && memcmp(port->token, command.header.token, sizeof(port->token)) != 0)
		port = port->next;
	if (port == NULL)
		return;
	if (command.header.kind == OFS_NIXL_HELLO) {
		meet(share, port, data + sizeof(command.header), size_bytes - sizeof(command.header));
	} else if (command.header.kind == OFS_NIXL_COMMAND && size_bytes >= sizeof(command)
		&& strcmp(from, port->host) == 0) {
		memcpy(&command, data, sizeof(command));
		enqueue(port, &command.sqe, data + sizeof(command), size_bytes - sizeof(command));
	}
}

static bool
somebody_sleeps(const struct nixl_share *share)
{
	for (const struct nixl_port *port = share->ports; port != NULL; port = port->next)
		if (ofs_word_load_ordered(&port->base.rings.words->dpu_sleeping) != 0)
			return true;
	return false;
}

static void *
watch(void *context)
{
	static const uint64_t one = 1;
	struct nixl_share *share = context;
	uint64_t pause_ns = PAUSE_NS_MIN;
	bool stopping = false;

	while (!stopping) {
		struct timespec pause = {.tv_nsec = (long)pause_ns};
		int taken_count = 0;

		nanosleep(&pause, NULL);
		pthread_mutex_lock(&share->lock);
		stopping = share->stopping;
		if (somebody_sleeps(share))
			taken_count = ofs_nixl_take(&share->agent, deliver, share);
		if (taken_count > 0 && somebody_sleeps(share))
			(void)!write(share->wake_fd, &one, sizeof(one));
		pthread_mutex_unlock(&share->lock);
		pause_ns = taken_count > 0        ? PAUSE_NS_MIN
			: pause_ns * 2 < PAUSE_NS_MAX ? pause_ns * 2
										  : PAUSE_NS_MAX;
	}
	return NULL;
}

static void
nixl_unshare(struct ofs_share *share)
{
	struct nixl_share *nixl = (struct nixl_share *)share;

	if (nixl->wake_fd >= 0) {
		pthread_mutex_lock(&nixl->lock);
		nixl->stopping = true;
		pthread_mutex_unlock(&nixl->lock);
		pthread_join(nixl->watcher, NULL);
		close(nixl->wake_fd);
	}
	ofs_nixl_deregister(&nixl->agent, nixl->registration);
	ofs_nixl_agent_close(&nixl->agent);
	pthread_mutex_destroy(&nixl->lock);
	free(nixl);
}

static int
nixl_share_region(struct ofs_share **out, struct ofs_region *region)
{
	struct nixl_share *nixl = calloc(1, sizeof(*nixl));
	uint64_t size_bytes;
	void *base = ofs_region_base(region, &size_bytes);
	int rc;

	if (nixl == NULL)
		return -ENOMEM;
	nixl->wake_fd = -1;
	pthread_mutex_init(&nixl->lock, NULL);
	rc = take_spare(&nixl->agent);
	if (rc == 0)
		rc = ofs_nixl_register(&nixl->agent, base, size_bytes, &nixl->registration);
	if (rc == 0) {
		nixl->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		rc = nixl->wake_fd < 0 ? -errno : 0;
	}
	if (rc == 0) {
		rc = -pthread_create(&nixl->watcher, NULL, watch, nixl);
		if (rc != 0) {
			close(nixl->wake_fd);
			nixl->wake_fd = -1;
		}
	}
	if (rc != 0) {
		nixl_unshare(&nixl->base);
		return rc;
	}
	*out = &nixl->base;
	return 0;
}

/* Adds it to the share's list, once nothing can fail any more. */
static void
enlist(struct nixl_share *share, struct nixl_port *port)
{
	pthread_mutex_lock(&share->lock);
	port->next = share->ports;
	share->ports = port;
	pthread_mutex_unlock(&share->lock);
}

static void
free_port(struct nixl_port *nixl, struct nixl_share *share)
{
	const struct ofs_port_header *header = &nixl->base.rings.header;

	if (nixl->registration != NULL) {
		pthread_mutex_lock(&share->lock);
		ofs_nixl_deregister(&share->agent, nixl->registration);
		pthread_mutex_unlock(&share->lock);
		ofs_dma_release(nixl, nixl->base.rings.puts,
			(uint64_t)header->put_slot_count * header->put_stride_bytes);
	}
	ofs_dma_free(&nixl->memory);
	free(nixl->answer);
	free(nixl);
}

static int
register_puts(struct nixl_port *nixl, struct nixl_share *share)
{
	const struct ofs_port_header *header = &nixl->base.rings.header;
	uint64_t size_bytes = (uint64_t)header->put_slot_count * header->put_stride_bytes;
	int rc = ofs_dma_hold(nixl, nixl->base.rings.puts, size_bytes);

	if (rc != 0)
		return rc;
	pthread_mutex_lock(&share->lock);
	rc = ofs_nixl_register(&share->agent, nixl->base.rings.puts, size_bytes, &nixl->registration);
	pthread_mutex_unlock(&share->lock);
	if (rc != 0)
		ofs_dma_release(nixl, nixl->base.rings.puts, size_bytes);
	return rc;
}

static int
nixl_open(struct ofs_port **out, const struct ofs_port_config *config, struct ofs_share *share)
{
	struct nixl_port *nixl = calloc(1, sizeof(*nixl));
	struct ofs_rings *rings = nixl == NULL ? NULL : &nixl->base.rings;
	int rc = nixl == NULL ? -ENOMEM : ofs_rings_init(rings, config);

	if (rc == 0)
		rc = ofs_dma_alloc(&nixl->memory, &config->memory, rings->header.size_bytes, NULL);
	if (rc != 0) {
		free(nixl);
		return rc;
	}
	ofs_rings_place(rings, nixl->memory.base, nixl->memory.size_bytes);
	nixl->answer =
		calloc(1, sizeof(*nixl->answer) + config->demand_max * sizeof(struct ofs_result));
	if (nixl->answer == NULL)
		rc = -ENOMEM;
	if (rc == 0 && getrandom(nixl->token, sizeof(nixl->token), 0) != (ssize_t)sizeof(nixl->token))
		rc = -EIO;
	if (rc == 0)
		rc = register_puts(nixl, (struct nixl_share *)share);
	if (rc != 0) {
		free_port(nixl, (struct nixl_share *)share);
		return rc;
	}
	enlist((struct nixl_share *)share, nixl);
	*out = &nixl->base;
	return 0;
}

/* Sends to its host, if there is one. Under the share's lock. */
static void
send_message(struct nixl_port *nixl, enum ofs_nixl_kind kind, struct ofs_nixl_header *header,
	size_t size_bytes)
{
	struct nixl_share *share = (struct nixl_share *)nixl->base.share;

	if (nixl->host[0] == '\0')
		return;
	header->magic = OFS_NIXL_MAGIC;
	header->kind = kind;
	memcpy(header->token, nixl->token, sizeof(header->token));
	if (ofs_nixl_send(&share->agent, nixl->host, header, size_bytes) != 0)
		nixl->host[0] = '\0'; /* it has left; the control socket will notice */
}

static void
nixl_close(struct ofs_port *port)
{
	struct nixl_port *nixl = (struct nixl_port *)port;
	struct nixl_share *share = (struct nixl_share *)port->share;
	struct nixl_port **link = &share->ports;
	struct ofs_nixl_header closed;

	pthread_mutex_lock(&share->lock);
	while (*link != nixl)
		link = &(*link)->next;
	*link = nixl->next;
	send_message(nixl, OFS_NIXL_CLOSED, &closed, sizeof(closed));
	if (nixl->host[0] != '\0')
		ofs_nixl_forget(&share->agent, nixl->host);
	pthread_mutex_unlock(&share->lock);
	free_port(nixl, share);
}

static int
nixl_export(const struct ofs_port *port, struct ofs_attachment *attachment)
{
	struct {
		struct ofs_blob_nixl blob;
		uint8_t metadata[OFS_BLOB_SIZE_BYTES_MAX - sizeof(struct ofs_blob_header)
			- sizeof(struct ofs_blob_nixl)];
	} content = {0};
	const struct nixl_port *nixl = (const struct nixl_port *)port;
	struct nixl_share *share = (struct nixl_share *)port->share;
	uint64_t region_size_bytes;
	const void *region = ofs_region_base(port->share->region, &region_size_bytes);
	int rc;

	*attachment = (struct ofs_attachment){0};
	memcpy(content.blob.token, nixl->token, sizeof(nixl->token));
	content.blob.region_address = (uintptr_t)region;
	content.blob.puts_address = (uintptr_t)port->rings.puts;
	memcpy(&content.blob.region, region, sizeof(content.blob.region));
	content.blob.port = port->rings.header;
	pthread_mutex_lock(&share->lock);
	rc = ofs_nixl_metadata(&share->agent, content.metadata, sizeof(content.metadata),
		&content.blob.metadata_size_bytes);
	pthread_mutex_unlock(&share->lock);
	if (rc == 0) {
		ofs_blob_write(attachment, "nixl", &content,
			(uint32_t)sizeof(content.blob) + content.blob.metadata_size_bytes);
	}
	return rc;
}

/* Sends what the rings have for the host. Under the share's lock. */
static void
send_answers(struct nixl_port *nixl)
{
	struct ofs_rings *rings = &nixl->base.rings;
	const struct ofs_port_header *header = &rings->header;
	uint32_t mask = 2 * header->entry_count - 1;

	for (; nixl->completion_head != rings->completion_tail; nixl->completion_head++) {
		const struct ofs_cqe *cqe = &rings->completions[nixl->completion_head & mask];
		size_t size_bytes = 0;

		if (cqe->count > cqe->first) {
			size_bytes = (cqe->count - cqe->first) * sizeof(struct ofs_result);
			memcpy(nixl->answer + 1,
				rings->payloads + (uint64_t)cqe->payload_index * header->payload_size_bytes
					+ ofs_payload_results_offset(header->demand_max, header->score_max)
					+ cqe->first * sizeof(struct ofs_result),
				size_bytes);
		}
		nixl->answer->cqe = *cqe;
		send_message(nixl, OFS_NIXL_ANSWER, &nixl->answer->header,
			sizeof(*nixl->answer) + size_bytes);
	}
	ofs_word_store(&rings->words->completion_head, nixl->completion_head);
}

static int
nixl_poll(struct ofs_port *port, struct ofs_command *command)
{
	struct nixl_port *nixl = (struct nixl_port *)port;
	struct nixl_share *share = (struct nixl_share *)port->share;
	int rc;

	if (ofs_word_load(&port->rings.words->submission_tail) == port->rings.submission_head
		&& pthread_mutex_trylock(&share->lock) == 0) {
		(void)ofs_nixl_take(&share->agent, deliver, share);
		pthread_mutex_unlock(&share->lock);
	}
	rc = ofs_rings_poll(&port->rings, command);
	if (rc == -EPROTO) {
		pthread_mutex_lock(&share->lock);
		send_answers(nixl);
		pthread_mutex_unlock(&share->lock);
	}
	return rc;
}

static int
nixl_complete(struct ofs_port *port, const struct ofs_cqe *cqe, const struct ofs_result *results)
{
	struct nixl_share *share = (struct nixl_share *)port->share;
	int rc = ofs_rings_write_results(&port->rings, cqe, results);

	if (rc == 0) {
		ofs_rings_push_answer(&port->rings, cqe);
		pthread_mutex_lock(&share->lock);
		send_answers((struct nixl_port *)port);
		pthread_mutex_unlock(&share->lock);
	}
	return rc;
}

static void *
nixl_put_slot(const struct ofs_port *port, uint32_t put_slot)
{
	return ofs_rings_put_slot(&port->rings, put_slot);
}

static int
nixl_sleep(struct ofs_port *port)
{
	return ofs_rings_announce_sleep(&port->rings);
}

static void
nixl_wake(struct ofs_port *port)
{
	uint64_t count;

	ofs_word_store(&port->rings.words->dpu_sleeping, 0);
	(void)!read(((struct nixl_share *)port->share)->wake_fd, &count, sizeof(count));
}

static int
nixl_wake_fd(const struct ofs_port *port)
{
	return ((const struct nixl_share *)port->share)->wake_fd;
}

const struct ofs_port_ops ofs_port_ops_nixl = {
	.name = "nixl",
	.share = nixl_share_region,
	.unshare = nixl_unshare,
	.open = nixl_open,
	.close = nixl_close,
	.export = nixl_export,
	.poll = nixl_poll,
	.complete = nixl_complete,
	.put_slot = nixl_put_slot,
	.sleep = nixl_sleep,
	.wake = nixl_wake,
	.wake_fd = nixl_wake_fd,
};
