/* What the tests of a whole device say and expect; see support_device.h. */
#include "support_device.h"

#include <stdio.h>

void
world_begin(struct world *world, struct world_host *host, const struct ofs_device_config *config)
{
	world_open(world, config);
	world_tenant(world, 16);
	world_attach(world, host, 0, NULL);
}

void
world_end(struct world_host *host, int drain)
{
	world_verify(host->world);
	world_detach(host);
	world_close(host->world, drain);
}

void
world_join(struct world_host *host, struct world_session *session, uint64_t content, uint32_t count)
{
	int rc = world_session(host, session, 4);

	assert(rc == 0);
	rc = world_append(session, content, count);
	assert(rc == 0);
}

struct world_fetch
world_read(struct world_session *session, uint32_t layer, uint32_t count, int32_t rc)
{
	uint32_t ordinals[WORLD_DEMANDS_MAX];
	struct world_fetch out;
	int said;

	for (uint32_t i = 0; i < count; i++)
		ordinals[i] = i;
	said = world_fetch(session, layer, count, ordinals, NULL, SECOND_NS, &out);
	assert(said == 0);
	world_expect(&out, rc);
	return out;
}

void
world_verify(struct world *world)
{
	assert(ofs_core_verify(world->device->core) == 0);
	assert(ofs_store_verify(world->device->store) == 0);
	(void)world_check_directory(world);
}

void
world_expect(const struct world_fetch *fetch, int32_t rc)
{
	assert(fetch->wrong_count == 0);
	for (uint32_t i = 0; i < fetch->count; i++) {
		if (fetch->rcs[i] != rc)
			fprintf(stderr, "demand %u ended %d, not %d\n", i, fetch->rcs[i], rc);
		assert(fetch->rcs[i] == rc);
	}
}

void
world_expect_puts(const int32_t *rcs, uint32_t count, int32_t rc)
{
	for (uint32_t i = 0; i < count; i++) {
		if (rcs[i] != rc)
			fprintf(stderr, "put %u ended %d, not %d\n", i, rcs[i], rc);
		assert(rcs[i] == rc);
	}
}

void
world_put_all(struct world_session *session, uint32_t layer, int32_t rc)
{
	int32_t rcs[WORLD_CHUNKS_MAX];

	(void)world_put(session, layer, 0, session->count, SECOND_NS, rcs);
	world_expect_puts(rcs, session->count, rc);
}
