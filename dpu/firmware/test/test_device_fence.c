/*
 * After the lease has expired: are new and earlier commands refused, and is nothing written? The
 * whole device in virtual time.
 */
#include "support_device.h"

static const uint32_t FIRST_FOUR[] = {0, 1, 2, 3};
/* Of the test that runs: it opens them anew. */
static struct ofs_device_config config;
static struct world world;
static struct world_host host;
static struct world_session session;

/* The time runs out between command and answer: the answer says so, and the next is as before. */
static void
test_under_way(void)
{
	struct world_flight flight;

	world_config(&config);
	config.io_timeout_ns = 10 * SECOND_NS;
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 4);
	world_put_all(&session, 0, 0);
	world_pass(&world, SECOND_NS);
	assert(ofs_device_reset(world.device) == 0);
	ofs_device_serve_until(world.device, world.now_ns + SECOND_NS);
	ofs_storage_hang(world.device->storage);
	assert(world_fetch_begin(&session, 0, 4, FIRST_FOUR, NULL, 5 * SECOND_NS, &flight) == 0);
	world_pass(&world, SECOND_NS / 2);
	assert(world_status(&world).reads_in_flight > 0); /* it was taken */
	world_pass(&world, SECOND_NS);
	ofs_storage_unhang(world.device->storage);
	assert(world_fetch_end(&flight) == -EKEYEXPIRED && flight.out.wrong_count == 0);
	assert(world_status(&world).fenced == 1);
	world_end(&host, 0);
}

/* Requests after the deadline are refused; with a new deadline they work as before. */
static void
test_past_the_end(uint32_t write_mode)
{
	struct world_fetch fetch;
	uint64_t puts;

	world_config(&config);
	config.write_mode = write_mode;
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 4);
	world_put_all(&session, 0, 0);
	world_pass(&world, SECOND_NS);
	puts = world_status(&world).puts;
	ofs_device_serve_until(world.device, world.now_ns);
	world_pass(&world, 1);
	assert(world_fetch(&session, 0, 4, FIRST_FOUR, NULL, SECOND_NS, &fetch) == -EKEYEXPIRED);
	world_put_all(&session, 1, -EKEYEXPIRED);
	world_pass(&world, SECOND_NS);
	assert(world_status(&world).puts == puts && world_status(&world).fenced >= 2);
	ofs_device_serve_until(world.device, UINT64_MAX);
	world_read(&session, 0, 4, 0);
	world_put_all(&session, 1, 0);
	world_end(&host, 0);
}

int
main(void)
{
	test_under_way();
	test_past_the_end(OFS_WRITE_THROUGH);
	test_past_the_end(OFS_WRITE_BACK);
	return 0;
}
