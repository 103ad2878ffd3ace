/*
 * device/fifo.h: a bounded queue of table indexes: free lists and waiting lines of the reactor.
 *
 * Model: indexes in order of arrival. Its capacity is that of the table they point into, and an
 * index is in it at most once, so that it never overflows. Only open can fail: -ENOMEM.
 */
#ifndef OFS_DEVICE_FIFO_H
#define OFS_DEVICE_FIFO_H

#include <stdbool.h>
#include <stdint.h>

struct ofs_fifo {
	uint32_t *items;
	uint32_t capacity;
	uint32_t head;
	uint32_t count;
};

/* `full`: it starts with every index, as a free list does. */
int ofs_fifo_open(struct ofs_fifo *fifo, uint32_t capacity, bool full);
void ofs_fifo_close(struct ofs_fifo *fifo);
uint32_t ofs_fifo_first(const struct ofs_fifo *fifo); /* OFS_NONE when empty */
uint32_t ofs_fifo_take(struct ofs_fifo *fifo);
void ofs_fifo_give(struct ofs_fifo *fifo, uint32_t item);
void ofs_fifo_give_first(struct ofs_fifo *fifo, uint32_t item); /* it is the next to be taken */

#endif
