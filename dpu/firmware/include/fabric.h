/*
 * fabric.h: seam 3, how a host reaches a region and its port.
 *
 * Model: this is the host's end of seam 3; port.h is the DPU's. One fabric handle is one host's
 * access to one tenant's region (read one-sidedly) and to its own port (commands and completions).
 * It is opened from what the DPU's end exported (attach.h). One thread owns it. `read` posts a
 * one-sided read, and `flush` returns when all posted reads are in place, one round trip later:
 * shared memory does the copy in `read`; RDMA posts work requests and polls in `flush`.
 * Nothing blocks but `flush`, `wait` and `pause`, all bounded by a timeout.
 *
 * Sides: shm (mappings), memory (in one process, the commented skeleton), sim (either of them in
 * virtual time, with seeded delays and torn reads), and where their library is found nixl and verbs
 * (RDMA; both come by side.h). The ZMQ fabric, for where nothing better exists, is a proxy in
 * Python that runs this driver next to the daemon. One contract suite runs over all.
 */
#ifndef OFS_FABRIC_H
#define OFS_FABRIC_H

#include <stdbool.h>

#include "attach.h"
#include "region.h"

struct ofs_device;
struct ofs_fabric;

/* Where the next bytes of a read go. */
struct ofs_span {
	void *target;
	uint32_t size_bytes;
};
#define OFS_READ_SPANS_MAX 2

struct ofs_fabric_ops {
	const char *name;
	/* Unregisters what is still registered. */
	void (*close)(struct ofs_fabric *fabric);
	/*
	 * What the DPU's end needs of this one before they can communicate: a blob for its `connect`.
	 * NULL: nothing.
	 */
	void (*export)(const struct ofs_fabric *fabric, struct ofs_attachment *answer);
	/*
	 * Target memory of reads: pinned and registered if the fabric needs that, else only recorded.
	 * -EINVAL, -ENOSPC too many ranges.
	 */
	int (*register_memory)(struct ofs_fabric *fabric, void *base, uint64_t size_bytes);
	/* The same range, before it is unmapped and with no read in flight; -ENOENT. */
	int (*unregister_memory)(struct ofs_fabric *fabric, void *base, uint64_t size_bytes);
	/*
	 * One read of consecutive bytes, scattered over `span_count` spans. -ERANGE: not inside the
	 * region. -EFAULT: a span lies in no registered range, from a side that needs one (sim, RDMA).
	 * The bytes may be torn, mixed in any order: the driver checks them.
	 */
	int (*read)(struct ofs_fabric *fabric, uint64_t region_offset, const struct ofs_span *spans,
		uint32_t span_count);
	int (*flush)(struct ofs_fabric *fabric, uint64_t timeout_ns);
	/*
	 * NULL if reads cross a network. If the region is local memory: a read that is in place on
	 * return, in the order of the calls, and the XXH3-64 of the copy.
	 */
	int (*copy)(struct ofs_fabric *fabric, uint64_t region_offset, void *target,
		uint32_t size_bytes, uint64_t *checksum);
	/* Copy into the put window of the port, and the XXH3-64 of the copy; -ERANGE. */
	int (*write_put)(struct ofs_fabric *fabric, uint32_t put_slot, const void *source,
		uint32_t size_bytes, uint64_t *checksum);
	/* Where the caller may build the payload of the next submission with this index. */
	void *(*payload)(struct ofs_fabric *fabric, uint32_t payload_index);
	/* 0 queued; -EAGAIN full; or what ended the connection, as for `wait`. */
	int (*submit)(struct ofs_fabric *fabric, const struct ofs_sqe *sqe);
	/* Wakes a DPU that sleeps, as submit does unless `bell_held`. NULL: submit always does. */
	void (*ring)(struct ofs_fabric *fabric);
	int (*poll)(struct ofs_fabric *fabric, struct ofs_cqe *cqes, int max);
	/* Results of a completed STEP, valid until its payload area is used again. */
	const struct ofs_result *(*results)(struct ofs_fabric *fabric, const struct ofs_cqe *cqe);
	/*
	 * Spin shortly, then sleep until a completion or the timeout. 0, -ETIMEDOUT, or what ended the
	 * connection: -EPIPE the DPU closed it, -EHOSTUNREACH it no longer answers, -EACCES it refused
	 * a key, -EPROTO it wrote nonsense. With a timeout of 0 it checks for completions and for the
	 * other side's exit, and does not sleep.
	 */
	int (*wait)(struct ofs_fabric *fabric, uint64_t timeout_ns);
	uint64_t (*now_ns)(struct ofs_fabric *fabric);
	void (*pause)(struct ofs_fabric *fabric, uint64_t pause_ns);
};

#define OFS_FABRIC_MEMORIES_MAX 256

struct ofs_fabric_memory {
	uintptr_t first;
	uintptr_t end;
};

/* First member of every side's own structure. */
struct ofs_fabric {
	const struct ofs_fabric_ops *ops;
	struct ofs_region_header region; /* checked copies */
	struct ofs_port_header port;
	uint32_t dilation;       /* machine nanoseconds per nanosecond of now_ns */
	uint32_t read_batch_max; /* over a network: records posted before one flush; at least 1 */
	bool bell_held;          /* its owner submits several, and wakes the DPU after the last */
	uint32_t registered_count;
	struct ofs_fabric_memory registered[OFS_FABRIC_MEMORIES_MAX];
};

/* cdef: order 8 */
/* cdef: begin */
struct ofs_fabric_sim_config {
	uint64_t seed;
	uint64_t step_ns;          /* virtual time of one look at the completion ring; not 0 */
	uint64_t delay_ns_max;     /* longest delay of a completion */
	uint32_t torn_per_million; /* reads interrupted by a turn of the DPU */
	uint32_t flip_per_million; /* reads that come back with a flipped bit */
};
/* cdef: end */

/*
 * Opens the fabric that the blob names; the descriptors stay the caller's. Every open checks the
 * blob, then magic, version and checksum of region and port, that every offset lies inside the
 * memory, that the two belong together, and that a mapping cannot shrink; `error` names cause and
 * fix. -EPROTO another magic or version, -EINVAL a check failed, -errno of the system.
 */
int ofs_fabric_open(struct ofs_fabric **out, const struct ofs_attachment *attachment, char *error,
	size_t error_size_bytes);
/*
 * The same in virtual time: a wait advances the time and runs the DPU's side on this thread, by
 * `pump(context, now_ns)`.
 */
int ofs_fabric_sim_open(struct ofs_fabric **out, const struct ofs_attachment *attachment,
	const struct ofs_fabric_sim_config *config, void (*pump)(void *context, uint64_t now_ns),
	void *context, uint64_t now_ns, char *error, size_t error_size_bytes);

/* Ends `bell_held`; `rings`: something was submitted meanwhile. */
static inline void
ofs_fabric_bell_release(struct ofs_fabric *fabric, bool rings)
{
	fabric->bell_held = false;
	if (rings && fabric->ops->ring != NULL)
		fabric->ops->ring(fabric);
}

/* Whether these bytes lie in one range that is registered. */
int ofs_fabric_is_registered(const struct ofs_fabric *fabric, const void *base,
	uint64_t size_bytes);

#endif
