/* See support_device.h. */
#include "support_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "drive.h"

#define TURNS_MAX 64 /* of the reactor at one moment: it is idle long before */

void
world_config(struct ofs_device_config *config)
{
	memset(config, 0, sizeof(*config));
	config->core = (struct ofs_core_config){.seed = 7,
		.tenant_max = 2,
		.session_max = 8,
		.chunk_max = 512,
		.session_chunk_max = WORLD_CHUNKS_MAX,
		.layer_count = 2,
		.slot_count = 32,
		.io_max = 8,
		.queue_max = 64,
		.demand_max = 16,
		.record_max = 64};
	config->policy = (struct ofs_policy){.eviction = OFS_EVICT_LRU,
		.window_blocks = 8,
		.ema_shift = 2,
		.residency_percent = 200,
		.degree_max = 8,
		.next_n = 2,
		.prefetch_in_flight_max = 8,
		.lease_ns = 50000000};
	snprintf(config->storage.backend, sizeof(config->storage.backend), "sim");
	config->storage.size_bytes = 4 << 20;
	config->storage.queue_depth_max = 16;
	config->storage.lba_size_bytes = 512;
	config->storage.seed = 1;
	config->storage.nvme = test_drive;
	config->store = (struct ofs_store_config){.payload_size_bytes = 4096,
		.layer_count = 2,
		.tenant_max = 2,
		.segment_size_bytes = 65536,
		.io_max = 12,
		.durable = 1,
		.reserve_segments = 2,
		.format = 1};
	config->dirty_blocks_max = 8;
	config->io_timeout_ns = 20000000;
	config->port_max = 4;
	config->port_entry_count = 8;
	config->put_slot_count = 4;
	config->score_max = WORLD_CHUNKS_MAX;
	config->stage_timers = 1;
	config->sim_clock = 1;
	config->cpu = -1;
}

int
world_try_open(struct world *world, const struct ofs_device_config *config, char *error,
	size_t error_size_bytes)
{
	int rc;

	*world = (struct world){.config = *config};
	rc = ofs_device_open(&world->device, config, error, error_size_bytes);
	if (rc == 0)
		world->now_ns = world_status(world).now_ns;
	return rc;
}

void
world_open(struct world *world, const struct ofs_device_config *config)
{
	char error[512];
	int rc = world_try_open(world, config, error, sizeof(error));

	if (rc != 0)
		fprintf(stderr, "ofs_device_open: %d %s\n", rc, error);
	assert(rc == 0);
}

void
world_close(struct world *world, int drain)
{
	ofs_device_close(world->device, drain);
	world->device = NULL;
}

uint32_t
world_tenant(struct world *world, uint32_t slot_count)
{
	struct ofs_tenant_config config = {.slot_count = slot_count,
		.weight = 1,
		.secret = {0x5ec4e7 + world->tenant_count, 42}};
	uint32_t tenant;
	int rc = ofs_device_tenant_add(world->device, &config, &tenant);

	assert(rc == 0 && tenant == world->tenant_count);
	world->tenant_count++;
	rc = ofs_device_restore(world->device, tenant);
	assert(rc == 0);
	return tenant;
}

static void
advance(struct world *world, uint64_t by_ns)
{
	int turns = 0;
	int rc;

	/* A drain moves the clock by itself. */
	world->now_ns = ofs_device_now_ns(world->device) + by_ns;
	rc = ofs_device_advance(world->device, world->now_ns);
	assert(rc == 0);
	while (ofs_device_poll(world->device) == 1 && ++turns < TURNS_MAX) {
	}
}

struct ofs_value_told
world_ask(struct world_host *host, uint32_t verb, const struct ofs_value_ask *asked)
{
	struct ofs_value_ask ask = *asked;
	struct ofs_value_told told = {.rc = 1};
	struct ofs_asking asking = {verb, 1, &ask, &told, 1000000000ull};

	do {
		assert(ofs_driver_values(host->driver, &asking) == 0 && told.rc <= 0);
		ask.length = told.length;
	} while (verb == OFS_VALUE_DELETE && told.rc == -EAGAIN && told.length > 0);
	return told;
}

void
world_pass(struct world *world, uint64_t ns)
{
	uint64_t until_ns = world->now_ns + ns;

	advance(world, 0);
	while (world->now_ns < until_ns) {
		uint64_t wake_ns = ofs_device_wake_at_ns(world->device, world->now_ns);

		wake_ns = wake_ns <= world->now_ns ? world->now_ns + 1 : wake_ns;
		advance(world, (wake_ns < until_ns ? wake_ns : until_ns) - world->now_ns);
	}
}

struct ofs_device_status
world_status(struct world *world)
{
	struct ofs_device_status status;
	int rc = ofs_device_status_get(world->device, &status);

	assert(rc == 0);
	return status;
}

struct ofs_ledger
world_ledger(struct world *world)
{
	struct ofs_ledger ledger;
	int rc = ofs_device_ledger(world->device, OFS_NONE, &ledger);

	assert(rc == 0);
	return ledger;
}

