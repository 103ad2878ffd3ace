/* A device: a volume of a daemon, by the path of a tenant's socket and an NGUID. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEME "offstage:"

doca_error_t
doca_kv_nvme_kernel_dev_cap_get_max_path_len(uint32_t *max_path_len)
{
	if (max_path_len == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	*max_path_len = KV_PATH_SIZE_BYTES;
	return DOCA_SUCCESS;
}

doca_error_t
doca_kv_nvme_kernel_dev_create_attr_create(struct doca_kv_nvme_kernel_dev_create_attr **attr)
{
	if (attr == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	*attr = calloc(1, sizeof(**attr));
	return *attr == NULL ? DOCA_ERROR_NO_MEMORY : DOCA_SUCCESS;
}

doca_error_t
doca_kv_nvme_kernel_dev_create_attr_destroy(struct doca_kv_nvme_kernel_dev_create_attr *attr)
{
	if (attr == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	free(attr);
	return DOCA_SUCCESS;
}

doca_error_t
doca_kv_nvme_kernel_dev_create_attr_set_path(struct doca_kv_nvme_kernel_dev_create_attr *attr,
	const char *path)
{
	char whole[KV_PATH_SIZE_BYTES];
	int length;

	if (attr == NULL || path == NULL || path[0] == '\0')
		return DOCA_ERROR_INVALID_VALUE;
	if (strncmp(path, SCHEME, strlen(SCHEME)) == 0)
		length = snprintf(whole, sizeof(whole), "%s/host-0.sock", path + strlen(SCHEME));
	else
		length = snprintf(whole, sizeof(whole), "%s", path);
	if (length >= (int)sizeof(whole))
		return DOCA_ERROR_TOO_BIG;
	memcpy(attr->attr.path, whole, (size_t)length + 1);
	return DOCA_SUCCESS;
}

struct doca_kv_dev_create_attr *
doca_kv_nvme_kernel_dev_create_attr_as_kv_dev_create_attr(
	struct doca_kv_nvme_kernel_dev_create_attr *attr)
{
	return attr == NULL ? NULL : &attr->attr;
}

doca_error_t
doca_kv_dev_create_attr_set_nguid(struct doca_kv_dev_create_attr *attr, const uint8_t *nguid)
{
	if (attr == NULL || nguid == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	memcpy(attr->nguid, nguid, sizeof(attr->nguid));
	return DOCA_SUCCESS;
}

doca_error_t
doca_kv_nvme_kernel_dev_create(const struct doca_kv_nvme_kernel_dev_create_attr *attr,
	struct doca_kv_nvme_kernel_dev **dev)
{
	struct doca_kv_nvme_kernel_dev *made;
	int rc;

	if (attr == NULL || dev == NULL || attr->attr.path[0] == '\0')
		return DOCA_ERROR_INVALID_VALUE;
	*dev = NULL;
	made = calloc(1, sizeof(*made));
	if (made == NULL)
		return DOCA_ERROR_NO_MEMORY;
	memcpy(made->dev.path, attr->attr.path, sizeof(made->dev.path));
	memcpy(made->dev.nguid, attr->attr.nguid, sizeof(made->dev.nguid));
	rc = kv_look(&made->dev);
	if (rc != 0) {
		free(made);
		return kv_error_of(rc);
	}
	*dev = made;
	return DOCA_SUCCESS;
}

doca_error_t
doca_kv_nvme_kernel_dev_destroy(struct doca_kv_nvme_kernel_dev *dev)
{
	if (dev == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (dev->dev.bound_count > 0)
		return DOCA_ERROR_IN_USE;
	free(dev);
	return DOCA_SUCCESS;
}

struct doca_kv_dev *
doca_kv_nvme_kernel_dev_as_kv_dev(struct doca_kv_nvme_kernel_dev *dev)
{
	return dev == NULL ? NULL : &dev->dev;
}

doca_error_t
doca_kv_nvme_kernel_dev_get_path(const struct doca_kv_nvme_kernel_dev *dev, char *path,
	uint32_t path_len)
{
	if (dev == NULL || path == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	if (strlen(dev->dev.path) >= path_len)
		return DOCA_ERROR_TOO_BIG;
	memcpy(path, dev->dev.path, strlen(dev->dev.path) + 1);
	return DOCA_SUCCESS;
}

doca_error_t
doca_kv_dev_get_nguid(const struct doca_kv_dev *kvdev, uint8_t *nguid, uint16_t nguid_len)
{
	if (kvdev == NULL || nguid == NULL || nguid_len < DOCA_KV_DEV_NGUID_LEN)
		return DOCA_ERROR_INVALID_VALUE;
	memcpy(nguid, kvdev->nguid, DOCA_KV_DEV_NGUID_LEN);
	return DOCA_SUCCESS;
}

doca_error_t
doca_kv_dev_get_size(const struct doca_kv_dev *kvdev, uint64_t *size)
{
	if (kvdev == NULL || size == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	*size = kvdev->size_bytes;
	return DOCA_SUCCESS;
}

doca_error_t
doca_kv_dev_get_max_key_len(const struct doca_kv_dev *kvdev, uint16_t *max_key_len)
{
	if (kvdev == NULL || max_key_len == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	*max_key_len = KV_KEY_BYTES_MAX;
	return DOCA_SUCCESS;
}

doca_error_t
doca_kv_dev_get_max_value_len(const struct doca_kv_dev *kvdev, uint32_t *max_value_len)
{
	if (kvdev == NULL || max_value_len == NULL)
		return DOCA_ERROR_INVALID_VALUE;
	*max_value_len =
		kvdev->value_bytes_max < UINT32_MAX ? (uint32_t)kvdev->value_bytes_max : UINT32_MAX;
	return DOCA_SUCCESS;
}
