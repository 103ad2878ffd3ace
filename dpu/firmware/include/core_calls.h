/*
 * core_calls.h: the events of the decision core as a table, for code in another shared object.
 *
 * Model: the laboratory's analysis is a separate extension that is not linked with the firmware. It
 * gets a core as a pointer, together with this table, whose version says for which headers it was
 * built. Every function is the one of that name in ofs_core.h.
 */
#ifndef OFS_CORE_CALLS_H
#define OFS_CORE_CALLS_H

#include "ofs_core.h"

struct ofs_core_calls {
	uint32_t abi_version; /* OFS_ABI_VERSION */
	uint32_t reserved;
	int (*describe)(const struct ofs_core *core, struct ofs_core_config *config,
		struct ofs_policy *policy);
	int (*session_append)(struct ofs_core *core, uint64_t now_ns, uint32_t session, uint32_t count,
		const struct ofs_key *contents, struct ofs_chunk_info *infos);
	int (*session_release)(struct ofs_core *core, uint64_t now_ns, uint32_t session);
	int (*block_stage)(struct ofs_core *core, uint64_t now_ns, uint32_t chunk, uint32_t layer,
		uint32_t *slot, uint32_t *generation);
	int (*block_clean)(struct ofs_core *core, uint64_t now_ns, uint32_t chunk, uint32_t layer);
	int (*block_drop)(struct ofs_core *core, uint64_t now_ns, uint32_t chunk, uint32_t layer);
	int (*step)(struct ofs_core *core, uint64_t now_ns, const struct ofs_step *step, uint8_t *ends);
	int (*io_done)(struct ofs_core *core, uint64_t now_ns, uint32_t io, int rc);
	int (*actions)(struct ofs_core *core, struct ofs_action *actions, int max);
};

/* cdef: order 9 */
/* cdef: begin */
struct ofs_core_calls;
const struct ofs_core_calls *ofs_core_calls(void);
/* cdef: end */

#endif
