/* Lists of keys: each is a command of its own, and asked again until its memory is full. */
#include "driver/value_tasks.h"

#include <string.h>

#define ENTRY_BYTES_MAX (2 + OFS_VALUE_NAME_BYTES_MAX + 2)

uint32_t
ofs_task_list(const struct ofs_value_io *io, const struct ofs_value_task *task,
	struct ofs_value_ask *asks)
{
	const struct ofs_port_header *port = &io->driver->fabric->port;
	uint32_t count = ofs_values_max(port->demand_max, port->score_max);

	count = count < OFS_TASK_BATCH ? count : OFS_TASK_BATCH;
	memset(asks, 0, count * sizeof(*asks));
	asks[0].key = task->key;
	asks[0].length = task->home;
	asks[0].name = task->name;
	return count;
}

/* False: it has no room for this key. */
static bool
add(struct ofs_value_task *task, const struct ofs_value_told *told)
{
	uint32_t size = (2 + told->session + 3) & ~3u;
	uint16_t name_bytes = (uint16_t)told->session;
	uint8_t entry[ENTRY_BYTES_MAX] = {0};

	if (task->landed + size > task->length)
		return false;
	memcpy(entry, &name_bytes, sizeof(name_bytes));
	memcpy(entry + sizeof(name_bytes), &told->chunk, name_bytes);
	ofs_task_copy(task, task->landed, entry, size, true);
	task->landed += size;
	task->value_length++;
	return true;
}

static void
finish(struct ofs_value_io *io, struct ofs_value_task *task, int rc)
{
	uint32_t count = (uint32_t)task->value_length;

	if (rc == 0)
		ofs_task_copy(task, 0, (uint8_t *)&count, sizeof(count), true);
	ofs_task_finish(io, task, rc);
}

void
ofs_task_listed(struct ofs_value_io *io, struct ofs_value_task *task,
	const struct ofs_value_told *told, uint32_t count)
{
	if (task == NULL)
		return; /* given up */
	if (task->landed == 0)
		task->landed = OFS_LIST_HEAD_BYTES;
	for (uint32_t i = 0; i < count; i++) {
		if (told[i].rc == -EAGAIN) {
			task->home = told[i].length;
			task->key = told[i].chunk;
			task->state = OFS_TASK_READY;
			ofs_task_push(&io->asks, task);
			return;
		}
		if (told[i].rc != 0) {
			finish(io, task, told[i].rc == -ENOENT ? 0 : told[i].rc);
			return;
		}
		if (told[i].session == 0 || told[i].session > OFS_VALUE_NAME_BYTES_MAX) {
			finish(io, task, -EPROTO);
			return;
		}
		if (!add(task, &told[i])) {
			finish(io, task, 0);
			return;
		}
	}
	finish(io, task, -EPROTO); /* no last one */
}
