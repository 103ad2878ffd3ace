/*
 * device.h: the offload device as the daemon sees it: one reactor thread that owns core, store,
 * storage, regions and ports.
 *
 * Model: `open` allocates and opens everything (and recovers the store) on the reactor's thread,
 * which never holds the GIL and is from then on the only one to touch what it owns: storage belongs
 * to the thread that first used it. Calls from other threads are messages: they are put in a
 * mailbox, the reactor is woken, and the caller waits for the answer (bounded: -ETIMEDOUT after
 * 10 s means that the reactor is stuck; -ESHUTDOWN that it is closing). The reactor polls; when
 * nothing was busy for `spin_ns` it sleeps on its descriptors until something happens or the next
 * deadline.
 *
 * Reads and writes of all tenants go to the drive in the order of one arbiter (qos.h), after the
 * core has decided what is read. A tenant's commands have a part of each of the reactor's turns.
 *
 * Every read and put has a deadline of the reactor's own: a hung device ends as -ETIMEDOUT, with
 * the slot quarantined until the device lets go. A put is copied out of the host's window and
 * checked there before anything is written, so that the host may do with its window what it likes,
 * and be gone, while the write is in flight. A write-back block whose flush fails stays dirty and
 * is tried again; as long as one waits so, puts go through and get the store's answer.
 *
 * With a timing the device is a modelled one: commands, hits, reads and writes end when it says, by
 * a clock that may be dilated (pace.h); the storage is `emulated` then.
 *
 * With a simulated clock there is no thread: `poll` runs the same reactor on the caller's, and the
 * seeded simulation drives exactly what runs live.
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
	struct ofs_store_config store; /* its memory is filled in from the one below */
	struct ofs_dma_config memory;
	struct ofs_timing
		*timing;         /* of a modelled device, whose pace is kept; the caller's. NULL: none */
	uint32_t dilation;   /* the machine's time in one of the device's; 0 or 1: the same */
	uint32_t write_mode; /* enum ofs_write_mode */
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
	uint32_t stage_timers;   /* 1: time the stages that the reactor sees (enum ofs_stage) */
	uint32_t sim_clock;      /* 1: simulated clock; drive with ofs_device_poll */
	int32_t cpu;             /* pin the reactor to this core; -1 none */
	uint32_t archive_places; /* blocks on their way to or from an archive; 0: there is none */
};

/* What a tenant gets of the drive. */
struct ofs_tenant_share {
	uint32_t weight; /* from 1 to 65535 */
	uint32_t reserved;
	uint64_t bandwidth_bytes_per_s; /* of all its reads and writes; 0: no cap */
	uint64_t in_flight_bytes_max;   /* at the drive at once; 0: the device's, by weight */
};

/* What a tenant has at most of what all share; 0: no bound of its own. */
struct ofs_tenant_quota {
	uint64_t chunks_max;
	uint64_t stored_bytes_max; /* trailers included */
	uint64_t dirty_blocks_max;
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
	uint64_t throttled_ns;    /* something waited for the cap */
	uint64_t chunks;          /* in the core's table */
	uint64_t archived_chunks; /* of them, those that no session names */
	uint64_t chunks_max;      /* bounds: 0 there is none */
	uint64_t stored_blocks;   /* or being written for the first time */
	uint64_t stored_bytes;
	uint64_t stored_bytes_max;
	uint64_t dirty_blocks;
	uint64_t dirty_blocks_max;
	uint64_t purged; /* archived chunks lost because a table, the store or a quota was full */
	uint64_t quota_refused; /* appends and blocks, since nothing of its own could go */
	uint64_t held_back;     /* turns of the reactor in which commands stayed in their rings */
};

