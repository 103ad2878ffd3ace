/* Which fabrics there are: the blob of an attach names one; see fabric.h and side.h. */
#include "fabric/host_port.h"
#include "side.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	ofs_fabric_opener open;
} sides[] = {
	{"shm", ofs_fabric_shm_open}, {"memory", ofs_fabric_memory_open},
	{"sim", ofs_fabric_memory_open}, /* the port has the faults; ofs_fabric_sim_open has the time */
};

static _Atomic(const struct ofs_fabric_side *) added[OFS_PORT_SIDES_MAX];

int
ofs_fabric_add(const struct ofs_fabric_side *side)
{
	int rc;

	if (side == NULL || side->version != OFS_SIDE_VERSION)
		return -EPROTO;
	rc = ofs_port_add(side->port);
	for (size_t i = 0; i < OFS_PORT_SIDES_MAX && rc == 0; i++) {
		const struct ofs_fabric_side *none = NULL;

		if (atomic_compare_exchange_strong(&added[i], &none, side))
			return 0;
	}
	return rc;
}

const struct ofs_services *
ofs_services_get(void)
{
	static const struct ofs_services services = {.version = OFS_SIDE_VERSION,
		.dma_alloc = ofs_dma_alloc,
		.dma_free = ofs_dma_free,
		.region_base = ofs_region_base};

	return &services;
}

int
ofs_fabric_open(struct ofs_fabric **out, const struct ofs_attachment *attachment, char *error,
	size_t error_size_bytes)
{
	struct ofs_blob_header header;
	const struct ofs_fabric_side *side;
	int rc;

	if (error_size_bytes > 0)
		error[0] = '\0';
	rc = ofs_blob_read(attachment, &header, NULL, 0, error, error_size_bytes);
	if (rc != 0)
		return rc;
	for (size_t i = 0; i < sizeof(sides) / sizeof(sides[0]); i++)
		if (strcmp(sides[i].name, header.fabric) == 0)
			return sides[i].open(out, attachment, error, error_size_bytes);
	for (size_t i = 0; i < OFS_PORT_SIDES_MAX && (side = atomic_load(&added[i])) != NULL; i++)
		if (strcmp(side->port->name, header.fabric) == 0)
			return side->open(out, attachment, error, error_size_bytes);
	snprintf(error, error_size_bytes,
		"attach blob: it is for a fabric that this host does not have; %s",
		"ask for another, or install the same release on both sides");
	return -EPROTO;
}
