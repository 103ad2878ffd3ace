/* device/fill.h: the checksums of the granules of a record that is to be written or staged. */
#ifndef OFS_DEVICE_FILL_H
#define OFS_DEVICE_FILL_H

#include "device/internal.h"

/* Where there are granules. Of bytes that are not those of the checksum there are none. */
void ofs_device_fill_granules(const struct ofs_device *device, const uint8_t *record,
	struct ofs_trailer *trailer);

#endif
