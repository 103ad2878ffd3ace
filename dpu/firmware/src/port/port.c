/* Which sides there are, and what holds for all of them; see port.h. */
#include "port/internal.h"

#include <assert.h>
#include <string.h>

static const struct ofs_port_ops *const sides[] = {
	&ofs_port_ops_shm,
	&ofs_port_ops_sim,
	&ofs_port_ops_memory,
};
_Static_assert(sizeof(sides) / sizeof(sides[0]) <= OFS_PORT_SIDES_MAX, "raise OFS_PORT_SIDES_MAX");

const struct ofs_port_ops *
ofs_port_side(uint32_t index)
{
	return index < sizeof(sides) / sizeof(sides[0]) ? sides[index] : NULL;
}

const struct ofs_port_ops *
ofs_port_find(const char *name)
{
	for (uint32_t i = 0; i < sizeof(sides) / sizeof(sides[0]); i++)
		if (strcmp(sides[i]->name, name) == 0)
			return sides[i];
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
	rc = ofs_dma_hold(*out, base, size_bytes); /* unmapping it from here on is a mistake of ours */
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
