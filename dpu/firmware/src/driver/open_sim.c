/* A driver in virtual time over a simulated device; apart: nothing else here knows devices. */
#include "device.h"
#include "driver.h"

static void
turn_device(void *context, uint64_t now_ns)
{
	struct ofs_device *device = context;

	(void)ofs_device_advance(device, now_ns);
	(void)ofs_device_poll(device);
}

int
ofs_driver_attach_sim(struct ofs_driver **out, struct ofs_device *device,
	const struct ofs_attachment *attachment, const struct ofs_fabric_sim_config *config,
	char *error, size_t error_size_bytes)
{
	struct ofs_device_status status;
	struct ofs_fabric *fabric;
	int rc = ofs_device_status_get(device, &status);

	if (rc == 0) {
		rc = ofs_fabric_sim_open(&fabric, attachment, config, turn_device, device, status.now_ns,
			error, error_size_bytes);
	}
	return rc != 0 ? rc : ofs_driver_open(out, fabric);
}
