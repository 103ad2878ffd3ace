/*
 * Can a host harm others, or the reactor, through its port, by dying, or by closing sessions? Raw
 * commands go through the fabric; the device is the whole one, in virtual time.
 */
#include "support_device.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t FIRST_FOUR[] = {0, 1, 2, 3};
/* Of the test that runs: it opens them anew. */
static struct ofs_device_config config;
static struct world world;
static struct world_host host;
static struct world_session session;

/* A raw command, its answer awaited for 50 ms of virtual time; INT32_MAX: no answer. */
static int32_t
raw(struct world_host *host, struct ofs_sqe sqe)
{
	static uint64_t user = 1ull << 40; /* none of the driver's */
	struct ofs_cqe cqe;

	sqe.user = ++user;
	assert(host->fabric->ops->submit(host->fabric, &sqe) == 0);
	for (int i = 0; i < 1000; i++) {
		host->fabric->ops->pause(host->fabric, 50000);
		while (host->fabric->ops->poll(host->fabric, &cqe, 1) == 1)
			if (cqe.user == user)
				return cqe.rc;
	}
	return INT32_MAX;
}

/* May one tenant's host do anything with another's sessions? No. */
static void
test_tenants_apart(void)
{
	struct world_host a, b;
	struct world_session of_a, of_b;
	struct ofs_sqe step = {.op = OFS_OP_STEP, .layer = 0}, put = {.op = OFS_OP_PUT},
				   release = {.op = OFS_OP_RELEASE};
	uint64_t sizes[2];
	struct ofs_attachment attachment;
	uint32_t port;

	world_config(&config);
	world_open(&world, &config);
	world_tenant(&world, 16);
	world_tenant(&world, 16);
	world_attach(&world, &a, 0, NULL);
	world_attach(&world, &b, 1, NULL);
	world_join(&a, &of_a, 100, 4);
	world_join(&b, &of_b, 100, 4);
	world_put_all(&of_a, 0, 0);
	world_read(&of_a, 0, 4, 0);
	/* The same contents under another secret: other keys, nothing there. */
	assert(memcmp(&of_a.chunks[0].key, &of_b.chunks[0].key, sizeof(struct ofs_key)) != 0);
	world_read(&of_b, 0, 4, -ENOENT);
	step.session = put.session = release.session = of_a.number;
	put.length = 1;
	assert(raw(&b, step) == -EPERM && raw(&b, put) == -EPERM && raw(&b, release) == -EPERM);
	step.session = put.session = release.session = 0xfffffff0;
	assert(raw(&b, step) == -EPERM && raw(&b, put) == -EPERM && raw(&b, release) == -EPERM);
	/* Memory of their own, each with its own slots. */
	assert(ofs_region_base(world.device->tenants[0].region, &sizes[0])
		!= ofs_region_base(world.device->tenants[1].region, &sizes[1]));
	assert(ofs_device_attach(world.device, 2, "shm", &port, &attachment) == -EINVAL);
	assert(ofs_device_attach(world.device, 0, "smoke", &port, &attachment) == -EINVAL);
	world_verify(&world);
	world_detach(&a);
	world_detach(&b);
	world_close(&world, 0);
}

