/* calls.c: the table of core_calls.h. */
#include "core_calls.h"

const struct ofs_core_calls *
ofs_core_calls(void)
{
	static const struct ofs_core_calls calls = {
		.abi_version = OFS_ABI_VERSION,
		.describe = ofs_core_describe,
		.session_append = ofs_core_session_append,
		.session_release = ofs_core_session_release,
		.block_stage = ofs_core_block_stage,
		.block_clean = ofs_core_block_clean,
		.block_drop = ofs_core_block_drop,
		.step = ofs_core_step,
		.io_done = ofs_core_io_done,
		.actions = ofs_core_actions,
	};

	return &calls;
}
