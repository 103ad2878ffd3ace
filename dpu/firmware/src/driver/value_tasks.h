/*
 * driver/value_tasks.h: what the files of a value_io share; see value_io.h.
 *
 * Model: a task is in one place: in a queue, in a batch (a command in flight names it), or with its
 * caller. value_io.c has queues and turns, value_commands.c batches, value_pieces.c what moves,
 * value_inbox.c what was submitted and not taken.
 */
#ifndef OFS_VALUE_TASKS_H
#define OFS_VALUE_TASKS_H

#include "driver/internal.h"
#include "value_io.h"

#include <pthread.h>
#include <stdatomic.h>

#define OFS_TASK_BATCH 64    /* values of a command */
#define OFS_TASK_BATCHES 4   /* commands in flight */
#define OFS_TASK_RUNS 64     /* of pieces of all tasks, in flight */
#define OFS_TASK_RUN 16      /* pieces of one of them */
#define OFS_TASK_OVER_MIN 16 /* sessions to end that are worth a command while tasks move */

/*
 * Pieces of a value in a row, on their way in one call of the driver: blocks of one layer. All lie
 * in the task's memory, but for the last one, which may be in `row`.
 */
struct ofs_task_run {
	struct ofs_value_task *task; /* NULL: the entry is free */
	uint64_t ticket;
	uint64_t offset; /* in the value */
	uint32_t count;
	uint32_t direct_count; /* of these in the task's memory */
	uint8_t *row;          /* of a payload */
	struct ofs_fetch fetch;
	struct ofs_put put;
	struct ofs_key keys[OFS_TASK_RUN];
	uint32_t ordinals[OFS_TASK_RUN];
	uint32_t lengths[OFS_TASK_RUN];
	int32_t rcs[OFS_TASK_RUN];
	uint8_t ends[OFS_TASK_RUN];
};

/* A command in flight, and the task of each of its asks; NULL: none, or it has been given up. */
struct ofs_task_batch {
	bool used;
	uint64_t ticket;
	struct ofs_asking asking;
	struct ofs_value_task *tasks[OFS_TASK_BATCH];
	struct ofs_value_ask asks[OFS_TASK_BATCH];
	struct ofs_value_told told[OFS_TASK_BATCH];
};

struct ofs_task_hold {
	struct ofs_key key;
	uint32_t session;
	bool once;
	uint64_t until_ns;
};

/* What other threads hand over; see value_inbox.c. */
struct ofs_task_inbox {
	bool opened;
	bool resting; /* the io's thread, and nobody has woken it */
	atomic_bool woken;
	atomic_uint count;
	struct ofs_task_queue tasks;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
};

struct ofs_value_io {
	struct ofs_driver *driver;
	struct ofs_task_inbox inbox;
	uint32_t payload_size_bytes;
	uint32_t layer_count;
	uint32_t sessions_max;
	uint64_t timeout_ns;
	int lost;                    /* 0, or why the connection is no more */
	bool news;                   /* a task of parts has landed more */
	struct ofs_task_queue asks;  /* READY, and opens no session */
	struct ofs_task_queue opens; /* READY, and waits for a session */
	struct ofs_task_queue later; /* READY, and to be asked again after a pause */
	struct ofs_task_queue moving, committing, ended;
	uint32_t task_count;
	uint64_t deadline_ns;    /* the earliest of a task */
	uint64_t busy_until_ns;  /* before that no session is asked for, */
	uint64_t commit_due_ns;  /* and no commit sent again */
	uint64_t again_ns;       /* the earliest of `later` */
	uint64_t holds_until_ns; /* no hold ends before that by itself */
	uint32_t session_count;  /* open, those of holds and those in `over` included */
	uint32_t opening_count;  /* that batches in flight may open */
	uint32_t over_count, hold_count;
	uint32_t *over;              /* [sessions_max] sessions that are to end */
	struct ofs_task_hold *holds; /* [sessions_max], the oldest first */
	struct ofs_task_batch batches[OFS_TASK_BATCHES];
	uint32_t run_max, put_max;
	uint32_t flying_count;     /* runs, */
	uint32_t puts_flying;      /* and pieces of those that are puts */
	struct ofs_task_run *runs; /* [run_max] */
	uint8_t *rows;             /* [run_max] payloads */
};

