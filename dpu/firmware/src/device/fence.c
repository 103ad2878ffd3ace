/* Until when hosts are served: set by any thread, read only by the reactor. */
#include "internal.h"

void
ofs_device_serve_until(struct ofs_device *device, uint64_t until_ns)
{
	atomic_store_explicit(&device->reactor.serve_until_ns, until_ns, memory_order_release);
}

/* Checked as late as possible: before each command is carried out and each answer is sent. */
bool
ofs_device_is_fenced(struct ofs_device *device)
{
	uint64_t until_ns = atomic_load_explicit(&device->reactor.serve_until_ns, memory_order_acquire);

	return until_ns != UINT64_MAX
		&& (device->reactor.threaded ? ofs_machine_boot_ns() : ofs_device_now_ns(device))
		> until_ns;
}
