/*
 * support_device.h: a whole device in virtual time, with hosts, for tests and the simulation.
 *
 * Model: one thread owns a world: device, simulated storage and all hosts. Each host has its own
 * clock in its simulated fabric; time that passes on any of them passes in the world, so that the
 * device's time never goes back. The bytes of a block are computed from its store key and layer, so
 * that a reader knows what was written. Setup failures are assertions.
 */
#ifndef OFS_SUPPORT_DEVICE_H
#define OFS_SUPPORT_DEVICE_H

#include "device/internal.h"
#include "driver.h"

#define SECOND_NS 1000000000ull

#define WORLD_CHUNKS_MAX 64
#define WORLD_LAYERS_MAX 4
#define WORLD_DEMANDS_MAX 32
#define WORLD_GRANULES_MAX 8

struct world {
	struct ofs_device *device;
	struct ofs_device_config config;
	uint64_t now_ns;
	uint32_t tenant_count;
};

struct world_host {
	struct world *world;
	struct ofs_driver *driver;
	struct ofs_fabric *fabric; /* the driver's */
	uint64_t local_ns;
	uint32_t tenant;
	uint32_t port;
	struct ofs_attachment attachment;
};

struct world_session {
	struct world_host *host;
	uint32_t number;
	uint32_t count;
	uint32_t step;
	struct ofs_chunk_info chunks[WORLD_CHUNKS_MAX];
};

struct world_fetch {
	uint32_t count;
	int32_t rcs[WORLD_DEMANDS_MAX];
	uint8_t ends[WORLD_DEMANDS_MAX];
	uint32_t hit_count;
	uint32_t wrong_count; /* returned blocks with wrong bytes: always 0 */
};

/* One put or fetch on its way, with all that the driver writes to until it has ended. */
struct world_flight {
	struct world_session *session;
	uint32_t layer;
	uint64_t ticket;
	struct ofs_put put;
	struct ofs_fetch fetch;
	struct world_fetch out; /* of a put: rcs[0] */
	uint8_t *bytes;
	uint32_t ordinals[WORLD_DEMANDS_MAX];
	struct ofs_key keys[WORLD_DEMANDS_MAX];
	uint32_t target_index[WORLD_DEMANDS_MAX];
	uint32_t lengths[WORLD_DEMANDS_MAX];
	uint16_t scores[WORLD_CHUNKS_MAX];
	uint32_t granules[WORLD_DEMANDS_MAX];
	uint32_t granule_first[WORLD_DEMANDS_MAX];
	uint32_t rows[WORLD_DEMANDS_MAX * WORLD_GRANULES_MAX];
	uint64_t sums[WORLD_DEMANDS_MAX * WORLD_GRANULES_MAX];
};

/* A small device over simulated storage without faults; the caller changes single fields. */
void world_config(struct ofs_device_config *config);
/* 0, or the device's error, with its text. */
int world_try_open(struct world *world, const struct ofs_device_config *config, char *error,
	size_t error_size_bytes);
void world_open(struct world *world, const struct ofs_device_config *config);
void world_close(struct world *world, int drain);
/* Tenants get equal parts of the arena. Secrets follow from the number. */
uint32_t world_tenant(struct world *world, uint32_t slot_count);
/* Turns the reactor until `ns` of virtual time have passed. */
void world_pass(struct world *world, uint64_t ns);
/* One command on one value; a delete is asked for again until the drive has ended its part. */
struct ofs_value_told world_ask(struct world_host *host, uint32_t verb,
	const struct ofs_value_ask *asked);
struct ofs_device_status world_status(struct world *world);
struct ofs_ledger world_ledger(struct world *world);

/*
 * Checks that every directory entry names a slot whose trailer has its key and generation and whose
 * bytes are whole. Returns the number of entries; a violation is an assertion.
 */
uint32_t world_check_directory(struct world *world);

void world_attach(struct world *world, struct world_host *host, uint32_t tenant,
	const struct ofs_fabric_sim_config *fabric);
/* The host's process dies: the driver is closed without a detach. */
void world_abandon(struct world_host *host);
void world_detach(struct world_host *host);

int world_session(struct world_host *host, struct world_session *session, uint32_t select_blocks);
/* `count` chunks whose contents are content, content + 1, ...; 0 or -errno. */
int world_append(struct world_session *session, uint64_t content, uint32_t count);
/* Bytes of a block, and how many. */
uint32_t world_block(const struct world *world, const struct ofs_key *store_key, uint32_t layer,
	uint8_t *bytes);
/*
 * The same in two parts, so that several are in flight: a put of one block, or a fetch. A begin
 * that returns an error has not begun; `flight` must stay in place until its end.
 */
int world_put_begin(struct world_session *session, uint32_t layer, uint32_t ordinal,
	uint64_t timeout_ns, struct world_flight *flight);
int world_put_end(struct world_flight *flight);
int world_fetch_begin(struct world_session *session, uint32_t layer, uint32_t count,
	const uint32_t *ordinals, const uint16_t *scores, uint64_t timeout_ns,
	struct world_flight *flight);
int world_fetch_end(struct world_flight *flight);
/* support_parts.c: where the device has granules, most fetches are of some of each block. */
void world_parts_ask(struct world_flight *flight);
bool world_part_is_right(const struct world *world, uint32_t granules, const uint8_t *got,
	const uint8_t *expected);
bool world_slot_is_right(const struct world *world, const uint8_t *slot,
	const struct ofs_trailer *trailer);
/* Puts blocks [first, first + count) of one layer; rcs [count]. */
int world_put(struct world_session *session, uint32_t layer, uint32_t first, uint32_t count,
	uint64_t timeout_ns, int32_t *rcs);
/* Fetches and checks; scores (NULL none) [session->count]. Returns the driver's result. */
int world_fetch(struct world_session *session, uint32_t layer, uint32_t count,
	const uint32_t *ordinals, const uint16_t *scores, uint64_t timeout_ns, struct world_fetch *out);

/* support_expect.c: the checks of all tests; a violation is an assertion that names it. */
void world_verify(struct world *world);
void world_expect(const struct world_fetch *fetch, int32_t rc);
void world_expect_puts(const int32_t *rcs, uint32_t count, int32_t rc);
/* Puts every block of one layer; each must end with rc. */
void world_put_all(struct world_session *session, uint32_t layer, int32_t rc);
/* Fetches blocks [0, count) of one layer; each must end with rc. */
struct world_fetch world_read(struct world_session *session, uint32_t layer, uint32_t count,
	int32_t rc);
/* A device with one tenant of 16 slots and a host of it; and its end, with all it holds checked. */
void world_begin(struct world *world, struct world_host *host,
	const struct ofs_device_config *config);
void world_end(struct world_host *host, int drain);
/* A session that selects 4 blocks, with the `count` chunks of world_append. */
void world_join(struct world_host *host, struct world_session *session, uint64_t content,
	uint32_t count);

#endif
