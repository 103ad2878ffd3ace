/*
 * ofs_core.h: the decision core.
 *
 * Model: one deterministic library decides everything: index, sharing, prefetch ranking, eviction,
 * bandwidth, admission. The time comes with every event; the core reads no clock. It makes no
 * system call, allocates nothing after open, and uses integers only, so that x86 and Arm decide
 * alike. One thread owns a core. Events go in through the calls below; the core's actions come out,
 * and its owner (reactor, simulator, ASIC model) takes them after every event. The core never
 * touches a byte of KV.
 *
 * Blocks are (chunk, layer) with dense chunk numbers; a session names blocks by ordinal: the index
 * of the chunk in its own list. A chunk is identified by its keyed prefix hash; sessions of one
 * tenant that share a prefix share chunks, which are reference-counted. While the policy's SHARED
 * bit is off, a session gets private chunks (key salted with the session) with the common
 * `store_key`: one copy on NVMe, private copies in the arena.
 *
 * What can fail: full tables (-ENOSPC, nothing changed), bad handles or ranges (-EINVAL), actions
 * of earlier events that the owner has not taken (-EBUSY).
 * A demand that finds all slots pinned completes with -EAGAIN: the host retries.
 */
#ifndef OFS_CORE_H
#define OFS_CORE_H

#include "ofs_base.h"

/* cdef: order 1 */
/* cdef: begin */
struct ofs_core;

#define OFS_PREFETCH_WINDOW 0x01
#define OFS_PREFETCH_EMA 0x02
#define OFS_PREFETCH_SHARED 0x04
#define OFS_PREFETCH_PREV_STEP 0x08
#define OFS_PREFETCH_PREV_LAYER 0x10
#define OFS_PREFETCH_NEXT_N 0x20
#define OFS_PREFETCH_ALL 0x3f

enum ofs_evict {
	OFS_EVICT_LRU = 0,
	OFS_EVICT_FIFO = 1,
	OFS_EVICT_RANDOM = 2,
	OFS_EVICT_S3FIFO = 3,
	OFS_EVICT_SCORE = 4, /* least probable demand first, LRU among equals */
	OFS_EVICT_SIEVE = 5,
	OFS_EVICT_LRU_K = 6,
	OFS_EVICT_ARC = 7,
	OFS_EVICT_COUNT = 8
};

/* Fixed at open: every table is sized by it. */
struct ofs_core_config {
	uint64_t seed; /* for OFS_EVICT_RANDOM only */
	uint32_t tenant_max;
	uint32_t session_max;
	uint32_t chunk_max;         /* chunks in the table; one that is not shared takes two */
	uint32_t session_chunk_max; /* ordinals of one session */
	uint32_t layer_count;
	uint32_t slot_count;       /* staging slots over all tenants */
	uint32_t block_size_bytes; /* bytes one read takes from the store */
	uint32_t io_max;           /* reads in flight */
	uint32_t queue_max;        /* prefetch candidates waiting, per tenant */
	uint32_t demand_max;       /* demands in one step of one layer */
	uint32_t log_size_bytes;   /* decision-log ring; 0: no log */
	uint32_t record_max;       /* ledger-record ring; 0: counters only */
	uint32_t granule_count;    /* parts of a block that a demand may name; 0: whole blocks only */
	uint32_t granule_size_bytes;
};
#define OFS_GRANULES_MAX 32u /* bits of a mask */

/*
 * May change at any time; a change resets the degree of every tenant, and a change of eviction
 * rebuilds its order. Prefetcher SHARED decides sharing for sessions opened afterwards.
 */
