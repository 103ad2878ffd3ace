/*
 * engine.h: what the files of the engine share.
 *
 * Model: a heap of events ordered by (time, sequence); one event runs to its end before the next. A
 * batch slot holds one session, the slab it is fed from and the rows it has run; the rows of the
 * current step stay open for the reads that belong to it. The timing side supplies all durations:
 * an end that it knows immediately becomes an event; it reports the others when they are due,
 * before the engine's own events of that time. One thread owns an engine and its core.
 */
#ifndef OFS_SIM_ENGINE_H
#define OFS_SIM_ENGINE_H

#include <string.h>

#include "heap.h"
#include "ofs_sim.h"

enum ofs_sim_event_kind {
	OFS_SIM_BEGIN = 0,   /* the guesses before a session's first step */
	OFS_SIM_LAYER = 1,   /* the session's next layer may demand */
	OFS_SIM_RETRY = 2,   /* the same demands again */
	OFS_SIM_DECIDE = 3,  /* the command with the layer's demands has been taken */
	OFS_SIM_SERVED = 4,  /* the host has the layer's blocks */
	OFS_SIM_READ = 5,    /* id: a read handle */
	OFS_SIM_WRITTEN = 6, /* the appended chunk's block of a layer */
	OFS_SIM_TICK = 7
};

struct ofs_sim_event {
	struct ofs_heap_key key; /* time_ns, then in order of arrival */
	uint16_t kind;
	uint16_t layer;
	uint32_t id; /* a batch slot, or a read handle */
};

struct ofs_sim_heap {
	struct ofs_sim_event *events;
	uint32_t count, max;
	uint64_t sequence;
};

struct ofs_batch_slot {
	struct ofs_slab slab;
	struct ofs_session_view view;    /* when the current layer began */
	const struct ofs_guess *guesses; /* passed when it begins */
	struct ofs_row *rows;            /* of whole steps; followed by those of the current step */
	uint64_t need_ns;                /* when the current layer demanded */
	uint32_t row_count, row_max;
	uint32_t guess_count;
	uint32_t session;
	uint32_t step, layer; /* the current one, or the next */
	uint32_t slab_step;   /* of the slab */
	uint32_t demanded;    /* by the current layer */
	uint32_t remaining;   /* demands that have not completed */
	uint32_t busy;        /* of them, how many must be retried */
	uint32_t appended;
	uint32_t writing; /* blocks of the appended chunk that are not on the medium yet */
	uint32_t written_chunk;
	uint8_t running, fed;
	uint8_t retrying; /* the command in flight repeats an earlier one */
	uint8_t waiting;  /* the next layer waits for the writes */
};

struct ofs_engine {
	struct ofs_core *core;
	struct ofs_timing *timing;
	struct ofs_engine_config config;
	struct ofs_core_config core_config;
	struct ofs_sim_heap heap;
	struct ofs_batch_slot *batch_slots;
	uint32_t *batch_slot_of; /* [session_max] */
	uint32_t *demands;       /* [demand_max] of the current layer */
	uint8_t *ends;           /* the same */
	uint64_t *used;          /* [layer_count][chunk_max] units; NULL: no slab had any so far */
	uint64_t gone[OFS_ENGINE_UNITS_MAX + 1]; /* blocks, by the units they were used for */
	uint32_t layer_count;
	uint32_t later_count; /* ends that the timing side still owes */
	uint64_t now_ns, tick_ns;
	uint64_t reads, failed;
	uint32_t tick_count;
	int ticks;  /* the policy has a bandwidth cap or a lease */
	int scores; /* the policy looks at scores */
};

#pragma GCC visibility push(hidden)

/* heap.c */
int ofs_sim_push(struct ofs_sim_heap *heap, uint64_t time_ns, uint32_t kind, uint32_t layer,
	uint32_t id);
struct ofs_sim_event ofs_sim_pop(struct ofs_sim_heap *heap);

/* rows.c */
int ofs_sim_rows_open(struct ofs_engine *engine, uint32_t batch_slot);
void ofs_sim_rows_end(struct ofs_engine *engine, uint32_t batch_slot);
struct ofs_row *ofs_sim_row(struct ofs_engine *engine, uint32_t batch_slot, uint32_t layer);
void ofs_sim_row_step(struct ofs_row *row, const struct ofs_ledger *before,
	const struct ofs_ledger *after);
void ofs_sim_row_read(struct ofs_engine *engine, const struct ofs_action *action);

/* uses.c */
int ofs_sim_uses_open(struct ofs_engine *engine);
void ofs_sim_uses_add(struct ofs_engine *engine, const struct ofs_batch_slot *p, uint64_t at);
void ofs_sim_uses_end(struct ofs_engine *engine, const struct ofs_action *retract);

/* device.c */
int ofs_sim_read(struct ofs_engine *engine, const struct ofs_action *action);
/* When it ends, in ns; OFS_TIMING_LATER: an OFS_SIM_WRITTEN, _SERVED or _DECIDE follows. */
uint64_t ofs_sim_write_end(struct ofs_engine *engine, uint32_t batch_slot, uint32_t layer);
uint64_t ofs_sim_hit_end(struct ofs_engine *engine, uint32_t batch_slot, uint32_t layer);
uint64_t ofs_sim_command_end(struct ofs_engine *engine, uint32_t batch_slot,
	const struct ofs_step *step);
/* When the timing side may report an end; UINT64_MAX: it owes none. */
uint64_t ofs_sim_device_next_ns(const struct ofs_engine *engine);
/* 1: the next end that it owes, as an event at now; 0: there is none. */
int ofs_sim_device_poll(struct ofs_engine *engine, struct ofs_sim_event *event);

/* layer.c */
int ofs_sim_act(struct ofs_engine *engine);
int ofs_sim_guess(struct ofs_engine *engine, uint32_t batch_slot, const struct ofs_guess *guesses,
	uint64_t count);
int ofs_sim_layer(struct ofs_engine *engine, uint32_t batch_slot, int retry);
int ofs_sim_decide(struct ofs_engine *engine, uint32_t batch_slot);
int ofs_sim_written(struct ofs_engine *engine, uint32_t batch_slot, uint32_t layer);
int ofs_sim_next_layer(struct ofs_engine *engine, uint32_t batch_slot, uint64_t served_ns);

#pragma GCC visibility pop

#endif
