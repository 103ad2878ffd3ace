/*
 * device.h: the daemon's interface to the offload device: one reactor thread that owns core, store,
 * storage, regions and ports.
 *
 * Model: `open` allocates and opens everything (and recovers the store) on the reactor's thread,
 * which never holds the GIL and is from then on the only one to touch what it owns: storage belongs
 * to the thread that first used it. A call from another thread puts a message in a mailbox, wakes
 * the reactor and waits for the answer (-ETIMEDOUT after 10 s: the reactor is stuck; -ESHUTDOWN: it
 * is closing). The reactor polls; after `spin_ns` without work it sleeps on its descriptors until
 * an event or the next deadline.
 *
 * Reads and writes of all tenants go to the drive in the order of one arbiter (qos.h), after the
 * core has decided what to read. Each tenant has a share of the commands of a reactor turn.
 *
 * The reactor sets a deadline for every read and put: an I/O on a hung device ends with -ETIMEDOUT,
 * and its slot is quarantined until the device has completed it. A put is copied out of the host's
 * window and the copy is checked before anything is written, so that the host may reuse its window
 * or exit while the write is in flight. A write-back block whose flush fails stays dirty and is
 * retried; until it succeeds, puts are written through and get the store's answer.
 *
 * With a timing the device is modelled: commands, hits, reads and writes end at the times it gives,
 * by a clock that may be dilated (pace.h); the storage must be `emulated`.
 *
 * With a simulated clock there is no thread: `poll` runs the same reactor on the caller's thread,
 * and the seeded simulation drives the code that runs live.
 */
#ifndef OFS_DEVICE_H
#define OFS_DEVICE_H

#include "histogram.h"
#include "ofs_core.h"
#include "port.h"
#include "region.h"
#include "storage.h"
#include "store.h"

/* cdef: order 7 */
/* cdef: begin */
struct ofs_device;
struct ofs_timing; /* timing.h */

enum ofs_write_mode { OFS_WRITE_THROUGH = 0, OFS_WRITE_BACK = 1 };

struct ofs_device_config {
	struct ofs_core_config core; /* block_size_bytes is filled in from the record size */
	struct ofs_policy policy;
	struct ofs_storage_config storage;
	struct ofs_store_config store; /* its memory is filled in from `memory` */
	struct ofs_dma_config memory;
	struct ofs_timing *timing;    /* of a modelled device; the caller's. NULL: none */
	uint32_t dilation;            /* machine time per device time; 0 or 1: the same */
	uint32_t write_mode;          /* enum ofs_write_mode */
	uint32_t dirty_blocks_max;    /* write-back: staged and not yet on NVMe */
	uint32_t reads_max;           /* at the drive at once, of all tenants; 0: core.io_max */
	uint64_t in_flight_bytes_max; /* at the drive of the tenant of the least weight; 0: no bound */
	uint64_t io_timeout_ns;       /* a read or write that takes longer has failed */
	uint64_t spin_ns;             /* idle this long, then sleep; UINT64_MAX: never sleep */
	uint32_t port_max;
	uint32_t port_entry_count;
	uint32_t put_slot_count; /* of one port */
	uint32_t score_max;
	struct ofs_port_sim_config port_sim; /* faults of ports of the side "sim" */
	uint32_t stage_timers;    /* 1: time the stages that the reactor sees (enum ofs_stage) */
	uint32_t sim_clock;       /* 1: simulated clock; drive with ofs_device_poll */
	int32_t cpu;              /* pin the reactor to this core; -1 none */
	uint32_t archive_places;  /* blocks on their way to or from an archive; 0: there is none */
	uint64_t archive_wait_ns; /* how long hosts wait for a value that comes back */
	uint32_t moment_max;      /* ring of moments; 0: none are noted */
	uint32_t value_max;       /* values of all tenants; 0: none are stored by key */
};

/*
 * When a read, a command or a turn passed each of its stations. All of reads and commands are
 * noted, without overlap: what begins at one station ends at the next. A device does not say when
 * it was done with a read: that was between POLLED, when it had not been, and REAPED.
 */