struct ofs_policy {
	uint32_t prefetchers;            /* OFS_PREFETCH_* bits; 0: none */
	uint32_t eviction;               /* enum ofs_evict */
	uint32_t window_blocks;          /* behind the decode position, per layer: staged once */
	uint16_t ema_shift;              /* new score weighs 1 / 2^ema_shift */
	uint16_t admit_named_min;        /* a new chunk is written if more sessions put it; 255: none */
	uint32_t residency_percent;      /* guesses: the best, at most this % of the selection size */
	uint32_t degree_max;             /* guesses of one step of one layer, without the window */
	uint32_t next_n;                 /* baseline next-N: how many */
	uint32_t prefetch_in_flight_max; /* prefetch reads in flight, all sessions */
	uint64_t prefetch_bytes_per_s_max; /* bandwidth cap; 0: none */
	uint16_t accuracy_permille_min; /* below it the degree halves, above twice it grows; 0: off */
	uint16_t keep_minutes;          /* kept chunks unnamed this long are dropped; 0: never */
	uint16_t lateness_permille_max; /* above it the deadline margin grows; 0: off */
	uint16_t return_tokens_min;     /* for fewer, nothing comes back from an archive; 65535: none */
	uint64_t lease_ns; /* pin of a demanded block: to the session's next step, at most this long */
	uint32_t probability_permille_min; /* of a demand within 4 steps: less is not prefetched */
	uint16_t hint_scores_max;          /* only this many best scores of a layer are used; 0: all */
	uint8_t hint_every_steps;          /* scores of one step in this many; 0 and 1: of each */
	uint8_t hint_score_bits;           /* 8: with their upper byte; 0 and 16: whole */
};

struct ofs_tenant_config {
	struct ofs_key secret;
	uint32_t slot_count; /* the tenant's own part of the arena */
	uint32_t weight;     /* share of the prefetch bandwidth */
};

/* Expected steps until a session that has not begun is assumed to read. */
#define OFS_BEGIN_STEPS 16
#define OFS_STEP_NS_MAX 3600000000000 /* an hour: a guess 65,535 of them ahead still has a time */

struct ofs_session_config {
	uint32_t tenant;
	uint32_t sink_blocks;   /* trivially selected: not counted as non-trivial */
	uint32_t window_blocks; /* trivially selected at the end of the context */
	uint32_t select_blocks; /* k: blocks one layer selects in a step */
	uint64_t step_ns;       /* expected time per token, at most OFS_STEP_NS_MAX; then as seen */
};

/* What the host saw when it looked for a demanded block. */
#define OFS_SEEN_MISS 0      /* not in the directory, or its slot had moved on */
#define OFS_SEEN_UNKNOWN 255 /* not looked up: the core's own state decides (simulators) */
/* 1 .. OFS_CAUSE_COUNT-1: it was there and was read; the value is the directory's cause */

struct ofs_step {
	uint32_t session;
	uint32_t step;
	uint32_t layer;
	uint32_t selected_count; /* blocks the kernel reads, those of the HBM pool included; no more
	                          * than session_chunk_max and one that is not named yet */
	uint32_t demand_count;
	uint32_t score_count;    /* 0: no hint */
	uint32_t waiter;         /* returned in OFS_ACTION_COMPLETE */
	uint32_t flags;          /* OFS_STEP_RETRY */
	uint32_t hint_bytes;     /* of the scores as sent; 0: computed from the flags */
	const uint32_t *demands; /* [demand_count] ordinals, no duplicates */
	/* [demand_count] granules of each demand, bit i the i-th; 0: all. NULL: whole blocks */
	const uint32_t *granules;
	const uint8_t *seen;    /* [demand_count] OFS_SEEN_* or a cause; NULL: all UNKNOWN */
	const uint16_t *scores; /* [score_count] score of ordinal i, 0 = never */
};
#define OFS_STEP_RETRY 0x1  /* the same demands again after -EAGAIN: not counted in the ledger */
#define OFS_STEP_PACKED 0x2 /* the hint was sent within the policy's limits: count its bytes so */

enum ofs_action_type {
	OFS_ACTION_READ = 1,    /* read (store_key, layer) into slot; answer with ofs_core_io_done */
	OFS_ACTION_PUBLISH = 2, /* directory: key -> (slot, generation, cause) */
	OFS_ACTION_RETRACT = 3, /* directory: remove key, void the slot's trailer; precedes a reuse */
	OFS_ACTION_COMPLETE = 4 /* demand `index` of `waiter` ended: 0 and (slot, generation), or rc */
};

