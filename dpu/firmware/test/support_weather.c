/* See support_weather.h. */
#include "support_weather.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "drive.h"

#define OPENS_MAX 200 /* a device that fails at open is opened again under another storage seed */
#define CALM_TIMEOUT_NS 500000000ull /* no deadline passes where nothing hangs */

uint32_t
weather_below(struct weather *weather, uint32_t limit)
{
	uint64_t x = ofs_draw(&weather->random);

	return limit == 0 ? 0 : (uint32_t)(x % limit);
}

/* Half of the time never, else up to `most`. */
static uint32_t
sometimes(struct weather *w, uint32_t most)
{
	return weather_below(w, 2) == 0 ? 0 : weather_below(w, most + 1);
}

static uint32_t
between(struct weather *w, uint32_t least, uint32_t most)
{
	return least + weather_below(w, most - least + 1);
}

uint32_t
weather_event(struct weather *weather)
{
	uint32_t draw = weather_below(weather, weather->weight_sum);
	uint32_t event = 0;

	while (draw >= weather->weights[event])
		draw -= weather->weights[event++];
	return event;
}

void
weather_policy(struct weather *w, struct ofs_policy *policy)
{
	static const uint64_t rates[] = {0, 1 << 20, 100 << 20};
	static const uint64_t leases_ns[] = {10000, 1000000, 50000000};

	*policy = (struct ofs_policy){
		.prefetchers = weather_below(w, 4) == 0 ? 0 : weather_below(w, OFS_PREFETCH_ALL + 1),
		.eviction = weather_below(w, OFS_EVICT_COUNT),
		.window_blocks = weather_below(w, 16),
		.ema_shift = weather_below(w, 5),
		.residency_percent = weather_below(w, 400),
		.degree_max = weather_below(w, 16),
		.next_n = weather_below(w, 5),
		.prefetch_in_flight_max = weather_below(w, 17),
		.prefetch_bytes_per_s_max = rates[weather_below(w, 3)],
		.accuracy_permille_min = sometimes(w, 900),
		.lateness_permille_max = sometimes(w, 900),
		/* Without an end of leases, idle sessions may pin all for ever. A lease that ends
		 * before its block can be read is a host's misfortune, not in strict runs. */
		.lease_ns = leases_ns[w->strict ? 2 : weather_below(w, 3)],
	};
}

static void
draw_weights(struct weather *w)
{
	/* attach open append put fetch close detach raw reset control policy hang pass together cut */
	static const uint32_t most[WEATHER_EVENTS] = {6, 8, 20, 60, 100, 4, 2, 10, 1, 6, 3, 4, 20, 60,
		1};
	static const uint32_t least[WEATHER_EVENTS] = {1, 2, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0};

	for (uint32_t i = 0; i < WEATHER_EVENTS; i++) {
		w->weights[i] = least[i] + sometimes(w, most[i]);
		w->weight_sum += w->weights[i];
	}
}

static void
draw_faults(struct weather *w, struct ofs_device_config *config)
{
	w->fabric = (struct ofs_fabric_sim_config){.seed = w->seed * 1000,
		.step_ns = between(w, 200, 3000),
		.delay_ns_max = sometimes(w, 20000),
		.torn_per_million = sometimes(w, 200000),
		.flip_per_million = sometimes(w, 10000)};
	if (w->strict)
		return;
	w->hangs = weather_below(w, 2) == 0;
	config->storage.fault_eio_per_million = sometimes(w, 30000);
	config->storage.fault_short_per_million = sometimes(w, 10000);
	config->storage.fault_corrupt_per_million = sometimes(w, 20000);
	config->storage.fault_hang_per_million = w->hangs ? sometimes(w, 3000) : 0;
	config->storage.fault_torn_per_million = sometimes(w, 20000);
	config->store.ttl_s = sometimes(w, 4);
	config->io_timeout_ns = between(w, 1, 40) * 1000000ull;
}