enum ofs_moment_kind {
	OFS_MOMENT_READ = 0,
	OFS_MOMENT_COMMAND = 1,
	OFS_MOMENT_TURN = 2,
	OFS_MOMENT_WINDOW = 3
};
enum ofs_read_station {
	OFS_READ_DECIDED = 0,
	OFS_READ_SUBMITTED = 1, /* the storage has it */
	OFS_READ_POLLED = 2,    /* the reactor last looked, and it had not ended; or SUBMITTED */
	OFS_READ_REAPED = 3,    /* the reactor took its end from the storage */
	OFS_READ_TAKEN = 4,     /* and came to it, behind others of the same look */
	OFS_READ_PUBLISHED = 5, /* it is in the directory; 0: it is not */
	OFS_READ_ANSWERED = 6   /* what waited for it has its answer */
};
enum ofs_command_station {
	OFS_COMMAND_SENT = 0, /* by the host's clock; 0: the host did not say */
	OFS_COMMAND_TAKEN = 1,
	OFS_COMMAND_DECIDED = 2,
	OFS_COMMAND_ANSWERED = 3 /* its last demand */
};
/* Of a turn: how long each phase took, by the clock. */
enum ofs_phase {
	OFS_PHASE_REAP = 0,     /* ends of the store: core, directory, answers */
	OFS_PHASE_COMMANDS = 1, /* commands taken, decided, answered */
	OFS_PHASE_ISSUE = 2,    /* reads and writes given to the storage, the core's tick */
	OFS_PHASE_REST = 3
};
/*
 * The processor's clock costs 30 times the other, so it is read once for a window: the turns noted
 * since the window before, none of them across a sleep. In a window that took as long as its
 * processor time the reactor was never off its processor: there the phases are processor time.
 */
#define OFS_WINDOW_TURNS 64
enum ofs_window_station { OFS_WINDOW_TOOK = 0, OFS_WINDOW_CPU = 1, OFS_WINDOW_CPU_SO_FAR = 2 };

struct ofs_moment {
	uint32_t kind;  /* enum ofs_moment_kind */
	uint32_t lost;  /* moments lost before this one: the ring was full */
	uint32_t cause; /* of a read */
	uint32_t tenant;
	uint32_t session;
	uint32_t layer;
	uint32_t commands; /* of a turn; of a command 1; of a window its turns */
	uint32_t demands;
	uint32_t scores;
	uint32_t begun; /* reads: of a turn, submitted; of a read, beside it when the storage got it; of
					 * a command, demands that were not staged */
	uint32_t ended; /* of a turn: reads that ended */
	uint32_t puts;  /* of a turn: commands that write, which cost by their bytes */
	uint32_t starts;    /* of a turn: `starts` of the storage, */
	uint32_t wakes;     /* and its `wakes` */
	uint32_t rested_us; /* of a turn: since the last with a command or a read */
	uint32_t reserved;
	uint64_t at_ns[7]; /* by station */
};

/* A tenant's share of the drive. */
struct ofs_tenant_share {
	uint32_t weight; /* from 1 to 65535 */
	uint32_t reserved;
	uint64_t bandwidth_bytes_per_s; /* of all its reads and writes; 0: no cap */
	uint64_t in_flight_bytes_max;   /* 0: the device's bound, by weight */
	uint64_t floor_bytes_per_s;     /* first of all, and beside that bound; 0: none */
};

/* A tenant's bounds on shared resources; 0: none. */
struct ofs_tenant_quota {
	uint64_t chunks_max;
	uint64_t stored_bytes_max; /* trailers included */
	uint64_t dirty_blocks_max;
	uint64_t sessions_max; /* for the sessions of values: the daemon counts those it opens */
};

/* Gauges, and counters since open. */
struct ofs_tenant_status {
	uint64_t weight;
	uint64_t bandwidth_bytes_per_s;
	uint64_t in_flight; /* reads and writes at the drive */
	uint64_t in_flight_max;
	uint64_t waiting; /* for their turn */
	uint64_t issued;
	uint64_t issued_bytes;
	uint64_t wait_ns_sum; /* for their turn, of those issued */
	uint64_t wait_ns_max;
	uint64_t throttled_ns; /* time in which something waited for the cap */
	uint64_t floor_bytes_per_s;
	uint64_t floor_bytes;   /* of those issued, because the floor was owed them */
	uint64_t chunks;        /* in the core's table */
	uint64_t kept_chunks;   /* of them, those that no session names */
	uint64_t chunks_max;    /* bounds: 0 there is none */
	uint64_t stored_blocks; /* or being written for the first time */
	uint64_t stored_bytes;
	uint64_t stored_bytes_max;
	uint64_t dirty_blocks;
	uint64_t dirty_blocks_max;
	uint64_t purged;        /* kept chunks lost because a table, the store or a quota was full */
	uint64_t quota_refused; /* appends and blocks: the tenant had nothing left to evict */
	uint64_t held_back;     /* turns of the reactor in which commands stayed in their rings */
	uint64_t sessions;      /* of values too */
	uint64_t sessions_max;
};

