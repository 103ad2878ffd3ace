/*
 * driver/internal.h: what the files of the host driver share.
 *
 * Model: the driver's one thread owns all of it. Tables are sized at open by the port's header;
 * nothing is allocated after. A command takes one payload area, whose index identifies it. A *call*
 * is one fetch, put or question about values of the caller, with a list of its commands.
 * ofs_call_turn advances a call and never waits: it processes answers, sends (again) what is due,
 * and ends a call whose deadline has passed.
 */
#ifndef OFS_DRIVER_INTERNAL_H
#define OFS_DRIVER_INTERNAL_H

#include "driver.h"
#include "granules.h"

#include <stdbool.h>

#define OFS_READ_ATTEMPTS_MAX 8 /* a slot that changes more often is not worth it */
#define OFS_BACKOFF_NS_MIN 20000ull
#define OFS_BACKOFF_NS_MAX 1000000ull
#define OFS_COMMAND_TIMEOUT_NS 2000000000ull
#define OFS_CQE_BATCH 32
#define OFS_NEVER_NS UINT64_MAX
#define OFS_WANTED (-EINPROGRESS) /* the rcs of a demand or block that has not ended */

/* One block that is to be looked up and read. */
struct ofs_block_read {
	struct ofs_key key;
	uint8_t *target;
	uint32_t demand; /* index in the fetch */
	uint32_t slot;   /* OFS_NONE: not in the directory */
	uint32_t generation;
	uint32_t cause;    /* out: enum ofs_cause, of a block that was read */
	uint32_t length;   /* out */
	uint64_t checksum; /* out: XXH3-64 of what was copied */
	uint64_t stage_ns; /* if timed: when the stage began */
	int32_t rc;        /* out: 0; -ENOENT no slot; -ESTALE the slot changed; -EBADMSG bad bytes */
	bool remembered;   /* slot and generation were not just read from the directory */
	/* For granules, if `granules` is not 0: granule n of those wanted goes to target + rows[n] *
	 * granule_stride_bytes, and its checksum to sums[n]. */
	uint32_t granules;
	const uint32_t *rows;
	uint64_t granule_stride_bytes;
	uint64_t *sums;
	_Alignas(64) struct ofs_directory_entry buckets[2][OFS_BUCKET_ENTRIES];
	struct ofs_trailer trailer;
	struct ofs_granule_table table;
};

/* The slot of a block when a read of it last succeeded; see remember.c. */
struct ofs_remembered {
	struct ofs_key key;
	uint32_t slot;
	uint32_t generation; /* 0: the entry is empty */
};

/* One payload area, and the command that was built in it. */
struct ofs_pending {
	struct ofs_sqe sqe;
	struct ofs_cqe cqe;
	uint64_t due_ns;   /* when to send it again, unless it is in flight */
	uint64_t pause_ns; /* the pause before the next retry */
	uint32_t next;     /* next command of the same call; OFS_NONE: the last */
	uint32_t put_slot; /* OFS_NONE: none */
	uint32_t taken;    /* results processed */
	uint32_t first;    /* demands or blocks of the call: [first, first + count) */
	uint32_t count;
	bool used;
	bool flying;    /* sent, and not completed */
	bool done;      /* `cqe` is its completion, not yet processed */
	bool landed;    /* `cqe` reports some results, not yet processed */
	bool abandoned; /* no call waits; the DPU may still use its memory */
	bool ask_again; /* of a fetch: the next STEP requests what is still wanted */
};

/* Whose calls: each side has as many as the port has entries, and hears of its own alone. */
enum ofs_call_side { OFS_CALLS_HOST = 0, OFS_CALLS_VALUES = 1, OFS_CALLS_SIDES = 2 };

enum ofs_call_state { OFS_CALL_FREE = 0, OFS_CALL_RUNNING = 1, OFS_CALL_ENDED = 2 };

struct ofs_driver;
struct ofs_call;

/* What a turn does with a running call, by its kind. */
struct ofs_call_ops {
	/* Begins commands while there is room. -errno: no more can be begun. */
	int (*begin_more)(struct ofs_driver *driver, struct ofs_call *call);
	/*
	 * A command was answered, wholly or (of a fetch) in part, or is due again. 1: the command has
	 * ended; 0: it continues; -errno: the command has failed.
	 */
	int (*answered)(struct ofs_driver *driver, struct ofs_call *call, uint32_t payload_index);
	int (*due)(struct ofs_driver *driver, struct ofs_call *call, uint32_t payload_index);
	/* Ends everything in [first, first + count) that has not ended with `rc`. */
	void (*fail)(struct ofs_driver *driver, struct ofs_call *call, uint32_t first, uint32_t count,
		int rc);
};

