/* A host's link to the agent of the DPU; see link.h. */
#include "nixl/link.h"
#include "clock.h"

#include <string.h>

#define PROBE_NS 50000000ull /* of silence before a probe checks the DPU */
#define PROBE_TIMEOUT_NS 1000000000ull
#define GREET_TIMEOUT_NS 5000000000ull

int
ofs_nixl_link_open(struct ofs_nixl_link *link)
{
	int rc = ofs_nixl_agent_open(&link->agent, "host", false);

	return rc != 0 ? rc : ofs_nixl_transfer_open(&link->agent, &link->probe);
}

void
ofs_nixl_link_close(struct ofs_nixl_link *link)
{
	if (link->agent.handle == NULL)
		return;
	ofs_nixl_transfer_close(&link->agent, &link->probe);
	if (link->dpu[0] != '\0')
		ofs_nixl_forget(&link->agent, link->dpu);
	ofs_nixl_agent_close(&link->agent);
}

int
ofs_nixl_link_finish(struct ofs_nixl_link *link, struct ofs_nixl_transfer *transfer, int rc,
	uint64_t timeout_ns)
{
	uint64_t start_ns = rc == -EINPROGRESS ? ofs_machine_now_ns() : 0;

	while (rc == -EINPROGRESS) {
		rc = ofs_nixl_transfer_poll(&link->agent, transfer);
		if (rc == -EINPROGRESS && ofs_machine_now_ns() - start_ns >= timeout_ns)
			rc = -EPIPE; /* a DPU that does not answer a read is gone, whatever the network says */
	}
	link->down |= rc != 0;
	return rc == 0 ? 0 : -EPIPE;
}

static int
post_probe(struct ofs_nixl_link *link)
{
	int rc = ofs_nixl_transfer_add(&link->agent, &link->probe, link->probed,
		link->blob.region_address + offsetof(struct ofs_region_header, boot_id),
		sizeof(*link->probed));

	*link->probed = ~link->blob.region.boot_id;
	if (rc != 0)
		return rc;
	return ofs_nixl_transfer_run(&link->agent, &link->probe, OFS_NIXL_READ, link->dpu, NULL, 0);
}

/* Checks what the probe has read. A different boot id: another process has that address now. */
static int
judge(const struct ofs_nixl_link *link)
{
	return *link->probed == link->blob.region.boot_id ? 0 : -EPIPE;
}

void
ofs_nixl_link_probe(struct ofs_nixl_link *link, uint64_t now_ns)
{
	int rc = -EINPROGRESS;

	if (link->down)
		return;
	if (link->probe.flying) {
		rc = ofs_nixl_transfer_poll(&link->agent, &link->probe);
		if (rc == -EINPROGRESS && now_ns - link->probe_ns >= PROBE_TIMEOUT_NS)
			rc = -EPIPE;
	} else if (now_ns - link->heard_ns >= PROBE_NS && now_ns - link->probe_ns >= PROBE_NS) {
		link->probe_ns = now_ns;
		rc = post_probe(link);
	}
	if (rc == 0)
		rc = judge(link);
	link->down |= rc != 0 && rc != -EINPROGRESS;
}

int
ofs_nixl_link_greet(struct ofs_nixl_link *link, const uint8_t *metadata, uint64_t *probed)
{
	struct {
		struct ofs_nixl_header header;
		uint8_t metadata[OFS_BLOB_SIZE_BYTES_MAX];
	} hello = {.header = {.magic = OFS_NIXL_MAGIC, .kind = OFS_NIXL_HELLO}};
	uint32_t size_bytes = 0;
	int rc = ofs_nixl_metadata(&link->agent, hello.metadata, sizeof(hello.metadata), &size_bytes);

	link->probed = probed;
	memcpy(hello.header.token, link->blob.token, sizeof(hello.header.token));
	if (rc == 0)
		rc = ofs_nixl_meet(&link->agent, metadata, link->blob.metadata_size_bytes, link->dpu);
	if (rc == 0)
		rc = ofs_nixl_send(&link->agent, link->dpu, &hello, sizeof(hello.header) + size_bytes);
	if (rc == 0)
		rc = ofs_nixl_link_finish(link, &link->probe, post_probe(link), GREET_TIMEOUT_NS);
	return rc != 0 ? rc : judge(link);
}