struct ofs_device_status {
	uint64_t now_ns;
	uint64_t boot_id;
	uint64_t loops;
	uint64_t busy_loops;
	uint64_t sleeps;
	uint64_t busy_ns; /* turns that did something */
	uint64_t idle_ns; /* turns that found nothing to do */
	uint64_t commands;
	uint64_t commands_bad;
	uint64_t puts;
	uint64_t puts_failed;
	uint64_t puts_conflicting; /* of these, other bytes under a stored key */
	uint64_t puts_unadmitted;  /* and of chunks that the policy does not admit */
	uint64_t chunks_idle;      /* kept, unnamed for policy.keep_minutes and dropped */
	uint64_t dirty_blocks;
	uint64_t reads_in_flight;
	uint64_t reads_timed_out;
	uint64_t slots_quarantined;
	uint64_t publish_overflow; /* blocks whose buckets were full */
	uint64_t check_failures;   /* blocks whose bytes failed their check: served as misses */
	uint64_t store_full;
	uint64_t ports;
	uint64_t sessions;
	uint64_t draining;
	uint64_t drained;
	uint64_t emulation_late;  /* emulated I/Os that ended later than the model says */
	uint64_t sleep_ns;        /* neither busy nor idle */
	uint64_t flush_retries;   /* write-back: flushes that failed and will be tried again */
	uint64_t flushes_waiting; /* write-back: failed, and not yet tried again */
	uint64_t paced;           /* commands and hits of a modelled device */
	uint64_t paced_late;      /* of these, those that ended clearly later than the model says */
	uint64_t fenced;          /* answers refused since the lease was not confirmed in time */
	struct ofs_store_stats store;
	struct ofs_storage_stats storage;
};

/* The time of a STEP that waited for a block, by part, measured on the block that landed last. */
enum ofs_step_part {
	OFS_STEP_PART_RING = 0,   /* written by the host -> taken by the reactor; one clock for both */
	OFS_STEP_PART_TURN = 1,   /* -> the read is submitted: decisions, and the arbiter's queue */
	OFS_STEP_PART_DRIVE = 2,  /* -> the reactor sees its completion */
	OFS_STEP_PART_ANSWER = 3, /* -> the completion is written */
	OFS_STEP_PART_COUNT = 4
};

/* Of one tenant since the last reset, of the steps that its hosts time. */
struct ofs_step_times {
	struct ofs_histogram steps; /* how long they took */
	/* Sums over the steps of each bucket, by part. */
	uint64_t sums[OFS_STEP_PART_COUNT][OFS_HISTOGRAM_BUCKETS];
};

#define OFS_ARCHIVE_LOOK_MAX 64

/* One block of an archive call. */
struct ofs_archive_block {
	struct ofs_key store_key;
	uint32_t layer;
	uint32_t length; /* payload bytes */
	int32_t rc;
	uint32_t reserved;
	/* To write a piece of a value: of which; generation 0: it is of none. */
	struct ofs_key key;
	uint64_t generation;
	uint64_t value_length;
};

/* What an archive hears of a value. */
enum ofs_value_note_kind {
	OFS_NOTE_STORED = 1,   /* the archive does not have it */
	OFS_NOTE_REPLACED = 2, /* every other generation of the key is to leave the archive */
	OFS_NOTE_WANTED = 3,   /* it is to come back */
	OFS_NOTE_GONE = 4      /* every generation of the key is to leave the archive */
};

struct ofs_value_note {
	struct ofs_key key;
	struct ofs_key store_key; /* of its chunk; GONE of a value that the device does not know: 0 */
	uint64_t generation;
	uint64_t length; /* bytes of the value */
	uint32_t tenant;
	uint32_t kind; /* enum ofs_value_note_kind */
};

