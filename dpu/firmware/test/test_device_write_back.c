/* In write-back mode, is an acknowledged block visible to every host from then on? Virtual time. */
#include "support_device.h"

#include <stdio.h>

/* Acknowledged and not yet written: the next session sees it as stored, once, and reads it. */
static void
test_staged_is_there(void)
{
	struct world_session session;
	struct ofs_device_config config;
	struct world_host host;
	struct world world;

	world_config(&config);
	config.write_mode = OFS_WRITE_BACK;
	config.policy.prefetchers |= OFS_PREFETCH_SHARED; /* else its chunks are its own */
	world_begin(&world, &host, &config);
	ofs_storage_hang(world.device->storage);
	world_join(&host, &session, 100, 4);
	world_put_all(&session, 0, 0);
	assert(ofs_device_session_close(world.device, session.number, 1) == 0);
	for (int written = 0; written < 2; written++) {
		world_join(&host, &session, 100, 5);
		assert(session.chunks[0].stored_layers == 1 && session.chunks[3].stored_layers == 1);
		assert(session.chunks[4].stored_layers == 0);
		world_read(&session, 0, 4, 0);
		assert(ofs_device_session_close(world.device, session.number, 1) == 0);
		ofs_storage_unhang(world.device->storage);
		world_pass(&world, SECOND_NS);
	}
	assert(world_status(&world).dirty_blocks == 0 && world_status(&world).store.blocks == 4);
	world_end(&host, 0);
}

int
main(void)
{
	test_staged_is_there();
	printf("device_write_back ok\n");
	return 0;
}
