/*
 * driver.h: the host driver, which a decode loop calls to get its blocks.
 *
 * Model: one driver over one fabric, owned by one thread, without the GIL. A *fetch* serves the
 * demands of one layer of one step: it looks up every key in the directory, copies and checks the
 * hits one-sidedly, sends one STEP with what it saw (which also carries the hint), then copies and
 * checks the other blocks as they land. A block that fails its check or whose slot was reused is
 * requested again (bounded), never returned. A *put* copies blocks into the put window and waits
 * for their acknowledgement.
 *
 * Several calls may be in flight, as many as the port has entries, each with its own deadline.
 * `begin` does what needs no answer and returns a ticket; `poll` advances all calls; `end` waits
 * for one of them and advances the others meanwhile. A blocking call is the three in a row. What a
 * call points to belongs to the driver from begin until end. Tasks on values (value_io.h)
 * may be in flight over the same driver: their calls are counted apart, `poll` reports none of
 * them, and whichever side turns advances both.
 *
 * A command that timed out keeps its payload area and put slot until its completion arrives: the
 * DPU may still use them. When all are taken, further calls end with -ETIMEDOUT.
 */
#ifndef OFS_DRIVER_H
#define OFS_DRIVER_H

#include "fabric.h"
#include "histogram.h"
#include "scores.h"

/* cdef: order 9 */
/* cdef: begin */
struct ofs_driver;

struct ofs_fetch {
	uint32_t session;
	uint32_t step;
	uint32_t layer;
	uint32_t selected_count;
	uint32_t demand_count;
	uint32_t score_count;
	const uint32_t *ordinals;   /* [demand_count] */
	const struct ofs_key *keys; /* [demand_count] block keys (layer folded in) */
	const uint16_t *scores;     /* [score_count] or NULL */
	/*
	 * NULL: whole blocks. Else [demand_count]: the granules of each, not 0. Then target_index and
	 * checksums have an entry for each granule, those of demand i from granule_first[i] on,
	 * target_stride_bytes is at least a granule, and lengths count the bytes that were copied.
	 */
	const uint32_t *granules;
	const uint32_t *granule_first;
	/* Block i is copied to target + target_index[i] * target_stride_bytes; a whole payload may be
	 * overwritten there. */
	uint8_t *target;
	const uint32_t *target_index;
	uint64_t target_stride_bytes;
	/* NULL, or of whole blocks: rows from target_rows on are here, row target_rows first. */
	uint8_t *spare;
	uint32_t target_rows;
	uint64_t timeout_ns;
	/* out */
	uint8_t *ends;       /* [demand_count] enum ofs_end, 255 unknown (failed) */
	int32_t *rcs;        /* [demand_count] 0 or -errno; -ESTALE slot reused at every try */
	uint32_t *lengths;   /* [demand_count] payload bytes, may be NULL */
	uint64_t *checksums; /* [demand_count] XXH3-64 of what was copied, may be NULL */
	uint32_t hit_count;
	uint32_t failed_count;
	uint32_t retry_count;
	uint32_t torn_count; /* one-sided reads whose slot changed under them */
	uint64_t stall_ns;   /* waiting for blocks that were not there */
	uint64_t copy_ns;    /* one-sided reads and checks */
};

struct ofs_put {
	uint32_t session;
	uint32_t layer;
	uint32_t count;
	uint32_t length_bytes;    /* of each block */
	const uint32_t *ordinals; /* [count] */
	const uint8_t *source;    /* block i is at source + i * source_stride_bytes */
	uint64_t source_stride_bytes;
	uint64_t timeout_ns;
	int32_t *rcs; /* out: [count] 0 or -errno (-ENOSPC store full, -EIO, -EINVAL wrong size) */
	uint64_t *checksums; /* out: [count] XXH3-64 of what was sent, may be NULL */
};

struct ofs_driver_stats {
	uint64_t fetches;
	uint64_t hits;
	uint64_t misses;
	uint64_t torn;
	uint64_t retries;
	uint64_t failed;
	uint64_t puts;
	uint64_t bytes_read;
	uint64_t bytes_put;
	uint64_t remembered; /* hits read without a directory lookup */
	uint64_t moved_on;   /* remembered slots that were reused */
	uint64_t guesses;    /* sent with hints */
	uint64_t granules_read;
};

struct ofs_device;