/* Result of one call. */
struct ofs_purged {
	uint64_t chunks;
	uint64_t blocks;
	uint64_t bytes;   /* freed in the store, trailers included */
	uint32_t more;    /* 1: not finished: call again */
	uint32_t marking; /* writes outstanding before nothing deleted can come back */
	uint32_t writing; /* keep_blocks 0: reads and writes in flight of deleted blocks */
	uint32_t named;   /* chunks kept because open sessions name them */
};

enum ofs_move_state {
	OFS_MOVE_NONE = 0,
	OFS_MOVE_RUNNING = 1,
	OFS_MOVE_DONE = 2,
	OFS_MOVE_FAILED = 3
};

/* The last move to another storage; all zero where there was none. */
struct ofs_move_status {
	uint32_t state;      /* enum ofs_move_state */
	int32_t rc;          /* why it failed */
	uint32_t switched;   /* the device now uses the target */
	uint32_t unrecorded; /* but the forward record could not be written to the old storage */
	uint64_t blocks_total;
	uint64_t blocks_copied; /* and read back */
	uint64_t blocks_lost;   /* failed their check in the old store: misses */
	uint64_t passes;
	uint64_t held_ns; /* how long writes were held back */
	char path[512];
	char error[256];
};

/* `error` gets one line with the cause and the fix. */
int ofs_device_open(struct ofs_device **out, const struct ofs_device_config *config, char *error,
	size_t error_size_bytes);
/* 0 when the reactor answers; -EINVAL with a simulated clock. */
/* Starts serving hosts. -EINVAL with a simulated clock: use ofs_device_poll. */
int ofs_device_start(struct ofs_device *device);
/*
 * Hosts are served until CLOCK_BOOTTIME (of a simulated device its clock) is past `until_ns`.
 * After that every command and every answer ends with -EKEYEXPIRED, even if a process was stopped
 * in between for any time. UINT64_MAX, as after open: no end. From any thread, at any time; does
 * not wait for the reactor.
 */
void ofs_device_serve_until(struct ofs_device *device, uint64_t until_ns);
/* Stops the thread (after draining write-back when `drain`), closes everything. */
void ofs_device_close(struct ofs_device *device, int drain);

int ofs_device_tenant_add(struct ofs_device *device, const struct ofs_tenant_config *config,
	uint32_t *tenant);
/* Changes the share of the drive; the core's share of the prefetch bandwidth stays. */
int ofs_device_tenant_share(struct ofs_device *device, uint32_t tenant,
	const struct ofs_tenant_share *share);
/* Changes the bounds. One already exceeded takes effect at the tenant's next append or put. */
int ofs_device_tenant_quota(struct ofs_device *device, uint32_t tenant,
	const struct ofs_tenant_quota *quota);
int ofs_device_tenant_status_get(struct ofs_device *device, uint32_t tenant,
	struct ofs_tenant_status *status);
/*
 * Deletes a tenant's kept chunks, coldest first, until the store has no more than `keep_blocks`
 * of its blocks; with 0 also blocks that no session names and that are in flight to or from the
 * store. One batch per call: call with `again` set while `more`, and, to be sure that nothing
 * deleted comes back, while `marking` or `writing`. I/O that starts after the first call is not
 * waited for; each call without `again` is a first.
 */
int ofs_device_tenant_purge(struct ofs_device *device, uint32_t tenant, uint64_t keep_blocks,
	uint32_t again, struct ofs_purged *purged);
/* Drops kept chunks that no session named for `policy.keep_minutes`, in one part of the table;
 * the next call continues there. `dropped`: how many. */
int ofs_device_drop_idle(struct ofs_device *device, uint32_t *dropped);
/*
 * 0: what the tenant had deleted when the ticket was taken (0: now) stays deleted after any later
 * start of the device. -EAGAIN: not yet; `left` counts the writes outstanding. If the drive refuses
 * them, they are retried each second.
 */
int ofs_device_wiped(struct ofs_device *device, uint32_t tenant, uint64_t *ticket, uint64_t *left);
/*
 * Once per tenant, before hosts attach: registers with the core what the store recovered.
 * -EMSGSIZE, -ENOSPC: a value is longer than a session, or there are over twice value_max; none was
 * deleted.
 */
