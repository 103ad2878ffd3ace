/*
 * doca_kv_nvme_kernel_dev.h: a key-value device by its path.
 *
 * With Offstage the path is that of a tenant's socket (`host-0.sock` in the runtime directory of a
 * daemon on this machine), or `offstage:DIRECTORY`, which is the first tenant's socket there.
 */
#ifndef DOCA_KV_NVME_KERNEL_DEV_H
#define DOCA_KV_NVME_KERNEL_DEV_H

#include <doca_kv_dev.h>

#ifdef __cplusplus
extern "C" {
#endif

struct doca_kv_nvme_kernel_dev;
struct doca_kv_nvme_kernel_dev_create_attr;

/* With its terminating zero: 108, as an address of a Unix socket has. */
DOCA_EXPERIMENTAL doca_error_t doca_kv_nvme_kernel_dev_cap_get_max_path_len(uint32_t *max_path_len);
DOCA_EXPERIMENTAL doca_error_t doca_kv_nvme_kernel_dev_create_attr_create(
	struct doca_kv_nvme_kernel_dev_create_attr **attr);
DOCA_EXPERIMENTAL doca_error_t doca_kv_nvme_kernel_dev_create_attr_destroy(
	struct doca_kv_nvme_kernel_dev_create_attr *attr);
/* TOO_BIG: longer than the maximum (of `offstage:DIRECTORY`, the path of its socket); the path that
 * was set before stays. */
DOCA_EXPERIMENTAL doca_error_t doca_kv_nvme_kernel_dev_create_attr_set_path(
	struct doca_kv_nvme_kernel_dev_create_attr *attr, const char *path);
DOCA_EXPERIMENTAL struct doca_kv_dev_create_attr *
doca_kv_nvme_kernel_dev_create_attr_as_kv_dev_create_attr(
	struct doca_kv_nvme_kernel_dev_create_attr *attr);
/* Asks the daemon for the volume. NOT_FOUND: no socket, no daemon or no such volume; NOT_PERMITTED;
 * NOT_SUPPORTED: the daemon stores nothing by key; TIME_OUT: it does not
 * answer for 5 s; IO_FAILED: it closes the connection. */
DOCA_EXPERIMENTAL doca_error_t doca_kv_nvme_kernel_dev_create(
	const struct doca_kv_nvme_kernel_dev_create_attr *attr, struct doca_kv_nvme_kernel_dev **dev);
/* IN_USE: it is bound. */
DOCA_EXPERIMENTAL doca_error_t doca_kv_nvme_kernel_dev_destroy(struct doca_kv_nvme_kernel_dev *dev);
DOCA_EXPERIMENTAL struct doca_kv_dev *doca_kv_nvme_kernel_dev_as_kv_dev(
	struct doca_kv_nvme_kernel_dev *dev);
/* TOO_BIG: the path does not fit. */
DOCA_EXPERIMENTAL doca_error_t doca_kv_nvme_kernel_dev_get_path(
	const struct doca_kv_nvme_kernel_dev *dev, char *path, uint32_t path_len);

#ifdef __cplusplus
}
#endif

#endif
