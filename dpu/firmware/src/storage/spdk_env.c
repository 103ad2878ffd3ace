/*
 * The environment: DPDK's memory and SPDK's log, once in a process.
 *
 * Model: opening the first storage starts it, on that storage's link thread, whose affinity DPDK
 * changes; it runs until the process ends. The start also decides whether its memory is in huge
 * pages. A forked child shares that memory with its parent and is refused. A lock guards it: any
 * thread may call.
 */
#include "spdk.h"
#include "spdk_parts.h"

#include "dma.h"

#include <pthread.h>
#include <sched.h>
#include <spdk/env.h>
#include <spdk/log.h>
#include <spdk/version.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ENV_LOG_BYTES = 160, ENV_TEXT_BYTES = 640 };

static pthread_mutex_t env_mutex = PTHREAD_MUTEX_INITIALIZER;
static pid_t env_pid; /* 0: not up */
static bool env_huge;

static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static char log_line[ENV_LOG_BYTES];

uint32_t
ofs_spdk_version(void)
{
	return OFS_ABI_VERSION;
}

const char *
ofs_spdk_release(void)
{
	static char text[16];

	snprintf(text, sizeof(text), "%d.%02d", SPDK_VERSION_MAJOR, SPDK_VERSION_MINOR);
	return text;
}

/* Skips "[who, with whom] [state] ", the start of SPDK's lines about a fabric. */
static const char *
skip_brackets(const char *text)
{
	const char *end;

	while (*text == '[' && (end = strstr(text, "] ")) != NULL)
		text = end + 2;
	return text;
}

static void __attribute__((format(printf, 5, 0)))
keep_log(int level, const char *file, const int line, const char *func, const char *format,
	va_list arguments)
{
	char text[ENV_TEXT_BYTES];

	(void)file;
	(void)line;
	(void)func;
	if (level > SPDK_LOG_ERROR || level < 0)
		return;
	pthread_mutex_lock(&log_mutex);
	if (log_line[0] == '\0') {
		vsnprintf(text, sizeof(text), format, arguments);
		snprintf(log_line, sizeof(log_line), "%.159s", skip_brackets(text));
		for (char *at = log_line; *at != '\0'; at++)
			if (*at == '\n' || *at == ';')
				*at = *at == '\n' && at[1] == '\0' ? '\0' : ',';
	}
	pthread_mutex_unlock(&log_mutex);
}

static void
open_log(void)
{
	spdk_log_set_level(SPDK_LOG_ERROR);
	spdk_log_set_print_level(SPDK_LOG_DISABLED);
	spdk_log_open(keep_log);
}

void
ofs_spdk_log_begin(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, open_log);
	pthread_mutex_lock(&log_mutex);
	log_line[0] = '\0';
	pthread_mutex_unlock(&log_mutex);
}

void
ofs_spdk_log_read(char *line, size_t size_bytes)
{
	pthread_mutex_lock(&log_mutex);
	snprintf(line, size_bytes, "%s", log_line);
	pthread_mutex_unlock(&log_mutex);
}

static uint32_t
free_huge_pages(void)
{
	FILE *file = fopen("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "re");
	unsigned int count = 0;

	if (file == NULL)
		return 0;
	if (fscanf(file, "%u", &count) != 1)
		count = 0;
	fclose(file);
	return count;
}

static int
start(bool huge)
{
	struct spdk_env_opts opts = {.opts_size = sizeof(opts)};
	char mask[16] = "0x1";
	cpu_set_t affinity;
	int rc;

	if (sched_getaffinity(0, sizeof(affinity), &affinity) != 0)
		return -errno;
	for (int core = 0; core < CPU_SETSIZE; core++) {
		if (CPU_ISSET(core, &affinity)) {
			snprintf(mask, sizeof(mask), "[%d]", core);
			break;
		}
	}
	spdk_env_opts_init(&opts);
	opts.name = "offstage";
	opts.core_mask = mask; /* of a core we may use; DPDK wants one and pins us to it */
	opts.shm_id = -1;
	opts.mem_size = SPDK_ENV_MIB;
	opts.no_huge = !huge;
	opts.hugepage_single_segments = huge; /* vfio-user passes each page as a file */
	opts.env_context = "--log-level=*:1";
	rc = spdk_env_init(&opts);
	(void)sched_setaffinity(0, sizeof(affinity), &affinity);
	return rc;
}

int
ofs_spdk_env_begin(uint32_t huge, char *why)
{
	int rc = 0;

	pthread_mutex_lock(&env_mutex);
	if (env_pid == 0) {
		env_huge = huge != OFS_DMA_HUGE_OFF && free_huge_pages() >= SPDK_ENV_HUGE_PAGES;
		rc = start(env_huge);
		if (rc == 0)
			env_pid = getpid();
		else
			snprintf(why, SPDK_WHY_BYTES,
				"SPDK's environment does not start (%s); set memory.huge = \"off\", or look at "
				"`offstage doctor`",
				strerror(-rc));
	} else if (env_pid != getpid()) {
		rc = -EPERM;
		snprintf(why, SPDK_WHY_BYTES,
			"this process was forked from one that uses SPDK; start a new process instead");
	}
	pthread_mutex_unlock(&env_mutex);
	return rc < 0 ? rc : 0;
}

int
ofs_spdk_is_huge(void)
{
	return env_huge;
}

void *
ofs_spdk_memory_alloc(uint64_t size_bytes)
{
	return env_pid == 0 ? NULL : spdk_dma_zmalloc(size_bytes, 1 << 12, NULL);
}

void
ofs_spdk_memory_free(void *memory)
{
	spdk_dma_free(memory);
}
