/*
 * value_io.h: what a host does with values, as tasks.
 *
 * Model: one `ofs_value_io` over one driver, whose caller may have fetches and puts in flight
 * beside it; both belong to one thread, but any thread submits tasks to it. A *task* is one
 * operation on one value. From its submission until `run` or `serve` returns it, task and memory
 * belong to the io, which writes nothing to either after that. Tasks end in any order; how many are
 * submitted is the caller's to bound.
 *
 * A store or retrieve opens a session, as many at once as the io may have; others wait for theirs.
 * Pieces of a value are blocks, and those of one layer in a row are one call of the driver. A whole
 * one that lies in one part of the task's memory is read into it and written out of it, any other
 * is copied once more. A value that is *held* has a session too, so that its blocks stay, and can
 * be announced to the prefetch. The oldest holds end where other tasks need their sessions.
 *
 * A list has the keys of a volume, as many as fit, as NVMe's Key Value commands lay them out: their
 * number (u32), and of each its length (u16) and bytes, zeros behind it up to a multiple of 4. It
 * begins with the key asked for, or where that would stand, in an order of the daemon's own.
 *
 * A daemon with an archive answers -EAGAIN of a value that is being brought back, and of a delete
 * that it has yet to note: the task is asked again after a pause, which grows, until its deadline
 * or until the daemon says otherwise. So is a delete whose copies the drive has yet to wipe; after
 * `timeout_ns` of that it ends with -ETIMEDOUT, and the value may come back at a restart.
 *
 * If the connection is lost every task ends with -EPIPE; then nothing but a close is left to do.
 */
#ifndef OFS_VALUE_IO_H
#define OFS_VALUE_IO_H

#include "driver.h"

#include <sys/uio.h>

/* cdef: order 10 */
#ifdef OFS_CDEF /* of a header that Python does not read */
/* cdef: begin */
struct iovec {
	void *iov_base;
	size_t iov_len;
};
/* cdef: end */
#endif
/* cdef: begin */
#define OFS_TASK_KEEP 0x1  /* STORE: OFS_VALUE_KEEP */
#define OFS_TASK_OVER 0x2  /* STORE: OFS_VALUE_OVER */
#define OFS_TASK_WHOLE 0x4 /* RETRIEVE, EXIST: -EMSGSIZE unless the value is `length` long */
#define OFS_TASK_PARTS 0x8 /* RETRIEVE: first pieces of all such tasks come before their second */
#define OFS_TASK_HOLD 0x10 /* RETRIEVE: reads nothing, holds the value; -EBUSY: no session */
#define OFS_TASK_ONCE 0x20 /* HOLD: until a retrieve of the key ends or a store begins, at most */
#define OFS_TASK_DURABLE 0x40 /* STORE: OFS_VALUE_DURABLE */
#define OFS_TASK_FIRST 0x80   /* LIST: from the first key on, whatever `key` is */

#define OFS_LIST_HEAD_BYTES 4

enum ofs_task_state {
	OFS_TASK_IDLE = 0,      /* the caller's */
	OFS_TASK_READY = 1,     /* its command has not been sent */
	OFS_TASK_ASKED = 2,     /* sent, and not answered */
	OFS_TASK_MOVING = 3,    /* its session is open, and its pieces move */
	OFS_TASK_COMMITTING = 4 /* a store, all of whose pieces are acknowledged */
};

struct ofs_value_task {
	struct ofs_key key;         /* in the tenant; see ofs_value_key */
	uint32_t verb;              /* enum ofs_value_verb: EXIST, RETRIEVE, STORE, DELETE or LIST */
	uint32_t flags;             /* OFS_TASK_* */
	uint64_t length;            /* of the value to store, or of the memory to read into */
	const struct iovec *iovecs; /* the memory: at least `length` bytes */
	uint32_t iovec_count;
	uint32_t name_bytes;  /* STORE: of the name; 0: it has none, and no LIST tells it */
	struct ofs_key name;  /* STORE: the key in its volume. LIST: the volume */
	uint32_t committed;   /* STORE, of which all is filled: it may be committed */
	uint64_t filled;      /* STORE: the bytes before this may be sent; grows by ofs_value_io_fill */
	uint64_t timeout_ns;  /* from the submission on, then -ETIMEDOUT; 0: none. Not of a STORE */
	uint64_t hold_ns;     /* HOLD: for so long */
	uint64_t due_ns;      /* HOLD: it will be read in so long, */
	uint32_t probability; /* with this chance in 65535; 0: nothing is said of that */
	void *user;           /* whatever it is to the caller */
	struct iovec part;    /* memory in one part, if `iovecs` points here: ofs_value_task_set */
	/* out */
	int32_t rc;                   /* 0 or -errno */
	uint64_t value_length;        /* of the value that is there; 0: none. LIST: keys listed */
	uint64_t landed;              /* RETRIEVE: the bytes before this have come. LIST: its bytes */
	uint32_t ends[OFS_END_COUNT]; /* RETRIEVE: its pieces, by how they ended */
	/* the io's */
	uint32_t state;
	uint32_t session;
	uint32_t piece_count;
	uint32_t pieces_begun;
	uint32_t pieces_ended;
	uint32_t dropped;
	struct ofs_key chunk;
	uint64_t deadline_ns;
	uint64_t patience_ns; /* when waiting for a session, a commit or the drive ends */
	uint64_t pause_ns;    /* since the daemon said "not yet"; 0: it did not */
	uint64_t again_ns;    /* when it is asked again */
	uint64_t home; /* LIST, DELETE: `length` of its next ask; LIST: `key` is that one's key */
	struct ofs_value_task *next;
};