/* One fetch, put or question about values of the caller. */
struct ofs_call {
	enum ofs_call_state state;
	uint32_t generation; /* of this table entry: the ticket's upper half */
	const struct ofs_call_ops *ops;
	/* of its kind */
	struct ofs_fetch *fetch;
	const struct ofs_put *put;
	const struct ofs_asking *asking;
	uint64_t deadline_ns;
	uint64_t stall_begin_ns;      /* 0: no block of it was ever waited for */
	uint64_t stall_begin_copy_ns; /* copied until then */
	uint32_t count;               /* demands or blocks */
	uint32_t begun;               /* of them, those whose command has been built */
	uint32_t commands;            /* first payload area; OFS_NONE: none */
	int rc;                       /* the first error */
	bool owes_step;               /* of a fetch: scores without a demand are sent as a STEP too */
	bool reported;                /* by poll */
};

struct ofs_driver {
	struct ofs_fabric *fabric;
	struct ofs_driver_stats stats;
	struct ofs_score_limits limits;
	struct ofs_histogram stages[OFS_STAGE_COUNT];
	bool stages_on;
	bool stages_all;
	uint32_t stage_turns[OFS_STAGE_COUNT]; /* of those that begin there, since the last timed */
	uint64_t user_last;
	struct ofs_pending *pending; /* [entry_count] */
	uint32_t *free_payloads;     /* [entry_count], a stack */
	uint32_t free_payload_count;
	uint32_t *free_put_slots; /* [put_slot_count], a stack */
	uint32_t free_put_slot_count;
	uint32_t flying_count;  /* commands, abandoned ones included */
	struct ofs_call *calls; /* [OFS_CALLS_SIDES][entry_count] */
	uint32_t *running;      /* [OFS_CALLS_SIDES * entry_count] in the order they began */
	uint32_t running_count;
	struct ofs_block_read *reads; /* [demand_max] of the call that is reading */
	bool reads_registered;
	struct ofs_remembered *remembered; /* a table; NULL: the directory is local */
	uint32_t remembered_mask;
	uint32_t *asked;   /* [entry_count][demand_max] demands of a STEP that retries */
	uint8_t *attempts; /* [entry_count][demand_max] failed reads, by demand of a piece */
};

static inline uint64_t
ofs_driver_now_ns(const struct ofs_driver *driver)
{
	return driver->fabric->ops->now_ns(driver->fabric);
}

/* ---- stage timers (stages.c) ---- */
/* A command or read begins with `stage`: returns now if it is one of those timed, else 0. */
uint64_t ofs_driver_stage_begin(struct ofs_driver *driver, enum ofs_stage stage);
/* What began at `from_ns` ends now. Returns now; 0 if it is not timed (`from_ns` 0). */
uint64_t ofs_driver_stage_end(struct ofs_driver *driver, enum ofs_stage stage, uint64_t from_ns);

/* ---- commands (command.c) ---- */
/* A free payload area, or OFS_NONE. */
uint32_t ofs_command_take(struct ofs_driver *driver);
/* Sends the sqe of the area under a new number; -EAGAIN the ring is full, -EPIPE. */
int ofs_command_send(struct ofs_driver *driver, uint32_t payload_index);
/* Drops a command: its area is freed now, or when the DPU has answered. */
void ofs_command_drop(struct ofs_driver *driver, uint32_t payload_index);
/* Processes all completions; returns how many were for the driver's commands. */
uint32_t ofs_command_collect(struct ofs_driver *driver);

/* ---- calls (call.c) ---- */
/* Starts a call, or NULL: all of the side are in use. */
struct ofs_call *ofs_call_open(struct ofs_driver *driver, enum ofs_call_side side,
	const struct ofs_call_ops *ops, uint32_t count, uint64_t timeout_ns, uint64_t *ticket);
/* As ofs_driver_poll, of the calls of one side; those of the other advance too. */
int ofs_calls_poll(struct ofs_driver *driver, enum ofs_call_side side, uint64_t timeout_ns,
	uint64_t *tickets, uint32_t max);
