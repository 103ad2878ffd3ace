/*
 * device/internal.h: what the files of the reactor share.
 *
 * Model: everything here belongs to the reactor's thread but the mailbox, which is under its mutex.
 * Tables are sized at open. A handle is an index into a table and carries no pointer outside.
 */
#ifndef OFS_DEVICE_INTERNAL_H
#define OFS_DEVICE_INTERNAL_H

#include "clock_wait.h"
#include "device.h"
#include "device/archive.h"
#include "device/move.h"
#include "device/purge.h"
#include "pace.h"
#include "port.h"
#include "qos.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define OFS_ACTION_BATCH 256
#define OFS_COMMAND_BATCH 16
#define OFS_COMMAND_CREDIT 128 /* of one tenant in one turn, in units of its commands' work */
#define OFS_COMMAND_UNIT 32    /* demands, or scores, or KiB of a put, in one unit */
#define OFS_TICKET UINT64_MAX  /* in the arbiter: the first write of the tenant's line */
#define OFS_HELD_MAX 512       /* tenants that share by what they hold */
#define OFS_ISSUE_MAX 65536    /* reads and writes of one tenant that wait in the arbiter */
#define OFS_DONE_BATCH 64
#define OFS_BOUNCE_MAX 64 /* puts in flight to the store: more would not write faster */
#define OFS_IO_SCAN_INTERVAL_NS 1000000ull
#define OFS_STORE_TICK_INTERVAL_NS 20000000ull
#define OFS_FLUSH_RETRY_NS 50000000ull
/* Timer slack and the way out of an idle core: a sleep shorter than this ends late. */
#define OFS_WAKE_NS 120000ull
#define OFS_SLEEP_NS_MAX 100000000ull

/* The high byte of a store I/O's user word says whose it is; the rest is an index in that table. */
enum ofs_io_kind {
	OFS_IO_READ = 1,
	OFS_IO_PUT = 2,
	OFS_IO_FLUSH = 3,
	OFS_IO_MOVE = 4,
	OFS_IO_ARCHIVE = 5
};

/* Indexes in order of arrival; capacity is that of the table they point into. */
struct ofs_fifo {
	uint32_t *items;
	uint32_t capacity;
	uint32_t head;
	uint32_t count;
};

struct ofs_device_tenant {
	struct ofs_region *region;
	struct ofs_share *shares[OFS_PORT_SIDES_MAX]; /* of the region, by side; NULL: not asked for */
	uint32_t slot_count;
	uint32_t *flush_of; /* [slot_count] the write that flushes the slot; OFS_NONE: not dirty */
	struct ofs_tenant_share share;
	struct ofs_fifo writes; /* that wait, in the order they came */
	uint32_t tickets;       /* of them, those that the arbiter knows of */
	bool writes_refused;    /* the first of them, though the store had room: one ticket tries */
	bool writes_tried;      /* and in this turn no other */
	uint32_t flying;        /* reads and writes at the drive */
	uint32_t flying_max;
	uint32_t reads_live;      /* reads that have not ended for the core */
	uint32_t demands_waiting; /* of steps that have not been answered */
	int32_t credit;           /* for commands in this turn */
	struct ofs_step_times *steps;
	struct ofs_tenant_quota quota;
	uint32_t dirty;         /* slots */
	uint32_t flushes_sent;  /* of them, those that the store writes */
	uint32_t parked;        /* and those whose flush has failed and waits */
	uint64_t quota_refused; /* appends and blocks */
	uint64_t purged;        /* chunks that it lost because a table or the store was full */
	uint64_t deletes;       /* how often somebody deleted blocks of it */
	uint64_t held_back;     /* turns in which commands of it stayed in their rings */
};

/* How warm a chunk is. */
struct ofs_chunk_mark {
	struct ofs_key key; /* of the chunk that it speaks of */
	uint64_t used_ns;   /* when a session last had it */
	uint32_t named;     /* how often again, up to a few */
	uint32_t reserved;
};

/* Sessions that came to put a chunk which the store does not have. */
struct ofs_touch {
	uint64_t mark;   /* the upper half of its store key */
	uint64_t serial; /* of the last of them */
	uint32_t count;
};

/* What waits for its turn at the drive. */
struct ofs_issue {
	struct ofs_qos *qos;
	uint64_t begin_ns;    /* of its time */
	struct ofs_fifo late; /* reads that it had no room for, or that the store could not take */
};

struct ofs_device_port {
	struct ofs_port *port;
	uint32_t tenant;
	uint32_t puts_in_flight; /* of this host, since it came */
	uint32_t steps_waiting;
	bool used;
};