/* value_inbox.c. 0 or -errno. */
int ofs_task_inbox_open(struct ofs_task_inbox *inbox);
void ofs_task_inbox_close(struct ofs_task_inbox *inbox);
/* Any thread. */
void ofs_task_inbox_put(struct ofs_task_inbox *inbox, struct ofs_value_task *task);
/* The io's thread: all that is there. */
struct ofs_task_queue ofs_task_inbox_take(struct ofs_task_inbox *inbox);
uint32_t ofs_task_inbox_count(const struct ofs_task_inbox *inbox);
/* Whether it was woken since it last asked. */
bool ofs_task_inbox_woken(struct ofs_task_inbox *inbox);
/* Sleeps until a task is there or it is woken, for so long of the machine's time at most. */
void ofs_task_inbox_rest(struct ofs_task_inbox *inbox, uint64_t rest_ns);

/* value_holds.c: a task that is in no queue has ended. */
void ofs_task_finish(struct ofs_value_io *io, struct ofs_value_task *task, int rc);
/* A session is to end. */
void ofs_task_over(struct ofs_value_io *io, uint32_t session);
/* Holds whose time is over. */
void ofs_task_end_holds_until(struct ofs_value_io *io, uint64_t now_ns);
/* Holds of a key; `once`: those that a retrieve ends. */
void ofs_task_end_holds_of(struct ofs_value_io *io, const struct ofs_key *key, bool once);
/* So many of the oldest holds end. */
void ofs_task_yield(struct ofs_value_io *io, uint32_t count);
/* A session that was opened for a task that holds. */
void ofs_task_hold(struct ofs_value_io *io, struct ofs_value_task *task);

/* value_commands.c: tasks whose pause is over wait for their command again. */
void ofs_task_resume(struct ofs_value_io *io);
/* Sends what it can. 0, or the error of the connection. */
int ofs_task_commands_begin(struct ofs_value_io *io);
/* For how many tasks a session may be asked for; and for how many once `yields` holds end. */
uint32_t ofs_task_room(const struct ofs_value_io *io, uint32_t *yields);
/* Takes the answer of a command in flight. */
int ofs_task_batch_end(struct ofs_value_io *io, struct ofs_task_batch *batch);

/* value_lists.c: the asks of a LIST, which is alone in its command: how many. */
uint32_t ofs_task_list(const struct ofs_value_io *io, const struct ofs_value_task *task,
	struct ofs_value_ask *asks);
/* Takes its answer; the task has ended, or is to be asked again. */
void ofs_task_listed(struct ofs_value_io *io, struct ofs_value_task *task,
	const struct ofs_value_told *told, uint32_t count);

/* value_pieces.c: the task's value is of this chunk, and so many bytes long. */
void ofs_task_cut(const struct ofs_value_io *io, struct ofs_value_task *task,
	const struct ofs_key *chunk, uint64_t value_length);
/* Begins runs while there is room. 0, or the error of the connection. */
int ofs_task_runs_begin(struct ofs_value_io *io);
/* The task whose pieces are begun next; NULL: none may be. */
struct ofs_value_task *ofs_task_next(const struct ofs_value_io *io);
int ofs_task_run_end(struct ofs_value_io *io, struct ofs_task_run *run);
/* Copies `size` bytes between the task's memory at `offset` and `row`; `out`: into the memory. */
void ofs_task_copy(const struct ofs_value_task *task, uint64_t offset, uint8_t *row, uint64_t size,
	bool out);
/* Nothing of the task's memory is used from here on; NULL: of any task's. */
void ofs_task_runs_cancel(struct ofs_value_io *io, const struct ofs_value_task *task);

#endif
