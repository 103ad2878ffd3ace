/*
 * Controllers, and the thread that connects them.
 *
 * Model: everything that may wait for a target happens here: starting the environment, connecting,
 * disconnecting. The polling thread makes a request and goes on; open and close wait a bounded time
 * and then abandon the thread, which frees the link once the target has released it. A drive that
 * comes back must be the same drive: same size, same sector, same identity.
 */
#include "spdk_parts.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	LINK_BACKOFF_MS = 50,
	LINK_BACKOFF_MS_MAX = 1000,
	LINK_PROBE_MS = 2000,
	LINK_SILENT_MS = 9000, /* SPDK waits 10 s for the first answer, and reports less */
	LINK_ADMIN_MS = 10000
};

static void
let_go(struct ofs_spdk_drive *drive)
{
	if (drive->ctrlr == NULL)
		return;
	/* Without this, SPDK waits for a fabric's target that hangs; a local drive is shut down in
	 * order. */
	if (drive->id.trtype != SPDK_NVME_TRANSPORT_PCIE)
		spdk_nvme_ctrlr_fail(drive->ctrlr);
	if (drive->qpair != NULL)
		spdk_nvme_ctrlr_free_io_qpair(drive->qpair);
	spdk_nvme_detach(drive->ctrlr);
	drive->ctrlr = NULL;
	drive->ns = NULL;
	drive->qpair = NULL;
}

/* The kernel's errno for the address; 0 if something listens there. */
static int
probe_tcp(const struct spdk_nvme_transport_id *id)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
		.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
	struct addrinfo *found;
	int error = 0;
	socklen_t length = sizeof(error);
	struct pollfd wait = {.events = POLLOUT};

	if (getaddrinfo(id->traddr, id->trsvcid, &hints, &found) != 0)
		return EADDRNOTAVAIL;
	wait.fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (connect(wait.fd, found->ai_addr, found->ai_addrlen) != 0)
		error = errno;
	if (error == EINPROGRESS) {
		error = ETIMEDOUT;
		if (poll(&wait, 1, LINK_PROBE_MS) == 1)
			(void)getsockopt(wait.fd, SOL_SOCKET, SO_ERROR, &error, &length);
	}
	close(wait.fd);
	freeaddrinfo(found);
	return error;
}

static const char *
name_of(const struct ofs_spdk_drive *drive)
{
	return drive->id.subnqn[0] != '\0' && drive->id.trtype != SPDK_NVME_TRANSPORT_PCIE
		? drive->id.subnqn
		: drive->id.traddr;
}

static int
refuse_address(const struct ofs_spdk_drive *drive, char *why, int error)
{
	snprintf(why, SPDK_WHY_BYTES,
		"%s:%s: %s; check traddr and trsvcid, and that the target is up and listens there",
		drive->id.traddr, drive->id.trsvcid, strerror(error));
	return -error;
}

static uint64_t
now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int
refuse_silent(const struct ofs_spdk_drive *drive, char *why)
{
	snprintf(why, SPDK_WHY_BYTES,
		"%.150s at %.80s:%s takes a connection and does not answer; check that an NVMe-oF target "
		"listens there, and that it is not stopped",
		name_of(drive), drive->id.traddr, drive->id.trsvcid);
	return -ETIMEDOUT;
}

static int
refuse_connect(const struct ofs_spdk_drive *drive, char *why)
{
	char line[160];

	ofs_spdk_log_read(line, sizeof(line));
	snprintf(why, SPDK_WHY_BYTES, "%.150s cannot be connected%s%s; %s", name_of(drive),
		line[0] != '\0' ? ": SPDK says " : "", line,
		drive->id.trtype == SPDK_NVME_TRANSPORT_PCIE
			? "check the address with lspci, and bind the drive to vfio-pci"
			: "check subnqn and address, and that the target admits this host");
	return -ENXIO;
}

static int
look_at_namespace(struct ofs_spdk_drive *drive, char *why)
{
	uint8_t identity[32] = {0};
	uint64_t size_bytes;
	const uint8_t *nguid;
	const struct spdk_uuid *uuid;

	if (drive->nsid == 0)
		drive->nsid = spdk_nvme_ctrlr_get_first_active_ns(drive->ctrlr);
	if (drive->nsid == 0 || !spdk_nvme_ctrlr_is_active_ns(drive->ctrlr, drive->nsid)) {
		snprintf(why, SPDK_WHY_BYTES, "%.180s has no active namespace %u; give another as ns:N",
			name_of(drive), drive->nsid);
		return -ENODEV;
	}
	drive->ns = spdk_nvme_ctrlr_get_ns(drive->ctrlr, drive->nsid);
	if (spdk_nvme_ns_get_md_size(drive->ns) != 0) {
		snprintf(why, SPDK_WHY_BYTES,
			"namespace %u of %.180s has metadata in its blocks; format it without", drive->nsid,
			name_of(drive));
		return -EINVAL;
	}
	size_bytes = spdk_nvme_ns_get_size(drive->ns);
	nguid = spdk_nvme_ns_get_nguid(drive->ns);
	uuid = spdk_nvme_ns_get_uuid(drive->ns);
	if (nguid != NULL)
		memcpy(identity, nguid, 16);
	if (uuid != NULL)
		memcpy(identity + 16, uuid, 16);
	if (drive->size_bytes != 0
		&& (drive->size_bytes != size_bytes
			|| drive->sector_bytes != spdk_nvme_ns_get_sector_size(drive->ns)
			|| memcmp(drive->identity, identity, sizeof(identity)) != 0))
		return -ESTALE;
	drive->size_bytes = size_bytes;
	drive->sector_bytes = spdk_nvme_ns_get_sector_size(drive->ns);
	drive->transfer_max_bytes = spdk_nvme_ns_get_max_io_xfer_size(drive->ns);
	memcpy(drive->identity, identity, sizeof(identity));
	return drive->lock_fd >= 0 ? 0 : ofs_spdk_path_claim(drive, why);
}

