/* flat.c: a flat trace through a decision core. */
#include "ofs_flat.h"

#define ACTION_BATCH 16

static int
answer_reads(const struct ofs_core_calls *calls, struct ofs_core *core, uint64_t now_ns)
{
	struct ofs_action actions[ACTION_BATCH];
	int count;

	while ((count = calls->actions(core, actions, ACTION_BATCH)) > 0) {
		for (int i = 0; i < count; i++) {
			int rc;

			if (actions[i].type != OFS_ACTION_READ)
				continue;
			rc = calls->io_done(core, now_ns, actions[i].io, 0);
			if (rc)
				return rc;
		}
	}
	return count;
}

int
ofs_flat_run(const struct ofs_core_calls *calls, struct ofs_core *core, uint32_t session,
	const uint32_t *ordinals, uint64_t count, uint64_t *hits)
{
	struct ofs_step step = {.session = session, .selected_count = 1, .demand_count = 1};
	uint64_t found = 0;

	if (calls->abi_version != OFS_ABI_VERSION)
		return -EPROTO;
	for (uint64_t i = 0; i < count; i++) {
		uint8_t end;
		int rc;

		step.step = (uint32_t)i;
		step.demands = &ordinals[i];
		rc = calls->step(core, i, &step, &end);
		if (rc == 0 && end >= OFS_END_LATE)
			rc = answer_reads(calls, core, i);
		if (rc)
			return rc;
		found += end < OFS_END_LATE;
	}
	*hits = found;
	return 0;
}

int
ofs_analysis_version(void)
{
	return OFS_ABI_VERSION;
}