static void
check_entry(const struct world *world, const struct ofs_region *region,
	const struct ofs_directory_entry *entry)
{
	const struct ofs_trailer *trailer = ofs_region_trailer(region, entry->slot);

	assert(entry->sequence % 2 == 0 && trailer != NULL && entry->generation != 0);
	assert(trailer->generation == entry->generation);
	assert(ofs_key_equal(&trailer->key, &entry->key));
	assert(world_slot_is_right(world, ofs_region_slot(region, entry->slot), trailer));
}

uint32_t
world_check_directory(struct world *world)
{
	uint32_t entries = 0;

	for (uint32_t tenant = 0; tenant < world->tenant_count; tenant++) {
		const struct ofs_region *region = world->device->tenants[tenant].region;
		uint64_t size_bytes;
		const uint8_t *base = ofs_region_base(region, &size_bytes);
		const struct ofs_region_header *header = (const struct ofs_region_header *)base;
		const struct ofs_directory_entry *directory =
			(const struct ofs_directory_entry *)(base + header->directory_offset);
		uint32_t i;

		for (i = 0; i < header->bucket_count * header->bucket_entries; i++) {
			if (directory[i].slot != OFS_NONE) {
				check_entry(world, region, &directory[i]);
				entries++;
			}
		}
	}
	return entries;
}

/* Time that passed on the host's clock passes in the world too. */
static void
pump(void *context, uint64_t now_ns)
{
	struct world_host *host = context;
	uint64_t by_ns = now_ns - host->local_ns;

	host->local_ns = now_ns;
	advance(host->world, by_ns);
}

void
world_attach(struct world *world, struct world_host *host, uint32_t tenant,
	const struct ofs_fabric_sim_config *fabric)
{
	static const struct ofs_fabric_sim_config plain = {.seed = 1, .step_ns = 1000};
	char error[256] = "";
	int rc;

	*host = (struct world_host){.world = world, .tenant = tenant, .local_ns = world->now_ns};
	rc = ofs_device_attach(world->device, tenant, "shm", &host->port, &host->attachment);
	assert(rc == 0);
	rc = ofs_fabric_sim_open(&host->fabric, &host->attachment, fabric == NULL ? &plain : fabric,
		pump, host, world->now_ns, error, sizeof(error));
	assert(rc == 0);
	rc = ofs_driver_open(&host->driver, host->fabric);
	assert(rc == 0);
}

void
world_abandon(struct world_host *host)
{
	ofs_driver_close(host->driver);
	host->driver = NULL;
	for (uint32_t i = 0; i < host->attachment.fd_count; i++)
		close(host->attachment.fds[i]);
}

void
world_detach(struct world_host *host)
{
	int rc = ofs_device_detach(host->world->device, host->port);

	assert(rc == 0);
	world_abandon(host);
}

int
world_session(struct world_host *host, struct world_session *session, uint32_t select_blocks)
{
	struct ofs_session_config config = {.sink_blocks = 1,
		.window_blocks = 2,
		.select_blocks = select_blocks,
		.step_ns = 1000000};

	*session = (struct world_session){.host = host};
	return ofs_device_session_open(host->world->device, host->port, &config, &session->number);
}

int
world_append(struct world_session *session, uint64_t content, uint32_t count)
{
	struct ofs_key contents[WORLD_CHUNKS_MAX];
	int rc;

	assert(session->count + count <= WORLD_CHUNKS_MAX);
	for (uint32_t i = 0; i < count; i++)
		contents[i] = (struct ofs_key){content + i, 0x0ff57a6e};
	rc = ofs_device_session_append(session->host->world->device, session->number, count, contents,
		session->chunks + session->count);
	session->count += rc == 0 ? count : 0;
	return rc;
}

uint32_t
world_block(const struct world *world, const struct ofs_key *store_key, uint32_t layer,
	uint8_t *bytes)
{
	uint32_t payload_size_bytes = world->config.store.payload_size_bytes;
	uint64_t x = store_key->lo ^ store_key->hi * 31 ^ (uint64_t)layer << 32;
	uint32_t length = payload_size_bytes - (uint32_t)(store_key->hi >> 8) % 1024;

	for (uint32_t i = 0; i + 8 <= payload_size_bytes; i += 8) {
		uint64_t word = x += 0x9e3779b97f4a7c15ull;

		word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull;
		word ^= word >> 27;
		memcpy(bytes + i, &word, sizeof(word));
	}
	if (world->config.store.granule_count > 1)
		length = payload_size_bytes; /* only blocks with granules are read in part */
	return length;
}

int
world_put_begin(struct world_session *session, uint32_t layer, uint32_t ordinal,
	uint64_t timeout_ns, struct world_flight *flight)
{
	const struct world *world = session->host->world;
	uint8_t *bytes = malloc(world->config.store.payload_size_bytes);
	uint32_t length;
	int rc;

	assert(bytes != NULL && ordinal < session->count);
	length = world_block(world, &session->chunks[ordinal].store_key, layer, bytes);
	*flight =
		(struct world_flight){.session = session, .layer = layer, .bytes = bytes, .out.count = 1};
	flight->ordinals[0] = ordinal;
	flight->put = (struct ofs_put){.session = session->number,
		.layer = layer,
		.count = 1,
		.length_bytes = length,
		.ordinals = flight->ordinals,
		.source = bytes,
		.source_stride_bytes = length,
		.timeout_ns = timeout_ns,
		.rcs = flight->out.rcs};
	rc = ofs_driver_put_begin(session->host->driver, &flight->put, &flight->ticket);
	if (rc != 0)
		free(bytes);
	return rc;
}

