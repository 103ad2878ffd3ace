/* In write-back mode, is an acknowledged block visible to every host from then on? Virtual time. */
#include "support_device.h"

#include <stdio.h>

static const uint32_t FIRST_FOUR[] = {0, 1, 2, 3};

/* Acknowledged and not yet written: the next session sees it as stored, once, and reads it. */
static void
test_staged_is_there(void)
{
	struct world_session session;
	struct ofs_device_config config;
	struct world_fetch fetch;
	struct world_host host;
	struct world world;

	world_config(&config);
	config.write_mode = OFS_WRITE_BACK;
	config.policy.prefetchers |= OFS_PREFETCH_SHARED; /* else its chunks are its own */
	world_open(&world, &config);
	world_tenant(&world, 16);
	world_attach(&world, &host, 0, NULL);
	ofs_storage_hang(world.device->storage);
	assert(world_session(&host, &session, 4) == 0 && world_append(&session, 100, 4) == 0);
	world_put_all(&session, 0, 0);
	assert(ofs_device_session_close(world.device, session.number, 1) == 0);
	for (int written = 0; written < 2; written++) {
		assert(world_session(&host, &session, 4) == 0 && world_append(&session, 100, 5) == 0);
		assert(session.chunks[0].stored_layers == 1 && session.chunks[3].stored_layers == 1);
		assert(session.chunks[4].stored_layers == 0);
		assert(world_fetch(&session, 0, 4, FIRST_FOUR, NULL, SECOND_NS, &fetch) == 0);
		world_expect(&fetch, 0);
		assert(ofs_device_session_close(world.device, session.number, 1) == 0);
		ofs_storage_unhang(world.device->storage);
		world_pass(&world, SECOND_NS);
	}
	assert(world_status(&world).dirty_blocks == 0 && world_status(&world).store.blocks == 4);
	world_verify(&world);
	world_detach(&host);
	world_close(&world, 0);
}

int
main(void)
{
	test_staged_is_there();
	printf("device_write_back ok\n");
	return 0;
}