struct ofs_action {
	uint32_t type;
	uint32_t io; /* READ: handle */
	uint32_t tenant;
	uint32_t chunk;
	uint32_t layer;
	uint32_t slot;       /* within the tenant's part of the arena */
	uint32_t generation; /* of the slot, never 0 */
	uint32_t cause;      /* enum ofs_cause */
	uint32_t waiter;
	uint32_t index;
	int32_t rc;
	uint32_t session;         /* READ: the first that asked; OFS_NONE: it has closed */
	uint64_t deadline_ns;     /* READ: when it is needed */
	uint32_t granules;        /* READ: to read; PUBLISH: present now; 0: the whole block */
	uint32_t held;            /* those present before; not 0: the slot is already published */
	struct ofs_key key;       /* chunk key in the directory (fold the layer with ofs_block_key) */
	struct ofs_key store_key; /* chunk key in the store */
};

/* Counters since open; all numbers of a report are computed from them. */
struct ofs_ledger {
	uint64_t steps; /* (session, step, layer) records */
	uint64_t selected;
	uint64_t demands;
	uint64_t nontrivial;
	uint64_t ends[9]; /* by enum ofs_end */
	uint64_t nontrivial_ends[9];
	uint64_t fates[8][5]; /* by cause, fate */
	uint64_t issued[8];   /* reads issued by cause */
	uint64_t demand_bytes_read;
	uint64_t prefetch_bytes_read;
	uint64_t shadow_misses; /* demand-only LRU of the same size, no latency */
	uint64_t shadow_nontrivial_misses;
	uint64_t pollution; /* demand misses whose block a prefetch had evicted */
	uint64_t evictions;
	uint64_t evictions_generating; /* victims of a generating session: the last resort */
	uint64_t shared_chunks;        /* appended chunks that were already there */
	uint64_t appended_chunks;
	uint64_t io_errors;
	uint64_t leases_expired;
	uint64_t busy;                /* demands answered -EAGAIN */
	uint64_t records_lost;        /* ledger records dropped because the ring was full */
	uint64_t log_bytes_lost;      /* a log with a hole cannot be replayed */
	uint64_t lead_ns_log2[64];    /* prefetched and used: arrival to need */
	uint64_t late_ns_log2[64];    /* late demands: need to arrival */
	uint64_t hint_bytes;          /* of scores and guesses that hosts sent */
	uint64_t demand_bytes_wanted; /* of the blocks read on demand: bytes that the demands named */
	uint64_t demand_bytes_spared; /* of the same blocks: not read, since no demand named them */
	uint64_t degree_now;          /* gauge: prefetch degree after feedback */
	uint64_t resident_slots;      /* gauge */
};

struct ofs_ledger_record {
	uint64_t now_ns;
	uint32_t session;
	uint32_t step;
	uint16_t layer;
	uint8_t end; /* enum ofs_end */
	uint8_t nontrivial;
	uint32_t ordinal;
};

/* The kinds of event, as numbered in the decision log and the work counters. */
enum ofs_event_type {
	OFS_EVENT_OPEN = 1,
	OFS_EVENT_POLICY = 2,
	OFS_EVENT_TENANT = 3,
	OFS_EVENT_SESSION_OPEN = 4,
	OFS_EVENT_APPEND = 5,
	OFS_EVENT_GENERATING = 6,
	OFS_EVENT_CLOSE = 7,
	OFS_EVENT_RELEASE = 8,
	OFS_EVENT_STORED = 9,
	OFS_EVENT_LOST = 10,
	OFS_EVENT_RESTORE = 11,
	OFS_EVENT_FORGET = 12,
	OFS_EVENT_STAGE = 13,
	OFS_EVENT_CLEAN = 14,
	OFS_EVENT_STEP = 15,
	OFS_EVENT_IO_DONE = 16,
	OFS_EVENT_SLOT_FREE = 17,
	OFS_EVENT_TICK = 18,
	OFS_EVENT_RESET = 19,
	OFS_EVENT_HINT = 20,
	OFS_EVENT_DROP = 21,
	OFS_EVENT_COUNT = 22
};

