/*
 * driver/internal.h: what the files of the host driver share.
 *
 * Model: all of it belongs to the driver's one thread. Tables are sized at open by the port's
 * header; nothing is allocated after. A command takes one payload area, and that area's index
 * names it.
 */
#ifndef OFS_DRIVER_INTERNAL_H
#define OFS_DRIVER_INTERNAL_H

#include "driver.h"

#include <stdbool.h>

#define OFS_READ_ATTEMPTS_MAX 8 /* a slot that moves on oftener than that is not worth it */
#define OFS_BACKOFF_NS_MIN 20000ull
#define OFS_BACKOFF_NS_MAX 1000000ull
#define OFS_COMMAND_TIMEOUT_NS 2000000000ull
#define OFS_CQE_BATCH 32

/* One block that is to be looked up and read. */
struct ofs_block_read {
	struct ofs_key key;
	uint8_t *target;
	uint32_t slot; /* OFS_NONE: not in the directory */
	uint32_t generation;
	uint32_t cause;    /* out: enum ofs_cause, of a block that was read */
	uint32_t length;   /* out */
	uint64_t checksum; /* out: XXH3-64 of what was copied */
	int32_t rc;        /* out: 0; -ENOENT no slot; -ESTALE it moved on; -EBADMSG bad bytes */
	uint32_t attempts;
	_Alignas(64) struct ofs_directory_entry bucket[OFS_BUCKET_ENTRIES];
	struct ofs_trailer before;
	struct ofs_trailer after;
};

/* One command in flight, by payload index. */
struct ofs_pending {
	uint64_t user;
	uint32_t put_slot; /* OFS_NONE: none */
	uint32_t tag;      /* put: which block */
	bool used;
	bool done;
	bool abandoned; /* timed out: nobody waits, the DPU may still use its memory */
	struct ofs_cqe cqe;
};

struct ofs_driver {
	struct ofs_fabric *fabric;
	struct ofs_driver_stats stats;
	uint64_t user_last;
	struct ofs_pending *pending; /* [entry_count] */
	uint32_t *free_payloads;     /* [entry_count], a stack */
	uint32_t free_payload_count;
	uint32_t *free_put_slots; /* [put_slot_count], a stack */
	uint32_t free_put_slot_count;
	uint32_t *active;             /* [entry_count] payload indexes of one put call */
	struct ofs_block_read *reads; /* [demand_max] */
	uint32_t *wanted;             /* [demand_max] demands still to come, by index */
	struct ofs_result *results;   /* [demand_max] of the last STEP */
};

static inline uint64_t
ofs_driver_now_ns(const struct ofs_driver *driver)
{
	return driver->fabric->ops->now_ns(driver->fabric);
}

/* ---- commands (command.c) ---- */
/* A free payload area, waited for until `deadline_ns`; -ETIMEDOUT, -EPIPE. */
int ofs_command_begin(struct ofs_driver *driver, uint64_t deadline_ns, uint32_t *payload_index);
/* Sends it; `sqe`'s user and payload_index are filled in. On failure the area is free again. */
int ofs_command_send(struct ofs_driver *driver, struct ofs_sqe *sqe, uint32_t payload_index,
	uint64_t deadline_ns);
/* Waits for its completion and copies it; the area stays taken until ofs_command_end. */
int ofs_command_wait(struct ofs_driver *driver, uint32_t payload_index, uint64_t deadline_ns,
	struct ofs_cqe *cqe);
void ofs_command_end(struct ofs_driver *driver, uint32_t payload_index);
/* Nobody waits any more; its memory comes back with its completion. */
void ofs_command_abandon(struct ofs_driver *driver, uint32_t payload_index);
/* Takes in whatever has completed. */
void ofs_command_collect(struct ofs_driver *driver);

/* ---- one-sided reads (read.c) ---- */
/* Fills in slot and generation of every read from the directory. -errno of the fabric. */
int ofs_reads_lookup(struct ofs_driver *driver, struct ofs_block_read *reads, uint32_t count);
/*
 * Reads and checks the `count` blocks named by `order` (NULL: the first `count`). Each has its rc.
 * `checked` 0 leaves out the checksum of the payload: benches only.
 */
int ofs_reads_run(struct ofs_driver *driver, struct ofs_block_read *reads, const uint32_t *order,
	uint32_t count, int checked);

#endif