struct ofs_value_io;

/*
 * `sessions_max`: of this io at once. `timeout_ns`: in which the daemon answers, or is lost; and
 * how long a task waits for a session of the daemon (-EBUSY). 0, -ENOMEM, -ENOTSUP: this port takes
 * no values. The driver stays the caller's, who closes it after the io.
 */
int ofs_value_io_open(struct ofs_value_io **out, struct ofs_driver *driver, uint32_t sessions_max,
	uint64_t timeout_ns);
/* Nothing of a task is used after it; sessions end with the port. */
void ofs_value_io_close(struct ofs_value_io *io);
/*
 * What most tasks need, into one of zeros. `key`: 16 bytes. `memory`: `length` bytes in one part,
 * or NULL. `filled`: of a store; below 0, all of it, and it is committed. Returns the address.
 */
uint64_t ofs_value_task_set(struct ofs_value_task *task, const uint8_t *key, uint32_t verb,
	uint32_t flags, void *memory, uint64_t length, int64_t filled, uint64_t timeout_ns);
/* Any thread: takes over a task, which begins with the next turn. -EINVAL: a verb that no task has,
 * or no memory for its length; a LIST needs OFS_LIST_HEAD_BYTES. */
int ofs_value_io_submit(struct ofs_value_io *io, struct ofs_value_task *task);
/* More of a store's memory is filled, or (`committed`) all that there will be. */
void ofs_value_io_fill(struct ofs_value_io *io, struct ofs_value_task *task, uint64_t filled,
	int committed);
/* A store that was not committed ends with -ECANCELED, when none of its pieces is in flight. */
void ofs_value_io_drop(struct ofs_value_io *io, struct ofs_value_task *task);
/* Ends the hold of a key now. */
void ofs_value_io_release(struct ofs_value_io *io, const struct ofs_key *key);
/*
 * Moves everything on, and waits up to `timeout_ns` for a task to end, or for one of PARTS to land
 * more; not where nothing can happen by itself. Writes at most `max` ended tasks and returns how
 * many. -EPIPE, -ETIMEDOUT,
 * ...: the connection is lost, and every task has been returned.
 */
int ofs_value_io_run(struct ofs_value_io *io, uint64_t timeout_ns, struct ofs_value_task **ended,
	uint32_t max);
/*
 * As run, for a thread that does nothing else: where nothing can happen by itself it sleeps until a
 * task is submitted, and before it tells of ends it moves on what needs no wait. Returns 0 too when
 * it was woken.
 */
int ofs_value_io_serve(struct ofs_value_io *io, uint64_t timeout_ns, struct ofs_value_task **ended,
	uint32_t max);
/* Any thread: ends the serve under way, or else the next one. */
void ofs_value_io_wake(struct ofs_value_io *io);
/* Tasks that have not been returned; and values that are held. */
uint32_t ofs_value_io_count(const struct ofs_value_io *io);
uint32_t ofs_value_io_held(const struct ofs_value_io *io);
/* Whether run has something to do by itself: not where stores wait to be filled, and holds. */
int ofs_value_io_busy(const struct ofs_value_io *io);
/* cdef: end */

/* Tasks in a row: the io's, or its caller's before it submits them and after they have ended. */
struct ofs_task_queue {
	struct ofs_value_task *head;
	struct ofs_value_task *tail;
};

static inline void
ofs_task_push(struct ofs_task_queue *queue, struct ofs_value_task *task)
{
	task->next = NULL;
	if (queue->head == NULL)
		queue->head = task;
	else
		queue->tail->next = task;
	queue->tail = task;
}

static inline struct ofs_value_task *
ofs_task_pop(struct ofs_task_queue *queue)
{
	struct ofs_value_task *task = queue->head;

	if (task != NULL)
		queue->head = task->next;
	return task;
}

#endif
