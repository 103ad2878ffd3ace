/*
 * nvme_model.h: the NVMe timing model, which storage_emulated uses in real time, storage_sim in
 * virtual time, and the ASIC model.
 *
 * Model: every command passes the controller (one server, `command_interval_ps` each) and spends a
 * fixed, pipelined time in firmware. A read is cut into pages that are striped over channels,
 * planes and dies; each page waits for its plane (tR), then for its channel, then for the link. A
 * write crosses the link into the write buffer and ends there while there is room; the buffer is
 * emptied at the rate of all planes programming together. Reads suspend programs, so a program
 * never delays a read on its die, but the programs lose the die time that a read takes. Planes are
 * next-free times; channels and the two directions of the link are too, with a bounded list of the
 * gaps before it, because a page that waits for a slow die must not hold up the pages behind it.
 * So every end is known at submission, and what comes later cannot change it.
 *
 * A drive whose channels have schedulers (`scheduled`) is more like real ones under load: what
 * comes later may overtake, so `submit` returns OFS_NVME_LATER and `poll` hands out the end. Its
 * flash is that of src/nvme_flash.h; controller and link are the same. It may program several pages
 * of a plane at once, which its write buffer gathers (`program_pages`). It may have blocks, which
 * it collects and wears (src/nvme_blocks.h); all others write in place. Of its blocks zones may be
 * made (src/nvme_zones.h), which their host writes in order and resets, and the drive never
 * collects; the blocks that are left are a conventional namespace.
 *
 * Times are integer picoseconds; no float. A seeded counter-based generator chooses the
 * reads that need a retry. Not modelled: faults, host-side cost. The caller
 * bounds how many commands are in flight (queue_depth_max). One thread owns a model. Nothing can
 * fail after open; open refuses a parameter out of range with -EINVAL.
 */
#ifndef OFS_NVME_MODEL_H
#define OFS_NVME_MODEL_H

#include "ofs_base.h"

/* cdef: order 2 */
/* cdef: begin */
struct ofs_nvme_params {
	uint32_t channel_count;
	uint32_t dies_per_channel;
	uint32_t planes_per_die;  /* pages that one die reads in parallel, independently */
	uint32_t page_size_bytes; /* a multiple of 512 */
	uint32_t queue_depth_max;
	uint64_t read_ps;             /* tR */
	uint64_t program_ps;          /* tPROG of a plane's page, or of program_pages; effective */
	uint64_t firmware_ps;         /* fixed part of every read, pipelined */
	uint64_t command_interval_ps; /* 1 / IOPS limit of the controller */
	uint64_t channel_bytes_per_s;
	uint64_t link_bytes_per_s;   /* each direction */
	uint64_t write_buffer_bytes; /* a write ends when buffered, while there is room; with
	                              * program_pages each zone has as much of its own */
	uint32_t retry_per_million;  /* page reads that need a retry */
	uint32_t retry_factor;       /* factor on tR for such a read */
	uint64_t write_firmware_ps;  /* fixed part of every write and sync; 0: firmware_ps */
	uint32_t scheduled;          /* 1: channels have schedulers; the rest is of these drives only */
	uint32_t layout_fixed;       /* 1: pages in turn over all planes, and so again */
	uint64_t read_command_ps;    /* of a command on the channel, before tR */
	uint64_t program_command_ps; /* the same, before the data of a page */
	uint64_t suspend_ps;         /* until a program lets a read in; 0: a read waits for its end */
	uint64_t erase_ps;           /* of a block */
	uint32_t blocks_per_plane;   /* 0: without end, and nothing is collected */
	uint32_t pages_per_block;
	uint32_t spare_permille; /* of the blocks, beyond what the drive keeps: over-provisioning */
	uint32_t collect_blocks; /* a plane with fewer free ones collects: 2 or more */
	uint32_t handle_count;   /* of placement (FDP), at most OFS_NVME_HANDLES_MAX; 0: one */
	uint64_t retry_age_ps;   /* of a block: each adds a tR to its reads, up to retry_factor of them;
	                          * 0: age adds none */
	uint64_t refresh_ps;     /* a block this old is collected; 0: none is */
	uint32_t erase_limit;    /* a block erased so often is retired; 0: none is */
	uint32_t level_erases;   /* a block erased so much less than another of its plane is moved; 0:
	                          * none is */
	uint64_t zone_size_bytes;     /* its flash, and from one to the next; 0: the drive has none */
	uint64_t zone_capacity_bytes; /* what can be written of it */
	uint32_t zone_count;
	uint32_t zone_open_max;
	uint32_t zone_active_max;   /* open, or closed and partly written */
	uint64_t small_read_ps;     /* tR where at most 4 KiB of a page are read; 0: read_ps */
	uint64_t small_firmware_ps; /* of a read of at most 4 KiB; 0: firmware_ps */
	uint64_t write_each_ps;     /* of each 4 KiB of a write, beside write_firmware_ps; pipelined */
	uint32_t program_pages; /* of a plane at once, which writes fill in the order they come; 0: each
	                          * page as it is written, whole or not */
	uint32_t stripe_pages;  /* of as many planes, filled 4 KiB in turn; 0 or 1: one after another */
	uint32_t piece_bytes;   /* of a page on the channel, each on the link at once; 0: a whole page,
	                          * and on the link when all of the read are in */
	uint32_t commands_first; /* 1: on the channel, before data that wait to leave */
};
/* What a drive with schedulers and blocks has done to its flash. */
struct ofs_nvme_wear {
	uint64_t written_pages; /* by the host */
	uint64_t moved_pages;   /* by collections; write amplification is both over the first */
	uint64_t erased_blocks;
	uint64_t valid_pages;  /* that somebody may still read, each in one place */
	uint64_t erases_least; /* of a block, and of another; not of blocks of zones */
	uint64_t erases_most;
	uint64_t retired_blocks;
	uint64_t read_only; /* 1: the blocks that are left do not suffice */
};
/* Of a drive with schedulers: the end of an I/O, which was submitted with that tag. */
struct ofs_nvme_end {
	uint64_t tag;
	uint64_t end_ps;
};
enum ofs_nvme_zone_state { OFS_ZONE_EMPTY, OFS_ZONE_OPEN, OFS_ZONE_CLOSED, OFS_ZONE_FULL };
struct ofs_nvme_zone {
	uint64_t written_bytes; /* the write pointer, from the zone's start */
	uint64_t opened;        /* the number of its last opening, of all zones */
	uint32_t state;         /* enum ofs_nvme_zone_state */
};
#define OFS_NVME_LATER 0xffffffffffffffff
#define OFS_NVME_REFUSED 0xfffffffffffffffe
#define OFS_NVME_HANDLES_MAX 64
#define OFS_NVME_SMALL_BYTES 4096 /* of a small read, a mapped unit, and each step of a stripe */
/* Of a zoned drive 1 writes to the conventional namespace, OFS_NVME_ZONE_WRITE to a zone. */
enum ofs_nvme_io { OFS_NVME_ZONE_RESET = -2, OFS_NVME_DISCARD = -1, OFS_NVME_ZONE_WRITE = 2 };
struct ofs_nvme_model;