int
world_put_end(struct world_flight *flight)
{
	int rc = ofs_driver_put_end(flight->session->host->driver, flight->ticket);

	free(flight->bytes);
	return rc;
}

int
world_put(struct world_session *session, uint32_t layer, uint32_t first, uint32_t count,
	uint64_t timeout_ns, int32_t *rcs)
{
	struct world_flight flight;
	int last = 0;

	/* One by one: each has its own length. */
	for (uint32_t i = 0; i < count; i++) {
		int rc = world_put_begin(session, layer, first + i, timeout_ns, &flight);

		assert(rc == 0);
		rc = world_put_end(&flight);
		rcs[i] = flight.out.rcs[0];
		last = rc != 0 ? rc : last;
	}
	return last;
}

static int
is_right(const struct world_flight *flight, uint32_t i)
{
	const struct world *world = flight->session->host->world;
	uint64_t size_bytes = world->config.store.payload_size_bytes;
	const uint8_t *got = flight->bytes + i * size_bytes;
	uint8_t *bytes = malloc(size_bytes);
	uint32_t length;
	int right;

	assert(bytes != NULL);
	length = world_block(world, &flight->session->chunks[flight->ordinals[i]].store_key,
		flight->layer, bytes);
	right = flight->fetch.granules != NULL
		? world_part_is_right(world, flight->granules[i], got, bytes)
		: flight->lengths[i] == length && memcmp(got, bytes, length) == 0;
	free(bytes);
	return right;
}

static void
free_target(struct world_flight *flight)
{
	const struct world *world = flight->session->host->world;
	uint64_t size_bytes = flight->out.count * (uint64_t)world->config.store.payload_size_bytes + 1;
	int rc = ofs_driver_unregister(flight->session->host->driver, flight->bytes, size_bytes);

	assert(rc == 0);
	free(flight->bytes);
}

int
world_fetch_begin(struct world_session *session, uint32_t layer, uint32_t count,
	const uint32_t *ordinals, const uint16_t *scores, uint64_t timeout_ns,
	struct world_flight *flight)
{
	uint64_t stride = session->host->world->config.store.payload_size_bytes;
	int rc;

	assert(count <= WORLD_DEMANDS_MAX);
	*flight = (struct world_flight){.session = session, .layer = layer, .out.count = count};
	flight->bytes = malloc(count * stride + 1);
	assert(flight->bytes != NULL);
	rc = ofs_driver_register(session->host->driver, flight->bytes, count * stride + 1);
	assert(rc == 0);
	for (uint32_t i = 0; i < count; i++) {
		flight->ordinals[i] = ordinals[i];
		ofs_block_key(&session->chunks[ordinals[i]].key, layer, &flight->keys[i]);
		flight->target_index[i] = i;
	}
	if (scores != NULL)
		memcpy(flight->scores, scores, session->count * sizeof(*scores));
	flight->fetch = (struct ofs_fetch){.session = session->number,
		.step = session->step,
		.layer = layer,
		.selected_count = count,
		.demand_count = count,
		.score_count = scores == NULL ? 0 : session->count,
		.ordinals = flight->ordinals,
		.keys = flight->keys,
		.scores = scores == NULL ? NULL : flight->scores,
		.target = flight->bytes,
		.target_index = flight->target_index,
		.target_stride_bytes = stride,
		.timeout_ns = timeout_ns,
		.ends = flight->out.ends,
		.rcs = flight->out.rcs,
		.lengths = flight->lengths};
	world_parts_ask(flight);
	rc = ofs_driver_fetch_begin(session->host->driver, &flight->fetch, &flight->ticket);
	if (rc != 0)
		free_target(flight);
	return rc;
}

int
world_fetch_end(struct world_flight *flight)
{
	const struct world_host *host = flight->session->host;
	int rc = ofs_driver_fetch_end(host->driver, flight->ticket);

	flight->out.hit_count = flight->fetch.hit_count;
	for (uint32_t i = 0; i < flight->out.count; i++)
		flight->out.wrong_count += flight->out.rcs[i] == 0 && !is_right(flight, i);
	free_target(flight);
	return rc;
}

int
world_fetch(struct world_session *session, uint32_t layer, uint32_t count, const uint32_t *ordinals,
	const uint16_t *scores, uint64_t timeout_ns, struct world_fetch *out)
{
	struct world_flight flight;
	int rc = world_fetch_begin(session, layer, count, ordinals, scores, timeout_ns, &flight);

	if (rc == 0)
		rc = world_fetch_end(&flight);
	*out = flight.out;
	return rc;
}
