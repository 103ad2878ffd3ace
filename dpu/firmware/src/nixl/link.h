/*
 * nixl/link.h: a host's link to the agent of the DPU, and whether anybody is at its other end.
 *
 * Model: owned by the thread that owns the fabric. A link is down for good when a transfer or a
 * notification fails, when a read is not answered, when the DPU says that the port is closed, and
 * when another start of the daemon has the region's address. A peer that dies while it has nothing
 * to say is seen by reading the region's epoch in silence.
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
	uint64_t probe_ns; /* when it was posted last */
	uint64_t heard_ns; /* when the DPU last said something */
	bool down;
};

/* `blob` stands in the link already. Opens the agent alone: memory is registered with it next. */
int ofs_nixl_link_open(struct ofs_nixl_link *link);
/*
 * Says hello, and reads the epoch into `probed`: where that does not come, nothing will. -EPIPE,
 * -EIO, -ENOSPC.
 */
int ofs_nixl_link_greet(struct ofs_nixl_link *link, const uint8_t *metadata, uint64_t *probed);
/* Registrations have ended. Nothing where nothing was opened. */
void ofs_nixl_link_close(struct ofs_nixl_link *link);

/* Until the transfer, whose state is `rc`, has ended; for `timeout_ns` at most. 0 or -EPIPE. */
int ofs_nixl_link_finish(struct ofs_nixl_link *link, struct ofs_nixl_transfer *transfer, int rc,
	uint64_t timeout_ns);
/* Begins a probe when it is time, and looks at the one that was begun. */
void ofs_nixl_link_probe(struct ofs_nixl_link *link, uint64_t now_ns);

#endif
