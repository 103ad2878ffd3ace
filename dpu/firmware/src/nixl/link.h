/*
 * nixl/link.h: a host's link to the agent of the DPU, and whether the DPU is still there.
 *
 * Model: owned by the thread that owns the fabric. A link is down permanently when a transfer or a
 * notification fails, when a read is not answered, when the DPU says that the port is closed, or
 * when another start of the daemon has the region's address. During silence the link reads the
 * region's boot id, to detect a peer that has died.
 */
#ifndef OFS_NIXL_LINK_H
#define OFS_NIXL_LINK_H

#include "nixl/agent.h"
#include "nixl/message.h"

struct ofs_nixl_link {
	struct ofs_nixl_agent agent;
	struct ofs_blob_nixl blob;
	char dpu[OFS_NIXL_NAME_SIZE_BYTES];
	struct ofs_nixl_transfer probe;
	uint64_t *probed;  /* registered memory that the probe reads into */
	uint64_t probe_ns; /* when it was last posted */
	uint64_t heard_ns; /* when the DPU was last heard from */
	bool down;
};

/* `blob` is in the link already. Opens only the agent: memory is registered with it next. */
int ofs_nixl_link_open(struct ofs_nixl_link *link);
/*
 * Says hello, and reads the boot id into `probed`: if that fails, nothing else will arrive. -EPIPE,
 * -EIO, -ENOSPC.
 */
int ofs_nixl_link_greet(struct ofs_nixl_link *link, const uint8_t *metadata, uint64_t *probed);
/* Registrations must have ended. Does nothing if nothing was opened. */
void ofs_nixl_link_close(struct ofs_nixl_link *link);

/* Waits until the transfer, whose state is `rc`, has ended; at most `timeout_ns`. 0 or -EPIPE. */
int ofs_nixl_link_finish(struct ofs_nixl_link *link, struct ofs_nixl_transfer *transfer, int rc,
	uint64_t timeout_ns);
/* Begins a probe when one is due, and checks the one in flight. */
void ofs_nixl_link_probe(struct ofs_nixl_link *link, uint64_t now_ns);

#endif
