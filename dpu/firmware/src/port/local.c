/* Ports whose host is in this process: found by number, referenced by both ends; see local.h. */
#include "port/local.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define LOCALS_MAX 256

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ofs_local *locals[LOCALS_MAX]; /* under mutex */
static uint64_t number_last;                 /* under mutex */

/* Releases one holder's reference; the last one frees. Under mutex. */
static void
drop(struct ofs_local *local)
{
	if (--local->holder_count == 0) {
		ofs_dma_free(&local->memory);
		free(local);
	}
}

int
ofs_local_open(struct ofs_local **out, struct ofs_region *region,
	const struct ofs_dma_config *config, uint64_t size_bytes)
{
	struct ofs_local *local = calloc(1, sizeof(*local));
	uint32_t at = 0;
	int rc;

	if (local == NULL)
		return -ENOMEM;
	local->region = region;
	local->holder_count = 1;
	rc = ofs_dma_alloc(&local->memory, config, size_bytes, NULL);
	if (rc != 0) {
		free(local);
		return rc;
	}
	pthread_mutex_lock(&mutex);
	while (at < LOCALS_MAX && locals[at] != NULL)
		at++;
	if (at < LOCALS_MAX) {
		local->number = ++number_last;
		locals[at] = local;
	} else {
		drop(local);
	}
	pthread_mutex_unlock(&mutex);
	*out = local;
	return at < LOCALS_MAX ? 0 : -ENOSPC;
}

void
ofs_local_withdraw(struct ofs_local *local)
{
	pthread_mutex_lock(&mutex);
	for (uint32_t i = 0; i < LOCALS_MAX; i++)
		if (locals[i] == local)
			locals[i] = NULL;
	drop(local);
	pthread_mutex_unlock(&mutex);
}

struct ofs_local *
ofs_local_find(const struct ofs_blob_local *content)
{
	struct ofs_local *found = NULL;

	if (content->process != (uint64_t)getpid())
		return NULL;
	pthread_mutex_lock(&mutex);
	for (uint32_t i = 0; i < LOCALS_MAX && found == NULL; i++)
		if (locals[i] != NULL && locals[i]->number == content->number)
			found = locals[i];
	if (found != NULL)
		found->holder_count++;
	pthread_mutex_unlock(&mutex);
	return found;
}

void
ofs_local_release(struct ofs_local *local)
{
	pthread_mutex_lock(&mutex);
	drop(local);
	pthread_mutex_unlock(&mutex);
}

void
ofs_local_write_blob(const struct ofs_local *local, const char *fabric,
	struct ofs_attachment *attachment)
{
	struct ofs_blob_local content = {.process = (uint64_t)getpid(), .number = local->number};

	*attachment = (struct ofs_attachment){0};
	ofs_blob_write(attachment, fabric, &content, sizeof(content));
}
