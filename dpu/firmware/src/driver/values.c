/* Commands on values: each names many, and is answered at once. */
#include "driver/internal.h"

#include <string.h>

/* Sends the command in this area and waits for its answer. */
static int
answered(struct ofs_driver *driver, uint32_t index, uint64_t deadline_ns)
{
	const struct ofs_pending *pending = &driver->pending[index];
	int rc;

	/* Full only until the DPU has taken commands that it has already answered. */
	while ((rc = ofs_command_send(driver, index)) == -EAGAIN
		&& ofs_driver_now_ns(driver) < deadline_ns) {
		driver->fabric->ops->pause(driver->fabric, OFS_BACKOFF_NS_MIN);
	}
	while (rc == 0 && !pending->done)
		rc = ofs_calls_turn(driver) ? 0 : ofs_calls_wait(driver, deadline_ns);
	return pending->done ? pending->cqe.rc : rc == -EAGAIN ? -ETIMEDOUT : rc;
}

/* An area for a command; OFS_NONE: none became free, and `rc` says why. */
static uint32_t
take(struct ofs_driver *driver, uint64_t deadline_ns, int *rc)
{
	uint32_t index;

	*rc = 0;
	while ((index = ofs_command_take(driver)) == OFS_NONE && *rc == 0)
		*rc = ofs_calls_turn(driver) ? 0 : ofs_calls_wait(driver, deadline_ns);
	return index;
}

int
ofs_command_run(struct ofs_driver *driver, const struct ofs_sqe *sqe, uint64_t deadline_ns)
{
	uint32_t index;
	int rc;

	index = take(driver, deadline_ns, &rc);
	if (index == OFS_NONE)
		return rc;
	driver->pending[index].sqe = *sqe;
	rc = answered(driver, index, deadline_ns);
	ofs_command_drop(driver, index);
	return rc;
}

/* As many as one command takes. */
static int
some(struct ofs_driver *driver, uint32_t verb, uint32_t count, const struct ofs_value_ask *asks,
	struct ofs_value_told *told, uint64_t deadline_ns)
{
	struct ofs_fabric *fabric = driver->fabric;
	const struct ofs_result *results;
	uint32_t index;
	int rc;

	index = take(driver, deadline_ns, &rc);
	if (index == OFS_NONE)
		return rc;
	memcpy(fabric->ops->payload(fabric, index), asks, count * sizeof(*asks));
	driver->pending[index].sqe =
		(struct ofs_sqe){.op = OFS_OP_VALUES, .flags = (uint16_t)verb, .demand_count = count};
	rc = answered(driver, index, deadline_ns);
	if (rc == 0) {
		results = fabric->ops->results(fabric, &driver->pending[index].cqe);
		if (results == NULL || driver->pending[index].cqe.count != 2 * count)
			rc = -EPROTO;
		else
			memcpy(told, results, count * sizeof(*told));
	}
	ofs_command_drop(driver, index);
	return rc;
}

void
ofs_value_key(const uint8_t *volume, const uint8_t *key, uint32_t length, struct ofs_key *out)
{
	uint8_t named[1 + sizeof(struct ofs_key)] = {(uint8_t)length};
	struct ofs_key secret;

	memcpy(&secret, volume, sizeof(secret));
	memcpy(named + 1, key, length < sizeof(*out) ? length : sizeof(*out));
	ofs_siphash(&secret, named, sizeof(named), out);
}

int
ofs_driver_values(struct ofs_driver *driver, uint32_t verb, uint32_t count,
	const struct ofs_value_ask *asks, struct ofs_value_told *told, uint64_t timeout_ns)
{
	uint64_t now_ns = ofs_driver_now_ns(driver);
	uint64_t until_ns = timeout_ns < OFS_NEVER_NS - now_ns ? now_ns + timeout_ns : OFS_NEVER_NS;
	const struct ofs_port_header *port = &driver->fabric->port;
	uint32_t batch = ofs_values_max(port->demand_max, port->score_max);

	if (batch == 0)
		return -ENOTSUP;
	for (uint32_t done = 0; done < count; done += batch) {
		uint32_t left = count - done;
		int rc =
			some(driver, verb, left < batch ? left : batch, asks + done, told + done, until_ns);

		if (rc != 0)
			return rc;
	}
	return 0;
}
