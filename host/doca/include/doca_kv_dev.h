/* doca_kv_dev.h: a key-value device: one volume, named by its NGUID. */
#ifndef DOCA_KV_DEV_H
#define DOCA_KV_DEV_H

#include <doca_error.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DOCA_KV_DEV_NGUID_LEN 16

struct doca_kv_dev;
struct doca_kv_dev_create_attr;

/* 16 bytes; all zero, as after create, is the volume that has no name. */
DOCA_EXPERIMENTAL doca_error_t doca_kv_dev_create_attr_set_nguid(
	struct doca_kv_dev_create_attr *attr, const uint8_t *nguid);
DOCA_EXPERIMENTAL doca_error_t doca_kv_dev_get_nguid(const struct doca_kv_dev *kvdev,
	uint8_t *nguid, uint16_t nguid_len);
/* Bytes of the store that holds the volume; 0: it grows with its file. */
DOCA_EXPERIMENTAL doca_error_t doca_kv_dev_get_size(const struct doca_kv_dev *kvdev,
	uint64_t *size);
DOCA_EXPERIMENTAL doca_error_t doca_kv_dev_get_max_key_len(const struct doca_kv_dev *kvdev,
	uint16_t *max_key_len);
/* As the daemon said when a context last connected to it. */
DOCA_EXPERIMENTAL doca_error_t doca_kv_dev_get_max_value_len(const struct doca_kv_dev *kvdev,
	uint32_t *max_value_len);

#ifdef __cplusplus
}
#endif

#endif
