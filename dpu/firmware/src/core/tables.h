/*
 * tables.h: the tables of the decision core.
 *
 * Model: one allocation made at open contains every table; one core owns it and one thread uses it.
 * A *block* is numbered layer * chunk_max + chunk, so that one layer of one session is contiguous.
 * A *slot* is numbered over the whole arena; a tenant owns slots [slot_base, slot_base +
 * slot_count). Lists are links inside the slots.
 */
#ifndef OFS_CORE_TABLES_H
#define OFS_CORE_TABLES_H

#include "heap.h"
#include "ofs_core.h"

#define OFS_BUCKETS 256
#define OFS_INDEX_PROBE_MAX 1024
#define OFS_SCORE_HIGHEST 65535
#define OFS_LEVELS 64
#define OFS_LEVEL_TRIVIAL OFS_LEVELS /* of sinks and window, whatever their average */
#define OFS_CLASSES (OFS_LEVELS + 1)
#define OFS_LEVEL_SHIFT 10 /* level of a 16-bit average */
#define OFS_OCTAVE 8u      /* buckets per doubling of the chance */
#define OFS_LEASE_END UINT32_MAX
#define OFS_BURST_BLOCKS 16 /* blocks that the bandwidth cap allows in a burst after idle time */

enum ofs_slot_state {
	OFS_SLOT_FREE = 0,
	OFS_SLOT_PENDING = 1, /* a demand owns it and waits for a read handle */
	OFS_SLOT_READING = 2,
	OFS_SLOT_RESIDENT = 3,
	OFS_SLOT_QUARANTINED = 4
};

#define OFS_FLAG_FRESH 0x1    /* prefetched, and no demand has hit it yet */
#define OFS_FLAG_DIRTY 0x2    /* written by the host, not yet in the store */
#define OFS_FLAG_PREFETCH 0x4 /* its read counts against the prefetch bound */
#define OFS_FLAG_HINTED 0x8   /* prefetched on a guess of the host */
#define OFS_FLAG_LIFTED 0x10  /* its score is a guess of its owner, above the measured one */
#define OFS_FLAG_FILLING 0x20 /* resident, and the granules that it lacks are being read */

#define OFS_BLOCK_STORED 0x1   /* kept at the home chunk's number */
#define OFS_BLOCK_POLLUTED 0x2 /* its last eviction was by a prefetch */

/* One cache line. */
struct ofs_slot {
	uint32_t next; /* in its eviction list, or in the list of pending demands */
	uint32_t prev;
	uint32_t chunk;
	uint16_t layer;
	uint8_t state;
	uint8_t cause;
	uint32_t generation;
	uint32_t pins;
	uint16_t score;    /* bucket of the probability of a demand */
	uint8_t frequency; /* of use, as its eviction policy counts it */
	uint8_t flags;
	uint32_t owner;     /* the session that its score comes from */
	uint32_t staged_by; /* serial of the session, 0 none */
	uint32_t used_by;
	uint64_t arrived_ns;
	uint32_t waiters;  /* last of a ring of waiters */
	uint32_t bucket;   /* list inside its set */
	uint32_t set;      /* tenant * 2 + (a generating session refers to it) */
	uint32_t position; /* random: index in the set's array; lru_k: which node is newer */
};
_Static_assert(sizeof(struct ofs_slot) == 64, "a slot is one cache line");

typedef unsigned __int128 ofs_wide;

struct ofs_list {
	uint32_t head, tail, count;
};

/* One entry in the order of a policy that needs more than a slot's own links. */
struct ofs_node {
	uint32_t block; /* of a ghost */
	uint32_t next, prev;
};

/* Eviction's state of one set, apart from its lists of slots. */
struct ofs_evict_set {
	struct ofs_list references; /* lru_k: nodes in the order of time */
	uint32_t hand;              /* sieve: the hand's slot, OFS_NONE: at the oldest */
};

/* What eviction remembers of a tenant's evicted blocks: evict_ghost.c. */
enum ofs_ghost {
	OFS_GHOST_ONCE = 0,    /* s3fifo: left the small queue; arc: B1 */
	OFS_GHOST_OFTEN = 1,   /* arc: B2 */
	OFS_GHOST_RETURNS = 2, /* was a ghost, and a slot was requested for it */
	OFS_GHOST_LISTS = 3
};

