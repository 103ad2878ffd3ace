/* populate.c: sessions of made-up chunks that the store has. */
#include "ofs_sim.h"

#define POPULATE_BATCH 256

int
ofs_sim_populate_contents(struct ofs_core *core, uint64_t now_ns, uint32_t session, uint32_t count,
	const struct ofs_key *contents, uint32_t *homes)
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
			if (homes)
				homes[done + i] = ofs_core_chunk_home(core, infos[i].chunk);
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
		rc = ofs_sim_populate_contents(core, 0, session, batch, contents, NULL);
		if (rc)
			return rc;
		done += batch;
	}
	return 0;
}
