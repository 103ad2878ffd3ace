/* doca_kv_offstage.h: what this library says beyond the interface of NVIDIA's. */
#ifndef DOCA_KV_OFFSTAGE_H
#define DOCA_KV_OFFSTAGE_H

#include <doca_kv_io.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of a retrieve that completed: its blocks that were staged when it asked, and those that it had to
 * wait for. */
DOCA_EXPERIMENTAL doca_error_t offstage_kv_io_task_retrieve_get_blocks(
	const struct doca_kv_io_task_retrieve *task, uint32_t *on_time, uint32_t *waited_for);

#ifdef __cplusplus
}
#endif

#endif