struct ofs_chunk {
	struct ofs_key key;
	uint32_t home; /* the chunk whose key is the store key; itself unless private */
	uint32_t tenant;
	uint32_t references;       /* sessions */
	uint32_t home_references;  /* private chunks that read from this one */
	uint32_t store_references; /* at the home: sessions of it and of its private chunks */
	uint32_t generating;       /* of these sessions, those that generate */
	uint32_t slots;            /* slots that have or await a block of it */
	uint32_t stored;           /* layers in the store; counted at the home */
	uint32_t link;             /* first session link */
	uint32_t used;
};

struct ofs_session {
	struct ofs_session_config config;
	uint64_t opened_event;
	uint64_t step_begin_ns;
	uint64_t step_ns;
	uint64_t layer_ns;
	uint64_t lease_begin_ns;
	uint32_t serial;
	uint32_t count; /* in chunks */
	uint32_t step;
	uint32_t pin_count;
	uint32_t lease_next, lease_prev;
	uint8_t open, generating, shared, stepped, leased;
};

struct ofs_pin {
	uint32_t slot, generation;
};

struct ofs_tenant {
	struct ofs_key secret;
	uint32_t slot_base, slot_count;
	uint32_t free_count;
	uint32_t resident;
	uint32_t chunk_count; /* of the table, this tenant's chunks */
	uint32_t shadow_head, shadow_tail, shadow_count;
	struct ofs_list ghosts[OFS_GHOST_LISTS];
	uint32_t ghost_free;  /* first free node that was used before */
	uint32_t ghost_fresh; /* first node that was never used */
	ofs_wide arc_target;  /* p, of the size of T1, in 2^-52 blocks */
	uint8_t arc_often;    /* the requested block was in B2 */
	uint8_t filled;       /* s3fifo: a victim was requested */
	uint64_t stride, pass;
	uint32_t queue_count;
	uint32_t degree;
	uint64_t margin_ns;
	uint32_t fate_used, fate_late, fate_unused; /* since the last feedback */
	uint32_t used;
};

struct ofs_candidate {
	struct ofs_heap_key key; /* deadline_ns; then the most probable, then the oldest: queue.c */
	uint32_t block;
	uint32_t session;
	uint32_t stamp; /* of the layer, up to which it is valid */
	uint16_t probability;
	uint8_t cause;
	uint8_t hinted; /* a guess of the host */
};

struct ofs_wait {
	uint64_t need_ns;
	uint32_t next;
	uint32_t session;
	uint32_t serial;
	uint32_t waiter;
	uint32_t index;
	uint32_t late; /* counted as late in the ledger */
};

/* The granules of its block that a slot has, is reading, and wants: granule.c. */
struct ofs_part {
	uint32_t valid, reading, wanted;
};

struct ofs_read_handle {
	uint32_t slot, generation, used;
};

struct ofs_shadow {
	uint32_t block, next, prev;
};

/* What one (session, layer) remembers between steps. */
struct ofs_layer {
	uint32_t stamp; /* steps of this layer so far: older candidates are superseded */
	uint32_t step;  /* the last of them, as the host numbers it */
	uint32_t known; /* ordinals whose average has seen a score */
	uint32_t last_count;
	uint32_t chosen_count;
	uint32_t overlap_permille;
	uint32_t windowed; /* ordinals that the window has proposed */
	uint32_t lifted;   /* its row of lifted blocks has a bit */
	uint32_t cut;      /* score of the last that would be selected */
};

/* What one (session, layer) has measured: calibrate.c. */
struct ofs_calibration {
	uint32_t exposure[OFS_CLASSES];
	uint32_t demanded[OFS_CLASSES];
	uint16_t chance[OFS_CLASSES]; /* of a demand within a round of steps, 1 is 65535 */
	uint8_t bucket[OFS_CLASSES];  /* of the chance, for eviction */
	uint64_t exposures;           /* over all classes */
	uint32_t noted;               /* ordinals in the current round; 0: there is none */
	uint32_t steps;               /* of the current round, so far */
};

#define OFS_VISITS_MAX 3u /* entries that one list operation visits */

/* The cost of one kind of event: work.h. */
struct ofs_tally {
	struct ofs_work work; /* without the numbers below, which are added on request */
	uint64_t demands;
	uint64_t unpinned;
	uint64_t lists[OFS_TABLE_COUNT][OFS_VISITS_MAX + 1]; /* operations, by visits */
};

