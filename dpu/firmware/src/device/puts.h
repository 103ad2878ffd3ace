/*
 * device/puts.h: blocks that hosts write, copied from their windows.
 *
 * Model: belongs to the reactor's thread. A bounce is a record in our memory; a put has one from
 * its copy until the store has finished with it.
 */
#ifndef OFS_DEVICE_PUTS_H
#define OFS_DEVICE_PUTS_H

#include "device.h"
#include "device/fifo.h"
#include "dma.h"

#include <stdbool.h>

struct ofs_write;

struct ofs_bounces {
	struct ofs_dma memory; /* [count] records */
	uint32_t count;
	struct ofs_fifo free;
};

/* puts.c: whether its bytes are read: a put that is refused before costs nothing for its length. */
bool ofs_device_put(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe);

/* put_window.c: copies of the bytes. The window of a command; NULL: it names none. */
void *ofs_device_put_window(const struct ofs_device *device, uint32_t port,
	const struct ofs_sqe *sqe);
/* The record of a put, copied out of the host's window and checked; -EAGAIN, -EBADMSG. */
int ofs_device_copy_put(struct ofs_device *device, struct ofs_write *write);
void ofs_device_fill_slot(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	uint32_t slot);
/* The tag behind a trailer, whose payload is set; zeros of no value. */
void ofs_device_fill_tag(const struct ofs_trailer *trailer, const struct ofs_key *store_key,
	const struct ofs_value_name *value);
/* Computes the checksums of the granules of a record that is to be written or staged, if there are
 * granules. Bytes that do not match the payload's checksum get none. */
void ofs_device_fill_granules(const struct ofs_device *device, const uint8_t *record,
	struct ofs_trailer *trailer);

#endif
