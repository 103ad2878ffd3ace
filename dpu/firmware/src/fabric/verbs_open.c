/* Connects a host to its port by RDMA: blob, queue pair, route; see verbs.h. */
#include "fabric/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SEND_DEPTH 512
#define RECEIVES_MORE 4
#define SPIN_NS 50000ull /* about what a wake-up costs */

/* Creates the queue pair, the registered copy, and the route. */
static int
open_link(struct verbs_fabric *verbs, const struct ofs_blob_verbs *blob)
{
	static const struct ofs_dma_config plain;
	const struct ofs_link_adapter *adapter = ofs_link_adapter_use();
	uint32_t entry_count = verbs->base.port.entry_count;
	uint64_t size_bytes = verbs->base.port.size_bytes;
	int rc = ofs_link_services()->dma_alloc(&verbs->memory, &plain, size_bytes, NULL);

	if (rc == 0) {
		verbs->pd = ibv_alloc_pd(adapter->context);
		if (verbs->pd != NULL)
			verbs->copy = ibv_reg_mr(verbs->pd, verbs->memory.base, size_bytes,
				IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		rc = verbs->copy == NULL ? -errno : 0;
	}
	if (rc == 0)
		rc = ofs_link_open(&verbs->link, verbs->pd, SEND_DEPTH, 2 * entry_count + RECEIVES_MORE,
			IBV_ACCESS_REMOTE_WRITE);
	if (rc == 0)
		rc = ofs_link_connect(&verbs->link, &blob->address, IBV_ACCESS_REMOTE_WRITE);
	ofs_link_adapter_release(); /* the link holds its own reference */
	return rc;
}

/* The reason why open_link failed, with the fix. */
static void
explain(int rc, const struct ofs_blob_verbs *blob, char *error, size_t error_size_bytes)
{
	char gid[INET6_ADDRSTRLEN] = "";

	(void)inet_ntop(AF_INET6, blob->address.gid, gid, sizeof(gid));
	if (rc == -EHOSTUNREACH) {
		snprintf(error, error_size_bytes,
			"fabric verbs: no route to the daemon's adapter at %s; %s", gid,
			"choose a GID of its network (rdma.gid_index), and see whether it answers to ping");
	} else if (rc == -ENOMEM || rc == -EAGAIN) {
		snprintf(error, error_size_bytes, "fabric verbs: %llu KiB cannot be pinned; %s",
			(unsigned long long)blob->port_header.size_bytes >> 10,
			"raise the limit on locked memory: ulimit -l unlimited");
	} else {
		snprintf(error, error_size_bytes,
			"fabric verbs: no queue pair can be created (errno %d); %s", -rc,
			"end other users of the adapter, see dmesg");
	}
}

/* The headers came in the blob, so nothing has to be read before the DPU knows this host. */
static int
check_headers(struct verbs_fabric *verbs, const struct ofs_blob_verbs *blob, char *error,
	size_t error_size_bytes)
{
	const struct ofs_link_adapter *adapter = ofs_link_adapter_use();
	int rc;

	if (adapter == NULL) {
		snprintf(error, error_size_bytes, "fabric verbs: %s; %s", "no RDMA device is open here",
			"see `offstage doctor`");
		return -ENODEV;
	}
	rc = ofs_fabric_check(&verbs->base, (const uint8_t *)&blob->region_header,
		blob->region_header.size_bytes, (const uint8_t *)&blob->port_header,
		blob->port_header.size_bytes, error, error_size_bytes);
	if (rc == 0 && verbs->base.region.slot_stride_bytes > adapter->message_size_bytes_max) {
		snprintf(error, error_size_bytes,
			"fabric verbs: a record of %u B does not fit a message of %s (%u B); %s",
			verbs->base.region.slot_stride_bytes, adapter->opened.device,
			adapter->message_size_bytes_max, "lower arena.payload of the daemon");
		rc = -EINVAL;
	}
	ofs_link_adapter_release();
	return rc;
}

int
ofs_fabric_verbs_open(struct ofs_fabric **out, const struct ofs_attachment *attachment, char *error,
	size_t error_size_bytes)
{
	struct ofs_blob_verbs blob;
	struct ofs_port_words *words;
	struct verbs_fabric *verbs;
	int rc = ofs_verbs_blob_check(attachment, &blob, error, error_size_bytes);

	if (rc != 0)
		return rc;
	verbs = calloc(1, sizeof(*verbs));
	if (verbs == NULL)
		return -ENOMEM;
	verbs->memory.fd = -1;
	verbs->base.ops = &ofs_fabric_verbs_ops;
	verbs->base.dilation = 1;
	verbs->base.read_batch_max = OFS_VERBS_READ_BATCH_MAX;
	rc = check_headers(verbs, &blob, error, error_size_bytes);
	if (rc != 0) {
		free(verbs);
		return rc;
	}
	rc = open_link(verbs, &blob);
	if (rc != 0) {
		explain(rc, &blob, error, error_size_bytes);
		verbs->base.ops->close(&verbs->base);
		return rc;
	}
	verbs->region_there = blob.region;
	verbs->port_there = blob.port;
	verbs->generation = blob.generation;
	verbs->spin_ns = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? SPIN_NS : 0;
	words = (struct ofs_port_words *)((uint8_t *)verbs->memory.base + OFS_PORT_WORDS_OFFSET);
	words->submission_tail = words->submission_head = blob.submission_tail;
	words->completion_tail = words->completion_head = verbs->told_head = blob.completion_tail;
	ofs_host_port_init(&verbs->port, verbs->memory.base, &verbs->base.port, -1);
	*out = &verbs->base;
	return 0;
}