/* The core's tables; docs/reference/work.md describes each. */
enum ofs_table {
	OFS_TABLE_INDEX = 0,   /* from chunk key to chunk number */
	OFS_TABLE_CHUNK = 1,   /* chunks, and their links to sessions */
	OFS_TABLE_BLOCK = 2,   /* words of a block: slot, shadow, ghost, position in the queue, flags */
	OFS_TABLE_SLOT = 3,    /* slots, and which sessions used them */
	OFS_TABLE_ORDER = 4,   /* what eviction keeps apart from the slots: list heads, nodes */
	OFS_TABLE_SHADOW = 5,  /* the demand-only LRU */
	OFS_TABLE_SESSION = 6, /* sessions, their chunk lists and pins */
	OFS_TABLE_LAYER = 7,   /* of a layer of a session: averages, levels, bits, calibration */
	OFS_TABLE_QUEUE = 8,   /* prefetch candidates */
	OFS_TABLE_READ = 9,    /* reads in flight, and the demands that wait for them */
	OFS_TABLE_COUNT = 10
};

/* Work of all events of one kind since open or the last reset. Only the events determine it. */
struct ofs_work {
	uint64_t events;
	uint64_t probes;      /* entries of the chunk index looked at */
	uint64_t heap_moves;  /* candidates written to a position in a heap */
	uint64_t values;      /* scores and averages taken in or compared, each once for each use */
	uint64_t ranked;      /* candidates looked at one by one: likely enough by value, and absent */
	uint64_t rescored;    /* staged blocks whose rank in the eviction order was computed again */
	uint64_t victims;     /* slots looked at to find one that may go */
	uint64_t order_moves; /* entries put into, moved in or taken out of a list */
	uint64_t table_bytes[10]; /* by enum ofs_table: read, written or both */
};

struct ofs_chunk_info {
	struct ofs_key key;       /* directory identity */
	struct ofs_key store_key; /* identity on NVMe */
	uint32_t chunk;
	uint32_t stored_layers; /* how many of its blocks the store has */
	uint32_t references;
	uint32_t reserved;
};

/* A chunk's keys, derived from the tenant's secret; equal for a shared chunk. */
struct ofs_chunk_keys {
	struct ofs_key store_key;
	struct ofs_key key;
};

int ofs_core_open(struct ofs_core **out, const struct ofs_core_config *config,
	const struct ofs_policy *policy);
void ofs_core_close(struct ofs_core *core);

int ofs_core_set_policy(struct ofs_core *core, uint64_t now_ns, const struct ofs_policy *policy);
/* Drop what is staged, clean and not pinned, and what is queued; zero every ledger. */
int ofs_core_reset(struct ofs_core *core, uint64_t now_ns);
int ofs_core_tenant_add(struct ofs_core *core, uint64_t now_ns,
	const struct ofs_tenant_config *config, uint32_t *tenant);
int ofs_core_session_open(struct ofs_core *core, uint64_t now_ns,
	const struct ofs_session_config *config, uint32_t *session);
/*
 * Append `count` chunks by the 128-bit content hash of their tokens; the core chains the keyed
 * prefix hash from the session's last chunk. `infos` [count] gives the keys and what is stored.
 */
int ofs_core_session_append(struct ofs_core *core, uint64_t now_ns, uint32_t session,
	uint32_t count, const struct ofs_key *contents, struct ofs_chunk_info *infos);
/* The same by keys [count] that an earlier append derived: to replay a log without the secret.
 * -EINVAL, nothing changed: keys that no append of this session derives. */
int ofs_core_session_append_keys(struct ofs_core *core, uint64_t now_ns, uint32_t session,
	uint32_t count, const struct ofs_chunk_keys *keys, struct ofs_chunk_info *infos);
int ofs_core_session_set_generating(struct ofs_core *core, uint64_t now_ns, uint32_t session,
	int generating);
/*
 * Drop the session's references and pins; demands that still wait complete with -ECANCELED now,
 * never later. Its chunks stay known while the store has them.
 */
int ofs_core_session_close(struct ofs_core *core, uint64_t now_ns, uint32_t session);

/* The store has / has no longer (store_key of chunk, layer): after a put, expiry, failed check. */
int ofs_core_block_stored(struct ofs_core *core, uint64_t now_ns, uint32_t chunk, uint32_t layer);
int ofs_core_block_lost(struct ofs_core *core, uint64_t now_ns, uint32_t chunk, uint32_t layer);
/* After a restart: the store's recovery found (store_key, layer) of this tenant. */
int ofs_core_block_restore(struct ofs_core *core, uint64_t now_ns, uint32_t tenant,
	const struct ofs_key *store_key, uint32_t layer, uint32_t *chunk);