/*
 * From the attachment, as ofs_fabric_open. The descriptors stay the caller's: the driver dups what
 * it keeps.
 */
int ofs_driver_attach(struct ofs_driver **out, const struct ofs_attachment *attachment, char *error,
	size_t error_size_bytes);
/*
 * The same in virtual time, over a device in this process that was opened with a simulated clock:
 * the driver's waits run the device's reactor. For tests and the lab.
 */
int ofs_driver_attach_sim(struct ofs_driver **out, struct ofs_device *device,
	const struct ofs_attachment *attachment, const struct ofs_fabric_sim_config *config,
	char *error, size_t error_size_bytes);
void ofs_driver_close(struct ofs_driver *driver);
/* 1: `answer` is what the DPU's end needs of this one (ofs_device_connect); 0: it needs nothing. */
int ofs_driver_export(const struct ofs_driver *driver, struct ofs_attachment *answer);
/*
 * Target memory of fetches: registered before the first fetch into it, unregistered before it is
 * freed; a fabric may have to pin it. 0; -EINVAL; -ENOSPC too many ranges; -ENOENT no such range
 * was registered.
 */
int ofs_driver_register(struct ofs_driver *driver, void *base, uint64_t size_bytes);
int ofs_driver_unregister(struct ofs_driver *driver, void *base, uint64_t size_bytes);
/*
 * Begins a fetch: reads its hits and sends its STEPs without waiting for an answer. 0 and a ticket;
 * -EAGAIN: as many calls are in flight as the port has entries; -EINVAL. Later errors are returned
 * by its end.
 */
int ofs_driver_fetch_begin(struct ofs_driver *driver, struct ofs_fetch *fetch, uint64_t *ticket);
/*
 * Waits for this fetch and returns its outcome. 0: every demand ended, with its own rcs entry.
 * -ETIMEDOUT: some did not end in time. -EPIPE: the daemon closed the port or died; for other
 * connection errors see `wait` in fabric.h. -EINVAL, -EPERM: the daemon refused the step. rcs are
 * filled in all cases. -EBADF: no such fetch in flight.
 */
int ofs_driver_fetch_end(struct ofs_driver *driver, uint64_t ticket);
/*
 * Cancels this fetch, ended or not, without waiting: demands that have not ended get -ETIMEDOUT. On
 * return the driver uses nothing that the fetch points to, including its target. 0, -EBADF.
 */
int ofs_driver_fetch_cancel(struct ofs_driver *driver, uint64_t ticket);
/* Begin and end of puts: as for fetches. Acknowledged as the daemon's write mode says. */
int ofs_driver_put_begin(struct ofs_driver *driver, const struct ofs_put *put, uint64_t *ticket);
int ofs_driver_put_end(struct ofs_driver *driver, uint64_t ticket);
/*
 * Advances every call and waits up to `timeout_ns` (0: not at all) for one to end. Writes at most
 * `max` tickets of calls that have ended and returns their number; each is reported once, and its
 * end then does not wait.
 */
int ofs_driver_poll(struct ofs_driver *driver, uint64_t timeout_ns, uint64_t *tickets,
	uint32_t max);
/* How many calls may be in flight together. */
uint32_t ofs_driver_calls_max(const struct ofs_driver *driver);
/*
 * Sends guesses for later layers without waiting: they are advice, and those that the port has no
 * room for are dropped. Returns how many were sent; -EPIPE.
 */
int ofs_driver_hint(struct ofs_driver *driver, uint32_t session, const struct ofs_guess *guesses,
	uint32_t count);
/* Releases the session's pins now, not at its next step. */
int ofs_driver_release(struct ofs_driver *driver, uint32_t session);
int ofs_driver_stats_get(const struct ofs_driver *driver, struct ofs_driver_stats *stats);
/* Times of the host's stages: [OFS_STAGE_COUNT]; the reactor's stages are empty. */
void ofs_driver_stages_get(const struct ofs_driver *driver, struct ofs_histogram *stages);
/* Timers off (0), on as after open (1: one in OFS_STAGE_STRIDE) or for every command (2; copies of
 * blocks as with 1); also sets which commands carry a time stamp for the reactor. */