struct ofs_device_session {
	bool used;
	uint64_t serial; /* no other has it */
	uint32_t port;
	uint32_t chunk_count;
	struct ofs_chunk_info *chunks; /* [session_chunk_max] */
};

/* One STEP whose blocks are not all there yet. */
struct ofs_waiter {
	bool used;
	uint32_t port;
	uint32_t remaining;      /* demands that have not landed */
	uint32_t landed_count;   /* results by now, in the order they landed */
	uint32_t reported_count; /* of which the host knows */
	bool queued;             /* in device->landed */
	bool handing;            /* a modelled device hands blocks of it over, and has more after */
	uint32_t to_hand;        /* that many, once it has handed over those */
	struct ofs_sqe sqe;
	uint64_t taken_ns;  /* of a step that is timed: when the reactor took it, */
	uint64_t issued_ns; /* when the storage had the last of its reads that landed (0: none), */
	uint64_t ended_ns;  /* and when that ended */
	struct ofs_result *results; /* [demand_max] */
	uint8_t *ends;              /* [demand_max] how each demand ended, by demand */
};

/* A STEP that a modelled device has not taken, or blocks of a waiter that it hands over. */
struct ofs_held {
	uint32_t port;   /* OFS_NONE: free, or its host is gone */
	uint32_t waiter; /* hits; of a STEP OFS_NONE */
	uint64_t begun_ns;
	uint64_t ring_ns; /* STEP: what it waited in the ring, where its host says when it sent it */
	struct ofs_command command; /* STEP: its arrays are the entry's own */
};

enum ofs_read_state {
	OFS_READ_FREE = 0,
	OFS_READ_PENDING = 1, /* the store was busy: submitted later, in order */
	OFS_READ_FLYING = 2,
	OFS_READ_ZOMBIE = 3 /* its deadline passed; the device may still write into the slot */
};

struct ofs_read {
	uint32_t state;
	struct ofs_action action;
	uint64_t deadline_ns;
	uint32_t older; /* of those that are pending or fly, in the order they began */
	uint32_t newer;
	uint64_t stage_ns;  /* when the stage it is in began; 0: not timed */
	uint64_t issued_ns; /* when the storage had it; 0: not yet */
	bool purged;        /* its block is deleted; the copy in its slot is to go too */
};

enum ofs_write_state {
	OFS_WRITE_FREE = 0,
	OFS_WRITE_PENDING = 1, /* in the waiting line */
	OFS_WRITE_SENT = 2,    /* the store has its memory */
	OFS_WRITE_PARKED = 3   /* a flush that failed, until retry_ns */
};

/* One put of a host, or one flush of a dirty slot. */
struct ofs_write {
	uint32_t state;
	uint32_t kind; /* OFS_IO_PUT or OFS_IO_FLUSH */
	uint32_t port; /* OFS_NONE: nobody waits for the answer */
	uint32_t tenant;
	uint32_t chunk; /* FLUSH: a dirty slot keeps it known */
	uint32_t layer;
	uint32_t slot;   /* FLUSH */
	uint32_t bounce; /* PUT: which private copy; OFS_NONE: still in the host's window */
	bool answered;
	bool cancelled; /* nobody wants it any more: not to be sent */
	bool purged;    /* it was sent by then, and what it wrote is deleted */
	struct ofs_key store_key;
	uint64_t deadline_ns;
	uint64_t retry_ns;
	uint64_t stage_ns; /* as of a read */
	struct ofs_sqe sqe;
};

/* A control call: runs on the reactor's thread, its caller waits. */
struct ofs_control_call {
	int (*run)(struct ofs_device *device, void *argument);
	void *argument;
	int rc;
	bool taken;
	bool done;
	struct ofs_control_call *next;
};