/* Forget by store key (expiry in the store): every chunk that reads from it loses the block. */
int ofs_core_block_forget(struct ofs_core *core, uint64_t now_ns, uint32_t tenant,
	const struct ofs_key *store_key, uint32_t layer);
/*
 * Write-back: give the written block a slot, dirty (not evictable) until ofs_core_block_clean.
 * The caller carries out the actions, fills the slot and publishes it: no PUBLISH comes for it.
 * -EAGAIN when no slot is free or a read is in flight: the caller writes through instead.
 */
int ofs_core_block_stage(struct ofs_core *core, uint64_t now_ns, uint32_t chunk, uint32_t layer,
	uint32_t *slot, uint32_t *generation);
int ofs_core_block_clean(struct ofs_core *core, uint64_t now_ns, uint32_t chunk, uint32_t layer);
/* Evict the staged copy before its turn (it expired). -ENOENT: not staged; -EAGAIN: held. */
int ofs_core_block_drop(struct ofs_core *core, uint64_t now_ns, uint32_t chunk, uint32_t layer);

/* One layer of one step. `ends` [demand_count] (may be NULL) gets enum ofs_end of every demand. */
int ofs_core_step(struct ofs_core *core, uint64_t now_ns, const struct ofs_step *step,
	uint8_t *ends);
/*
 * At most queue_max guesses of the session; before its first step `steps` counts from that one. An
 * absent block that the store has is prefetched within the policy's bounds, not counted in the
 * degree, and not after its layer has run the step it was meant for; under score eviction it may
 * displace a block of probability v if p >= 4 v (1 - p). A staged block is kept. Under score
 * eviction the guess raises the block's score to that of its probability until the layer's next
 * step; under any other policy a guess of a resident block counts as a use. -EINVAL, nothing
 * changed: a bad session, layer, ordinal or cause.
 */
int ofs_core_hint(struct ofs_core *core, uint64_t now_ns, uint32_t session,
	const struct ofs_guess *guesses, uint32_t count);
/* Release the session's pins now, not at its next step. */
int ofs_core_session_release(struct ofs_core *core, uint64_t now_ns, uint32_t session);
/*
 * The read `io` ended. rc 0: the bytes are in the slot and were checked. rc < 0: the block is lost
 * (-EBADMSG, -EIO, -ENOENT) or only late (any other: it stays known). After -ETIMEDOUT the slot is
 * quarantined until ofs_core_slot_free: the device may still write into it. -ESTALE of a read into
 * a slot with part of a block: the store has other bytes by now; the part is evicted and its
 * demands are retried.
 */
int ofs_core_io_done(struct ofs_core *core, uint64_t now_ns, uint32_t io, int rc);
int ofs_core_slot_free(struct ofs_core *core, uint64_t now_ns, uint32_t tenant, uint32_t slot);
/* Issue reads from the queue, end expired leases. `next_ns`: when to call again, or UINT64_MAX. */
int ofs_core_tick(struct ofs_core *core, uint64_t now_ns, uint64_t *next_ns);

/* Take at most `max` actions in order; returns their number. Take all before the next event. */
int ofs_core_actions(struct ofs_core *core, struct ofs_action *actions, int max);
/* OFS_NONE: all tenants together. */
int ofs_core_ledger(const struct ofs_core *core, uint32_t tenant, struct ofs_ledger *ledger);
/* `work` [OFS_EVENT_COUNT], by enum ofs_event_type. */
int ofs_core_work(const struct ofs_core *core, struct ofs_work *work);
int ofs_core_records(struct ofs_core *core, struct ofs_ledger_record *records, int max);
/* Take decision-log bytes (whole records); returns how many bytes were copied. */
int ofs_core_log(struct ofs_core *core, void *bytes, int size_bytes);
/* The configuration at open, and the current policy. */
int ofs_core_describe(const struct ofs_core *core, struct ofs_core_config *config,
	struct ofs_policy *policy);
/* Walk every table and recompute its counters: 0, or -EFAULT with a line on stderr. Tests only. */
int ofs_core_verify(const struct ofs_core *core);

/*
 * Feed a whole decision log to a fresh core. Returns the number of decisions that agreed;
 * *diverged_at is the byte of the first record that differs, or UINT64_MAX. -EBADMSG: a torn or
 * foreign log. `work` [OFS_EVENT_COUNT] (may be NULL): the fresh core's work by kind of event.
 */
