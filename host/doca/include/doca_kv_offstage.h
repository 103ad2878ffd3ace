/* doca_kv_offstage.h: what this library says beyond the interface of NVIDIA's. */
#ifndef DOCA_KV_OFFSTAGE_H
#define DOCA_KV_OFFSTAGE_H

#include <doca_kv_io.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A value that will be retrieved within so long, and how sure that is: 65535 is certain. */
struct offstage_kv_ahead {
	const void *key;
	uint16_t key_len;
	uint16_t probability;
	uint64_t within_ns;
	/* out: SUCCESS, its blocks are being staged; NOT_FOUND, so that it can be computed at once;
	 * FULL, too many are held, or the daemon has no session. */
	doca_error_t result;
};

/*
 * Stages values ahead of their retrieves, by commands that name many, and says of each key whether
 * it has a value. Each is held until a retrieve of its key has ended, or a second after its time,
 * while the context makes progress: without doca_pe_progress or a call of this header it stays.
 * It changes no bytes: a retrieve gets those of the last store. NOT_CONNECTED: no device is bound,
 * or its daemon has died; IO_FAILED.
 */
DOCA_EXPERIMENTAL doca_error_t offstage_kv_io_prefetch(struct doca_kv_io *io,
	struct offstage_kv_ahead *asks, uint32_t count);

/*
 * Which keys the bound device's volume has, from `start` on, or where that would stand; all of them
 * where `start_len` is 0. Writes to `list` what NVMe's List does: their number (4 bytes), and of
 * each its length (2) and bytes, with zeros up to a multiple of 4. `count` of them had room. The
 * order is the daemon's own: the last key of one list begins the next. Values that were stored
 * before daemons kept keys are left out. NOT_CONNECTED, IO_FAILED as of a prefetch.
 */
DOCA_EXPERIMENTAL doca_error_t offstage_kv_io_list(struct doca_kv_io *io, const void *start,
	uint16_t start_len, void *list, uint32_t list_len, uint32_t *count);

/* Of a retrieve that completed: its blocks that were staged when it asked, and those that it had to
 * wait for. */
DOCA_EXPERIMENTAL doca_error_t offstage_kv_io_task_retrieve_get_blocks(
	const struct doca_kv_io_task_retrieve *task, uint32_t *on_time, uint32_t *waited_for);

#ifdef __cplusplus
}
#endif

#endif