/* Commands that no honest host sends: each is refused or bounded, and the rest goes on. */
static void
test_nonsense(void)
{
	struct ofs_sqe step = {.op = OFS_OP_STEP}, put = {.op = OFS_OP_PUT, .length = 8};
	uint32_t *ordinals;

	world_config(&config);
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 8);
	world_put_all(&session, 0, 0);
	step.session = put.session = session.number;
	ordinals = host.fabric->ops->payload(host.fabric, 0);
	memset(ordinals, 0, host.fabric->port.payload_size_bytes);
	step.demand_count = 4; /* the same block four times */
	assert(raw(&host, step) == 0);
	ordinals[0] = 8; /* beyond the session */
	assert(raw(&host, step) == -EINVAL);
	ordinals[0] = 0;
	((uint8_t *)ordinals)[ofs_payload_seen_offset(4)] = 200;
	assert(raw(&host, step) == -EINVAL);
	((uint8_t *)ordinals)[ofs_payload_seen_offset(4)] = OFS_CAUSE_WINDOW; /* a lie */
	assert(raw(&host, step) == 0);
	step.layer = 2;
	assert(raw(&host, step) == -EINVAL);
	step.layer = 0;
	step.score_count = 9; /* more than the session has chunks */
	assert(raw(&host, step) == -EINVAL);
	put.ordinal = 8;
	assert(raw(&host, put) == -EINVAL);
	put.ordinal = 0;
	put.checksum = 0x1bad;
	assert(raw(&host, put) == -EBADMSG);
	put.layer = 1; /* staged nowhere: found out as it is copied */
	assert(raw(&host, put) == -EBADMSG);
	put.layer = 0;
	put.length = 4096 + 1; /* into the trailer */
	assert(raw(&host, put) == -EINVAL);
	/* One put slot for many puts at once: as many as there are slots, the others are busy. */
	ofs_storage_hang(world.device->storage);
	for (uint32_t i = 0; i < 6; i++) {
		struct ofs_sqe many = {.op = OFS_OP_PUT,
			.session = session.number,
			.layer = 1,
			.ordinal = i,
			.length = 8,
			.user = i,
			.checksum =
				ofs_checksum(ofs_port_put_slot(world.device->ports.entries[host.port].port, 0), 8)};

		assert(host.fabric->ops->submit(host.fabric, &many) == 0);
	}
	host.fabric->ops->pause(host.fabric, 1000000);
	assert(world.device->ports.entries[host.port].puts_in_flight == 4);
	ofs_storage_unhang(world.device->storage);
	world_pass(&world, SECOND_NS);
	assert(world.device->ports.entries[host.port].puts_in_flight == 0);
	world_read(&session, 0, 4, 0);
	world_end(&host, 0);
}

/* Are the written bytes the checked ones, whatever the host does to its window meanwhile? */
static void
test_window_changes(uint32_t write_mode)
{
	struct world_fetch fetch;
	uint8_t *bytes, *window;
	struct ofs_sqe put = {.op = OFS_OP_PUT, .user = 7};

	world_config(&config);
	config.write_mode = write_mode;
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 4);
	ofs_storage_hang(world.device->storage);
	bytes = malloc(config.store.payload_size_bytes);
	put.length = world_block(&world, &session.chunks[0].store_key, 0, bytes);
	put.session = session.number;
	assert(host.fabric->ops->write_put(host.fabric, 0, bytes, put.length, &put.checksum) == 0);
	assert(host.fabric->ops->submit(host.fabric, &put) == 0);
	host.fabric->ops->pause(host.fabric, 1000);
	window = ofs_port_put_slot(world.device->ports.entries[host.port].port, 0);
	memset(window, 0xee, world.device->record_size_bytes); /* the trailer's place too */
	free(bytes);
	ofs_storage_unhang(world.device->storage);
	world_pass(&world, SECOND_NS);
	assert(ofs_device_reset(world.device) == 0);
	fetch = world_read(&session, 0, 1, 0);
	assert(fetch.hit_count == 0 && world_status(&world).check_failures == 0);
	world_end(&host, 0);
}

/* Other bytes under a known key are refused, whether it is staged or stored; the existing bytes
 * stay, and may be written again. */
static void
test_other_bytes(uint32_t write_mode)
{
	uint8_t bytes[16] = {1, 2, 3};
	struct ofs_sqe put = {.op = OFS_OP_PUT,
		.length = sizeof(bytes),
		.ordinal = 3,
		.checksum = ofs_checksum(bytes, sizeof(bytes))};

	world_config(&config);
	config.write_mode = write_mode;
	config.store.io_max = 1; /* the fourth block's flush waits behind the others */
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 4);
	put.session = session.number;
	if (write_mode == OFS_WRITE_BACK)
		ofs_storage_hang(world.device->storage);
	world_put_all(&session, 0, 0);
	assert(host.fabric->ops->write_put(host.fabric, 0, bytes, sizeof(bytes), &put.checksum) == 0);
	assert(raw(&host, put) == -EEXIST); /* write-back: staged alone */
	ofs_storage_unhang(world.device->storage);
	world_pass(&world, SECOND_NS);
	assert(ofs_device_reset(world.device) == 0);
	assert(raw(&host, put) == -EEXIST); /* stored alone */
	assert(world_status(&world).puts_conflicting == 2);
	world_read(&session, 0, 1, 0);
	world_end(&host, 0);
}

