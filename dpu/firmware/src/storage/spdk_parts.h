/*
 * spdk_parts.h: the parts of an SPDK storage. Private to src/storage.
 *
 * Model: a *drive* is one namespace through one controller and one queue pair. A *link* is all
 * drives of a storage and the one thread that connects them; only that thread waits for a target. A
 * *slot* is an I/O of the caller; a *piece* of it is one NVMe command, which never crosses a stripe
 * border and is no larger than the drive's largest transfer or a bounce buffer.
 *
 * A drive's state says which thread owns it: the link's thread while it is ASKED, the polling
 * thread from READY on. A lost drive returns to ASKED; its I/O in flight, and I/O submitted
 * meanwhile, waits until the drive is READY again or the deadline passes.
 */
#ifndef OFS_STORAGE_SPDK_PARTS_H
#define OFS_STORAGE_SPDK_PARTS_H

#include "internal.h"

#include <pthread.h>
#include <spdk/nvme.h>
#include <stdatomic.h>

enum {
	SPDK_DRIVES_MAX = 8,
	SPDK_WHY_BYTES = 480,
	SPDK_CHUNK_BYTES = 128 << 10, /* a bounce buffer */
	SPDK_CHUNKS = 128,
	SPDK_STRIPE_BYTES = 128 << 10,
	SPDK_REGIONS_MAX = 256,
	SPDK_ENV_MIB = 96,
	SPDK_ENV_HUGE_PAGES = SPDK_ENV_MIB / 2,
	SPDK_HANDLES_MAX = 16, /* placement handles in use */
	SPDK_RUHS_BYTES = 16 + 32 * SPDK_HANDLES_MAX,
	SPDK_KEEP_ALIVE_MS = 10000,
	SPDK_CONNECT_WAIT_S = 15,
	SPDK_READY_WAIT_S = 60, /* a local drive, which may need that to become ready */
	SPDK_DETACH_WAIT_S = 12,
	SPDK_NONE = -1
};

/* spdk_env.c: the environment, once in a process. */

/* 0 if it is up, or -errno with the reason in `why`. */
int ofs_spdk_env_begin(uint32_t huge, char *why);
/* Keeps what SPDK's log says of an error: the first line since the last call of begin. */
void ofs_spdk_log_begin(void);
void ofs_spdk_log_read(char *line, size_t size_bytes);

/* spdk_link.c: controllers and their thread. */

enum ofs_spdk_state {
	SPDK_CLOSED,  /* closed by its owner */
	SPDK_ASKED,   /* the link's thread frees the old connection and connects */
	SPDK_READY,   /* connected; the polling thread has not seen it yet */
	SPDK_UP,      /* in use */
	SPDK_REFUSED, /* at open only: `rc` and the link's `why` give the cause */
	SPDK_FOREIGN  /* came back as another drive: never used again */
};

struct ofs_spdk_drive {
	_Atomic int state; /* enum ofs_spdk_state */
	struct spdk_nvme_transport_id id;
	char host_nqn[SPDK_NVMF_NQN_MAX_LEN + 1];
	uint8_t host_id[16]; /* zero: SPDK's own */
	uint32_t nsid;       /* 0 until the first active one is known */
	uint32_t request_max;
	int lock_fd; /* claims the namespace against other processes on this machine */
	int rc;
	/* Set while connecting, constant while READY or UP. */
	struct spdk_nvme_ctrlr *ctrlr;
	struct spdk_nvme_ns *ns;
	struct spdk_nvme_qpair *qpair;
	/* Its properties at open. */
	uint32_t sector_bytes;
	uint32_t transfer_max_bytes;
	uint64_t size_bytes;
	uint8_t identity[32]; /* NGUID and UUID, zero if it has none */
	int discards;         /* it has dataset management */
	uint32_t handle_count;
	uint16_t handles[SPDK_HANDLES_MAX]; /* placement identifiers */
	int handles_told;
	_Alignas(8) uint8_t ruhs[SPDK_RUHS_BYTES]; /* what the drive reported of them */
	/* Of the polling thread. */
	uint32_t out; /* pieces in flight on it */
	int gone;     /* its queue pair failed */
	uint64_t lost_ns;
	int lost_rc;  /* the errno of its I/Os when they cannot wait any longer */
	int unsynced; /* writes that no sync covers yet */
	int sync_lost;
};

struct ofs_spdk_link {
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t asked; /* for the thread: something is ASKED, or closing */
	pthread_cond_t told;  /* for open and close */
	int closing;
	int ended;
	int abandoned; /* close did not wait: the thread frees the link */
	int opening;   /* a refused drive is not tried again */
	uint32_t huge;
	uint32_t drive_count;
	char why[SPDK_WHY_BYTES];
	struct ofs_spdk_drive drives[SPDK_DRIVES_MAX];
};

/* Parses `path` and connects every drive, within a bounded time. On failure `why` has the line. */
int ofs_spdk_link_open(struct ofs_spdk_link **out, const struct ofs_storage_config *config,
	char *why);
/* Releases every drive; their queue pairs are freed already. */
void ofs_spdk_link_close(struct ofs_spdk_link *link);
/* Polling thread: asks to reconnect an UP drive whose queue pair is freed. */
void ofs_spdk_link_ask(struct ofs_spdk_link *link, struct ofs_spdk_drive *drive);

/* spdk_place.c */
/* While connecting: reads what the drive supports of placement and of dataset management. */
void ofs_spdk_place_ask(struct ofs_spdk_drive *drive);
/* One write command; `lifetime` chooses the handle. */
int ofs_spdk_place_write(struct ofs_spdk_drive *drive, void *buffer, uint64_t lba, uint32_t count,
	uint32_t flags, uint32_t lifetime, spdk_nvme_cmd_cb done, void *argument);
int ofs_spdk_place_discard(struct ofs_spdk_drive *drive, uint64_t lba, uint32_t count,
	spdk_nvme_cmd_cb done, void *argument);

/* spdk_path.c: transport ids, and the claim on a namespace. */
int ofs_spdk_path_parse(struct ofs_spdk_link *link, const char *path, char *why);
int ofs_spdk_path_claim(struct ofs_spdk_drive *drive, char *why);

#endif
