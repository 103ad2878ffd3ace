/*
 * The shm side of the fabric seam: host and DPU on one machine, load and store on shared memory.
 *
 * Owns two mappings (the region read-only) and one end of the wake pair. A read is a copy and is
 * done when it returns. Waiting spins for about as long as a wake-up costs, then sleeps on its end
 * of the pair; the daemon's death closes the other end, and wait returns -EPIPE.
 */
#include "clock.h"
#include "fabric/host_port.h"
#include "region/shared.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 50000ull /* a wake-up across cores costs 30 to 40 us in a virtual machine */
#define SPIN_LOOKS 64    /* polls of the ring between reads of the clock */
#define DRAIN_READS_MAX 8

struct shm_fabric {
	struct ofs_mapped_fabric mapped;
	const uint8_t *region;
	struct ofs_clock clock; /* dilated as the device's */
	uint64_t spin_ns;
	int wake_fd; /* our end of the pair: readable when the DPU rings, written to wake it */
};

static uint64_t
shm_now_ns(struct ofs_fabric *fabric)
{
	return ofs_clock_now_ns(&((struct shm_fabric *)fabric)->clock);
}

static struct timespec
machine_time(const struct shm_fabric *shm, uint64_t ns)
{
	ns = ofs_clock_machine_ns(&shm->clock, ns);
	return (struct timespec){.tv_sec = (time_t)(ns / 1000000000ull),
		.tv_nsec = (long)(ns % 1000000000ull)};
}

static void
shm_close(struct ofs_fabric *fabric)
{
	struct shm_fabric *shm = (struct shm_fabric *)fabric;

	if (shm->region != NULL)
		munmap((void *)(uintptr_t)shm->region, fabric->region.size_bytes);
	if (shm->mapped.port.base != NULL)
		munmap(shm->mapped.port.base, fabric->port.size_bytes);
	if (shm->wake_fd >= 0)
		close(shm->wake_fd);
	free(shm);
}

static int
shm_read(struct ofs_fabric *fabric, uint64_t region_offset, const struct ofs_span *spans,
	uint32_t span_count)
{
	return ofs_host_port_read(&fabric->region, ((struct shm_fabric *)fabric)->region, region_offset,
		spans, span_count);
}

static int
shm_flush(struct ofs_fabric *fabric, uint64_t timeout_ns)
{
	(void)fabric;
	(void)timeout_ns;
	return 0;
}

static int
shm_copy(struct ofs_fabric *fabric, uint64_t region_offset, void *target, uint32_t size_bytes,
	uint64_t *checksum)
{
	struct shm_fabric *shm = (struct shm_fabric *)fabric;
	int rc = ofs_region_range(&fabric->region, region_offset, size_bytes);

	if (rc == 0) {
		*checksum = ofs_checksum_copy_shared(target, shm->region + region_offset, size_bytes);
		OFS_FENCE_LOADS();
	}
	return rc;
}

static int
shm_write_put(struct ofs_fabric *fabric, uint32_t put_slot, const void *source, uint32_t size_bytes,
	uint64_t *checksum)
{
	return ofs_host_port_write_put(&((struct shm_fabric *)fabric)->mapped.port, &fabric->port,
		put_slot, source, size_bytes, checksum);
}

static void *
shm_payload(struct ofs_fabric *fabric, uint32_t payload_index)
{
	return ofs_host_port_payload(&((struct shm_fabric *)fabric)->mapped.port, &fabric->port,
		payload_index);
}

static int
shm_submit(struct ofs_fabric *fabric, const struct ofs_sqe *sqe)
{
	struct ofs_host_port *port = &((struct shm_fabric *)fabric)->mapped.port;
	int rc = ofs_host_port_submit(port, &fabric->port, sqe);

	if (rc == 0 && !fabric->bell_held)
		ofs_host_port_ring(port);
	return rc;
}

static void
shm_ring(struct ofs_fabric *fabric)
{
	ofs_host_port_ring(&((struct shm_fabric *)fabric)->mapped.port);
}

static int
shm_poll(struct ofs_fabric *fabric, struct ofs_cqe *cqes, int max)
{
	return ofs_host_port_poll(&((struct shm_fabric *)fabric)->mapped.port, &fabric->port, cqes,
		max);
}

static const struct ofs_result *
shm_results(struct ofs_fabric *fabric, const struct ofs_cqe *cqe)
{
	return ofs_host_port_results(&((struct shm_fabric *)fabric)->mapped.port, &fabric->port, cqe);
}

