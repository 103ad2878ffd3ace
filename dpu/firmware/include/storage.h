/*
 * storage.h: seam 2, a block device.
 *
 * Model: one storage is one queue pair, owned by one polling thread (the rule of SPDK's qpairs and
 * of io_uring's single issuer): the thread of the first submit or poll. `submit` queues an I/O,
 * returns -EAGAIN (busy: poll, then retry) or refuses it with another -errno; it never blocks, and
 * a queued I/O may start only at the next poll. `poll` returns completions, the only record of an
 * I/O's outcome: bytes moved or -errno. I/Os in flight have no order; a sync covers the writes
 * whose completions were returned before it was submitted. The back end completes short transfers,
 * or reports -EIO. A hung device never completes: deadlines are the caller's, who may not reuse a
 * buffer before its completion. Buffers lie in memory registered with `register_memory` (io_uring
 * fixed buffers, SPDK's DMA memory), before the first submit or on the polling thread, and
 * unregistered with `unregister_memory` before it is unmapped and before `close`, which aborts
 * otherwise (dma.h); offset, size and address are multiples of `lba_size_bytes`. A discard
 * (supported if `discards` is set) tells the device that these bytes will not be read before they
 * are written again; until then a read returns arbitrary bytes. `lifetime` groups writes that are
 * overwritten or discarded together; a device that supports it keeps the groups apart. To sleep:
 * poll until it returns 0, then wait on `wait_fd`, no longer than `due_ns`. `close` expects nothing
 * in flight; otherwise it waits a bounded time. A back end may start its own threads (posix), but
 * makes no callbacks.
 *
 * Sides: posix (thread pool), io_uring, emulated (NVMe timing over another side), sim (memory,
 * virtual time, seeded faults), skeleton (the commented example). A side may come from another
 * shared object (spdk): `ofs_storage_add` takes its table, which says for which version of this
 * header it was built. One contract suite runs over all.
 */
#ifndef OFS_STORAGE_H
#define OFS_STORAGE_H

#include "clock.h"
#include "nvme_model.h"

/* cdef: order 3 */
/* cdef: begin */
enum ofs_storage_op {
	OFS_STORAGE_READ = 0,
	OFS_STORAGE_WRITE = 1,
	OFS_STORAGE_SYNC = 2,
	OFS_STORAGE_DISCARD = 3
};

struct ofs_pace; /* pace.h */

#define OFS_STORAGE_VERSION 3
#define OFS_STORAGE_DURABLE 0x1 /* a write ends only when it is on the medium (RWF_DSYNC, FUA) */

struct ofs_io {
	uint64_t user; /* returned in the completion */
	uint64_t offset;
	void *buffer;
	uint32_t size_bytes;
	uint16_t op; /* enum ofs_storage_op */
	uint16_t flags;
	uint32_t lifetime; /* of a write: the group it belongs to */
};

struct ofs_io_done {
	uint64_t user;
	int64_t result; /* bytes moved (all of them), or -errno */
};

struct ofs_storage_config {
	char backend[16];    /* "posix", "io_uring", "emulated", "sim", "skeleton", or one that was
	                                 * added; "auto": the best for a file that opens */
	char path[512];      /* file or block device; spdk: transport ids; sim: a file that keeps
	                      * its bytes, else nothing does */
	char inner[16];      /* emulated: the side below; "" = memory: volatile, sparse,
	                                 * first touch on demand */
	uint64_t size_bytes; /* file: created or grown to it; block device: at most its size */
	uint32_t queue_depth_max;
	uint32_t lba_size_bytes;     /* 0: ask the file; 512 where nothing asks for more */
	uint32_t thread_count;       /* posix; 0: 4 */
	uint32_t direct;             /* O_DIRECT; falls back with a warning where the file refuses */
	uint32_t huge;               /* spdk: enum ofs_dma_huge, of the memory it takes for itself */
	uint64_t timeout_ns;         /* spdk: an I/O this old is taken from the device; 0: never */
	uint32_t discard;            /* spdk, sim: take discards, where the drive can */
	uint32_t handles_min;        /* placement handles that the device must have */
	uint32_t busy_spin;          /* emulated: 1 = the polling thread spins or sleeps no longer
	                                 * than due_ns; 0 = wait_fd is a timer, set at every change */
	struct ofs_nvme_params nvme; /* emulated, sim */
	uint64_t
		zones_offset_bytes; /* sim, of a drive with zones: where they begin, behind each other */
	uint64_t seed;          /* emulated, sim */
	struct ofs_pace *pace;  /* emulated: the caller's, of a whole device; NULL: of `nvme` */
	/* sim: seeded faults, per million I/Os */
	uint32_t fault_eio_per_million;
	uint32_t fault_short_per_million;
	uint32_t fault_corrupt_per_million; /* read ends well with a flipped byte */
	uint32_t fault_hang_per_million;    /* never completes until ofs_storage_unhang */
	uint32_t fault_torn_per_million;    /* write: a part reaches the medium, then -EIO */
};

