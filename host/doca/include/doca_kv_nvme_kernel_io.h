/* doca_kv_nvme_kernel_io.h: the I/O context of such a device; what it does is doca_kv_io.h's. */
#ifndef DOCA_KV_NVME_KERNEL_IO_H
#define DOCA_KV_NVME_KERNEL_IO_H

#include <doca_kv_io.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_kv_nvme_kernel_io;

DOCA_EXPERIMENTAL doca_error_t doca_kv_nvme_kernel_io_create(struct doca_kv_nvme_kernel_io **io);
/* BAD_STATE: it runs. */
DOCA_EXPERIMENTAL doca_error_t doca_kv_nvme_kernel_io_destroy(struct doca_kv_nvme_kernel_io *io);
DOCA_EXPERIMENTAL struct doca_kv_io *doca_kv_nvme_kernel_io_as_kv_io(
	struct doca_kv_nvme_kernel_io *io);

#ifdef __cplusplus
}
#endif

#endif
