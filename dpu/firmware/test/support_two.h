/* Two tenants of a whole device in virtual time, a host each, and texts that they keep. */
#ifndef OFS_SUPPORT_TWO_H
#define OFS_SUPPORT_TWO_H

#include "support_device.h"

#define TWO_TEXT 16 /* chunks */

struct two_tenants {
	struct world world;
	struct world_host hosts[2];
};

void two_open(struct two_tenants *two, const struct ofs_device_config *config);
void two_close(struct two_tenants *two);
/* A session of `TWO_TEXT` chunks with all of layer 0 written, then kept. */
void two_keep(struct world_host *host, uint64_t content);
/* How many of the chunks there the store still has. */
uint32_t two_kept(struct world_host *host, uint64_t content);
struct ofs_tenant_status two_status(const struct two_tenants *two, uint32_t tenant);

#endif
