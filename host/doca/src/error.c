/* Names of errors, and the errors of this system as theirs. */
#include "internal.h"

#include <clock.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	const char *descr;
} errors[] = {
	[DOCA_SUCCESS] = {"DOCA_SUCCESS", "success"},
	[DOCA_ERROR_UNKNOWN] = {"DOCA_ERROR_UNKNOWN", "unknown error"},
	[DOCA_ERROR_NOT_PERMITTED] = {"DOCA_ERROR_NOT_PERMITTED", "not permitted"},
	[DOCA_ERROR_IN_USE] = {"DOCA_ERROR_IN_USE", "in use"},
	[DOCA_ERROR_NOT_SUPPORTED] = {"DOCA_ERROR_NOT_SUPPORTED", "not supported"},
	[DOCA_ERROR_AGAIN] = {"DOCA_ERROR_AGAIN", "try again"},
	[DOCA_ERROR_INVALID_VALUE] = {"DOCA_ERROR_INVALID_VALUE", "invalid value"},
	[DOCA_ERROR_NO_MEMORY] = {"DOCA_ERROR_NO_MEMORY", "out of memory"},
	[DOCA_ERROR_INITIALIZATION] = {"DOCA_ERROR_INITIALIZATION", "initialization failed"},
	[DOCA_ERROR_TIME_OUT] = {"DOCA_ERROR_TIME_OUT", "timed out"},
	[DOCA_ERROR_SHUTDOWN] = {"DOCA_ERROR_SHUTDOWN", "shut down"},
	[DOCA_ERROR_CONNECTION_RESET] = {"DOCA_ERROR_CONNECTION_RESET", "connection reset"},
	[DOCA_ERROR_CONNECTION_ABORTED] = {"DOCA_ERROR_CONNECTION_ABORTED", "connection aborted"},
	[DOCA_ERROR_CONNECTION_INPROGRESS] = {"DOCA_ERROR_CONNECTION_INPROGRESS", "connecting"},
	[DOCA_ERROR_NOT_CONNECTED] = {"DOCA_ERROR_NOT_CONNECTED", "not connected"},
	[DOCA_ERROR_NO_LOCK] = {"DOCA_ERROR_NO_LOCK", "no lock"},
	[DOCA_ERROR_NOT_FOUND] = {"DOCA_ERROR_NOT_FOUND", "not found"},
	[DOCA_ERROR_IO_FAILED] = {"DOCA_ERROR_IO_FAILED", "I/O failed"},
	[DOCA_ERROR_BAD_STATE] = {"DOCA_ERROR_BAD_STATE", "bad state"},
	[DOCA_ERROR_UNSUPPORTED_VERSION] = {"DOCA_ERROR_UNSUPPORTED_VERSION", "unsupported version"},
	[DOCA_ERROR_OPERATING_SYSTEM] = {"DOCA_ERROR_OPERATING_SYSTEM", "operating system error"},
	[DOCA_ERROR_DRIVER] = {"DOCA_ERROR_DRIVER", "driver error"},
	[DOCA_ERROR_UNEXPECTED] = {"DOCA_ERROR_UNEXPECTED", "unexpected error"},
	[DOCA_ERROR_ALREADY_EXIST] = {"DOCA_ERROR_ALREADY_EXIST", "already exists"},
	[DOCA_ERROR_FULL] = {"DOCA_ERROR_FULL", "full"},
	[DOCA_ERROR_EMPTY] = {"DOCA_ERROR_EMPTY", "empty"},
	[DOCA_ERROR_IN_PROGRESS] = {"DOCA_ERROR_IN_PROGRESS", "in progress"},
	[DOCA_ERROR_TOO_BIG] = {"DOCA_ERROR_TOO_BIG", "too big"},
};
#define ERROR_COUNT (sizeof(errors) / sizeof(errors[0]))

const char *
doca_error_get_name(doca_error_t error)
{
	return (size_t)error < ERROR_COUNT ? errors[error].name : "DOCA_ERROR_UNKNOWN";
}

const char *
doca_error_get_descr(doca_error_t error)
{
	return (size_t)error < ERROR_COUNT ? errors[error].descr : "unknown error";
}

doca_error_t
kv_error_of(int rc)
{
	switch (-rc) {
	case 0:
		return DOCA_SUCCESS;
	case ENOENT:
		return DOCA_ERROR_NOT_FOUND;
	case EEXIST:
		return DOCA_ERROR_ALREADY_EXIST;
	case ENOSPC:
	case EDQUOT:
		return DOCA_ERROR_FULL;
	case EBUSY:
		return DOCA_ERROR_TIME_OUT; /* waited for as long as a task may */
	case EMSGSIZE:
		return DOCA_ERROR_TOO_BIG;
	case EINVAL:
		return DOCA_ERROR_INVALID_VALUE;
	case ENOTSUP:
		return DOCA_ERROR_NOT_SUPPORTED;
	case EPERM:
	case EACCES:
		return DOCA_ERROR_NOT_PERMITTED;
	case ENOMEM:
		return DOCA_ERROR_NO_MEMORY;
	case ETIMEDOUT:
		return DOCA_ERROR_TIME_OUT;
	default:
		return DOCA_ERROR_IO_FAILED;
	}
}

void
kv_say(struct kv_said *said, const char *format, ...)
{
	char line[KV_LINE_BYTES];
	uint64_t now_ns = ofs_machine_now_ns();
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	if (said != NULL && now_ns < said->until_ns && strcmp(line, said->line) == 0)
		return;
	if (said != NULL) {
		memcpy(said->line, line, sizeof(line));
		said->until_ns = now_ns + KV_SAID_NS;
	}
	fprintf(stderr, "offstage kv: %s\n", line);
}
