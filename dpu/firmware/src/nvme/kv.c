/* Commands of the Key Value command set, as tasks of the tenant's driver. */
#include "nvme/internal.h"

#include <errno.h>

#define STORE 0x01
#define RETRIEVE 0x02
#define LIST 0x06
#define DELETE 0x10
#define EXIST 0x14
#define MUST_EXIST 0x1 /* options of a store; the others are advice */
#define MUST_NOT_EXIST 0x2
#define KEY_BYTES_MAX 16
#define TIMEOUT_NS 10000000000ull
#define ENDED 32

static uint32_t
size_of(const struct ofs_nvme_request *request)
{
	return ofs_nvme_u32(request->sqe + 40);
}

static const struct ofs_nvme_volume *
volume_of(const struct ofs_nvme_request *request)
{
	const struct ofs_nvme_tenant *tenant = request->connection->tenant;
	uint32_t number = ofs_nvme_u32(request->sqe + 4);

	return number == 0 || number > tenant->volume_count ? NULL : &tenant->volumes[number - 1];
}

uint16_t
ofs_nvme_kv_check(const struct ofs_nvme_request *request)
{
	uint8_t opcode = request->sqe[0], key_bytes = request->sqe[44];
	uint32_t size = size_of(request);

	if (opcode != STORE && opcode != RETRIEVE && opcode != LIST && opcode != DELETE
		&& opcode != EXIST)
		return OFS_NVME_OPCODE | OFS_NVME_FINAL;
	if (volume_of(request) == NULL)
		return OFS_NVME_NAMESPACE | OFS_NVME_FINAL;
	if ((key_bytes == 0 && opcode != LIST) || key_bytes > KEY_BYTES_MAX)
		return OFS_NVME_KEY_SIZE | OFS_NVME_FINAL;
	if (opcode == STORE && (size == 0 || size > request->connection->tenant->value_bytes_max))
		return OFS_NVME_VALUE_SIZE | OFS_NVME_FINAL;
	if (opcode == LIST && size < OFS_LIST_HEAD_BYTES)
		return OFS_NVME_FIELD | OFS_NVME_FINAL;
	if ((opcode == STORE && request->length != size)
		|| ((opcode == RETRIEVE || opcode == LIST) && request->length < size
			&& request->length < OFS_NVME_VALUE_BYTES_MAX))
		return OFS_NVME_SGL_LENGTH | OFS_NVME_FINAL;
	return OFS_NVME_OK;
}

static uint16_t
status_of(int rc)
{
	switch (rc) {
	case 0:
		return OFS_NVME_OK;
	case -ENOENT:
		return OFS_NVME_NO_KEY | OFS_NVME_FINAL;
	case -EEXIST:
		return OFS_NVME_KEY_EXISTS | OFS_NVME_FINAL;
	case -EMSGSIZE:
		return OFS_NVME_VALUE_SIZE | OFS_NVME_FINAL;
	case -ENOSPC:
	case -EDQUOT:
		return OFS_NVME_FULL | OFS_NVME_FINAL;
	case -EIO:
	case -EBADMSG:
	case -ESTALE:
		return OFS_NVME_UNREADABLE | OFS_NVME_FINAL;
	case -EAGAIN:
	case -EBUSY:
	case -ETIMEDOUT:
		return OFS_NVME_INTERRUPTED;
	default:
		return OFS_NVME_INTERNAL | OFS_NVME_FINAL;
	}
}

static uint32_t
verb_of(uint8_t opcode, bool has_memory)
{
	switch (opcode) {
	case STORE:
		return OFS_VALUE_STORE;
	case LIST:
		return OFS_VALUE_LIST;
	case DELETE:
		return OFS_VALUE_DELETE;
	default:
		return opcode == RETRIEVE && has_memory ? OFS_VALUE_RETRIEVE : OFS_VALUE_EXIST;
	}
}

