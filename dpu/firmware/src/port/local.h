/*
 * port/local.h: ports whose host is in this process, for both of their ends.
 *
 * Model: a mutex guards the table of local ports: another thread may open the host's end of such a
 * port.
 */
#ifndef OFS_PORT_LOCAL_H
#define OFS_PORT_LOCAL_H

#include "port.h"

/* The memory of one such port. The port and every host's end hold a reference, and the last to
 * release it frees the memory: a host can still see that its port is closed. */
struct ofs_local {
	uint64_t number;
	struct ofs_region *region; /* outlives every host's end */
	struct ofs_dma memory;
	uint32_t holder_count; /* under the table's mutex */
};

/* Memory for a port, found by its number until it is withdrawn; -ENOMEM, -ENOSPC. */
int ofs_local_open(struct ofs_local **out, struct ofs_region *region,
	const struct ofs_dma_config *config, uint64_t size_bytes);
/* Its port is closed: it can no longer be found. */
void ofs_local_withdraw(struct ofs_local *local);
/* The memory that `ofs_local_write_blob` described, held until ofs_local_release; NULL: none. */
struct ofs_local *ofs_local_find(const struct ofs_blob_local *content);
void ofs_local_release(struct ofs_local *local);
void ofs_local_write_blob(const struct ofs_local *local, const char *fabric,
	struct ofs_attachment *attachment);

#endif
