#include "support_two.h"

void
two_open(struct two_tenants *two, const struct ofs_device_config *config)
{
	world_open(&two->world, config);
	for (uint32_t i = 0; i < 2; i++) {
		world_tenant(&two->world, 16);
		world_attach(&two->world, &two->hosts[i], i, NULL);
	}
}

void
two_close(struct two_tenants *two)
{
	world_verify(&two->world);
	for (uint32_t i = 0; i < 2; i++)
		world_detach(&two->hosts[i]);
	world_close(&two->world, 0);
}

void
two_keep(struct world_host *host, uint64_t content)
{
	struct world_session session;

	world_join(host, &session, content, TWO_TEXT);
	world_put_all(&session, 0, 0);
	assert(ofs_device_session_close(host->world->device, session.number, 1) == 0);
}

uint32_t
two_kept(struct world_host *host, uint64_t content)
{
	struct world_session session;
	uint32_t count = 0;

	world_join(host, &session, content, TWO_TEXT);
	for (uint32_t i = 0; i < TWO_TEXT; i++)
		count += session.chunks[i].stored_layers;
	assert(ofs_device_session_close(host->world->device, session.number, 1) == 0);
	return count;
}

struct ofs_tenant_status
two_status(const struct two_tenants *two, uint32_t tenant)
{
	struct ofs_tenant_status status;

	assert(ofs_device_tenant_status_get(two->world.device, tenant, &status) == 0);
	return status;
}
