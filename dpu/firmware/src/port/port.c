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
	int rc = ops->share(out, region);

	if (rc == 0) {
		(*out)->ops = ops;
		(*out)->region = region;
	}
	return rc;
}

void
ofs_share_close(struct ofs_share *share)
{
	if (share == NULL)
		return;
	assert(share->port_count == 0);
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