struct ofs_device_status {
	uint64_t now_ns;
	uint64_t epoch;
	uint64_t loops;
	uint64_t busy_loops;
	uint64_t sleeps;
	uint64_t busy_ns; /* turns that did something */
	uint64_t idle_ns; /* turns that found nothing to do */
	uint64_t commands;
	uint64_t commands_bad;
	uint64_t puts;
	uint64_t puts_failed;
	uint64_t puts_conflicting; /* of these, of other bytes under a key that is known */
	uint64_t puts_unadmitted;  /* and of chunks that the policy does not find worth a write */
	uint64_t chunks_idle;      /* archived, dropped since nobody named them for policy.keep */
	uint64_t dirty_blocks;
	uint64_t reads_in_flight;
	uint64_t reads_timed_out;
	uint64_t slots_quarantined;
	uint64_t publish_overflow; /* blocks no bucket had room for */
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

/* Where the time of a STEP went that waited for a block, by the last that landed. */
enum ofs_step_part {
	OFS_STEP_PART_RING = 0,   /* written by the host -> taken by the reactor; one clock for both */
	OFS_STEP_PART_TURN = 1,   /* -> the storage has the read: decisions, and the arbiter's queue */
	OFS_STEP_PART_DRIVE = 2,  /* -> the reactor sees its end */
	OFS_STEP_PART_ANSWER = 3, /* -> the completion is written */
	OFS_STEP_PART_COUNT = 4
};

/* Of one tenant since the last reset, of the steps that their hosts time. */
struct ofs_step_times {
	struct ofs_histogram steps; /* how long they took */
	/* Of the steps in one of its buckets together, by part. */
	uint64_t sums[OFS_STEP_PART_COUNT][OFS_HISTOGRAM_BUCKETS];
};

#define OFS_ARCHIVE_LOOK_MAX 64

/* One block of a call to the archive's side. */
struct ofs_archive_block {
	struct ofs_key store_key;
	uint32_t layer;
	uint32_t length; /* payload bytes */
	int32_t rc;
	uint32_t reserved;
};

/* Of one call. */
struct ofs_purged {
	uint64_t chunks;
	uint64_t blocks;
	uint64_t bytes;   /* of the store that they took, trailers included */
	uint32_t more;    /* 1: there is more to go: call again */
	uint32_t marking; /* writes still to end, until nothing of what is gone can come back */
	uint32_t writing; /* nothing is kept: reads and writes under way of what is gone */
	uint32_t named;   /* chunks that open sessions name: they stay */
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
	uint32_t switched;   /* the target is the device's storage now */
	uint32_t unrecorded; /* and the old one could not write that down */
	uint64_t blocks_total;
	uint64_t blocks_copied; /* and read back */
	uint64_t blocks_lost;   /* failed their check in the old store: misses */
	uint64_t passes;
	uint64_t held_ns; /* how long writes were held back */
	char path[512];
	char error[256];
};

/* `error` gets one line with the cause and the mend. */
int ofs_device_open(struct ofs_device **out, const struct ofs_device_config *config, char *error,
	size_t error_size_bytes);
/* 0 when the reactor answers; -EINVAL with a simulated clock. */
/* From here on hosts are served. -EINVAL with a simulated clock: use ofs_device_poll. */
int ofs_device_start(struct ofs_device *device);
/*
 * Hosts are served until CLOCK_BOOTTIME (of a simulated device its clock) is past `until_ns`, and
 * no longer: what a host asks from then on, and every answer that is given from then on, ends with
 * -EKEYEXPIRED, whoever was stopped meanwhile and for how long. UINT64_MAX, as after open: no end.
 * From any thread, at any time; the reactor is not asked.
 */
void ofs_device_serve_until(struct ofs_device *device, uint64_t until_ns);
/* Stops the thread (after draining write-back when `drain`), closes everything. */
void ofs_device_close(struct ofs_device *device, int drain);

int ofs_device_tenant_add(struct ofs_device *device, const struct ofs_tenant_config *config,
	uint32_t *tenant);
/* Another share of the drive from now on; the core's own share of prefetch stays. */
int ofs_device_tenant_share(struct ofs_device *device, uint32_t tenant,
	const struct ofs_tenant_share *share);
/* Other bounds from now on. One that the tenant is beyond takes effect at its next append or put.
 */
int ofs_device_tenant_quota(struct ofs_device *device, uint32_t tenant,
	const struct ofs_tenant_quota *quota);
int ofs_device_tenant_status_get(struct ofs_device *device, uint32_t tenant,
	struct ofs_tenant_status *status);
/*
 * A tenant's archived chunks go, the coldest first, until the store has no more than `keep_blocks`
 * blocks of it; with 0 also what no session names and is on its way to the store or from it. A
 * batch at a time: call `again` while there is `more`, and, to know that what is gone never comes
 * back, while `marking` or `writing`. What comes to be on its way after the first call is of a
 * later time, and nobody waits for it; each call that is not `again` is a first.
 */
int ofs_device_tenant_purge(struct ofs_device *device, uint32_t tenant, uint64_t keep_blocks,
	uint32_t again, struct ofs_purged *purged);
/* Archived chunks that no session named for `policy.keep_minutes` go: of a part of the table, which
 * goes on with the next call. `dropped`: how many. */
int ofs_device_drop_idle(struct ofs_device *device, uint32_t *dropped);
/*
 * 0: what the tenant had deleted when the ticket was taken (0: now) is deleted for every later
 * start of the device too, -EAGAIN: not yet; `left` counts the writes that are still to end. A
 * drive that refuses them is asked again each second.
 */
int ofs_device_wiped(struct ofs_device *device, uint32_t tenant, uint64_t *ticket, uint64_t *left);
/* Once per tenant, before hosts come: what the store recovered becomes known to the core. */
int ofs_device_restore(struct ofs_device *device, uint32_t tenant);
/*
 * A port of its own for one host, reached over `fabric`: a side of port.h ("shm"). The caller
 * closes the descriptors of the attachment. -EINVAL no such tenant or side, -ENOSPC no port is
 * free.
 */
int ofs_device_attach(struct ofs_device *device, uint32_t tenant, const char *fabric,
	uint32_t *port, struct ofs_attachment *attachment);
/*
 * What the driver of this port's host exported (ofs_driver_export). It may take as long as an
 * address takes to be resolved; the reactor goes on meanwhile. -EINVAL no such port, or a blob that
 * is none of its fabric; -ESTALE, -EBUSY, -EHOSTUNREACH: see port.h. Not beside a detach.
 */
int ofs_device_connect(struct ofs_device *device, uint32_t port,
	const struct ofs_attachment *answer);
/*
 * The connection of this port's host has ended, also where nothing has noticed it yet; the port and
 * its sessions go on. `attachment` is what the host needs for another, as of an attach. -EINVAL no
 * such port, -ENOTSUP hosts of this side have no connection, -EAGAIN commands of it are still being
 * worked on: ask again.
 */
int ofs_device_reattach(struct ofs_device *device, uint32_t port,
	struct ofs_attachment *attachment);
/*
 * The host is gone: its sessions are closed and archived, its pins released. Puts that have not
 * begun are dropped; the others end unheard. The port can be given away at once.
 */
int ofs_device_detach(struct ofs_device *device, uint32_t port);
int ofs_device_session_open(struct ofs_device *device, uint32_t port,
	const struct ofs_session_config *config, uint32_t *session);
/* As the core's; what is staged and acknowledged counts in `stored_layers`, too. */
int ofs_device_session_append(struct ofs_device *device, uint32_t session, uint32_t count,
	const struct ofs_key *contents, struct ofs_chunk_info *infos);
/*
 * Sessions of one host in one message: session i with the next `chunk_counts[i]` of `contents`,
 * each a chain of its own. rcs [count]: 0, or why there is no such session (-ENOSPC). Else as the
 * two calls above.
 */
int ofs_device_sessions_open(struct ofs_device *device, uint32_t port,
	const struct ofs_session_config *config, uint32_t count, const uint32_t *chunk_counts,
	const struct ofs_key *contents, uint32_t *sessions, struct ofs_chunk_info *infos, int32_t *rcs);
int ofs_device_session_set_generating(struct ofs_device *device, uint32_t session, int generating);
/* archive 0: its blocks that nobody else refers to are deleted from the store. */
int ofs_device_session_close(struct ofs_device *device, uint32_t session, int archive);
/* All of them; the first that there is not gives the answer, and the others close. */
int ofs_device_sessions_close(struct ofs_device *device, uint32_t count, const uint32_t *sessions,
	int archive);
int ofs_device_set_policy(struct ofs_device *device, const struct ofs_policy *policy);
/* Drop what is staged, clean and not pinned; zero ledger and stages, so that a run starts cold. */
int ofs_device_reset(struct ofs_device *device);
/*
 * Refuse new puts and sessions, flush write-back, wait until nothing is only in memory. Reads go on
 * being served. -ETIMEDOUT: status says how many blocks are still dirty.
 */
int ofs_device_drain(struct ofs_device *device, uint64_t timeout_ns);
/* Take puts and sessions again after a drain. */
int ofs_device_undrain(struct ofs_device *device);
/*
 * Begins to move all blocks to another storage, where a new store is made; hosts go on meanwhile.
 * Returns when it has begun; how it goes on is in the status. `error` gets one line. -EBUSY a move
 * is running or the target is in use, -ENOSPC it is too small, -EINVAL it holds something.
 */
int ofs_device_move(struct ofs_device *device, const struct ofs_storage_config *target, char *error,
	size_t error_size_bytes);
int ofs_device_move_status_get(struct ofs_device *device, struct ofs_move_status *status);
int ofs_device_ledger(struct ofs_device *device, uint32_t tenant, struct ofs_ledger *ledger);
/* `work` [OFS_EVENT_COUNT]: what the events cost the core. */
int ofs_device_work(struct ofs_device *device, struct ofs_work *work);
int ofs_device_records(struct ofs_device *device, struct ofs_ledger_record *records, int max);
int ofs_device_log_take(struct ofs_device *device, void *bytes, int size_bytes);
int ofs_device_status_get(struct ofs_device *device, struct ofs_device_status *status);
/*
 * Blocks by their store key, for who keeps copies of them elsewhere: `count` of a tenant, in the
 * places from `first` on, which are the caller's until this returns. Reads the store into the
 * places, or writes them (`length` bytes each) to it, after which a block is known as any other.
 * `rc` of each: as of the store, -ETIMEDOUT, or of a write -ECANCELED: blocks of the tenant have
 * been deleted since `deletes` was looked at, and this may be one. -EBUSY: a place is still in
 * use, or the store moves elsewhere; ask again. -ESHUTDOWN: nothing is written during a drain.
 */
int ofs_device_archive_move(struct ofs_device *device, uint32_t write, uint32_t tenant,
	uint64_t deletes, uint32_t first, uint32_t count, struct ofs_archive_block *blocks);
/* Whether the places may be written into: 0, or -EBUSY where the device still uses one, as after an
 * -ETIMEDOUT. Asked before every write, and before its bytes are put there. */
int ofs_device_archive_free(struct ofs_device *device, uint32_t first, uint32_t count);
/* The memory of a place; it stays where it is. */
void *ofs_device_archive_place(struct ofs_device *device, uint32_t place);
/*
 * How many layers of each key the store has, at most OFS_ARCHIVE_LOOK_MAX keys; and how often
 * somebody deleted blocks of the tenant.
 */
int ofs_device_archive_look(struct ofs_device *device, uint32_t tenant, uint32_t count,
	const struct ofs_key *keys, uint32_t *layers, uint64_t *deletes);
/* How long the stages took since the last reset: [OFS_STAGE_COUNT], those of the host empty. */
int ofs_device_stages_get(struct ofs_device *device, struct ofs_histogram *stages);
int ofs_device_step_times_get(struct ofs_device *device, uint32_t tenant,
	struct ofs_step_times *times);
/* Timers on (1) or off (0), from now on. */
int ofs_device_stages_set(struct ofs_device *device, int on);
/* The storage in use ("io_uring", "posix", ...), and one line where it is not what was asked. */
const char *ofs_device_storage_name(const struct ofs_device *device);
const char *ofs_device_warning(const struct ofs_device *device);
/* cdef: end */

/* Simulated clock: one turn of the reactor on this thread. 1 busy, 0 idle. Else -EINVAL. */
int ofs_device_poll(struct ofs_device *device);
/* Simulated clock only; -EINVAL otherwise, and for a time that has passed. */
int ofs_device_advance(struct ofs_device *device, uint64_t now_ns);

#endif