int ofs_device_restore(struct ofs_device *device, uint32_t tenant);
/*
 * Opens a port for one host, reached over `fabric`: a side of port.h ("shm"). The caller closes
 * the descriptors of the attachment. -EINVAL no such tenant or side, -ENOSPC no free port.
 */
int ofs_device_attach(struct ofs_device *device, uint32_t tenant, const char *fabric,
	uint32_t *port, struct ofs_attachment *attachment);
/*
 * Connects with the blob that the driver of this port's host exported (ofs_driver_export). Takes as
 * long as resolving an address; the reactor keeps running. -EINVAL no such port, or a blob of
 * another fabric; -ESTALE, -EBUSY, -EHOSTUNREACH: see port.h. Must not run during a detach.
 */
int ofs_device_connect(struct ofs_device *device, uint32_t port,
	const struct ofs_attachment *answer);
/*
 * From now on the keys of values that this port's host names are hashed under `owner`, a secret: so
 * hosts of one tenant have values of their own, those of one owner together. -EINVAL no such port.
 */
int ofs_device_own_port(struct ofs_device *device, uint32_t port, const struct ofs_key *owner);
/*
 * Ends the connection of this port's host, even if it looks alive; the port and its sessions stay.
 * `attachment` is what the host needs to connect again, as after an attach. -EINVAL no such port,
 * -ENOTSUP hosts of this side have no connection, -EAGAIN its commands are in progress: retry.
 */
int ofs_device_reattach(struct ofs_device *device, uint32_t port,
	struct ofs_attachment *attachment);
/*
 * The host has exited: closes and archives its sessions and releases its pins. Puts that have not
 * begun are dropped; the others end without an answer. The port can be reused immediately.
 */
int ofs_device_detach(struct ofs_device *device, uint32_t port);
int ofs_device_session_open(struct ofs_device *device, uint32_t port,
	const struct ofs_session_config *config, uint32_t *session);
/* As the core's; acknowledged dirty blocks also count in `stored_layers`. */
int ofs_device_session_append(struct ofs_device *device, uint32_t session, uint32_t count,
	const struct ofs_key *contents, struct ofs_chunk_info *infos);
int ofs_device_session_set_generating(struct ofs_device *device, uint32_t session, int generating);
/* keep 0: its blocks without another reference are deleted from the store. */
int ofs_device_session_close(struct ofs_device *device, uint32_t session, int keep);
int ofs_device_set_policy(struct ofs_device *device, const struct ofs_policy *policy);
/* Drops staged blocks that are clean and not pinned; zeroes ledger and stages: a cold start. */
int ofs_device_reset(struct ofs_device *device);
/*
 * Refuses new puts and sessions, flushes write-back and waits until no block is dirty. Reads are
 * still served. -ETIMEDOUT: the status has the number of dirty blocks.
 */
int ofs_device_drain(struct ofs_device *device, uint64_t timeout_ns);
/* Accepts puts and sessions again after a drain. */
int ofs_device_undrain(struct ofs_device *device);
/*
 * Starts to move all blocks to a new store on another storage; hosts are served meanwhile. Returns
 * when the move has begun; the status has its progress. `error` gets one line. -EBUSY a move is
 * running or the target is in use, -ENOSPC it is too small, -EINVAL it is not empty.
 */
int ofs_device_move(struct ofs_device *device, const struct ofs_storage_config *target, char *error,
	size_t error_size_bytes);
int ofs_device_move_status_get(struct ofs_device *device, struct ofs_move_status *status);
int ofs_device_ledger(struct ofs_device *device, uint32_t tenant, struct ofs_ledger *ledger);
/* `work` [OFS_EVENT_COUNT]: the core's work by kind of event. */
int ofs_device_work(struct ofs_device *device, struct ofs_work *work);
int ofs_device_records(struct ofs_device *device, struct ofs_ledger_record *records, int max);
int ofs_device_log_take(struct ofs_device *device, void *bytes, int size_bytes);
int ofs_device_moments_take(struct ofs_device *device, struct ofs_moment *moments, int max);
int ofs_device_status_get(struct ofs_device *device, struct ofs_device_status *status);
/*
 * Reads or writes `count` blocks of a tenant by store key, for an archive that keeps copies
 * elsewhere, in the places from `first` on, which the caller owns until this returns. Reads the
 * store into the places, or writes them (`length` bytes each) to the store; a written block is then
 * like any other. `rc` of each: the store's, -ETIMEDOUT, or for a write -ECANCELED: blocks of the
 * tenant were deleted since `deletes` was read, and this may be one of them. -EBUSY: a place is
 * still in use, or the store is moving; retry. -ESHUTDOWN: nothing is written during a drain.
 */