int64_t ofs_core_replay(const void *log, uint64_t size_bytes, uint64_t *diverged_at,
	struct ofs_work *work);
/* cdef: end */

/*
 * The first chunks of a session, `count` of one content: the first is named as by an append, the
 * others by ofs_fold_key of its keys. -EINVAL: the session has chunks.
 */
int ofs_core_session_append_folded(struct ofs_core *core, uint64_t now_ns, uint32_t session,
	uint32_t count, const struct ofs_key *content, struct ofs_chunk_info *infos);

/* Bytes a core of this configuration takes; 0 when the configuration is not valid. */
uint64_t ofs_core_size_bytes(const struct ofs_core_config *config);
/* The tenant's common chunk under this store key; OFS_NONE: there is none. */
uint32_t ofs_core_chunk_find(const struct ofs_core *core, uint32_t tenant,
	const struct ofs_key *store_key);

/* The store key of a chunk of this content that is the first of its chain. */
struct ofs_key ofs_core_first_key(const struct ofs_core *core, uint32_t tenant,
	const struct ofs_key *content);

/* Sessions that read from this store key now, through chunks they share or private ones. */
uint32_t ofs_core_store_references(const struct ofs_core *core, uint32_t tenant,
	const struct ofs_key *store_key);

/*
 * The slot, within the tenant's part, that has the block (returns 1) or will have it when its read
 * has ended (0); -ENOENT: none; -EINVAL: no such block.
 */
int ofs_core_block_slot(const struct ofs_core *core, uint32_t chunk, uint32_t layer,
	uint32_t *slot);
/* Whether the store has the block, as far as the core knows; 0 if there is no such block. */
int ofs_core_block_is_stored(const struct ofs_core *core, uint32_t chunk, uint32_t layer);

/* Whether the cause is a prefetch, not a demand. */
static inline int
ofs_cause_is_prefetch(uint32_t cause)
{
	return cause >= OFS_CAUSE_WINDOW;
}

/* A chunk under its store key. `kept`: no session names it, and the store has blocks of it. */
struct ofs_chunk_state {
	struct ofs_key store_key;
	uint32_t tenant;
	uint32_t stored_layers;
	uint32_t references; /* of open sessions; of a home: through any chunk that reads from it */
	uint32_t slots;      /* that have its blocks, or will */
	int kept;
};

/* -ENOENT: no chunk has this number. */
int ofs_core_chunk_state(const struct ofs_core *core, uint32_t chunk,
	struct ofs_chunk_state *state);

/* A tenant's chunks in the table. */
uint32_t ofs_core_chunk_count(const struct ofs_core *core, uint32_t tenant);

/*
 * A dry run of an append: chunks [count] whose store keys it would read, OFS_NONE for none. Returns
 * how many chunks it would create; -EINVAL: no such session is open.
 */
int ofs_core_session_look(const struct ofs_core *core, uint32_t session, uint32_t count,
	const struct ofs_key *contents, uint32_t *chunks);

/* The chunk whose store key this existing chunk reads. */
uint32_t ofs_core_chunk_home(const struct ofs_core *core, uint32_t chunk);

/* An open session as it is now. Sinks and window, part of every selection, are trivial. */
struct ofs_session_view {
	uint32_t tenant;
	uint32_t chunk_count;
	uint32_t sink_end;     /* the first ordinal after the sinks */
	uint32_t window_begin; /* the first of the window */
};

static inline int
ofs_view_is_nontrivial(const struct ofs_session_view *view, uint32_t ordinal)
{
	return ordinal >= view->sink_end && ordinal < view->window_begin;
}

/* -EINVAL: no such session is open. */
int ofs_core_session_view(const struct ofs_core *core, uint32_t session,
	struct ofs_session_view *view);
/* The chunk of an ordinal below the view's chunk_count. */
uint32_t ofs_core_session_chunk(const struct ofs_core *core, uint32_t session, uint32_t ordinal);
/* The tenant's counters themselves, without the gauges: they change with the core. */
const struct ofs_ledger *ofs_core_ledger_of(const struct ofs_core *core, uint32_t tenant);

#endif
