/* Which sides there are, and what applies to all of them; see port.h. */
#include "port/internal.h"
#include "side.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

static _Atomic(const struct ofs_port_ops *) sides[OFS_PORT_SIDES_MAX] = {
	&ofs_port_ops_shm,
	&ofs_port_ops_sim,
	&ofs_port_ops_memory,
};

int
ofs_port_add(const struct ofs_port_ops *ops)
{
	for (uint32_t i = 0; i < OFS_PORT_SIDES_MAX; i++) {
		const struct ofs_port_ops *found = NULL;

		if (atomic_compare_exchange_strong(&sides[i], &found, ops))
			return 0;
		if (strcmp(found->name, ops->name) == 0)
			return -EEXIST;
	}
	return -ENOSPC;
}

const struct ofs_port_ops *
ofs_port_side(uint32_t index)
{
	return index < OFS_PORT_SIDES_MAX ? atomic_load(&sides[index]) : NULL;
}

const struct ofs_port_ops *
ofs_port_find(const char *name)
{
	const struct ofs_port_ops *ops;

	for (uint32_t i = 0; (ops = ofs_port_side(i)) != NULL; i++)
		if (strcmp(ops->name, name) == 0)
			return ops;
	return NULL;
}

int
ofs_share_open(struct ofs_share **out, const struct ofs_port_ops *ops, struct ofs_region *region)
{
	uint64_t size_bytes;
	void *base = ofs_region_base(region, &size_bytes);
	int rc = ops->share(out, region);

	if (rc != 0)
		return rc;
	(*out)->ops = ops;
	(*out)->region = region;
	rc = ofs_dma_hold(*out, base, size_bytes); /* unmapping it from here on is a bug of ours */
	if (rc != 0)
		ops->unshare(*out);
	return rc;
}

void
ofs_share_close(struct ofs_share *share)
{
	uint64_t size_bytes;
	void *base;

	if (share == NULL)
		return;
	assert(share->port_count == 0);
	base = ofs_region_base(share->region, &size_bytes);
	ofs_dma_release(share, base, size_bytes);
	share->ops->unshare(share);
}

int
ofs_port_open(struct ofs_port **out, const struct ofs_port_config *config, struct ofs_share *share)
{
	int rc = share->ops->open(out, config, share);

	if (rc == 0) {
		(*out)->ops = share->ops;
		(*out)->share = share;
		share->port_count++;
	}
	return rc;
}

void
ofs_port_close(struct ofs_port *port)
{
	if (port != NULL) {
		port->share->port_count--;
		port->ops->close(port);
	}
}