/* 0: a completion arrived; -EPIPE; or -ETIMEDOUT after spinning without one. */
static int
spin(struct shm_fabric *shm, uint64_t spin_ns)
{
	uint64_t start_ns = shm_now_ns(&shm->mapped.base);

	do {
		for (int i = 0; i < SPIN_LOOKS; i++) {
			if (ofs_host_port_ready(&shm->mapped.port))
				return 0;
			ofs_cpu_relax();
		}
		if (ofs_host_port_closed(&shm->mapped.port))
			return -EPIPE;
	} while (shm_now_ns(&shm->mapped.base) - start_ns < spin_ns);
	return -ETIMEDOUT;
}

/* Sleeps once; 0 to look again, -EPIPE when the other side has exited. */
static int
sleep_once(struct shm_fabric *shm, uint64_t left_ns)
{
	struct pollfd polled = {.fd = shm->wake_fd, .events = POLLIN};
	struct timespec left = machine_time(shm, left_ns);
	char bytes[512];
	int rc = 0;

	ofs_word_store_ordered(&shm->mapped.port.words->host_sleeping, 1);
	if (!ofs_host_port_ready(&shm->mapped.port) && !ofs_host_port_closed(&shm->mapped.port)
		&& ppoll(&polled, 1, &left, NULL) > 0) {
		for (int i = 0; i < DRAIN_READS_MAX; i++)
			if (recv(shm->wake_fd, bytes, sizeof(bytes), MSG_DONTWAIT) < (ssize_t)sizeof(bytes))
				break;
		if ((polled.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0)
			rc = -EPIPE;
	}
	ofs_word_store(&shm->mapped.port.words->host_sleeping, 0);
	return rc;
}

/* Whether the other end is still there; no sleep is announced. */
static int
look(struct shm_fabric *shm)
{
	struct pollfd polled = {.fd = shm->wake_fd, .events = POLLIN};

	if (ofs_host_port_ready(&shm->mapped.port))
		return 0;
	if (ofs_host_port_closed(&shm->mapped.port)
		|| (poll(&polled, 1, 0) > 0 && (polled.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0)) {
		return ofs_host_port_ready(&shm->mapped.port) ? 0 : -EPIPE;
	}
	return -ETIMEDOUT;
}

static int
shm_wait(struct ofs_fabric *fabric, uint64_t timeout_ns)
{
	struct shm_fabric *shm = (struct shm_fabric *)fabric;
	uint64_t start_ns;
	uint64_t waited_ns;
	int rc;

	if (timeout_ns == 0)
		return look(shm);
	start_ns = shm_now_ns(fabric);
	rc = spin(shm, timeout_ns < shm->spin_ns ? timeout_ns : shm->spin_ns);

	while (rc == -ETIMEDOUT && (waited_ns = shm_now_ns(fabric) - start_ns) < timeout_ns) {
		rc = sleep_once(shm, timeout_ns - waited_ns);
		if (ofs_host_port_ready(&shm->mapped.port))
			return 0; /* answers count, even if the DPU has died since */
		if (rc == 0)
			rc = ofs_host_port_closed(&shm->mapped.port) ? -EPIPE : -ETIMEDOUT;
	}
	return rc;
}

static void
shm_pause(struct ofs_fabric *fabric, uint64_t pause_ns)
{
	struct timespec left = machine_time((struct shm_fabric *)fabric, pause_ns);

	nanosleep(&left, NULL); /* a signal ends it early: the caller checks the clock */
}

static const struct ofs_fabric_ops shm_ops = {
	.name = "shm",
	.close = shm_close,
	.register_memory = ofs_fabric_register_memory,
	.unregister_memory = ofs_fabric_unregister_memory,
	.read = shm_read,
	.flush = shm_flush,
	.copy = shm_copy,
	.write_put = shm_write_put,
	.payload = shm_payload,
	.submit = shm_submit,
	.ring = shm_ring,
	.poll = shm_poll,
	.results = shm_results,
	.wait = shm_wait,
	.now_ns = shm_now_ns,
	.pause = shm_pause,
};

/* Maps all of `fd`; refuses memory that could shrink while mapped, which would cause a SIGBUS. */
static uint8_t *
map_sealed(int fd, int protection, uint64_t *size_bytes, const char *what, char *error,
	size_t error_size_bytes)
{
	struct stat status;
	int seals = fcntl(fd, F_GET_SEALS);
	void *base = MAP_FAILED;

	*size_bytes = 0;
	if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &status) != 0
		|| status.st_size <= 0) {
		snprintf(error, error_size_bytes,
			"%s: not memory sealed by a daemon; give the descriptors it handed out", what);
		return NULL;
	}
	/* Populated, so that the first read of a slot does not take 16 page faults. */
	base = mmap(NULL, (size_t)status.st_size, protection, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (base == MAP_FAILED) {
		snprintf(error, error_size_bytes, "%s: cannot be mapped (errno %d); %s", what, errno,
			"raise the limit on address space (ulimit -v)");
		return NULL;
	}
	*size_bytes = (uint64_t)status.st_size;
	return base;
}

static int
open_mappings(struct shm_fabric *shm, const struct ofs_attachment *attachment,
	const struct ofs_blob_shm *blob, char *error, size_t error_size_bytes)
{
	struct ofs_fabric *fabric = &shm->mapped.base;
	uint64_t region_size_bytes;
	uint64_t port_size_bytes;
	uint8_t *port_base;
	int rc = -EINVAL;

	shm->region = map_sealed(attachment->fds[0], PROT_READ, &region_size_bytes, "region", error,
		error_size_bytes);
	fabric->region.size_bytes = region_size_bytes;
	if (shm->region == NULL)
		return -EINVAL;
	port_base = map_sealed(attachment->fds[1], PROT_READ | PROT_WRITE, &port_size_bytes, "port",
		error, error_size_bytes);
	if (port_base != NULL) {
		rc = ofs_fabric_check(fabric, shm->region, region_size_bytes, port_base, port_size_bytes,
			error, error_size_bytes);
		if (rc == 0
			&& (blob->region_size_bytes != region_size_bytes
				|| blob->port_size_bytes != port_size_bytes)) {
			snprintf(error, error_size_bytes,
				"attach blob: its descriptors belong to another port; start the host again");
			rc = -EINVAL;
		}
		shm->mapped.port.base = port_base;
	}
	/* The copies are unchecked when rc != 0, and close unmaps by them. */
	fabric->region.size_bytes = region_size_bytes;
	fabric->port.size_bytes = port_size_bytes;
	return rc;
}

int
ofs_fabric_shm_open(struct ofs_fabric **out, const struct ofs_attachment *attachment, char *error,
	size_t error_size_bytes)
{
	struct ofs_blob_header header;
	struct ofs_blob_shm blob;
	struct shm_fabric *shm;
	int rc = ofs_blob_read(attachment, &header, &blob, sizeof(blob), error, error_size_bytes);

	if (rc != 0)
		return rc;
	if (attachment->fd_count != 3) {
		snprintf(error, error_size_bytes,
			"attach blob: shm with %u descriptors instead of 3; start the host again",
			attachment->fd_count);
		return -EINVAL;
	}
	if (blob.dilation == 0 || blob.dilation > OFS_DILATION_MAX) {
		snprintf(error, error_size_bytes, "attach blob: a dilation of %llu; %s",
			(unsigned long long)blob.dilation, "start the host again");
		return -EINVAL;
	}
	shm = calloc(1, sizeof(*shm));
	if (shm == NULL)
		return -ENOMEM;
	shm->mapped.base.ops = &shm_ops;
	shm->mapped.base.read_batch_max = 1;
	ofs_clock_init_dilated(&shm->clock, (uint32_t)blob.dilation);
	shm->mapped.base.dilation = shm->clock.dilation;
	shm->spin_ns = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? SPIN_NS / blob.dilation : 0;
	shm->wake_fd = fcntl(attachment->fds[2], F_DUPFD_CLOEXEC, 0);
	if (shm->wake_fd < 0) {
		rc = -errno;
		snprintf(error, error_size_bytes, "wake descriptor: cannot be duplicated (errno %d); %s",
			-rc, "give the daemon's, or raise the limit on open files (ulimit -n)");
	} else {
		rc = open_mappings(shm, attachment, &blob, error, error_size_bytes);
	}
	if (rc != 0) {
		shm_close(&shm->mapped.base);
		return rc;
	}
	ofs_host_port_init(&shm->mapped.port, shm->mapped.port.base, &shm->mapped.base.port,
		shm->wake_fd);
	*out = &shm->mapped.base;
	return 0;
}