static int
connect_drive(struct ofs_spdk_drive *drive, char *why)
{
	static const uint8_t nobody[16];
	struct spdk_nvme_ctrlr_opts opts;
	struct spdk_nvme_io_qpair_opts queue;
	uint64_t began_ms;
	int rc = 0;

	let_go(drive);
	if (drive->id.trtype == SPDK_NVME_TRANSPORT_TCP)
		rc = probe_tcp(&drive->id);
	if (rc != 0)
		return refuse_address(drive, why, rc);
	ofs_spdk_log_begin();
	spdk_nvme_ctrlr_get_default_ctrlr_opts(&opts, sizeof(opts));
	opts.keep_alive_timeout_ms = SPDK_KEEP_ALIVE_MS;
	opts.admin_timeout_ms = LINK_ADMIN_MS;
	opts.fabrics_connect_timeout_us = LINK_ADMIN_MS * 1000ull; /* not one second: it may be busy */
	opts.disable_error_logging = true;                         /* every status goes to the caller */
	snprintf(opts.hostnqn, sizeof(opts.hostnqn), "%s", drive->host_nqn);
	if (memcmp(drive->host_id, nobody, sizeof(nobody)) != 0)
		memcpy(opts.extended_host_id, drive->host_id, sizeof(drive->host_id));
	began_ms = now_ms();
	drive->ctrlr = spdk_nvme_connect(&drive->id, &opts, sizeof(opts));
	if (drive->ctrlr == NULL && drive->id.trtype == SPDK_NVME_TRANSPORT_TCP
		&& now_ms() - began_ms >= LINK_SILENT_MS)
		return refuse_silent(drive, why);
	if (drive->ctrlr == NULL)
		return refuse_connect(drive, why);
	rc = look_at_namespace(drive, why);
	if (rc == 0) {
		spdk_nvme_ctrlr_get_default_io_qpair_opts(drive->ctrlr, &queue, sizeof(queue));
		queue.io_queue_requests = drive->request_max;
		if (queue.io_queue_size > drive->request_max)
			queue.io_queue_size = drive->request_max;
		queue.delay_cmd_submit = true; /* one doorbell for all that one poll finds */
		drive->qpair = spdk_nvme_ctrlr_alloc_io_qpair(drive->ctrlr, &queue, sizeof(queue));
		rc = drive->qpair != NULL ? 0 : refuse_connect(drive, why);
	}
	if (rc == 0)
		ofs_spdk_place_ask(drive);
	if (rc != 0)
		let_go(drive);
	return rc;
}

static void
wait_ms(pthread_cond_t *cond, pthread_mutex_t *mutex, uint32_t ms)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ms / 1000;
	until.tv_nsec += (long)(ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	(void)pthread_cond_timedwait(cond, mutex, &until);
}

static struct ofs_spdk_drive *
find_asked(struct ofs_spdk_link *link)
{
	for (uint32_t i = 0; i < link->drive_count; i++)
		if (atomic_load(&link->drives[i].state) == SPDK_ASKED)
			return &link->drives[i];
	return NULL;
}

/* Called with the mutex, which is released while it waits for the target. */
static void
serve(struct ofs_spdk_link *link, struct ofs_spdk_drive *drive, uint32_t *backoff_ms)
{
	char why[SPDK_WHY_BYTES] = "";
	int opening = link->opening;
	int rc;

	pthread_mutex_unlock(&link->mutex);
	rc = opening ? ofs_spdk_env_begin(link->huge, why) : 0;
	if (rc == 0)
		rc = connect_drive(drive, why);
	pthread_mutex_lock(&link->mutex);
	drive->rc = rc;
	if (rc == 0) {
		*backoff_ms = LINK_BACKOFF_MS;
		atomic_store(&drive->state, SPDK_READY);
	} else if (opening) {
		memcpy(link->why, why, sizeof(why));
		atomic_store(&drive->state, SPDK_REFUSED);
	} else if (rc == -ESTALE) {
		atomic_store(&drive->state, SPDK_FOREIGN);
	} else if (!link->closing) {
		wait_ms(&link->asked, &link->mutex, *backoff_ms);
		*backoff_ms = *backoff_ms * 2 < LINK_BACKOFF_MS_MAX ? *backoff_ms * 2 : LINK_BACKOFF_MS_MAX;
	}
	pthread_cond_broadcast(&link->told);
}

