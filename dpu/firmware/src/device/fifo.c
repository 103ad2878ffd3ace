/* A bounded queue of table indexes: free lists and waiting lines of the reactor. */
#include "device/fifo.h"

#include "ofs_base.h"

#include <assert.h>
#include <stdlib.h>

int
ofs_fifo_open(struct ofs_fifo *fifo, uint32_t capacity, bool full)
{
	fifo->items = calloc(capacity, sizeof(*fifo->items));
	if (fifo->items == NULL)
		return -ENOMEM;
	fifo->capacity = capacity;
	fifo->head = 0;
	fifo->count = full ? capacity : 0;
	for (uint32_t i = 0; i < fifo->count; i++)
		fifo->items[i] = i;
	return 0;
}

void
ofs_fifo_close(struct ofs_fifo *fifo)
{
	free(fifo->items);
	fifo->items = NULL;
}

uint32_t
ofs_fifo_first(const struct ofs_fifo *fifo)
{
	return fifo->count == 0 ? OFS_NONE : fifo->items[fifo->head];
}

uint32_t
ofs_fifo_take(struct ofs_fifo *fifo)
{
	uint32_t item = ofs_fifo_first(fifo);

	if (item != OFS_NONE) {
		fifo->head = fifo->head + 1 == fifo->capacity ? 0 : fifo->head + 1;
		fifo->count--;
	}
	return item;
}

void
ofs_fifo_give(struct ofs_fifo *fifo, uint32_t item)
{
	uint32_t tail = fifo->head + fifo->count;

	assert(item < fifo->capacity && fifo->count < fifo->capacity);
	fifo->items[tail >= fifo->capacity ? tail - fifo->capacity : tail] = item;
	fifo->count++;
}

void
ofs_fifo_give_first(struct ofs_fifo *fifo, uint32_t item)
{
	assert(item < fifo->capacity && fifo->count < fifo->capacity);
	fifo->head = fifo->head == 0 ? fifo->capacity - 1 : fifo->head - 1;
	fifo->items[fifo->head] = item;
	fifo->count++;
}