/* A short block through memory that held another tenant's longer one brings nothing of it along. */
static void
test_tail(void)
{
	struct world_host a, b;
	struct world_session of_a, of_b;
	struct world_fetch fetch;
	uint8_t bytes[16] = {1, 2, 3};
	struct ofs_sqe put = {.op = OFS_OP_PUT,
		.length = sizeof(bytes),
		.checksum = ofs_checksum(bytes, sizeof(bytes))};
	const uint8_t *slot;

	world_config(&config);
	config.store.io_max = 1; /* one private copy for all puts */
	world_open(&world, &config);
	world_tenant(&world, 16);
	world_tenant(&world, 16);
	world_attach(&world, &a, 0, NULL);
	world_attach(&world, &b, 1, NULL);
	world_join(&a, &of_a, 100, 4);
	world_join(&b, &of_b, 200, 1);
	world_put_all(&of_a, 0, 0);
	put.session = of_b.number;
	assert(b.fabric->ops->write_put(b.fabric, 0, bytes, sizeof(bytes), &put.checksum) == 0);
	assert(raw(&b, put) == 0);
	(void)world_fetch(&of_b, 0, 1, FIRST_FOUR, NULL, SECOND_NS, &fetch);
	assert(fetch.rcs[0] == 0 && world_check_directory(&world) == 1);
	for (uint32_t i = 0; i < 16; i++) {
		slot = ofs_region_slot(world.device->tenants[1].region, i);
		if (ofs_region_trailer(world.device->tenants[1].region, i)->generation != 0)
			break;
	}
	assert(memcmp(slot, bytes, sizeof(bytes)) == 0);
	for (uint32_t i = sizeof(bytes); i < config.store.payload_size_bytes; i++)
		assert(slot[i] == 0);
	world_verify(&world);
	world_detach(&a);
	world_detach(&b);
	world_close(&world, 0);
}

/* A host goes with everything in flight, again and again: its port is free at once. */
static void
test_detach_in_flight(uint32_t write_mode)
{
	struct ofs_device_status status;

	world_config(&config);
	config.write_mode = write_mode;
	config.io_timeout_ns = 10 * SECOND_NS; /* nothing ends by itself */
	world_open(&world, &config);
	world_tenant(&world, 16);
	for (uint32_t round = 0; round < 12; round++) {
		world_attach(&world, &host, 0, NULL);
		assert(host.port == 0);
		world_join(&host, &session, 100, 12);
		if (round == 0) {
			world_put_all(&session, 0, 0);
			world_pass(&world, SECOND_NS);
			assert(ofs_device_reset(world.device) == 0);
			ofs_storage_hang(world.device->storage);
		}
		for (uint32_t i = 0; i < 6; i++) {
			struct ofs_sqe put = {.op = OFS_OP_PUT,
				.session = session.number,
				.layer = 1,
				.ordinal = (round + i) % 12,
				.length = 8,
				.user = i,
				.put_slot = i % 4};
			struct ofs_sqe step = {.op = OFS_OP_STEP,
				.session = session.number,
				.payload_index = 5,
				.demand_count = 4,
				.user = 100,
				.step = round};
			uint32_t *ordinals = host.fabric->ops->payload(host.fabric, 5);
			uint8_t zeros[8] = {0};

			memset(ordinals, 0, host.fabric->port.payload_size_bytes);
			memcpy(ordinals, FIRST_FOUR, sizeof(FIRST_FOUR));
			put.checksum = ofs_checksum(zeros, 8);
			assert(host.fabric->ops->submit(host.fabric, i == 5 ? &step : &put) == 0);
		}
		host.fabric->ops->pause(host.fabric, 100000);
		world_detach(&host);
		status = world_status(&world);
		assert(status.ports == 0 && status.sessions == 0);
		world_verify(&world);
	}
	assert(world.device->writes.live <= config.store.io_max + config.dirty_blocks_max);
	ofs_storage_unhang(world.device->storage);
	world_pass(&world, SECOND_NS);
	assert(world.device->writes.live == 0 && world_status(&world).reads_in_flight == 0);
	world_attach(&world, &host, 0, NULL);
	world_join(&host, &session, 100, 12);
	world_put_all(&session, 0, 0); /* hung writes ended with errors: written again */
	world_read(&session, 0, 4, 0);
	world_end(&host, 1);
}