struct ofs_core {
	struct ofs_core_config config;
	struct ofs_policy policy;
	const struct ofs_evict_ops *evict;
	uint64_t now_ns;
	uint64_t event;
	uint64_t random_count;
	uint64_t size_bytes;
	struct ofs_tally *tally; /* of the kind of the current event */
	/* tables */
	struct ofs_tenant *tenants;
	struct ofs_session *sessions;
	struct ofs_chunk *chunks;
	struct ofs_slot *slots;
	struct ofs_part *parts; /* [slot_count] if there are granules */
	struct ofs_read_handle *ios;
	struct ofs_wait *waiters;
	uint32_t *waiter_granules;   /* parallel to `waiters`, if there are granules */
	struct ofs_candidate *queue; /* [tenant_max][queue_max], a heap each */
	struct ofs_ledger *ledgers;
	struct ofs_layer *layers;             /* [session_max][layer_count] */
	struct ofs_calibration *calibrations; /* the same shape */
	struct ofs_list *lists;               /* [tenant_max * 2][OFS_BUCKETS] */
	uint64_t *occupied;                   /* [tenant_max * 2][OFS_BUCKETS / 64] */
	struct ofs_evict_set *evict_sets;     /* [tenant_max * 2] */
	struct ofs_node *nodes;               /* [2 * slot_count], a tenant's part at 2 * slot_base */
	uint64_t *used_bits;  /* [slot_count][used_words]: sessions that used it as staged */
	uint64_t *chosen;     /* [session_max][layer_count][row_words]: last selection */
	uint64_t *held;       /* the same shape: the block has a slot, in any state */
	uint64_t *asked;      /* the same shape: demanded since the levels were noted */
	uint64_t *lifted;     /* the same shape: may have the score of a guess until the layer runs */
	uint64_t *block_gone; /* event at which the block was last evicted */
	uint32_t *block_slot;
	uint32_t *block_shadow;
	uint32_t *block_ghost;  /* (node + 1) * 4 + list; 0: no ghost */
	uint32_t *block_queued; /* position in its tenant's heap */
	uint8_t *block_flags;
	uint32_t *session_chunks;        /* [session_max][session_chunk_max] */
	uint32_t *link_next, *link_prev; /* [session_max << link_shift] */
	uint16_t *averages;              /* [session_max][layer_count][session_chunk_max] */
	uint8_t *levels;                 /* the same shape, as noted when the round began */
	uint32_t *last_demands;          /* [session_max][layer_count][demand_max] */
	struct ofs_pin *pins;            /* [session_max][demand_max] */
	struct ofs_shadow *shadows;      /* [slot_count], a tenant's part as in the arena */
	uint32_t *index;                 /* chunk + 1, 0 empty */
	uint32_t *free_slots, *free_chunks, *free_ios, *free_waiters, *free_sessions;
	uint32_t *random_slots; /* [2][slot_count] */
	uint32_t *misses;       /* [demand_max] of the current step */
	uint8_t *ends;          /* [demand_max] */
	uint16_t *predicted;    /* [session_chunk_max] */
	uint64_t *best;         /* [session_chunk_max]: chance, value, ordinal */
	uint64_t *above;        /* [row_words]: values at or above a cut */
	uint16_t *hint;         /* [row_words * 64]: a step's scores, as far as they are used */
	struct ofs_action *actions;
	struct ofs_ledger_record *records;
	struct ofs_chunk_keys *append_keys; /* [session_chunk_max] of the current append */
	unsigned char *log, *log_scratch;
	/* their state */
	uint32_t index_mask;
	uint32_t link_shift;
	uint32_t used_words, row_words;
	uint32_t tenant_count, slots_given;
	uint32_t free_chunk_count, free_io_count, free_waiter_count, free_session_count;
	uint32_t session_serial;
	uint32_t pending_head, pending_tail;
	uint32_t io_in_flight, prefetch_in_flight;
	uint32_t lease_head, lease_tail;
	uint32_t proposed, propose_max; /* of the current step */
	uint32_t action_head, action_tail, action_max, action_worst;
	uint32_t record_head, record_count;
	uint32_t logged_actions; /* action_tail when the event began */
	uint64_t queue_sequence;
	uint64_t queue_pass;
	uint64_t bucket_ns; /* bandwidth cap: when the next block is due */
	uint64_t block_cost_ns;
	uint64_t log_head, log_tail, log_sequence, log_check, log_scratch_bytes;
	struct ofs_tally tallies[OFS_EVENT_COUNT];
};

#endif