void ofs_driver_stages_set(struct ofs_driver *driver, int on);
uint32_t ofs_driver_payload_size_bytes(const struct ofs_driver *driver);
/* Granules of a block; below 2: the daemon has none. */
uint32_t ofs_driver_granule_count(const struct ofs_driver *driver);
uint32_t ofs_driver_demand_max(const struct ofs_driver *driver);
uint32_t ofs_driver_score_max(const struct ofs_driver *driver);
uint32_t ofs_driver_put_slot_count(const struct ofs_driver *driver);
/* Limits the scores sent, from the next fetch on; after open all are sent. */
void ofs_driver_limit_scores(struct ofs_driver *driver, const struct ofs_score_limits *limits);
/* Machine nanoseconds per nanosecond of all times here: timeouts, stalls, stages. */
uint32_t ofs_driver_dilation(const struct ofs_driver *driver);

/* Benches, in C to keep Python out of the loop. */
/* Round trip of `count` NOP commands, each timed: rtt_ns [count]. */
int ofs_driver_bench_nop(struct ofs_driver *driver, uint32_t count, uint64_t *rtt_ns);
/* `round_count` times whether these values exist, each timed: round_ns [round_count]. */
int ofs_driver_bench_values(struct ofs_driver *driver, uint32_t count,
	const struct ofs_value_ask *asks, struct ofs_value_told *told, uint32_t round_count,
	uint64_t *round_ns);
/* `count` fetches one after another, each of the next step; *taken_ns: all of them together. */
int ofs_driver_bench_fetch(struct ofs_driver *driver, struct ofs_fetch *fetch, uint32_t count,
	uint64_t *taken_ns);
#define OFS_BENCH_READ_BATCH 16
/*
 * `batch_count` times: 16 one-sided reads of the given keys in turn, looked up and checked as fetch
 * does; as many memcpy of the same sizes out of other slots; and as many reads without the checksum
 * of the payload. Each batch is timed alone, so that a median is not affected by batches that lost
 * the core: ns [batch_count] of each. The keys must be published. `target` has room for one
 * payload, or 16 over a network, where all reads are in flight together. Returns how many reads
 * failed their check, or -errno.
 */
int ofs_driver_bench_read(struct ofs_driver *driver, uint32_t key_count, const struct ofs_key *keys,
	uint32_t batch_count, uint8_t *target, uint64_t *read_ns, uint64_t *memcpy_ns,
	uint64_t *unchecked_ns);
#define OFS_BENCH_LINK_BATCH_MAX 64
/*
 * `round_count` times `batch` (at most 64) one-sided reads of `size_bytes` each, begun together,
 * from slots far apart, into `target`, which has room for all and is registered; nothing is looked
 * up or checked: ns [round_count]. Measures the link alone. -EINVAL.
 */
int ofs_driver_bench_link(struct ofs_driver *driver, uint32_t size_bytes, uint32_t batch,
	uint32_t round_count, uint8_t *target, uint64_t *round_ns);
/* The same by memcpy, out of `source`: [slot_count] slots of `size_bytes`. */
void ofs_bench_memcpy(const uint8_t *source, uint32_t slot_count, uint32_t size_bytes,
	uint32_t batch, uint32_t round_count, uint8_t *target, uint64_t *round_ns);
/* Floor of the round trip: two threads and two words of shared memory, nothing else. */
int ofs_bench_spin_rtt(uint32_t count, uint64_t *rtt_ns);
/*
 * Asks the daemon to do this (enum ofs_value_verb) with each of `count` values, as many in a
 * command as it takes: told [count] says what became of each.
 */
struct ofs_asking {
	uint32_t verb;
	uint32_t count;
	const struct ofs_value_ask *asks;
	struct ofs_value_told *told;
	uint64_t timeout_ns;
};
/* 0; -ETIMEDOUT: of those not told nothing is known; -EPIPE; -EINVAL: no such verb; the same rc is
 * then in `told` of each that was not answered. -ENOTSUP: a command of this port has no room for a
 * value. */
int ofs_driver_values(struct ofs_driver *driver, const struct ofs_asking *asking);
/* cdef: end */

/* Begin, poll and end in one call. */
int ofs_driver_fetch(struct ofs_driver *driver, struct ofs_fetch *fetch);
int ofs_driver_put(struct ofs_driver *driver, const struct ofs_put *put);

/* Over any fabric, which then belongs to the driver (also when this fails). */
int ofs_driver_open(struct ofs_driver **out, struct ofs_fabric *fabric);

#endif