struct ofs_device {
	struct ofs_device_config config;
	struct ofs_clock clock;
	struct ofs_storage *storage;
	struct ofs_store *store;
	uint32_t stores_left; /* moves that have changed over: which store a ticket is of */
	struct ofs_issue issue;
	struct ofs_move move;
	struct ofs_archive archive;
	struct ofs_core *core;
	struct ofs_device_tenant *tenants;
	struct ofs_device_port *ports;
	struct ofs_device_session *sessions;
	struct ofs_chunk_info *session_chunks;
	struct ofs_chunk_mark *marks; /* [chunk_max] */
	struct ofs_touch *touches;    /* [chunk_max], by store key */
	uint64_t opened_ns;
	uint32_t keep_next; /* chunk that is looked at next: keep.c */
	uint64_t session_serial;
	uint32_t *looked; /* [session_chunk_max] what an append would find */
	struct ofs_waiter *waiters;
	struct ofs_result *waiter_results;
	uint8_t *waiter_ends;
	uint32_t waiter_count;
	struct ofs_fifo free_waiters;
	struct ofs_pace *pace;      /* of a modelled device; NULL: there is none */
	struct ofs_held *held;      /* [waiter_count] steps */
	struct ofs_held *held_hits; /* [waiter_count] */
	struct ofs_fifo free_held;
	struct ofs_fifo free_held_hits;
	struct ofs_fifo landed;     /* waiters with results that the host does not know of */
	uint64_t landing_issued_ns; /* of the read whose end the core is told; 0: none */
	uint64_t landing_ended_ns;
	struct ofs_read *reads;
	uint32_t read_count;
	uint32_t reads_flying;
	struct ofs_fifo free_reads;
	uint32_t read_oldest;
	uint32_t read_newest;
	struct ofs_write *writes;
	uint32_t write_count;
	struct ofs_fifo free_writes;
	uint32_t writes_waiting; /* in the lines of all tenants */
	uint32_t writes_live;
	uint32_t flushes_parked;
	struct ofs_dma bounces; /* [bounce_count] records of ours: puts on their way */
	uint32_t bounce_count;
	struct ofs_fifo free_bounces;
	uint32_t record_size_bytes; /* payload and trailer's LBA */
	uint32_t dirty_blocks;
	uint32_t tenant_count;
	uint32_t port_count;
	struct ofs_command command;
	uint32_t port_turn; /* where the round of ports begins, so that none starves */
	uint64_t turn_ns;   /* when the turn began */
	uint64_t io_scan_ns;
	uint64_t store_tick_ns;
	uint64_t core_next_ns;
	bool core_had_event; /* since its last tick */
	uint64_t idle_since_ns;
	uint64_t io_seen; /* what storage had begun and ended, at the last look */
	bool draining;
	struct ofs_device_status status;
	struct ofs_histogram stages[OFS_STAGE_COUNT];
	bool stages_on;
	uint32_t stage_turns[OFS_STAGE_COUNT]; /* of those that begin there, since the last timed */

	pthread_t thread;
	bool threaded;                   /* a simulated device has no thread */
	atomic_bool serving;             /* started: hosts are served */
	_Atomic uint64_t serve_until_ns; /* see ofs_device_serve_until */
	atomic_bool stopping;
	int wake_fd;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	struct ofs_control_call *calls;      /* under mutex */
	struct ofs_control_call *calls_last; /* under mutex */
	bool opened;                         /* under mutex: open_rc stands */
	bool stopped;                        /* under mutex: nobody takes calls any more */
	int open_rc;
	char *open_error; /* [open_error_size_bytes], the opener's */
	size_t open_error_size_bytes;
	atomic_uint call_count;
	/* Any thread may read those in use; a move fills the others, then changes over. */
	struct {
		char storage[16];
		char warning[640];
	} names[2];
	atomic_uint names_at;
};

/* fifo.c */
int ofs_fifo_open(struct ofs_fifo *fifo, uint32_t capacity, bool full);
void ofs_fifo_close(struct ofs_fifo *fifo);
uint32_t ofs_fifo_first(const struct ofs_fifo *fifo); /* OFS_NONE when empty */
uint32_t ofs_fifo_take(struct ofs_fifo *fifo);
void ofs_fifo_give(struct ofs_fifo *fifo, uint32_t item);

