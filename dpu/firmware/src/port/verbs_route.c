/*
 * Which adapter of this machine reaches a DPU: the kernel's answer, by rdma_cm.
 *
 * Model: one query on the caller's thread, bounded by RESOLVE_MS; nothing is kept, and no
 * connection is made. The query is for the GID in the DPU's blob, if that is an IP address. Built
 * without librdmacm, or on a kernel without rdma_ucm, there is no answer.
 */
#include "port/verbs_link.h"

#include <string.h>

#ifdef OFS_HAVE_RDMACM

#include <rdma/rdma_cma.h>
#include <stdio.h>

#define RESOLVE_MS 2000
#define GIDS_MAX 256

/* -ENOENT: link-local, or InfiniBand's. */
static int
address_of(const uint8_t *gid, struct sockaddr_storage *out)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	struct sockaddr_in ipv4 = {.sin_family = AF_INET};
	struct sockaddr_in6 ipv6 = {.sin6_family = AF_INET6};

	if (gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80)
		return -ENOENT;
	if (memcmp(gid, mapped, sizeof(mapped)) == 0) {
		memcpy(&ipv4.sin_addr, gid + sizeof(mapped), sizeof(ipv4.sin_addr));
		memcpy(out, &ipv4, sizeof(ipv4));
	} else {
		memcpy(&ipv6.sin6_addr, gid, sizeof(ipv6.sin6_addr));
		memcpy(out, &ipv6, sizeof(ipv6));
	}
	return 0;
}

/* The index of a GID that the port has; of several, RoCE v2, as it is routed. */
static int32_t
index_of(struct ibv_context *context, uint32_t port, const union ibv_gid *gid)
{
	struct ibv_gid_entry entries[GIDS_MAX];
	ssize_t count = ibv_query_gid_table(context, entries, GIDS_MAX, 0);
	int32_t found = OFS_VERBS_GID_AUTO;

	for (ssize_t i = 0; i < count; i++) {
		const struct ibv_gid_entry *entry = &entries[i];

		if (entry->port_num == port && memcmp(&entry->gid, gid, sizeof(*gid)) == 0
			&& (found == OFS_VERBS_GID_AUTO || entry->gid_type == IBV_GID_TYPE_ROCE_V2))
			found = (int32_t)entry->gid_index;
	}
	return found;
}

static int
resolve(struct sockaddr_storage *address, struct ofs_verbs_config *config)
{
	struct rdma_cm_id *id = NULL;
	int rc = 0;

	if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) != 0)
		return -errno;
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)address, RESOLVE_MS) != 0)
		rc = -errno;
	else if (id->verbs == NULL)
		rc = -EHOSTUNREACH;
	if (rc == 0) {
		snprintf(config->device, sizeof(config->device), "%s",
			ibv_get_device_name(id->verbs->device));
		config->port = id->port_num;
		config->gid_index = index_of(id->verbs, id->port_num, &id->route.addr.addr.ibaddr.sgid);
	}
	rdma_destroy_id(id);
	return rc;
}

#else

static int
address_of(const uint8_t *gid, struct sockaddr_storage *out)
{
	(void)gid;
	(void)out;
	return -ENOSYS;
}

static int
resolve(struct sockaddr_storage *address, struct ofs_verbs_config *config)
{
	(void)address;
	(void)config;
	return -ENOSYS;
}

#endif

int
ofs_verbs_route(const void *blob, uint32_t size_bytes, struct ofs_verbs_config *config)
{
	struct ofs_attachment attachment = {.blob_size_bytes = size_bytes};
	struct sockaddr_storage address = {0};
	struct ofs_blob_verbs content;
	char error[256];
	int rc;

	if (size_bytes > sizeof(attachment.blob))
		return -EPROTO;
	memcpy(attachment.blob, blob, size_bytes);
	rc = ofs_verbs_blob_check(&attachment, &content, error, sizeof(error));
	if (rc == 0)
		rc = address_of(content.address.gid, &address);
	return rc == 0 ? resolve(&address, config) : rc;
}