int ofs_device_archive_move(struct ofs_device *device, uint32_t write, uint32_t tenant,
	uint64_t deletes, uint32_t first, uint32_t count, struct ofs_archive_block *blocks);
/* 0: the caller may fill the places; -EBUSY: the device still uses one, as after -ETIMEDOUT. To be
 * called before every write, before the places are filled. */
int ofs_device_archive_free(struct ofs_device *device, uint32_t first, uint32_t count);
/* The memory of a place; it stays where it is. */
void *ofs_device_archive_place(struct ofs_device *device, uint32_t place);
/*
 * How many layers of each key the store has, at most OFS_ARCHIVE_LOOK_MAX keys; `deletes` counts
 * the deletes of the tenant's blocks.
 */
int ofs_device_archive_look(struct ofs_device *device, uint32_t tenant, uint32_t count,
	const struct ofs_key *keys, uint32_t *layers, uint64_t *deletes);
/*
 * Takes at most `max` notes on values, each once; `stored`: STORED too. Returns how many. A GONE
 * stays, and its deleter waits, until value_end says that it is noted elsewhere.
 */
int ofs_device_value_notes(struct ofs_device *device, uint32_t stored, struct ofs_value_note *notes,
	int max);
/* Waits up to `timeout_ns` until there are notes: 1; 0: there are none. Needs no reactor. */
int ofs_device_value_await(struct ofs_device *device, uint32_t stored, uint64_t timeout_ns);
/*
 * The archive has these values. rcs [count]: 0; -ESTALE: the device has another generation of the
 * key, or deletes it; -ENOSPC: the table has no room; -EINVAL: no such value can be. -ENOTSUP: the
 * device keeps no values.
 */
int ofs_device_value_archived(struct ofs_device *device, uint32_t count,
	const struct ofs_value_note *notes, int32_t *rcs);
/* WANTED, which did not come back, or, `gone`, will not; or GONE, which is noted elsewhere. */
int ofs_device_value_end(struct ofs_device *device, uint32_t count,
	const struct ofs_value_note *notes, uint32_t gone);
/* Whether the device knows every value in the archive; -ENOSPC makes that untrue. */
int ofs_device_value_listed(struct ofs_device *device, uint32_t listed);
/* How many values notes wait for. */
int ofs_device_value_waiting(struct ofs_device *device, uint32_t *count);
/* Values that the store had at open and no name of: a LIST leaves them out. `left_out`: blocks of
 * values that are not served since the core takes too few chunks; they stay in the store. */
int ofs_device_value_unnamed(struct ofs_device *device, uint32_t *count, uint64_t *left_out);
/* The longest value that the tenant can store. */
int ofs_device_value_bytes_max(struct ofs_device *device, uint32_t tenant, uint64_t *bytes);
/* Times of the stages since the last reset: [OFS_STAGE_COUNT]; the host's stages are empty. */
int ofs_device_stages_get(struct ofs_device *device, struct ofs_histogram *stages);
int ofs_device_step_times_get(struct ofs_device *device, uint32_t tenant,
	struct ofs_step_times *times);
/* Timers on (1) or off (0), from now on. */
int ofs_device_stages_set(struct ofs_device *device, int on);
/* The storage in use ("io_uring", "posix", ...); one line if it is not what was asked for. */
const char *ofs_device_storage_name(const struct ofs_device *device);
const char *ofs_device_warning(const struct ofs_device *device);
/* cdef: end */

/* Simulated clock: one reactor turn on this thread: 1 busy, 0 idle. Other clocks: -EINVAL. */
int ofs_device_poll(struct ofs_device *device);
/* Simulated clock only; -EINVAL otherwise, and for a time that has passed. */
int ofs_device_advance(struct ofs_device *device, uint64_t now_ns);

#endif