static void
free_link(struct ofs_spdk_link *link)
{
	for (uint32_t i = 0; i < link->drive_count; i++)
		if (link->drives[i].lock_fd >= 0)
			close(link->drives[i].lock_fd);
	pthread_mutex_destroy(&link->mutex);
	pthread_cond_destroy(&link->asked);
	pthread_cond_destroy(&link->told);
	free(link);
}

static void *
link_main(void *argument)
{
	struct ofs_spdk_link *link = argument;
	uint32_t backoff_ms = LINK_BACKOFF_MS;
	int abandoned;

	pthread_mutex_lock(&link->mutex);
	while (!link->closing) {
		struct ofs_spdk_drive *drive = find_asked(link);

		if (drive != NULL)
			serve(link, drive, &backoff_ms);
		else
			pthread_cond_wait(&link->asked, &link->mutex);
	}
	pthread_mutex_unlock(&link->mutex);
	for (uint32_t i = 0; i < link->drive_count; i++)
		let_go(&link->drives[i]);
	pthread_mutex_lock(&link->mutex);
	link->ended = 1;
	abandoned = link->abandoned;
	pthread_cond_broadcast(&link->told);
	pthread_mutex_unlock(&link->mutex);
	if (abandoned)
		free_link(link);
	return NULL;
}

void
ofs_spdk_link_ask(struct ofs_spdk_link *link, struct ofs_spdk_drive *drive)
{
	pthread_mutex_lock(&link->mutex);
	atomic_store(&drive->state, SPDK_ASKED);
	pthread_cond_broadcast(&link->asked);
	pthread_mutex_unlock(&link->mutex);
}

void
ofs_spdk_link_close(struct ofs_spdk_link *link)
{
	int ended;

	pthread_mutex_lock(&link->mutex);
	link->closing = 1;
	pthread_cond_broadcast(&link->asked);
	for (int second = 0; second < SPDK_DETACH_WAIT_S && !link->ended && !link->abandoned; second++)
		wait_ms(&link->told, &link->mutex, 1000);
	ended = link->ended;
	link->abandoned = !ended;
	pthread_mutex_unlock(&link->mutex);
	if (!ended) {
		pthread_detach(link->thread);
		return;
	}
	pthread_join(link->thread, NULL);
	free_link(link);
}

/* 0 when every drive is READY; else the first refusal, or -ETIMEDOUT. */
static int
wait_for_drives(struct ofs_spdk_link *link, char *why)
{
	int wait_s = SPDK_CONNECT_WAIT_S;
	int rc = 0;

	pthread_mutex_lock(&link->mutex);
	for (uint32_t i = 0; i < link->drive_count; i++)
		if (link->drives[i].id.trtype == SPDK_NVME_TRANSPORT_PCIE)
			wait_s = SPDK_READY_WAIT_S;
	for (int second = 0; second < wait_s && find_asked(link) != NULL; second++)
		wait_ms(&link->told, &link->mutex, 1000);
	if (find_asked(link) != NULL) {
		rc = -ETIMEDOUT;
		link->abandoned = 1; /* nor will it when we close */
		snprintf(why, SPDK_WHY_BYTES,
			"%.180s does not answer within %d s; check that the target runs and is not stopped",
			name_of(find_asked(link)), wait_s);
	}
	for (uint32_t i = 0; i < link->drive_count && rc == 0; i++) {
		if (atomic_load(&link->drives[i].state) == SPDK_REFUSED) {
			rc = link->drives[i].rc;
			memcpy(why, link->why, sizeof(link->why));
		}
	}
	link->opening = 0;
	pthread_mutex_unlock(&link->mutex);
	return rc;
}

static void
init_waits(struct ofs_spdk_link *link)
{
	pthread_condattr_t monotonic;

	pthread_mutex_init(&link->mutex, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&link->asked, &monotonic);
	pthread_cond_init(&link->told, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

int
ofs_spdk_link_open(struct ofs_spdk_link **out, const struct ofs_storage_config *config, char *why)
{
	struct ofs_spdk_link *link = calloc(1, sizeof(*link));
	int rc;

	if (link == NULL)
		return -ENOMEM;
	init_waits(link);
	link->opening = 1;
	link->huge = config->huge;
	rc = ofs_spdk_path_parse(link, config->path, why);
	if (rc != 0) {
		free_link(link);
		return rc;
	}
	for (uint32_t i = 0; i < link->drive_count; i++) {
		link->drives[i].request_max =
			config->queue_depth_max < 64 ? 128 : 2 * config->queue_depth_max;
		atomic_store(&link->drives[i].state, SPDK_ASKED);
	}
	rc = -pthread_create(&link->thread, NULL, link_main, link);
	if (rc != 0) {
		free_link(link);
		return rc;
	}
	rc = wait_for_drives(link, why);
	if (rc != 0) {
		ofs_spdk_link_close(link);
		return rc;
	}
	*out = link;
	return 0;
}
