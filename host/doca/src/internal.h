/*
 * internal.h: what the files of this library share.
 *
 * Model: a context (io.c) owns a pool of tasks, and while a device is bound a *link* (link.c): one
 * port of the daemon, which is the connection that the daemon watches, and the driver's tasks on
 * values over it (value_io.h), which do the work. A task of this interface goes from submitted to
 * ready (flushed), then belongs to those, and when it has ended doca_pe_progress takes one a call.
 * kv_run (run.c) advances all of a context; it waits for nothing but a new connection, and for that
 * KV_AGAIN_NS at most. One thread at a time uses a context. Contexts of several threads may share a
 * device, so what a daemon says of it is atomic.
 */
#ifndef KV_INTERNAL_H
#define KV_INTERNAL_H

#include <doca_kv_nvme_kernel_dev.h>
#include <doca_kv_nvme_kernel_io.h>
#include <doca_kv_offstage.h>
#include <doca_pe.h>

#include <value_io.h>

#include <stdbool.h>
#include <sys/un.h>

#define KV_KEY_BYTES_MAX 16
#define KV_PATH_SIZE_BYTES sizeof(((struct sockaddr_un *)0)->sun_path)
#define KV_TASKS_DEFAULT 1024
#define KV_TASKS_MAX 16384
#define KV_SESSIONS_MAX 64 /* of the daemon, of one context */
#define KV_AHEAD_MAX 32    /* of them, those of values that will be retrieved */
#define KV_TIMEOUT_NS 10000000000ull
#define KV_BIND_NS 5000000000ull  /* for the daemon's answer */
#define KV_AGAIN_NS 1000000000ull /* the same where progress connects; and until it tries again */
#define KV_SAID_NS 10000000000ull /* until the same line is said again */
#define KV_LINE_BYTES 512

enum kv_op { KV_STORE = 0, KV_RETRIEVE = 1, KV_EXIST = 2, KV_OP_COUNT = 3 };

/* FREE, NEW (allocated), FLYING (submitted, not called back), OVER (called back). */
enum kv_state { KV_FREE = 0, KV_NEW = 1, KV_FLYING = 2, KV_OVER = 3 };

struct doca_task {
	struct doca_kv_io *io;
	struct doca_kv_dev *dev;
	enum kv_op op;
	enum kv_state state;
	union doca_data user_data;
	doca_error_t status;
	uint8_t key[KV_KEY_BYTES_MAX];
	uint16_t key_len;
	uint8_t do_not_overwrite;
	uint8_t must_exist;
	const struct iovec *iovecs;
	uint32_t iovcnt;
	uint32_t value_len;
	struct ofs_value_task value; /* what the driver is asked for; `user` is this task */
};

struct doca_kv_io_task_store {
	struct doca_task task;
};
struct doca_kv_io_task_retrieve {
	struct doca_task task;
};
struct doca_kv_io_task_exist {
	struct doca_task task;
};

struct doca_kv_dev {
	char path[KV_PATH_SIZE_BYTES];
	uint8_t nguid[DOCA_KV_DEV_NGUID_LEN];
	_Atomic uint64_t value_bytes_max;
	_Atomic uint64_t size_bytes;
	_Atomic bool durable; /* a store ends on the drive */
	_Atomic uint32_t bound_count;
};
struct doca_kv_nvme_kernel_dev {
	struct doca_kv_dev dev;
};
struct doca_kv_dev_create_attr {
	char path[KV_PATH_SIZE_BYTES];
	uint8_t nguid[DOCA_KV_DEV_NGUID_LEN];
};
struct doca_kv_nvme_kernel_dev_create_attr {
	struct doca_kv_dev_create_attr attr;
};

struct doca_pe {
	struct doca_ctx *contexts;
	int timer; /* the notification handle; -1: none was asked for */
};

struct doca_ctx {
	struct doca_pe *pe;
	struct doca_ctx *next; /* of the same engine */
	enum doca_ctx_states state;
	union doca_data user_data;
};

/* What a context said last. */
struct kv_said {
	char line[KV_LINE_BYTES];
	uint64_t until_ns; /* before this it does not say it again */
};

struct kv_link {
	int connection; /* closed with the port; the daemon ends the port when it closes */
	struct ofs_driver *driver;
	struct ofs_value_io *values;
};

typedef void (*kv_callback)(struct doca_task *task, union doca_data task_user_data,
	union doca_data ctx_user_data);

struct doca_kv_io {
	struct doca_ctx ctx;
	uint32_t num_tasks;
	kv_callback completed[KV_OP_COUNT];
	kv_callback failed[KV_OP_COUNT];
	struct doca_task *tasks;    /* [num_tasks], until it is started again or destroyed */
	struct ofs_task_queue free; /* of them, the one freed first at its head */
	uint32_t task_count;        /* allocated */
	uint32_t flying_count;
	struct doca_kv_dev *dev; /* NULL: none is bound */
	struct kv_link *link;    /* NULL: not connected */
	uint64_t again_ns;       /* no daemon answered: until it is tried again */
	struct kv_said said;
	struct ofs_task_queue submitted, ready, ended; /* of the tasks' values */
};
struct doca_kv_nvme_kernel_io {
	struct doca_kv_io io;
};

/* One line on standard error, unless it is what was `said` last and not long ago; NULL: always. */
void kv_say(struct kv_said *said, const char *format, ...) __attribute__((format(printf, 2, 3)));
doca_error_t kv_error_of(int rc);

/* ---- link.c ---- */
/* Asks for the volume without a port: fills its limits. 0 or -errno, and a line that says why. */
int kv_look(struct doca_kv_dev *dev);
/* A port of the device's volume, whose limits it fills. 0 or -errno, and a line; -ETIMEDOUT: the
 * daemon does not answer within so long. */
int kv_link_open(struct kv_link **out, struct doca_kv_dev *dev, uint64_t timeout_ns,
	struct kv_said *said);
/* Whether the daemon has ended it. */
bool kv_link_closed(const struct kv_link *link);
void kv_link_close(struct kv_link *link);

/* ---- run.c ---- */
void kv_run(struct doca_kv_io *io);
/* Waits up to so long for the driver's tasks, and takes those that have ended. 0, or the error of
 * the connection, which is closed. */
int kv_take_ended(struct doca_kv_io *io, uint64_t timeout_ns);

/* ---- io.c ---- */
doca_error_t kv_io_start(struct doca_kv_io *io);
doca_error_t kv_io_stop(struct doca_kv_io *io);
doca_error_t kv_submit(struct doca_task *task, bool flush);
void kv_flush(struct doca_kv_io *io);
void kv_free(struct doca_task *task);

static inline struct doca_kv_io *
kv_io_of(struct doca_ctx *ctx)
{
	return (struct doca_kv_io *)ctx; /* its first member, and there is no other kind */
}

#endif