struct ofs_storage_stats {
	uint64_t reads;
	uint64_t writes;
	uint64_t syncs;
	uint64_t discards;
	uint64_t bytes_read;
	uint64_t bytes_written;
	uint64_t bytes_discarded;
	uint64_t errors;
	uint64_t busy;
	uint64_t in_flight;
	uint64_t handles; /* no count: groups of writes that the device keeps apart; 0: none */
	/* emulated: I/Os handed out later than 105 % of the model's time (at least 1 us late),
	 * the latest, and the lateness of all I/Os together. An emulated figure is valid only where
	 * these are small. */
	uint64_t emulation_late;
	uint64_t emulation_late_ns_max;
	uint64_t emulation_late_ns_sum;
};
struct ofs_clock;
struct ofs_storage;

/* Opens config->backend; "auto" tries io_uring, then posix. The error text names cause and fix. */
int ofs_storage_open(struct ofs_storage **out, const struct ofs_storage_config *config,
	struct ofs_clock *clock, char *error, size_t error_size_bytes);
void ofs_storage_close(struct ofs_storage *storage);
struct ofs_storage_ops;
/* From now on a storage may be opened as ops->name; the caller keeps the table alive. 0 also if it
 * was added before; -EPROTO: built for another version of this header; -EEXIST: another side has
 * the name; -ENOSPC: too many. Not while another thread opens a storage. */
int ofs_storage_add(const struct ofs_storage_ops *ops);
/* One line on a request not met (O_DIRECT, io_uring, registered memory); "" if all were. */
const char *ofs_storage_warning(const struct ofs_storage *storage);
/* The back end in use: matters after "auto". */
const char *ofs_storage_name(const struct ofs_storage *storage);
int ofs_storage_register_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes);
int ofs_storage_unregister_memory(struct ofs_storage *storage, void *base, uint64_t size_bytes);
int ofs_storage_wait_fd(struct ofs_storage *storage);
uint64_t ofs_storage_due_ns(struct ofs_storage *storage);
/* sim: the device stops answering; unhang ends what hung with -ETIMEDOUT. Elsewhere no-ops. */
void ofs_storage_hang(struct ofs_storage *storage);
/* What the simulated drive has done to its flash; zeros of a drive without blocks and of others. */
void ofs_storage_sim_wear(const struct ofs_storage *storage, struct ofs_nvme_wear *wear);
void ofs_storage_unhang(struct ofs_storage *storage);
/* cdef: end */

enum { OFS_STORAGE_WARNING_SIZE_BYTES = 256 };

struct ofs_storage_ops {
	const char *name;
	uint32_t version; /* OFS_STORAGE_VERSION, of a side that is added */
	/* Why this thread's last open was refused, as "cause; fix"; NULL: errno says it. */
	const char *(*why)(void);
	/* Everything that allocates or can be refused happens here. */
	int (*open)(struct ofs_storage **out, const struct ofs_storage_config *config,
		struct ofs_clock *clock);
	void (*close)(struct ofs_storage *storage);
	int (*register_memory)(struct ofs_storage *storage, void *base, uint64_t size_bytes);
	/* Before the range is unmapped. Unregisters every range that overlaps it. */
	int (*unregister_memory)(struct ofs_storage *storage, void *base, uint64_t size_bytes);
	int (*submit)(struct ofs_storage *storage, const struct ofs_io *io);
	int (*poll)(struct ofs_storage *storage, struct ofs_io_done *done, int max);
	/* File descriptor (eventfd or timerfd) that becomes readable when poll has something;
	 * -1: poll only. poll clears it; the caller may clear it too, if it polls afterwards. */
	int (*wait_fd)(struct ofs_storage *storage);
	/* When the next completion is due, if the side knows (emulated, sim); else UINT64_MAX. */
	uint64_t (*due_ns)(struct ofs_storage *storage);
	/* 1: stop answering; 0: answer again. NULL: not supported. */
	void (*hang)(struct ofs_storage *storage, int hung);
};

#define OFS_STORAGE_REST_NS 1000000u /* by then a virtual drive's host has gone to sleep */

/* First member of every back end's own structure. */
struct ofs_storage {
	const struct ofs_storage_ops *ops;
	struct ofs_clock *clock;
	uint64_t size_bytes;
	uint32_t lba_size_bytes;
	uint32_t queue_depth_max;
	uint32_t direct;   /* what is in use, not what was asked for */
	uint32_t discards; /* OFS_STORAGE_DISCARD is supported */
	/* uring: system calls that gave an idle drive something to do. A virtual drive is woken by them,
	 * which takes ten times what reads cost that join others. */
	uint64_t starts;
	uint64_t wakes; /* of these, those after OFS_STORAGE_REST_NS without anything in flight */
	uint64_t idle_since_ns;
	struct ofs_storage_stats stats;
	char warning[OFS_STORAGE_WARNING_SIZE_BYTES];
};

/* Counts a start. */
static inline void
ofs_storage_starts(struct ofs_storage *storage, uint64_t now_ns)
{
	storage->starts++;
	storage->wakes += now_ns - storage->idle_since_ns >= OFS_STORAGE_REST_NS;
}

static inline int
ofs_storage_submit(struct ofs_storage *storage, const struct ofs_io *io)
{
	return storage->ops->submit(storage, io);
}

static inline int
ofs_storage_poll(struct ofs_storage *storage, struct ofs_io_done *done, int max)
{
	return storage->ops->poll(storage, done, max);
}

#endif
