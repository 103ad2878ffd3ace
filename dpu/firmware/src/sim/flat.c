/* flat.c: a flat trace through the core, and sessions of made-up chunks. */
#include "ofs_sim.h"

#define POPULATE_BATCH 256
#define ACTION_BATCH 16

int
ofs_sim_populate_contents(struct ofs_core *core, uint64_t now_ns, uint32_t session, uint32_t count,
	const struct ofs_key *contents)
{
	struct ofs_chunk_info infos[POPULATE_BATCH];

	for (uint32_t done = 0; done < count;) {
		uint32_t batch = count - done < POPULATE_BATCH ? count - done : POPULATE_BATCH;
		int rc = ofs_core_session_append(core, now_ns, session, batch, contents + done, infos);

		for (uint32_t i = 0; rc == 0 && i < batch; i++) {
			/* -EINVAL ends the layers: the core knows how many there are. */
			for (uint32_t layer = 0; rc == 0; layer++)
				rc = ofs_core_block_stored(core, now_ns, infos[i].chunk, layer);
			rc = rc == -EINVAL ? 0 : rc;
		}
		if (rc)
			return rc;
		done += batch;
	}
	return 0;
}

int
ofs_sim_populate(struct ofs_core *core, uint32_t session, uint64_t content, uint32_t count)
{
	struct ofs_key contents[POPULATE_BATCH];

	for (uint32_t done = 0; done < count;) {
		uint32_t batch = count - done < POPULATE_BATCH ? count - done : POPULATE_BATCH;
		int rc;

		for (uint32_t i = 0; i < batch; i++)
			contents[i] = (struct ofs_key){done + i, content};
		rc = ofs_sim_populate_contents(core, 0, session, batch, contents);
		if (rc)
			return rc;
		done += batch;
	}
	return 0;
}

static int
answer_reads(struct ofs_core *core, uint64_t now_ns)
{
	struct ofs_action actions[ACTION_BATCH];
	int count;

	while ((count = ofs_core_actions(core, actions, ACTION_BATCH)) > 0) {
		for (int i = 0; i < count; i++) {
			int rc;

			if (actions[i].type != OFS_ACTION_READ)
				continue;
			rc = ofs_core_io_done(core, now_ns, actions[i].io, 0);
			if (rc)
				return rc;
		}
	}
	return count;
}

int
ofs_sim_flat(struct ofs_core *core, uint32_t session, const uint32_t *ordinals, uint64_t count,
	uint64_t *hits)
{
	struct ofs_step step = {.session = session, .selected_count = 1, .demand_count = 1};
	uint64_t found = 0;

	for (uint64_t i = 0; i < count; i++) {
		uint8_t end;
		int rc;

		step.step = (uint32_t)i;
		step.demands = &ordinals[i];
		rc = ofs_core_step(core, i, &step, &end);
		if (rc == 0 && end >= OFS_END_LATE)
			rc = answer_reads(core, i);
		if (rc)
			return rc;
		found += end < OFS_END_LATE;
	}
	*hits = found;
	return 0;
}