int ofs_nvme_model_open(struct ofs_nvme_model **out, const struct ofs_nvme_params *params,
	uint64_t seed);
void ofs_nvme_model_close(struct ofs_nvme_model *model);
/* When an I/O submitted at now_ps ends, or OFS_NVME_LATER. `write`: 0, 1 and the placement handle,
 * which the drive has, or OFS_NVME_DISCARD. A size of 0 is a command without data (a sync; the
 * write buffer is power-safe). now_ps does not go back from call to call; `tag` comes back with a
 * later end. Zones have addresses of their own, from 0. OFS_NVME_REFUSED: what a zoned drive does
 * not take, or a write or discard of one at the end of its life; nothing has changed. */
uint64_t ofs_nvme_model_submit(struct ofs_nvme_model *model, uint64_t now_ps, int write,
	uint64_t tag, uint64_t offset_bytes, uint32_t size_bytes);
/* The time before which `poll` returns nothing, or earlier; OFS_NVME_LATER: nothing is owed. */
uint64_t ofs_nvme_model_next_ps(const struct ofs_nvme_model *model);
/* At most `max` ends up to now_ps, in order of time. */
int ofs_nvme_model_poll(struct ofs_nvme_model *model, uint64_t now_ps, struct ofs_nvme_end *ends,
	int max);
void ofs_nvme_model_wear(const struct ofs_nvme_model *model, struct ofs_nvme_wear *wear);
/* Why the last command was refused, as "what; fix"; NULL: none was. */
const char *ofs_nvme_model_refusal(const struct ofs_nvme_model *model);
/* -EINVAL: the drive has no such zone. */
int ofs_nvme_model_zone(const struct ofs_nvme_model *model, uint32_t number,
	struct ofs_nvme_zone *zone);
/* What is wrong with the parameters and what to do about it, as "what; fix"; NULL: nothing. */
const char *ofs_nvme_params_wrong(const struct ofs_nvme_params *params);
/*
 * The time that one read takes of each resource of a drive that is never idle: the interval between
 * two such reads is at least the largest of them. Reading a part of a block saves time if link or
 * channel is the largest, and costs time if the command is; media time is saved only if fewer pages
 * are read. -EINVAL: a parameter or size of 0.
 */
struct ofs_nvme_cost {
	uint64_t command_ps; /* of the controller */
	uint64_t media_ps;   /* of all planes together: pages are read whole */
	uint64_t channel_ps; /* of all channels together */
	uint64_t link_ps;
};
int ofs_nvme_cost(const struct ofs_nvme_params *params, uint64_t offset_bytes, uint32_t size_bytes,
	struct ofs_nvme_cost *cost);
/* cdef: end */

/* Resets the model as opened: idle, random draws restarted, time from 0. */
void ofs_nvme_model_reset(struct ofs_nvme_model *model);

#endif
