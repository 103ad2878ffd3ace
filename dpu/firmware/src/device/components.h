/*
 * device/components.h: storage, store and core, opened and closed on the thread that uses them.
 *
 * Model: any thread may read the names of the storage in use. There are two places for them: the
 * reactor fills the one that is not being read, then switches to it.
 */
#ifndef OFS_DEVICE_COMPONENTS_H
#define OFS_DEVICE_COMPONENTS_H

#include "device.h"

#include <stdatomic.h>
#include <stddef.h>

struct ofs_storage_names {
	struct {
		char storage[16];
		char warning[640];
	} texts[2];
	atomic_uint at; /* the one being read */
};

int ofs_device_open_parts(struct ofs_device *device, char *error, size_t error_size_bytes);
void ofs_device_close_parts(struct ofs_device *device);
/* The name of the storage in use, and one line if it differs from the requested one. */
void ofs_device_note_storage(struct ofs_device *device, const char *text);
/* The path that a store on this storage locks; NULL: none. */
const char *ofs_device_lock_path(const struct ofs_storage_config *config);
int ofs_device_refuse(char *error, size_t size_bytes, int rc, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

#endif