/* What the value is called in its volume, and by a hash of that in the tenant. */
static void
name_task(struct ofs_nvme_request *request, const uint8_t *nguid)
{
	struct ofs_value_task *task = &request->task;
	uint8_t key[KEY_BYTES_MAX];

	memcpy(key, request->sqe + 8, 8);
	memcpy(key + 8, request->sqe + 56, 8);
	ofs_value_key(nguid, key, request->sqe[44], &task->key);
	if (request->sqe[0] == LIST) {
		memcpy(&task->name, nguid, sizeof(task->name));
		task->flags = request->sqe[44] == 0 ? OFS_TASK_FIRST : 0;
		return;
	}
	task->name_bytes = request->sqe[44];
	memcpy(&task->name, key, sizeof(task->name));
}

void
ofs_nvme_kv_begin(struct ofs_nvme_request *request)
{
	struct ofs_nvme_tenant *tenant = request->connection->tenant;
	const struct ofs_nvme_volume *volume = volume_of(request);
	struct ofs_value_task *task = &request->task;
	uint8_t opcode = request->sqe[0], options = request->sqe[45];

	if (tenant->lost) {
		ofs_nvme_reply(request, OFS_NVME_INTERNAL | OFS_NVME_FINAL);
		return;
	}
	*task = (struct ofs_value_task){.timeout_ns = TIMEOUT_NS, .user = request};
	name_task(request, volume->nguid);
	if (opcode == STORE || ((opcode == RETRIEVE || opcode == LIST) && size_of(request) > 0)) {
		task->length = opcode == STORE || size_of(request) > request->length ? request->length
																			 : size_of(request);
		task->iovecs = request->iovecs;
		task->iovec_count = request->chunk_count;
		task->filled = task->length;
		task->committed = 1;
	}
	task->verb = verb_of(opcode, task->length > 0);
	if (opcode == STORE)
		task->flags = (options & MUST_EXIST ? OFS_TASK_OVER : 0u)
			| (options & MUST_NOT_EXIST ? OFS_TASK_KEEP : 0u)
			| (volume->durable ? OFS_TASK_DURABLE : 0u);
	request->state = OFS_NVME_MOVING;
	if (ofs_value_io_submit(tenant->values, task) != 0)
		ofs_nvme_reply(request, OFS_NVME_INTERNAL | OFS_NVME_FINAL);
}

/* A retrieve tells the value's whole length, and sends what the host has room for. Of a list the
 * bytes behind the last key are not sent. */
static void
end(struct ofs_nvme_request *request)
{
	const struct ofs_value_task *task = &request->task;

	if (task->rc == 0 && request->sqe[0] == RETRIEVE) {
		request->result = task->value_length;
		request->send_bytes =
			(uint32_t)(task->length < task->value_length ? task->length : task->value_length);
	}
	if (task->rc == 0 && request->sqe[0] == LIST)
		request->send_bytes = (uint32_t)task->landed;
	ofs_nvme_reply(request, status_of(task->rc));
}

/* Tasks that ended with the connection are still to be taken. */
bool
ofs_nvme_kv_busy(const struct ofs_nvme_tenant *tenant)
{
	return !tenant->lost
		&& (ofs_value_io_count(tenant->values) > 0 || ofs_value_io_busy(tenant->values));
}

bool
ofs_nvme_kv_pump(struct ofs_nvme_tenant *tenant, uint64_t wait_ns)
{
	struct ofs_value_task *ended[ENDED];
	bool any = false;
	int count;

	if (!ofs_nvme_kv_busy(tenant))
		return false;
	do {
		count = ofs_value_io_run(tenant->values, any ? 0 : wait_ns, ended, ENDED);
		for (int i = 0; i < count; i++) {
			struct ofs_nvme_request *request = ended[i]->user;

			any = true;
			if (request->connection == NULL)
				ofs_nvme_release(tenant->nvme, request);
			else
				end(request);
		}
	} while (count == ENDED);
	tenant->lost = count < 0;
	return any;
}