/* Advances every call; true if anything happened. */
bool ofs_calls_turn(struct ofs_driver *driver);
/* Waits until a turn may have something to do. 0; -ETIMEDOUT at `until_ns`; else every call has
 * ended with the error. */
int ofs_calls_wait(struct ofs_driver *driver, uint64_t until_ns);
/* Waits for its end. -EBADF: no such call, or of the other kind. */
int ofs_call_end(struct ofs_driver *driver, uint64_t ticket, const struct ofs_call_ops *ops);
/* Ends it immediately, with -ETIMEDOUT if it has not ended, and frees it. -EBADF as above. */
int ofs_call_cancel(struct ofs_driver *driver, uint64_t ticket, const struct ofs_call_ops *ops);
/* The command in this area belongs to the call from here on. */
void ofs_call_add(struct ofs_driver *driver, struct ofs_call *call, uint32_t payload_index);
/* Sends a command of a call; retries later if the ring is full. 0, -EPIPE. */
int ofs_call_send(struct ofs_driver *driver, uint32_t payload_index);
/* Schedules a retry after its pause, which then grows. */
void ofs_call_pause(struct ofs_driver *driver, uint32_t payload_index);

/* ---- fetches (fetch.c, fetch_piece.c), puts (put.c) and commands on values (values.c) ---- */
/* As those of driver.h, for a side. */
int ofs_fetch_begin(struct ofs_driver *driver, enum ofs_call_side side, struct ofs_fetch *fetch,
	uint64_t *ticket);
int ofs_put_begin(struct ofs_driver *driver, enum ofs_call_side side, const struct ofs_put *put,
	uint64_t *ticket);
int ofs_ask_begin(struct ofs_driver *driver, enum ofs_call_side side,
	const struct ofs_asking *asking, uint64_t *ticket);
/* 0; -ETIMEDOUT: of those not told nothing is known; -EPIPE; -EINVAL: no such verb; the same rc is
 * then in `told` of each that was not answered. -ENOTSUP, of the begin: a command of this port has
 * no room for a value. */
int ofs_ask_end(struct ofs_driver *driver, uint64_t ticket);
/* What was asked may be done all the same: a session that it opens is nobody's. */
int ofs_ask_cancel(struct ofs_driver *driver, uint64_t ticket);
extern const struct ofs_call_ops ofs_fetch_ops;
extern const struct ofs_call_ops ofs_put_ops;

/* ---- commands without a payload (driver.c) ---- */
/* Takes an area, sends `sqe` in it, and waits: the rc of its completion, -ETIMEDOUT, -EPIPE. */
int ofs_command_run(struct ofs_driver *driver, const struct ofs_sqe *sqe, uint64_t deadline_ns);

/* ---- one-sided reads (read.c) ---- */
/* Fills in slot and generation of every read from the directory. -errno of the fabric. */
int ofs_reads_lookup(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count);
/* Finds `count` blocks, by remembered slot or by the directory, reads and checks them. */
int ofs_reads_find(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count);
/*
 * Reads and checks `count` blocks, each with its rc. Without `checked` the payload's checksum is
 * skipped: benches only. All of a target's payload size may be overwritten.
 */
int ofs_reads_run(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count,
	bool checked);

/* read_trailer.c: whether it is of the entry's record, as far as visible before the payload is
 * copied, and its halves are of one write. */
bool ofs_read_trailer_names(const struct ofs_region_header *region,
	const struct ofs_block_read *read);
bool ofs_read_trailer_agrees(const struct ofs_region_header *region,
	const struct ofs_block_read *read);
/* ofs_reads_run for granules (read_part.c): every read names some. */
int ofs_parts_run(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count);

/* ---- remembered slots (remember.c) ---- */
/* Allocates the table if reads go over a network; -ENOMEM. */
int ofs_remember_open(struct ofs_driver *driver);
/* Needs the table. True: slot and generation are filled in. */
bool ofs_remember_recall(const struct ofs_driver *driver, struct ofs_block_read *read);
/* This read succeeded. Without a table: does nothing. */
void ofs_remember_keep(struct ofs_driver *driver, const struct ofs_block_read *read);
/* The slot has changed. Needs the table. */
void ofs_remember_drop(struct ofs_driver *driver, const struct ofs_block_read *read);

#endif