static void
draw_config(struct weather *w, struct ofs_device_config *config)
{
	static const uint64_t read_ps[] = {43400000, 5000000, 96900000}; /* TLC, XL-FLASH, QLC */
	uint32_t layers = between(w, 1, WORLD_LAYERS_MAX);
	uint32_t tenants = between(w, 1, TENANTS_MAX);

	w->strict = weather_below(w, 3) == 0;
	world_config(config);
	config->core = (struct ofs_core_config){.seed = w->seed,
		.tenant_max = tenants,
		.session_max = SESSIONS_MAX,
		.chunk_max = 4096,
		.session_chunk_max = WORLD_CHUNKS_MAX,
		.layer_count = layers,
		.slot_count = tenants * between(w, 16, 48),
		.io_max = between(w, 1, 16),
		.queue_max = between(w, 16, 128),
		.demand_max = between(w, 1, 12),
		.log_size_bytes = 16 << 20,
		.record_max = sometimes(w, 1000)};
	weather_policy(w, &config->policy);
	config->storage.nvme = test_drive;
	config->storage.nvme.read_ps = read_ps[weather_below(w, 3)];
	config->storage.queue_depth_max = between(w, 4, 64);
	config->store.layer_count = layers;
	config->store.tenant_max = tenants;
	config->store.io_max = between(w, 1, 24);
	config->store.segment_size_bytes = between(w, 4, 20) * 4608 + 512;
	config->store.reserve_segments = between(w, 1, 3);
	/* From a store that is soon full to one with room for all. */
	config->storage.size_bytes = 131072
		+ (uint64_t)config->store.segment_size_bytes
			* (layers * tenants + config->store.reserve_segments + 2 + weather_below(w, 200));
	config->write_mode = weather_below(w, 2);
	config->dirty_blocks_max = between(w, 1, 16);
	config->port_entry_count = 2u << weather_below(w, 4);
	config->put_slot_count = between(w, 1, 8);
	config->io_timeout_ns = CALM_TIMEOUT_NS;
	config->storage.discard = weather_below(w, 2);
	/* Not drawn, so that the seeds between have the weather that they always had. */
	config->value_max = w->seed % 2 == 0 && config->core.demand_max > 1 ? 8 : 0;
	config->store.room_percent = w->seed % 5 == 2 ? 1 + w->seed % 50 : 0;
	config->store.granule_count = w->seed % 3 == 1 ? 2u << (w->seed / 3 % 3) : 0;
	draw_faults(w, config);
}

static void
open_device(struct weather *w, struct world *world, struct ofs_device_config *config)
{
	char error[512] = "";
	int rc = -EIO;

	for (uint32_t i = 0; rc != 0 && i < OPENS_MAX; i++) {
		config->storage.seed = w->seed * OPENS_MAX + w->opens++;
		rc = world_try_open(world, config, error, sizeof(error));
		if (w->strict && rc != 0)
			break;
	}
	if (rc != 0) {
		fprintf(stderr, "simulate: seed %llu: the device does not open: %s\n",
			(unsigned long long)w->seed, error);
		abort();
	}
	for (uint32_t i = 0; i < config->core.tenant_max; i++) {
		world_tenant(world, config->core.slot_count / config->core.tenant_max);
		rc = ofs_device_tenant_quota(world->device, i, &w->quota);
		assert(rc == 0);
	}
}

/* Low limits. Drawn from a separate sequence, so that a seed's other draws stay the same. */
static void
draw_quota(struct weather *w)
{
	struct weather other = {.random = w->seed * 0x9e3779b97f4a7c15ull};

	if (weather_below(&other, 2) == 0)
		return;
	w->quota.chunks_max = sometimes(&other, 100);
	w->quota.stored_bytes_max = 4608ull * sometimes(&other, 60);
	w->quota.dirty_blocks_max = sometimes(&other, 8);
}

void
weather_open(struct weather *w, uint64_t seed, struct world *world)
{
	struct ofs_device_config config;

	*w = (struct weather){.seed = seed, .random = seed * 0xd1342543de82ef95ull};
	draw_config(w, &config);
	draw_weights(w);
	draw_quota(w);
	w->medium_fd = memfd_create("drive", MFD_CLOEXEC);
	assert(w->medium_fd >= 0);
	snprintf(config.storage.path, sizeof(config.storage.path), "/proc/self/fd/%d", w->medium_fd);
	open_device(w, world, &config);
}

void
weather_open_again(struct weather *w, struct world *world)
{
	struct ofs_device_config config = world->config;

	open_device(w, world, &config);
}

void
weather_close(struct weather *w)
{
	close(w->medium_fd);
}
