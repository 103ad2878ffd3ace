/* The host driver: open, close, counters, and the commands without a payload; see driver.h. */
#include "driver/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
ofs_driver_close(struct ofs_driver *driver)
{
	if (driver == NULL)
		return;
	if (driver->reads_registered) {
		(void)driver->fabric->ops->unregister_memory(driver->fabric, driver->reads,
			driver->fabric->port.demand_max * sizeof(driver->reads[0]));
	}
	driver->fabric->ops->close(driver->fabric);
	free(driver->pending);
	free(driver->free_payloads);
	free(driver->free_put_slots);
	free(driver->calls);
	free(driver->running);
	free(driver->reads);
	free(driver->asked);
	free(driver->attempts);
	free(driver->remembered);
	free(driver);
}

int
ofs_driver_open(struct ofs_driver **out, struct ofs_fabric *fabric)
{
	const struct ofs_port_header *port = &fabric->port;
	struct ofs_driver *driver = calloc(1, sizeof(*driver));
	int rc;

	if (driver == NULL) {
		fabric->ops->close(fabric);
		return -ENOMEM;
	}
	driver->fabric = fabric;
	driver->stages_on = true;
	driver->pending = calloc(port->entry_count, sizeof(driver->pending[0]));
	driver->free_payloads = calloc(port->entry_count, sizeof(driver->free_payloads[0]));
	driver->free_put_slots = calloc(port->put_slot_count, sizeof(driver->free_put_slots[0]));
	driver->calls = calloc(OFS_CALLS_SIDES * (size_t)port->entry_count, sizeof(driver->calls[0]));
	driver->running =
		calloc(OFS_CALLS_SIDES * (size_t)port->entry_count, sizeof(driver->running[0]));
	driver->reads =
		aligned_alloc(_Alignof(struct ofs_block_read), port->demand_max * sizeof(driver->reads[0]));
	driver->asked = calloc((size_t)port->entry_count * port->demand_max, sizeof(driver->asked[0]));
	driver->attempts = calloc(port->entry_count, port->demand_max);
	if (driver->pending == NULL || driver->free_payloads == NULL || driver->free_put_slots == NULL
		|| driver->calls == NULL || driver->running == NULL || driver->reads == NULL
		|| driver->asked == NULL || driver->attempts == NULL || ofs_remember_open(driver) != 0) {
		ofs_driver_close(driver);
		return -ENOMEM;
	}
	/* Where buckets and trailers are read to. */
	rc = fabric->ops->register_memory(fabric, driver->reads,
		port->demand_max * sizeof(driver->reads[0]));
	if (rc != 0) {
		ofs_driver_close(driver);
		return rc;
	}
	driver->reads_registered = true;
	for (uint32_t i = port->entry_count; i-- > 0;)
		driver->free_payloads[driver->free_payload_count++] = i;
	for (uint32_t i = port->put_slot_count; i-- > 0;)
		driver->free_put_slots[driver->free_put_slot_count++] = i;
	*out = driver;
	return 0;
}

int
ofs_driver_attach(struct ofs_driver **out, const struct ofs_attachment *attachment, char *error,
	size_t error_size_bytes)
{
	struct ofs_fabric *fabric;
	int rc = ofs_fabric_open(&fabric, attachment, error, error_size_bytes);

	return rc != 0 ? rc : ofs_driver_open(out, fabric);
}

int
ofs_driver_export(const struct ofs_driver *driver, struct ofs_attachment *answer)
{
	*answer = (struct ofs_attachment){0};
	if (driver->fabric->ops->export == NULL)
		return 0;
	driver->fabric->ops->export(driver->fabric, answer);
	return 1;
}

int
ofs_driver_register(struct ofs_driver *driver, void *base, uint64_t size_bytes)
{
	return driver->fabric->ops->register_memory(driver->fabric, base, size_bytes);
}

int
ofs_driver_unregister(struct ofs_driver *driver, void *base, uint64_t size_bytes)
{
	return driver->fabric->ops->unregister_memory(driver->fabric, base, size_bytes);
}

int
ofs_driver_hint(struct ofs_driver *driver, uint32_t session, const struct ofs_guess *guesses,
	uint32_t count)
{
	const struct ofs_port_header *port = &driver->fabric->port;
	uint32_t sent = 0;

	(void)ofs_calls_turn(driver); /* frees areas of hints that were answered */
	/* Half of the areas are reserved for calls, whose callers wait. */
	while (sent < count && 2 * driver->free_payload_count > port->entry_count) {
		uint32_t left = count - sent, index = ofs_command_take(driver);
		uint32_t piece = left < port->demand_max ? left : port->demand_max;
		int rc;

		memcpy(driver->fabric->ops->payload(driver->fabric, index), guesses + sent,
			piece * sizeof(*guesses));
		driver->pending[index].sqe =
			(struct ofs_sqe){.op = OFS_OP_HINT, .session = session, .demand_count = piece};
		rc = ofs_command_send(driver, index);
		ofs_command_drop(driver, index); /* its answer is not needed */
		if (rc != 0 && rc != -EAGAIN)
			return rc;
		if (rc != 0)
			break;
		sent += piece;
	}
	driver->stats.guesses += sent;
	return (int)sent;
}

int
ofs_driver_release(struct ofs_driver *driver, uint32_t session)
{
	struct ofs_sqe sqe = {.op = OFS_OP_RELEASE, .session = session};

	return ofs_command_run(driver, &sqe, ofs_driver_now_ns(driver) + OFS_COMMAND_TIMEOUT_NS);
}

int
ofs_driver_stats_get(const struct ofs_driver *driver, struct ofs_driver_stats *stats)
{
	*stats = driver->stats;
	return 0;
}

uint32_t
ofs_driver_payload_size_bytes(const struct ofs_driver *driver)
{
	return driver->fabric->region.payload_size_bytes;
}

uint32_t
ofs_driver_granule_count(const struct ofs_driver *driver)
{
	return driver->fabric->region.granule_count;
}

uint32_t
ofs_driver_demand_max(const struct ofs_driver *driver)
{
	return driver->fabric->port.demand_max;
}

uint32_t
ofs_driver_score_max(const struct ofs_driver *driver)
{
	return driver->fabric->port.score_max;
}

uint32_t
ofs_driver_put_slot_count(const struct ofs_driver *driver)
{
	return driver->fabric->port.put_slot_count;
}

void
ofs_driver_limit_scores(struct ofs_driver *driver, const struct ofs_score_limits *limits)
{
	driver->limits = *limits;
}

uint32_t
ofs_driver_dilation(const struct ofs_driver *driver)
{
	return driver->fabric->dilation;
}