/* components.c: storage, store and core, opened and closed on the thread that uses them. */
int ofs_device_open_parts(struct ofs_device *device, char *error, size_t error_size_bytes);
void ofs_device_close_parts(struct ofs_device *device);
/* The name of the storage in use, and one line where it is not what was asked for. */
void ofs_device_note_storage(struct ofs_device *device, const char *text);
/* What a store on this storage locks; NULL: nothing. */
const char *ofs_device_lock_path(const struct ofs_storage_config *config);
int ofs_device_refuse(char *error, size_t size_bytes, int rc, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* mailbox.c */
int ofs_device_call(struct ofs_device *device, int (*run)(struct ofs_device *, void *),
	void *argument);
bool ofs_device_serve_calls(struct ofs_device *device);
/* No call is taken from now on; those that wait end with -ESHUTDOWN. */
void ofs_device_refuse_calls(struct ofs_device *device);

/* actions.c: carry out what the core decided. */
void ofs_device_act(struct ofs_device *device);
/* After telling the core of an event: it may only refuse what is not so, never for want of room. */
void ofs_device_after_event(struct ofs_device *device, int rc);

/* answers.c: what hosts get. */
void ofs_device_complete(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	int rc);
/* For a STEP with `missing` blocks still to come; there is one for every submission entry. */
uint32_t ofs_device_take_waiter(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	uint8_t **ends);
/* The core has taken the step; what its host has `seen` has ended by that. */
void ofs_device_begin_waiter(struct ofs_device *device, uint32_t waiter, const uint8_t *seen);
/* Its step ends unanswered here: the caller answers it, or the host is gone. */
void ofs_device_drop_waiter(struct ofs_device *device, uint32_t waiter);
void ofs_device_drop_waiters(struct ofs_device *device, uint32_t port);
/* One demand of it has ended. The last one answers the step, once a modelled device has handed
 * over what landed. */
void ofs_device_land(struct ofs_device *device, uint32_t waiter, const struct ofs_result *result);
/* A modelled device has handed over what it had begun to. */
void ofs_device_handed(struct ofs_device *device, uint32_t waiter);
/* Reports to hosts what has landed of steps that go on. */
void ofs_device_tell_landed(struct ofs_device *device);

/* commands.c: what hosts ask. */
bool ofs_device_serve_ports(struct ofs_device *device);
/* So much of the port's tenant waits already that its commands stay in the ring. */
bool ofs_device_is_held_back(const struct ofs_device *device, uint32_t port);
/* Steps and answers that a modelled device was waited for. */
bool ofs_device_serve_pace(struct ofs_device *device);

/* paced.c: commands and hits of a modelled device. */
int ofs_device_open_held(struct ofs_device *device);
void ofs_device_close_held(struct ofs_device *device);
/*
 * The step is served when the device has taken it; `count` blocks are with the waiter's host when
 * it has handed them over. False: as many wait already as the rings have entries for.
 */
bool ofs_device_hold(struct ofs_device *device, uint32_t port, const struct ofs_command *command);
bool ofs_device_hold_hits(struct ofs_device *device, uint32_t waiter, uint32_t count);
/* The next that the model has taken or handed over by now, to be freed when served; NULL: none. */
struct ofs_held *ofs_device_take_held(struct ofs_device *device, uint64_t now_ns);
void ofs_device_free_held(struct ofs_device *device, struct ofs_held *held);
/* The host is gone: its steps are not served any more, nor its blocks handed over. */
void ofs_device_forget_held(struct ofs_device *device, uint32_t port);

/* issue.c: what waits for the drive, and whose turn it is. */
int ofs_device_open_issue(struct ofs_device *device);
void ofs_device_close_issue(struct ofs_device *device);
/* -EINVAL: no such tenant, or a number out of range. */
int ofs_device_share(struct ofs_device *device, uint32_t tenant,
	const struct ofs_tenant_share *share);
void ofs_device_queue_read(struct ofs_device *device, const struct ofs_action *action);
/* What could not begin waits again. Whether anything waits. */
bool ofs_device_issue_again(struct ofs_device *device);
/* Whose turn it is, where the store has room. */
bool ofs_device_issue_next(struct ofs_device *device, struct ofs_qos_item *item);
/* One of the tenant's flies. */
void ofs_device_issue_began(struct ofs_device *device, uint32_t tenant);
/* After reads that waited have ended without a turn: who waits is known anew. */
void ofs_device_issue_anew(struct ofs_device *device);
/* One of the tenant's, which flew, has ended. */
void ofs_device_issue_ended(struct ofs_device *device, uint32_t tenant);
/* When a bucket lets something go, if nothing ends before. */
uint64_t ofs_device_issue_due_ns(const struct ofs_device *device);
void ofs_device_issue_figures(const struct ofs_device *device, uint32_t tenant,
	struct ofs_tenant_status *status);

/* begin.c: what has its turn begins. */
bool ofs_device_issue(struct ofs_device *device);

/* reads.c: blocks from the store into slots. */
/* It has its turn. 0: it flies; -EAGAIN: its block is being written; any other: it has ended. */
int ofs_device_begin_read(struct ofs_device *device, uint32_t index, uint64_t now_s);
void ofs_device_read_done(struct ofs_device *device, uint32_t index, int rc);
bool ofs_device_scan_reads(struct ofs_device *device, uint64_t now_ns);

/* puts.c: blocks that hosts write. */
/* Whether its bytes are read: a put that is refused before costs nothing of its length. */
bool ofs_device_put(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe);

/* A put that ends with this error, in the figures. */
static inline void
ofs_device_count_refused(struct ofs_device *device, int rc)
{
	device->status.puts_failed++;
	device->status.puts_conflicting += rc == -EEXIST;
}

/* put_window.c: their bytes. The window of a command; NULL: it names none. */
void *ofs_device_put_window(const struct ofs_device *device, uint32_t port,
	const struct ofs_sqe *sqe);
/* The record of a put, copied out of the host's window and checked; -EAGAIN, -EBADMSG. */
int ofs_device_copy_put(struct ofs_device *device, struct ofs_write *write);
void ofs_device_fill_slot(struct ofs_device *device, uint32_t port, const struct ofs_sqe *sqe,
	uint32_t slot);

/* writes.c: puts and flushes on their way to the store. */
/* The next write of a block; the caller sets slot or port. */
struct ofs_write *ofs_device_queue_write(struct ofs_device *device, uint32_t kind, uint32_t tenant,
	const struct ofs_sqe *sqe, const struct ofs_chunk_info *chunk);
/* The first of the tenant's line, which has one, has its turn: as of a read. */
int ofs_device_begin_write(struct ofs_device *device, uint32_t tenant, uint64_t now_s);
void ofs_device_write_done(struct ofs_device *device, uint32_t index, int rc);
bool ofs_device_scan_writes(struct ofs_device *device, uint64_t now_ns);
/* The host is gone: nobody waits for its puts, and its window may no longer be read. */
void ofs_device_abandon_puts(struct ofs_device *device, uint32_t port);
/* Drop writes that have not begun of blocks that no session refers to; NULL: of all sessions'. */
void ofs_device_cancel_writes(struct ofs_device *device, uint32_t tenant,
	const struct ofs_device_session *session);

/* admit.c: whether a block of a session is to be written. */
int ofs_device_open_admit(struct ofs_device *device);
bool ofs_device_admit(struct ofs_device *device, uint32_t session, const struct ofs_key *store_key,
	uint32_t layer);

/* quota.c: what a tenant has at most, whatever room there is. */
/* 0: the session may append these; -EDQUOT. Archived chunks of the tenant may have gone for it. */
int ofs_device_quota_append(struct ofs_device *device, uint32_t session, uint32_t count,
	const struct ofs_key *contents);
/* 0: the block may be written; -EAGAIN: not in this turn; -EDQUOT. As above. */
int ofs_device_quota_put(struct ofs_device *device, const struct ofs_write *write);
/* Whether one more block may be staged before it is written. */
bool ofs_device_quota_stage(const struct ofs_device *device, uint32_t tenant);
void ofs_device_quota_figures(const struct ofs_device *device, uint32_t tenant,
	struct ofs_tenant_status *status);

/* ports.c */
/* The tenant's region goes: no host reads it any more. All its ports are closed. */
void ofs_device_unshare(struct ofs_device_tenant *tenant);
int ofs_device_end_session(struct ofs_device *device, uint32_t session, bool archive);

/* stages.c: where time goes. */
/* A read or write begins with `stage`: `now_ns` where it is one of those timed, else 0. */
uint64_t ofs_device_stage_begin(struct ofs_device *device, enum ofs_stage stage, uint64_t now_ns);
/* What began at `from_ns` ends now. Returns now; 0 where it is not timed (`from_ns` 0). */
uint64_t ofs_device_stage_end(struct ofs_device *device, enum ofs_stage stage, uint64_t from_ns);
/* The step of this waiter is answered now: where its time went, where it is timed. */
void ofs_device_step_ended(struct ofs_device *device, const struct ofs_waiter *waiter);

/* reactor.c */
void *ofs_device_reactor(void *device);
bool ofs_device_turn(struct ofs_device *device);
bool ofs_device_is_fenced(struct ofs_device *device); /* fence.c: see ofs_device_serve_until */
/* When there will be something to do without anybody's asking. */
uint64_t ofs_device_wake_at_ns(struct ofs_device *device, uint64_t now_ns);

/* 0, or -EPERM where the session is not one of this port's host. */
static inline int
ofs_device_check_session(const struct ofs_device *device, uint32_t port, uint32_t session)
{
	if (session >= device->config.core.session_max || !device->sessions[session].used
		|| device->sessions[session].port != port) {
		return -EPERM;
	}
	return 0;
}

static inline uint64_t
ofs_device_now_ns(struct ofs_device *device)
{
	return ofs_clock_now_ns(&device->clock);
}

#endif