/* Closing a session deletes exactly the blocks that no other reads; if it is kept, all stay. */
static void
test_close_deletes(uint32_t prefetchers, uint32_t write_mode)
{
	struct world_session first, second;

	world_config(&config);
	config.policy.prefetchers = prefetchers;
	config.write_mode = write_mode;
	world_begin(&world, &host, &config);
	world_join(&host, &first, 100, 8);
	world_join(&host, &second, 100, 4);
	world_put_all(&first, 0, 0);
	world_pass(&world, SECOND_NS);
	assert(world_status(&world).store.blocks == 8);
	assert(ofs_device_session_close(world.device, first.number, 0) == 0);
	assert(world_status(&world).store.blocks == 4);
	world_read(&second, 0, 4, 0);
	assert(ofs_device_session_close(world.device, second.number, 1) == 0);
	assert(world_status(&world).store.blocks == 4);
	world_join(&host, &second, 100, 5);
	assert(second.chunks[3].stored_layers == 1 && second.chunks[4].stored_layers == 0);
	world_read(&second, 0, 4, 0);
	assert(ofs_device_session_close(world.device, second.number, 0) == 0);
	assert(world_status(&world).store.blocks == 0);
	assert(ofs_device_session_close(world.device, second.number, 0) == -EINVAL);
	world_end(&host, 0);
}

/* A write that ends after its session: the store has the block, and the next session reads it. */
static void
test_write_outlives_session(uint32_t write_mode, int keep)
{
	struct world_session session, other;
	int32_t rcs[4];

	world_config(&config);
	config.write_mode = write_mode;
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 4);
	(void)world_put(&session, 0, 0, 4, 20, rcs); /* all time out at the host, at once */
	assert(ofs_device_session_close(world.device, session.number, keep) == 0);
	/* The chunk numbers go to others before the writes end. */
	world_join(&host, &other, 9000, 8);
	world_pass(&world, SECOND_NS);
	world_verify(&world);
	world_read(&other, 0, 4, -ENOENT);
	world_join(&host, &session, 100, 4);
	if (keep) {
		assert(session.chunks[0].stored_layers == 1);
		world_read(&session, 0, 1, 0);
	} else {
		assert(world_status(&world).store.blocks == 0);
		assert(world_status(&world).dirty_blocks == 0);
	}
	world_end(&host, 0);
}

/* Waiting writes of a kept session are not dropped when another session is closed. */
static void
test_archived_kept(void)
{
	struct world_session kept, other;
	int32_t rcs[4];

	world_config(&config);
	config.write_mode = OFS_WRITE_BACK;
	world_begin(&world, &host, &config);
	world_join(&host, &kept, 100, 4);
	world_join(&host, &other, 500, 4);
	ofs_storage_hang(world.device->storage);
	assert(world_put(&kept, 0, 0, 4, SECOND_NS, rcs) == 0 && rcs[3] == 0);
	world_pass(&world, 1000000);
	ofs_storage_unhang(world.device->storage);
	world_pass(&world, 1000000);
	assert(world_status(&world).flushes_waiting == 4);
	assert(ofs_device_session_close(world.device, kept.number, 1) == 0);
	assert(ofs_device_session_close(world.device, other.number, 0) == 0);
	world_pass(&world, SECOND_NS);
	world_join(&host, &kept, 100, 4);
	world_read(&kept, 0, 4, 0);
	world_end(&host, 0);
}

/* The next session is not told that an expired block is stored: it would not write it again. */
static void
test_expired_forgotten(void)
{
	world_config(&config);
	config.store.ttl_s = 2;
	world_begin(&world, &host, &config);
	world_join(&host, &session, 100, 4);
	world_put_all(&session, 0, 0);
	assert(ofs_device_session_close(world.device, session.number, 1) == 0);
	world_join(&host, &session, 100, 4);
	assert(session.chunks[0].stored_layers == 1);
	assert(ofs_device_session_close(world.device, session.number, 1) == 0);
	world_pass(&world, 4 * SECOND_NS);
	world_join(&host, &session, 100, 4);
	assert(session.chunks[0].stored_layers == 0);
	world_end(&host, 0);
}

int
main(void)
{
	test_tenants_apart();
	test_nonsense();
	test_tail();
	test_archived_kept();
	test_expired_forgotten();
	for (uint32_t mode = OFS_WRITE_THROUGH; mode <= OFS_WRITE_BACK; mode++) {
		test_window_changes(mode);
		test_other_bytes(mode);
		test_detach_in_flight(mode);
		test_close_deletes(0, mode);
		test_close_deletes(OFS_PREFETCH_SHARED, mode);
		test_write_outlives_session(mode, 1);
		test_write_outlives_session(mode, 0);
	}
	return 0;
}
