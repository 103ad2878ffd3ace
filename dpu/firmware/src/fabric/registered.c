/* Memory of the host that one-sided reads may go to; see register_memory in fabric.h. */
#include "fabric/host_port.h"

int
ofs_fabric_register_memory(struct ofs_fabric *fabric, void *base, uint64_t size_bytes)
{
	uintptr_t first = (uintptr_t)base;

	if (base == NULL || size_bytes == 0 || size_bytes > UINTPTR_MAX - first)
		return -EINVAL;
	if (fabric->registered_count == OFS_FABRIC_MEMORIES_MAX)
		return -ENOSPC;
	fabric->registered[fabric->registered_count++] =
		(struct ofs_fabric_memory){first, first + size_bytes};
	return 0;
}

int
ofs_fabric_unregister_memory(struct ofs_fabric *fabric, void *base, uint64_t size_bytes)
{
	uintptr_t first = (uintptr_t)base;

	for (uint32_t i = 0; i < fabric->registered_count; i++) {
		if (fabric->registered[i].first == first
			&& fabric->registered[i].end - first == size_bytes) {
			fabric->registered[i] = fabric->registered[--fabric->registered_count];
			return 0;
		}
	}
	return -ENOENT;
}

int
ofs_fabric_is_registered(const struct ofs_fabric *fabric, const void *base, uint64_t size_bytes)
{
	uintptr_t first = (uintptr_t)base;

	for (uint32_t i = 0; i < fabric->registered_count; i++)
		if (first >= fabric->registered[i].first && first <= fabric->registered[i].end
			&& size_bytes <= fabric->registered[i].end - first) {
			return 1;
		}
	return 0;
}
